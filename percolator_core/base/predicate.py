"""Evaluate a predicate over whole Arrow columns, by the rules of `Bound.holds`.

The store compares encoded values, by their bytes. For each type there is a form that Arrow sorts in the order
of these bytes:

* ``float``: the encoded value as an unsigned number, because Arrow's order does not include NaN;
* ``str``, ``bytes``, ``json``: the bytes, which are the encoded value;
* ``uuid``: its text, whose hexadecimal digits sort like the bytes;
* others: Arrow's values.

Import this module only after a call of `arrow_values.pyarrow`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import compute

from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.predicates import Bound, Group, Test, required
from percolator_core.schema.row_keys import least_above
from percolator_core.schema.types import ColumnType, column_type
from percolator_core.tables.arrow_columns import float_words, of_values, stored
from percolator_core.tables.arrow_values import arrow_type

Columns: TypeAlias = Callable[[str], pa.Array]
"""Returns a column as an Arrow array, by the column's name. `Column.missing` replaces nulls in the array."""

_COMPARE: Final = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


def rows_where(bound: Bound, definition: TableDefinition, columns: Columns, count: int) -> pa.BooleanArray:
    """Return for each of ``count`` rows whether the predicate is true.

    ``columns`` is called for columns of the predicate, but not for those that cannot change the result.
    """
    return _found(bound, definition, columns, count).fill_null(False)


def _found(bound: Bound, definition: TableDefinition, columns: Columns, count: int) -> pa.BooleanArray:
    """Return True, False or null (unknown) for each row."""
    if isinstance(bound, Test):
        return _tested(bound, column_type(definition.column(bound.column).type), columns(bound.column))
    if bound.how == "not":
        return compute.invert(_found(bound.parts[0], definition, columns, count))
    return _joined(bound, definition, columns, count)


def _joined(group: Group, definition: TableDefinition, columns: Columns, count: int) -> pa.BooleanArray:
    is_or = group.how == "or"
    join = compute.or_kleene if is_or else compute.and_kleene
    answer = pa.repeat(pa.scalar(not is_or), count)
    for part in group.parts:
        answer = join(answer, _found(part, definition, columns, count))
        # End the loop if the other parts cannot change the result of any row.
        if not answer.null_count and answer.true_count == (count if is_or else 0):
            break
    return answer


def _tested(test: Test, kind: ColumnType, found: pa.Array) -> pa.BooleanArray:
    if test.op == "null":
        return found.is_null()
    if test.op == "^=":
        return compute.starts_with(found.cast(pa.binary()), pattern=test.values[0])
    if kind.width is None:
        values = pa.array(test.values, pa.binary())
    else:
        values = _comparable(kind, of_values(kind, test.values))
    cells = _comparable(kind, found)
    if test.op == "in":
        among = compute.is_in(cells, value_set=values)
        return compute.if_else(cells.is_valid(), among, pa.scalar(None, pa.bool_()))
    return getattr(compute, _COMPARE[test.op])(cells, values[0])


def _comparable(kind: ColumnType, found: pa.Array) -> pa.Array:
    """Return the column in the form that Arrow sorts as the store sorts the encoded values."""
    if kind.width is None:
        return found.cast(pa.binary())
    if kind.name != "float":
        return found
    if not len(found):
        return pa.array([], pa.uint64())  # an empty column may have no buffers
    nulls = found.is_null().to_numpy(zero_copy_only=False) if found.null_count else None
    return pa.array(float_words(found), mask=nulls)


@dataclass(frozen=True, slots=True)
class Spread:
    """The bounds of a column's encoded values in a row group; both are None if all values are null.

    ``has_null`` is True if there may be nulls.
    """

    low: bytes | None
    high: bytes | None
    has_null: bool

    @classmethod
    def of(cls, cells: Iterable[bytes | None]) -> Spread:
        """Return the spread of encoded values; None means null."""
        found = set(cells)
        values = [one for one in found if one is not None]
        return cls(min(values, default=None), max(values, default=None), None in found)

    def __or__(self, other: Spread) -> Spread:
        values = [one for spread in (self, other) for one in (spread.low, spread.high) if one is not None]
        return Spread(min(values, default=None), max(values, default=None), self.has_null or other.has_null)


def spread_of(column: Column, statistics: Any) -> Spread | None:
    """Return the spread of a column from Parquet's statistics; None if the statistics lack the bounds."""
    if statistics is None or not statistics.has_null_count:
        return None
    low = high = None
    if statistics.num_values:
        if not statistics.has_min_max:
            return None
        kind = column_type(column.type)
        low, high = stored(kind, pa.array([statistics.min, statistics.max], arrow_type(column.type)))
        if kind.name == "float":
            high = kind.encode(math.nan)  # Parquet leaves NaN out
    found = Spread(low, high, has_null=False)
    return found | Spread.of([column.missing]) if statistics.null_count else found


def may_be_true(bound: Bound | None, spread: Callable[[str], Spread | None]) -> bool:
    """Return False if the predicate cannot be true for any row; ``spread`` returns the spread of a column."""
    return all(_may_be_true(test, spread(test.column)) for test in required(bound))


def _may_be_true(test: Test, spread: Spread | None) -> bool:
    if spread is None:
        return True
    if test.op == "null":
        return spread.has_null
    low, high = spread.low, spread.high
    if low is None or high is None:
        return False
    return any(_POSSIBLE[test.op](low, high, value) for value in test.values)


def _may_start(low: bytes, high: bytes, prefix: bytes) -> bool:
    above = least_above(prefix)
    return high >= prefix and (above is None or low < above)


_POSSIBLE: Final[Mapping[str, Callable[[bytes, bytes, bytes], bool]]] = {
    "=": lambda low, high, value: low <= value <= high,
    "in": lambda low, high, value: low <= value <= high,
    "!=": lambda low, high, value: not low == high == value,
    "<": lambda low, _, value: low < value,
    "<=": lambda low, _, value: low <= value,
    ">": lambda _, high, value: high > value,
    ">=": lambda _, high, value: high >= value,
    "^=": _may_start,
}
"""For each operator: a function that returns True if the comparison may hold for a value of the spread."""
