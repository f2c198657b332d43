"""Filters of Spark as predicates of ours, where the two mean exactly the same.

What is taken over here Spark does not look at again. So whatever is in doubt is left to Spark, which is never
wrong, only slower: comparisons of ``json``; a text that is compared with a ``uuid`` column and is not written
as Spark would be given it; values that do not fit the column.

Where values are compared the orders agree: texts and bytes by their bytes, floats with one NaN above all
others and one zero, decimals and times exactly. Both follow SQL where a null is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.predicates import (
    MOST_VALUES,
    Comparison,
    In,
    IsNull,
    Joined,
    Not,
    Operator,
    Predicate,
)
from percolator_core.schema.types import ColumnType, column_type

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_COMPARISONS: Final[Mapping[str, Operator]] = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}


class _Untold(Exception):
    """Not the same in both."""


def predicate_of(given: Filter, definition: TableDefinition) -> Predicate | None:
    """The predicate that holds for the same rows; None if it is Spark's to evaluate."""
    try:
        return _predicate(given, definition)
    except _Untold:
        return None


def _predicate(given: Any, definition: TableDefinition) -> Predicate:
    name = type(given).__name__
    if name == "Not":
        return _negated(given.child, definition)
    column, kind = _column(given.attribute, definition)
    if name == "IsNull":
        return IsNull(column)
    if name == "IsNotNull":
        return Not(IsNull(column))
    if name == "EqualNullSafe":
        return IsNull(column) if given.value is None else Comparison(column, "=", _value(kind, given.value))
    if name == "In":
        # Nothing equals a null.
        return In(column, _values(kind, [value for value in given.value if value is not None]))
    if name == "StringStartsWith":
        if kind.name != "str":
            raise _Untold
        return Comparison(column, "^=", _value(kind, given.value))
    if name in _COMPARISONS:
        return Comparison(column, _COMPARISONS[name], _value(kind, given.value))
    raise _Untold


def _negated(given: Any, definition: TableDefinition) -> Predicate:
    name = type(given).__name__
    if name == "Not":
        raise _Untold
    if name == "In" and None in given.value:
        raise _Untold  # never true, as whatever is not in the list may be the null
    found = Not(_predicate(given, definition))
    if name == "EqualNullSafe" and given.value is not None:
        # A null is told from every value.
        return Joined("or", (found, IsNull(given.attribute[0])))
    return found


def _column(path: tuple[str, ...], definition: TableDefinition) -> tuple[str, ColumnType]:
    column = definition.by_name.get(path[0])
    if column is None or len(path) != 1:
        raise _Untold
    return column.name, column_type(column.type)


def _values(kind: ColumnType, values: list[Any]) -> tuple[Any, ...]:
    if len(values) > MOST_VALUES:
        raise _Untold
    return tuple(_value(kind, value) for value in values)


def _value(kind: ColumnType, value: Any) -> Any:
    """A value of the column's type that compares as Spark's does."""
    taken = _TAKEN.get("decimal" if kind.digits else kind.name)
    if taken is None:
        raise _Untold
    found = taken(value)
    try:
        kind.encode(found)
    except (TypeError, ValueError):
        raise _Untold from None
    return found


def _plainly(*types: type) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        if type(value) not in types:
            raise _Untold
        return value

    return take


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise _Untold
    return bytes(value)


def _float(value: Any) -> float:
    if not isinstance(value, float):
        raise _Untold
    return value


def _decimal(value: Any) -> Any:
    # Without its places a decimal comes as an int.
    if type(value) not in {int, Decimal}:
        raise _Untold
    return Decimal(value)


def _time(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise _Untold
    return value


def _uuid(value: Any) -> UUID:
    """Spark sees such a column as text, in one spelling: only that one is equal to what it stands for."""
    try:
        found = UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise _Untold from None
    if str(found) != value:
        raise _Untold
    return found


_TAKEN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": _plainly(bool),
    "int": _plainly(int),
    "float": _float,
    "str": _plainly(str),
    "bytes": _bytes,
    "datetime": _time,
    "date": _plainly(date),
    "decimal": _decimal,
    "uuid": _uuid,
}
