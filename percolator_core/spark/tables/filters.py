"""Translate filters of Spark to predicates of a table, if both have exactly the same meaning.

Spark does not evaluate a translated filter again. So doubtful filters are not translated, and Spark evaluates
them, more slowly. A filter is doubtful if it compares a ``json`` column, or a column with a value that does
not fit, or a ``uuid`` column with a text that is not in Spark's spelling of UUIDs.

Spark and the library order values in the same way: texts and bytes by their bytes, decimals and times
exactly, and floats with one zero and one NaN, which is above all other values. Both compare null as SQL does.
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


class _Untranslatable(Exception):
    """The filter may have another meaning in the store."""


def predicate_of(given: Filter, definition: TableDefinition) -> Predicate | None:
    """Translate a filter; return None if Spark has to evaluate it."""
    try:
        return _predicate(given, definition)
    except _Untranslatable:
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
        # No value equals null.
        return In(column, _values(kind, [value for value in given.value if value is not None]))
    if name == "StringStartsWith":
        if kind.name != "str":
            raise _Untranslatable
        return Comparison(column, "^=", _value(kind, given.value))
    if name in _COMPARISONS:
        return Comparison(column, _COMPARISONS[name], _value(kind, given.value))
    raise _Untranslatable


def _negated(given: Any, definition: TableDefinition) -> Predicate:
    name = type(given).__name__
    if name == "Not":
        raise _Untranslatable
    if name == "In" and None in given.value:
        raise _Untranslatable  # this filter is never true, because the comparison with null is unknown
    found = Not(_predicate(given, definition))
    if name == "EqualNullSafe" and given.value is not None:
        # Null differs from every value.
        return Joined("or", (found, IsNull(given.attribute[0])))
    return found


def _column(path: tuple[str, ...], definition: TableDefinition) -> tuple[str, ColumnType]:
    column = definition.by_name.get(path[0])
    if column is None or len(path) != 1:
        raise _Untranslatable
    return column.name, column_type(column.type)


def _values(kind: ColumnType, values: list[Any]) -> tuple[Any, ...]:
    if len(values) > MOST_VALUES:
        raise _Untranslatable
    return tuple(_value(kind, value) for value in values)


def _value(kind: ColumnType, value: Any) -> Any:
    """Convert a value to the column's type, if the comparison stays the same as in Spark."""
    convert = _CONVERTERS.get("decimal" if kind.digits else kind.name)
    if convert is None:
        raise _Untranslatable
    found = convert(value)
    try:
        kind.encode(found)
    except (TypeError, ValueError):
        raise _Untranslatable from None
    return found


def _exactly(*types: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) not in types:
            raise _Untranslatable
        return value

    return convert


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise _Untranslatable
    return bytes(value)


def _decimal(value: Any) -> Any:
    # Spark passes a decimal without places as an int.
    if type(value) not in {int, Decimal}:
        raise _Untranslatable
    return Decimal(value)


def _time(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise _Untranslatable
    return value


def _uuid(value: Any) -> UUID:
    """Accept only Spark's spelling: Spark compares texts, so another spelling must not match."""
    try:
        found = UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise _Untranslatable from None
    if str(found) != value:
        raise _Untranslatable
    return found


_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": _exactly(bool),
    "int": _exactly(int),
    "float": _exactly(float),
    "str": _exactly(str),
    "bytes": _bytes,
    "datetime": _time,
    "date": _exactly(date),
    "decimal": _decimal,
    "uuid": _uuid,
}
