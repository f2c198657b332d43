"""Conversions between column types, for a change of a column's type.

A conversion is exact: it refuses a value that cannot be converted back to the same value, so no change of a
type rounds or cuts values. A *widening* refuses no value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final, TypeAlias
from uuid import UUID

from percolator_core.schema.definitions import Column
from percolator_core.schema.types import ColumnType, column_type, shown

_Convert: TypeAlias = Callable[[Any], Any]

_WIDENINGS: Final = frozenset(
    {
        *((kind, "str") for kind in ("bool", "int", "float", "datetime", "date", "uuid", "decimal")),
        *((kind, "json") for kind in ("bool", "int", "str")),
        ("str", "bytes"),
        ("bool", "int"),
        ("date", "datetime"),
    }
)

_INT_DIGITS: Final = 19
"""Every int of 64 bits has at most this many digits."""


def _from_text(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("it is neither 'true' nor 'false'")
    return text == "true"


def _integer(value: Any) -> int:
    if value != value // 1:
        raise ValueError("it is not a whole number")
    return int(value)


def _text_of_json(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it is not a JSON string")
    return value


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


_CONVERSIONS: Final[dict[tuple[str, str], _Convert]] = {
    ("bool", "str"): lambda value: "true" if value else "false",
    ("int", "str"): str,
    ("float", "str"): repr,
    ("datetime", "str"): datetime.isoformat,
    ("date", "str"): date.isoformat,
    ("uuid", "str"): str,
    ("decimal", "str"): lambda value: format(value, "f"),
    ("bytes", "str"): lambda value: value.decode(),
    ("json", "str"): _text_of_json,
    ("str", "bool"): _from_text,
    ("str", "int"): int,
    ("str", "float"): float,
    ("str", "datetime"): datetime.fromisoformat,
    ("str", "date"): date.fromisoformat,
    ("str", "uuid"): UUID,
    ("str", "decimal"): Decimal,
    ("str", "bytes"): str.encode,
    ("bool", "int"): int,
    ("int", "bool"): bool,
    ("int", "float"): float,
    ("float", "int"): _integer,
    ("int", "decimal"): Decimal,
    ("decimal", "int"): _integer,
    ("float", "decimal"): lambda value: Decimal(repr(value)),
    ("decimal", "float"): float,
    ("date", "datetime"): _midnight,
    ("datetime", "date"): datetime.date,
    **{(kind, "json"): lambda value: value for kind in ("bool", "int", "float", "str")},
    **{("json", kind): lambda value: value for kind in ("bool", "int", "float")},
}


def is_convertible(source: str, target: str) -> bool:
    """Return True if there is a conversion from one column type to another."""
    return _conversion(column_type(source), column_type(target)) is not None


def is_widening(source: str, target: str) -> bool:
    """Return True if every value of the type ``source`` has an exact value of the type ``target``."""
    old, new = column_type(source), column_type(target)
    if old.name == new.name:
        return True
    if new.digits:
        digits = old.digits or _INT_DIGITS
        is_number = bool(old.digits) or old.name == "int"
        return is_number and new.places >= old.places and new.digits - new.places >= digits - old.places
    return (old.family, new.family) in _WIDENINGS


def _conversion(old: ColumnType, new: ColumnType) -> _Convert | None:
    if old.family == new.family:
        return lambda value: value
    return _CONVERSIONS.get((old.family, new.family))


@lru_cache(maxsize=256)
def conversion(source: str, target: str) -> Callable[[bytes], bytes]:
    """Return the conversion of encoded values between two types. Raises ValueError if there is none.

    The conversion raises ValueError with value and reason for a value that has no exact equivalent.
    """
    old, new = column_type(source), column_type(target)
    there, back = _conversion(old, new), _conversion(new, old)
    if there is None or back is None:
        raise ValueError(f"there is no conversion from {source} to {target}")

    def convert(found: bytes) -> bytes:
        if old.name == new.name:
            return found
        value = old.decode(found)
        try:
            made = new.encode(there(value))
            returned = old.encode(back(new.decode(made)))
        except (TypeError, ValueError, OverflowError, InvalidOperation) as error:
            why = f" ({error})" if isinstance(error, TypeError | ValueError) else ""
            raise ValueError(f"{shown(value)} is not exactly a value of the type {target}{why}") from None
        if returned != found and not _equal_json(old, returned, found):
            raise ValueError(f"{shown(value)} is not exactly a value of the type {target}")
        return made

    return convert


def _equal_json(kind: ColumnType, one: bytes, other: bytes) -> bool:
    """Two JSON texts may differ in blanks, and have the same value."""
    return kind.name == "json" and bool(json.loads(one) == json.loads(other))


def copied(source: Column, copy: Column, value: bytes | None) -> bytes | None:
    """Return the value of the internal column ``copy`` for the encoded value of its source.

    Raises ValueError if the new type has no exact equivalent, or may not be null.
    """
    assert copy.copy is not None
    value = source.missing if value is None else value
    if value is not None:
        return conversion(source.type, copy.type)(value)
    if copy.copy.if_null is None and not copy.copy.nullable:
        raise ValueError("null is not allowed")
    return copy.copy.if_null
