"""A predicate over whole Arrow columns: the rows for which it is true, by the rules of `Bound.holds`.

Encoded values sort by their bytes. Each column is compared in a form of it that Arrow sorts in the same way:

* ``float``: the encoded value as a number without a sign, because Arrow has no place for NaN in its order;
* ``str``, ``bytes``, ``json``: the bytes, which are the encoded value;
* ``uuid``: its text, whose digits sort like the bytes that they stand for;
* others: Arrow's values.

Import this module only after a call of `arrow_values.pyarrow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa
from pyarrow import compute

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.predicates import Bound, Group, Test
from percolator_core.schema.types import ColumnType, column_type
from percolator_core.tables.arrow_values import float_words, of_values

Columns: TypeAlias = Callable[[str], pa.Array]
"""Returns the Arrow array of a column by its name. `Column.missing` replaces its nulls."""

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

    ``columns`` is called for the columns of the predicate, and not for those on which nothing depends.
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
        # No further part changes the result of any row.
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
    """Return values that Arrow compares as the store compares their encoded values."""
    if kind.width is None:
        return found.cast(pa.binary())
    if kind.name != "float" or not len(found):
        return found
    nulls = found.is_null().to_numpy(zero_copy_only=False) if found.null_count else None
    return pa.array(float_words(found), mask=nulls)
