"""A predicate over Arrow columns has the same result for each row as in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from percolator_core.base.predicate import Spread, may_be_true, rows_where, spread_of
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.predicates import OPERATORS, Bound, Group, bind
from percolator_core.schema.predicates import Test as Comparison
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow_columns import of_values
from percolator_core.tables.arrow_values import arrow_type
from tests.schema.predicates import EVERY, predicates, rows
from tests.schema.values import FLOATS, INTS, QUICK, VALUES

Row = Mapping[str, bytes | None]


def encoded_rows(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    kinds = {column.name: column_type(column.type) for column in EVERY.columns}
    return [
        {name: None if value is None else kinds[name].encode(value) for name, value in row.items()}
        for row in found
    ]


def check(bound: Bound, definition: TableDefinition, found: Sequence[Row]) -> None:
    def cells(name: str) -> list[bytes | None]:
        missing = definition.column(name).missing
        return [missing if row[name] is None else row[name] for row in found]

    def column(name: str) -> pa.Array:
        # It begins in the middle of an array, as that of a slice does.
        values = cells(name)
        return of_values(column_type(definition.column(name).type), values[:1] + values)[len(values[:1]) :]

    expected = [bound.holds(lambda name, at=at: cells(name)[at]) is True for at in range(len(found))]  # type: ignore[misc]
    assert rows_where(bound, definition, column, len(found)).to_pylist() == expected


@given(st.data())
@QUICK
def test_random_predicates_over_all_types(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(rows(), max_size=6))
    predicate = data.draw(predicates(row=drawn[0] if drawn else None))
    definition = EVERY
    if data.draw(st.booleans()):
        columns = tuple(
            replace(column, missing=column_type(column.type).encode(data.draw(VALUES[column.type])))
            if column.nullable and column.type in VALUES
            else column
            for column in EVERY.columns
        )
        definition = EVERY.with_(columns=columns)
    check(bind(predicate, definition), definition, encoded_rows(drawn))


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
@QUICK
def test_each_operator_of_each_type(kind: str, data: st.DataObject) -> None:
    [column] = [one for one in EVERY.columns if one.type == kind]
    encode = column_type(kind).encode
    values = [encode(one) for one in data.draw(st.lists(VALUES[kind], min_size=1, max_size=8))]
    cells = [*values, None] if column.nullable else values
    found: list[Row] = [{column.name: value} for value in cells]
    wanted = data.draw(st.sampled_from(values))
    tests = [Comparison(column.name, op, (wanted,)) for op in OPERATORS if op != "^="]
    tests.append(Comparison(column.name, "in", tuple(sorted(set(values[: data.draw(st.integers(0, 3))])))))
    for test in tests:
        check(test, EVERY, found)
        check(Group("not", (test,)), EVERY, found)
        check(test, EVERY, [])


@pytest.mark.parametrize("kind", ["str", "bytes"])
@given(data=st.data())
@QUICK
def test_starts_with(kind: str, data: st.DataObject) -> None:
    [column] = [one for one in EVERY.columns if one.type == kind]
    values = data.draw(st.lists(VALUES[kind], min_size=1, max_size=8))
    prefix = data.draw(st.sampled_from(values))[: data.draw(st.integers(0, 3))]
    encode = column_type(kind).encode
    found = [{column.name: encode(value)} for value in values]
    test = Comparison(column.name, "^=", (encode(prefix),))
    check(test, EVERY, found)
    check(Group("not", (test,)), EVERY, found)


@pytest.mark.parametrize(
    ("kind", "samples"),
    [("float", FLOATS), ("int", [one for one in INTS if -(2**63) <= one < 2**63])],
)
def test_edges_against_each_other(kind: str, samples: list[Any]) -> None:
    [column] = [one for one in EVERY.columns if one.type == kind]
    values = [column_type(kind).encode(one) for one in samples]
    found = [{column.name: value} for value in values]
    for value in values:
        for op in OPERATORS:
            if op != "^=":
                check(Comparison(column.name, op, (value,)), EVERY, found)


def test_a_nan_that_arrow_keeps_is_the_one_nan() -> None:
    [column] = [one for one in EVERY.columns if one.type == "float"]
    numbers = pa.array([float("nan"), -float("nan"), -0.0, None], arrow_type("float"))
    for value, expected in ((float("nan"), [True, True, False, False]), (0.0, [False, False, True, False])):
        test = Comparison(column.name, "=", (column_type("float").encode(value),))
        assert rows_where(test, EVERY, lambda _: numbers, 4).to_pylist() == expected


def test_columns_on_which_nothing_depends_are_not_asked_for() -> None:
    asked = []

    def column(name: str) -> pa.Array:
        asked.append(name)
        return of_values(column_type(EVERY.column(name).type), [column_type("bool").encode(False)] * 3)

    [flag] = [one.name for one in EVERY.columns if one.type == "bool"]
    is_true, other = Comparison(flag, "=", (b"\1",)), Comparison("b", "null")
    assert rows_where(Group("and", (is_true, other)), EVERY, column, 3).to_pylist() == [False] * 3
    assert (
        rows_where(Group("or", (Group("not", (is_true,)), other)), EVERY, column, 3).to_pylist() == [True] * 3
    )
    assert asked == [flag, flag]


@pytest.mark.parametrize(("how", "expected"), [("and", True), ("or", False)])
def test_no_parts(how: Any, expected: bool) -> None:
    def column(name: str) -> pa.Array:
        raise AssertionError(name)

    assert rows_where(Group(how, ()), EVERY, column, 2).to_pylist() == [expected] * 2


@pytest.mark.parametrize("how", ["and", "or"])
def test_unknown_is_neither_true_nor_false(how: Any) -> None:
    one, other = [column.name for column in EVERY.columns if column.nullable][:2]
    found = [{one: left, other: right} for left in (b"a", b"A", None) for right in (b"a", b"A", None)]
    definition = TableDefinition("t", columns=tuple(Column(name, "bytes", True) for name in (one, other)))
    parts = (Comparison(one, "^=", (b"a",)), Comparison(other, "in", (b"a",)))
    for bound in (Group(how, parts), Group("not", (Group(how, parts),))):
        check(bound, definition, found)


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
@QUICK
def test_statistics_leave_out_no_group_with_a_match(kind: str, data: st.DataObject) -> None:
    encode = column_type(kind).encode
    values = VALUES[kind].map(encode)
    cells = data.draw(st.lists(values | st.none(), min_size=1, max_size=3))
    column = Column("c", kind, True, missing=data.draw(values | st.none()))
    memory = pa.BufferOutputStream()
    parquet.write_table(pa.table({"c": of_values(column_type(kind), cells)}), memory)
    group = parquet.read_metadata(pa.BufferReader(memory.getvalue())).row_group(0)
    spread = spread_of(column, group.column(0).statistics)
    some = [one for one in (*cells, column.missing) if one is not None]
    wanted = data.draw(st.sampled_from(some) | values if some else values)
    tests = [Comparison("c", "in", (wanted,)), Comparison("c", "null")]
    tests += [Comparison("c", op, (wanted,)) for op in OPERATORS if op != "^="]
    if kind in {"str", "bytes"}:
        tests += [Comparison("c", "^=", (wanted[:end],)) for end in range(len(wanted) + 1)]
    for test in tests:
        expected = [column.missing if cell is None else cell for cell in cells]
        true = [test.holds(lambda _, cell=cell: cell) is True for cell in expected]  # type: ignore[misc]
        assert may_be_true(test, lambda _: spread) or not any(true), test
        found = Spread.of(expected)
        assert may_be_true(test, lambda _, found=found: found) or not any(true), test  # type: ignore[misc]
        if len(cells) == 1 and test.op != "^=" and kind != "float":
            assert may_be_true(test, lambda _: spread) == any(true), test
    assert may_be_true(Group("not", (tests[0],)), lambda _: spread)


@pytest.mark.parametrize(
    ("low", "high", "prefix", "expected"),
    [
        (b"ab", b"b", b"a", True),
        (b"ab", b"b", b"aa", False),
        (b"ab", b"b", b"bb", False),
        (b"a", b"b", b"", True),
        (b"\xff\xfe", b"\xff\xff", b"\xff", True),
        (b"a", b"\xff", b"\xff\xff", False),
    ],
)
def test_a_prefix_among_statistics(low: bytes, high: bytes, prefix: bytes, expected: bool) -> None:
    spread = Spread(low, high, has_null=False)
    assert may_be_true(Comparison("c", "^=", (prefix,)), lambda _: spread) == expected
