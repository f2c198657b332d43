"""The parts of many row keys are those of each key, and what is no key is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow_columns import KeyParts, stored
from tests.schema.values import QUICK, VALUES, table

KINDS = sorted(VALUES)


def check(definition: TableDefinition, keys: Sequence[bytes]) -> None:
    # They begin in the middle of an array, as those of a slice do.
    found = KeyParts(definition, pa.array([*keys[:1], *keys], pa.binary()).slice(len(keys[:1])))
    expected = [KeyCodec(definition).split(key) for key in keys]
    for place, column in enumerate(definition.key_columns):
        parts = stored(column_type(column.type), found.column(column.name))
        assert parts == [row[place] for row in expected]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), st.data())
@QUICK
def test_parts_of_keys_of_every_type(kinds: list[str], data: st.DataObject) -> None:
    definition = table(*kinds)
    row = st.tuples(*(VALUES[kind] for kind in kinds))
    keys = [KeyCodec(definition).encode(values) for values in data.draw(st.lists(row, max_size=5))]
    check(definition, keys)


def is_key(definition: TableDefinition, row: bytes) -> bool:
    try:
        KeyCodec(definition).split(row)
    except ValueError:
        return False
    return True


BYTES = st.lists(st.sampled_from([0, 0, 1, 255, 97]), max_size=12).map(bytes)


@given(
    st.lists(st.sampled_from(["bytes", "bytes", "date", "bool"]), min_size=1, max_size=4),
    st.lists(BYTES, max_size=6),
)
@QUICK
def test_what_is_no_key_is_refused(kinds: list[str], rows: list[bytes]) -> None:
    definition = table(*kinds)
    keys = [row for row in rows if is_key(definition, row)]
    for row in rows:
        if row not in keys:
            with pytest.raises(ValueError, match="is no key of this table"):
                KeyParts(definition, pa.array([*keys, row, *keys], pa.binary()))
    if all(column.type == "bytes" for column in definition.key_columns):
        check(definition, keys)


def test_a_mark_of_two_keys_ends_none() -> None:
    definition = TableDefinition("t", columns=(Column("a", "bytes"), Column("b", "bytes")), key=("a", "b"))
    with pytest.raises(ValueError, match="is no key of this table"):
        KeyParts(definition, pa.array([b"a\0", b"\1b\0\1"], pa.binary()))
