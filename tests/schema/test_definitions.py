"""Definitions are the same again from what the catalog keeps."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from percolator_core.schema.definitions import (
    Column,
    HashRule,
    IndexRule,
    RangeRule,
    TableDefinition,
    ViewRule,
    from_json,
    to_json,
)
from tests.schema.values import QUICK, table

NAMES = st.text(max_size=5)
VIEWS = st.none() | st.builds(ViewRule, NAMES, NAMES, st.lists(NAMES, max_size=2).map(tuple))
RAW = st.builds(
    TableDefinition,
    NAMES,
    st.integers(1, 1000),
    st.lists(NAMES, max_size=2).map(tuple),
    view=VIEWS,
)
COLUMNS = st.builds(
    Column,
    NAMES,
    st.sampled_from(["int", "str", "decimal(5,2)"]),
    st.booleans(),
    NAMES,
    st.none() | st.binary(max_size=4),
)
TYPED = st.builds(
    TableDefinition,
    NAMES,
    st.integers(1, 1000),
    st.lists(NAMES, max_size=2).map(tuple),
    columns=st.lists(COLUMNS, min_size=1, max_size=3).map(tuple),
    key=st.lists(NAMES, max_size=2).map(tuple),
    hashes=st.lists(
        st.builds(HashRule, st.lists(NAMES, max_size=2).map(tuple), st.integers(1, 9)), max_size=2
    ).map(tuple),
    ranges=st.none()
    | st.builds(
        RangeRule,
        NAMES,
        st.lists(st.binary(max_size=3), max_size=3).map(tuple),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    indexes=st.lists(st.builds(IndexRule, NAMES, st.booleans(), NAMES), max_size=2).map(tuple),
    retired=st.lists(NAMES, max_size=2).map(tuple),
    index_of=NAMES,
    view=VIEWS,
)


@QUICK
@given(RAW | TYPED)
def test_a_definition_comes_back(definition: TableDefinition) -> None:
    assert from_json(json.loads(json.dumps(to_json(definition)))) == definition


def test_a_raw_table_is_kept_as_before_there_were_types() -> None:
    raw = TableDefinition("t", 4, ("dirty",))
    assert to_json(raw) == {"name": "t", "tablets": 4, "notify_only": ["dirty"]}
    assert from_json(to_json(raw)) == raw
    assert not raw.is_typed


def test_columns_of_the_key_and_others() -> None:
    definition = table("int", "str", "bool", key=2)
    turned = definition.with_(key=("b", "a"))
    assert [column.name for column in turned.key_columns] == ["b", "a"]
    assert [column.name for column in turned.value_columns] == ["c"]
    assert definition.by_name["c"].nullable
    assert definition == table("int", "str", "bool", key=2)
    assert hash(definition) == hash(table("int", "str", "bool", key=2))
    assert turned != definition


def test_a_column_that_is_renamed_keeps_its_name_in_the_store() -> None:
    column = Column("old", "int")
    assert column.stored == "old"
    assert replace(column, name="new").stored == "old"
