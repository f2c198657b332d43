"""Convert values of files to values of typed columns: texts of csv, values of JSON, Parquet and pages.

A value that does not fit the column exactly is refused.

=============  ============================================  =================================================
column         text of csv                                   other values
=============  ============================================  =================================================
bool           ``true`` and ``false``, in any case           bool
int            whole numbers, also ``12.0``                  int, and a float that is whole
float          numbers, ``nan``, ``inf``, ``-inf``           float, int, ``"nan"``, ``"inf"``, ``"-inf"``
str            the text                                      str, bytes in UTF-8
bytes          the bytes of the file                         bytes, str as UTF-8
datetime       ISO 8601 with a zone                          aware datetime, text as in csv
date           ISO 8601                                      date, text as in csv
decimal(p,s)   numbers, without rounding                     Decimal, int, JSON numbers by their digits, text
uuid           with hyphens or without                       UUID, 16 bytes, text as in csv
json           JSON                                          values of JSON; in Parquet and pages, JSON text
=============  ============================================  =================================================

Blanks around a text are ignored, except in str and bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from percolator_core.schema.types import ColumnType, shown

Dialect: TypeAlias = Literal["text", "json", "python"]
"""The origin of values: csv or PostgreSQL (text), JSON, or a format with Python values, in which JSON is
text."""

_WHOLE: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NO_NUMBERS: Final = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_UUID_BYTES: Final = 16
_WRITTEN: Final[Mapping[str, str]] = {
    "date": ": write it as 2025-06-01",
    "datetime": ": write it as 2025-06-01T12:00:00Z",
}
_LONGEST_EXPONENT: Final = 400
"""Larger exponents are refused: no column needs them, and Python would compute all their digits."""

# Python ignores the digits of a time after the microseconds, so a time with such digits is refused.
_NANOSECONDS: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")


class JsonNumber(float):
    """A JSON number with a point or an exponent, and its original text."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def converter(kind: ColumnType, dialect: Dialect) -> Callable[[Any], bytes | None]:
    """Return the function that encodes the values of a column. The function does not accept None.

    It returns None for JSON's null, and raises TypeError or ValueError if a value does not fit.
    """
    family = "decimal" if kind.digits else kind.name
    encode = kind.encode
    if family == "json":
        return encode if dialect == "json" else _json_cell(encode)
    read = (_TEXTS if dialect == "text" else _VALUES)[family]
    no_such = f"is no {kind.name}{_WRITTEN.get(family, '')}"

    def convert(value: Any) -> bytes | None:
        found = read(value)
        if found is None:
            raise ValueError(f"{shown(value)} {no_such}")
        return encode(found)

    return convert


# Each of these functions returns None for a text without a value of its type; the converter then raises.


def _int(text: str) -> int | None:
    bare = text.strip()
    if _WHOLE.fullmatch(bare):
        return int(bare)
    number = _decimal(bare)
    return int(number) if number is not None and number == number.to_integral_value() else None


def _float(text: str) -> float | None:
    bare = text.strip()
    if _NUMBER.fullmatch(bare):
        number = float(bare)
        if math.isinf(number):
            raise ValueError(f"{shown(bare)} is too large for a float")
        return number
    return float(bare) if bare.lower() in _NO_NUMBERS else None


def _decimal(text: str) -> Decimal | None:
    bare = text.strip()
    if not _NUMBER.fullmatch(bare):
        return None
    number = Decimal(bare)
    if number and abs(number.adjusted()) > _LONGEST_EXPONENT:
        raise ValueError(f"{shown(bare)} is too large, or too small")
    return number


def _time(text: str) -> datetime | None:
    bare = text.strip()
    try:
        time = datetime.fromisoformat(bare)
    except ValueError:
        return None
    if _NANOSECONDS.search(bare):
        raise ValueError(f"{shown(bare)} has nanoseconds: round it to microseconds")
    return _aware(time, bare)


def _aware(time: datetime, given: object) -> datetime:
    if time.utcoffset() is None:
        raise ValueError(f"{shown(given)} has no time zone: write one, such as 2025-06-01T12:00:00Z")
    return time


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        return None


def _uuid(text: str) -> UUID | None:
    bare = text.strip()
    try:
        found = UUID(bare)
    except ValueError:
        return None
    # Python also accepts braces, prefixes, and hyphens in other places: refuse them.
    return found if bare.lower() in {str(found), found.hex} else None


def _json_cell(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes | None]:
    def convert(value: Any) -> bytes | None:
        found = _str_value(value)
        if isinstance(found, str):
            try:
                found = json.loads(found)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{shown(value)} is no JSON: {error}") from None
        return None if found is None else encode(found)

    return convert


def bytes_of(text: str) -> bytes:
    """Encode a text of csv, in which surrogates are bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


_TEXTS: Final[Mapping[str, Callable[[str], Any]]] = {
    "bool": lambda text: {"true": True, "false": False}.get(text.strip().lower()),
    "int": _int,
    "float": _float,
    "str": str,
    "bytes": bytes_of,
    "datetime": _time,
    "date": _date,
    "decimal": _decimal,
    "uuid": _uuid,
}


def _int_value(value: Any) -> Any:
    if isinstance(value, JsonNumber):
        return _int(value.text)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _float_value(value: Any) -> Any:
    if isinstance(value, str):
        return float(value) if value.lower() in _NO_NUMBERS else None
    if isinstance(value, JsonNumber) and math.isinf(value):
        raise ValueError(f"{value.text} is too large for a float")
    return value


def _str_value(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None


def _time_value(value: Any) -> Any:
    if isinstance(value, str):
        return _time(value)
    if getattr(value, "nanosecond", 0):
        raise ValueError(f"{value} has nanoseconds: round it to microseconds")
    return _aware(value, str(value)) if isinstance(value, datetime) else value


def _decimal_value(value: Any) -> Any:
    if isinstance(value, JsonNumber):
        return _decimal(value.text)
    if isinstance(value, float):
        raise ValueError(f"{value} is a float, which has no exact decimal: cast it, or round it")
    return _decimal(value) if isinstance(value, str) else value


def _uuid_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return UUID(bytes=value) if len(value) == _UUID_BYTES else None
    return _uuid(value) if isinstance(value, str) else value


_VALUES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": lambda value: value,
    "int": _int_value,
    "float": _float_value,
    "str": _str_value,
    "bytes": lambda value: value.encode() if isinstance(value, str) else value,
    "datetime": _time_value,
    "date": lambda value: _date(value) if isinstance(value, str) else value,
    "decimal": _decimal_value,
    "uuid": _uuid_value,
}
