"""Random predicates over a table of all types, and a second way to compute their results for a row."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.predicates import (
    Cells,
    Comparison,
    In,
    IsNull,
    Joined,
    Not,
    Operator,
    Predicate,
)
from percolator_core.schema.types import column_type
from tests.schema.values import VALUES, rank, table

TYPES = (*VALUES, "json")
EVERY: TableDefinition = table(*TYPES, key=2)
KINDS = {column.name: column.type for column in EVERY.columns}
PLAIN: list[Operator] = ["=", "!=", "<", "<=", ">", ">="]
Row = Mapping[str, Any]

COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "^=": lambda found, wanted: found[: len(wanted)] == wanted,
}


def rows(definition: TableDefinition = EVERY) -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries(
        {
            column.name: (st.none() if column.nullable else st.nothing())
            | (VALUES[column.type] if column.type in VALUES else st.just([]))
            for column in definition.columns
        }
    )


@st.composite
def comparisons(draw: st.DrawFn, definition: TableDefinition, row: Row | None) -> Predicate:
    """One comparison; some of those with the values of the row."""
    column = draw(st.sampled_from(definition.columns))
    if column.type == "json":
        return IsNull(column.name)
    values = VALUES[column.type]
    if row is not None and row[column.name] is not None:
        values |= st.just(row[column.name])
    how = draw(st.sampled_from(["compare", "in", "null", "starts"]))
    if how == "null":
        return IsNull(column.name)
    if how == "in":
        return In(column.name, tuple(draw(st.lists(values, max_size=3))))
    if how == "starts" and column.type in {"str", "bytes"}:
        value = draw(values)
        return Comparison(column.name, "^=", value[: draw(st.integers(0, 2))])
    return Comparison(column.name, draw(st.sampled_from(PLAIN)), draw(values))


def predicates(
    definition: TableDefinition = EVERY, row: Row | None = None, leaves: int = 8
) -> st.SearchStrategy[Predicate]:
    return st.recursive(
        comparisons(definition, row),
        lambda inner: (
            inner.map(Not)
            | st.builds(Joined, st.sampled_from(["and", "and", "or"]), st.lists(inner, max_size=3).map(tuple))
        ),
        max_leaves=leaves,
    )


def truth(predicate: Predicate, row: Row) -> bool | None:  # noqa: PLR0911
    """SQL's three values, by its tables: unknown is between false and true."""
    order = {False: 0, None: 1, True: 2}
    match predicate:
        case Not(part):
            return {True: False, False: True, None: None}[truth(part, row)]
        case Joined(how, parts):
            found = [truth(part, row) for part in parts]
            if how == "and":
                return min([True, *found], key=order.__getitem__)
            return max([False, *found], key=order.__getitem__)
        case IsNull(column):
            return row[column] is None
        case In(column, values):
            if row[column] is None:
                return None
            return any(rank(value) == rank(row[column]) for value in values)
        case Comparison(column, op, value):
            if row[column] is None:
                return None
            if op == "^=":
                return COMPARE[op](row[column], value)
            return COMPARE[op](rank(row[column]), rank(value))
    raise AssertionError(predicate)


def cells_of(row: Row, definition: TableDefinition = EVERY) -> Cells:
    encoded = {
        column.name: None if row[column.name] is None else column_type(column.type).encode(row[column.name])
        for column in definition.columns
    }
    return encoded.__getitem__
