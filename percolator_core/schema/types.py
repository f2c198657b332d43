"""The types of columns, and the bytes of their values in the store.

Encoded values sort like the values, so keys, partition rules and comparisons in the store need no types. Only
``json`` has no order.

=================  =====================  ==============================================================
type               in Python              bytes
=================  =====================  ==============================================================
``bool``           bool                   1: 0 or 1
``int``            int, 64 bits           8, big-endian, with the sign bit inverted
``float``          float                  8, IEEE 754: in negative numbers all bits are inverted, in others
                                          the sign bit. 0.0 and -0.0 are encoded alike. All NaNs are
                                          encoded alike, and sort above all other values
``str``            str                    UTF-8
``bytes``          bytes                  the same bytes
``datetime``       aware datetime         microseconds since 1970 like an int; read back in UTC
``date``           date                   days since 1970 like an int, in 4 bytes
``decimal(p,s)``   Decimal                the value times 10**s like an int: 8 bytes, or 16 if p > 18
``uuid``           UUID                   16
``json``           any JSON value         JSON in UTF-8; keys of dicts become text
=================  =====================  ==============================================================

A float column rounds an int to the nearest float. A datetime outside the years 1 to 9999 in UTC is refused,
because a read could not return it: Python has no such datetime in UTC.
"""

from __future__ import annotations

import decimal
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from percolator_core.errors import abbreviated

MAX_DIGITS: Final = 38
"""The limit of digits of a decimal, as in Arrow and Spark."""

MOST_SHOWN: Final = 80
"""The limit of characters of a value in an error's message."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
FIRST_TIME: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LAST_TIME: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
SIGN: Final = 1 << 63
NAN: Final = 0x7FF8 << 48
# Each type has one spelling, because definitions are compared as text.
_DECIMAL: Final = re.compile(r"decimal\((0|[1-9][0-9]{0,3}),(0|[1-9][0-9]{0,3})\)")
_DOUBLE: Final = struct.Struct(">d")
_WORD: Final = struct.Struct(">Q")
_CONTEXT: Final = decimal.Context(prec=MAX_DIGITS + 2, traps=[decimal.InvalidOperation])


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The conversion between the values of a column and bytes.

    ``encode`` raises TypeError for a value of another type, and ValueError for a value that does not fit.
    ``decode`` takes the bytes that ``encode`` returned; for other bytes it raises ValueError or
    OverflowError, or returns any value. ``width`` is the length of every encoded value, None if lengths
    differ. A type without ``has_order`` is in no key. A decimal has ``digits`` digits, ``places`` of them
    after the point.
    """

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    width: int | None = None
    has_order: bool = True
    digits: int = 0
    places: int = 0

    @property
    def family(self) -> str:
        """The name without digits and places."""
        return "decimal" if self.digits else self.name


def encode_value(column: str, encode: Callable[[Any], bytes], value: Any) -> bytes:
    """Return the bytes of a column's value. Raises as `ColumnType.encode`, with the column in the message."""
    try:
        return encode(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{column}: {error}") from None


def shown(value: object) -> str:
    """Return the value as text for an error's message, abbreviated if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to convert very large ints to text.
        return f"this {type(value).__name__}"
    return abbreviated(text, MOST_SHOWN)


def _expect(value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{shown(value)} is no {name}")


def _encode_bool(value: Any) -> bytes:
    _expect(value, bool, "bool")
    return b"\x01" if value else b"\x00"


def _encode_int(value: Any) -> bytes:
    _expect(value, int, "int")
    if not -SIGN <= value < SIGN:
        raise ValueError(f"{shown(value)} does not fit into 64 bits")
    return _WORD.pack(value + SIGN)


def _decode_int(found: bytes) -> int:
    word: int = _WORD.unpack(found)[0]
    return word - SIGN


def _encode_float(value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TypeError(f"{shown(value)} is no float")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{shown(value)} does not fit into a float") from None
    # ``or 0.0`` turns -0.0 into 0.0.
    word: int = NAN if math.isnan(number) else _WORD.unpack(_DOUBLE.pack(number or 0.0))[0]
    return _WORD.pack(word ^ (SIGN if not word & SIGN else SIGN * 2 - 1))


def _decode_float(found: bytes) -> float:
    word: int = _WORD.unpack(found)[0]
    number: float = _DOUBLE.unpack(_WORD.pack(word ^ (SIGN if word & SIGN else SIGN * 2 - 1)))[0]
    return number


def _encode_str(value: Any) -> bytes:
    _expect(value, str, "str")
    try:
        encoded: bytes = value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{shown(value)} cannot be encoded in UTF-8") from None
    return encoded


def _encode_bytes(value: Any) -> bytes:
    _expect(value, bytes, "bytes")
    return value  # type: ignore[no-any-return]


def _encode_datetime(value: Any) -> bytes:
    _expect(value, datetime, "datetime")
    if value.utcoffset() is None:
        raise ValueError(f"{value} has no time zone: give an aware datetime")
    microseconds = (value - _EPOCH) // _MICROSECOND
    if not FIRST_TIME <= microseconds <= LAST_TIME:
        raise ValueError(f"{value} is not within the years 1 to 9999 in UTC")
    return _encode_int(microseconds)


def _decode_datetime(found: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=_decode_int(found))


def _encode_date(value: Any) -> bytes:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError(f"{shown(value)} is no date")
    return ((value - _FIRST_DAY).days + (1 << 31)).to_bytes(4, "big")


def _decode_date(found: bytes) -> date:
    return _FIRST_DAY + timedelta(days=int.from_bytes(found, "big") - (1 << 31))


def _encode_uuid(value: Any) -> bytes:
    _expect(value, UUID, "UUID")
    return value.bytes  # type: ignore[no-any-return]


def _encode_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError:
        raise ValueError("the value cannot be written as JSON: it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"the value cannot be written as JSON: {error}") from None


def _decimal(digits: int, places: int) -> ColumnType:
    width = 8 if digits <= 18 else 16
    half = 1 << (8 * width - 1)
    most = 10**digits
    step = Decimal(1).scaleb(-places, context=_CONTEXT)

    def encode(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, Decimal | int):
            raise TypeError(f"{shown(value)} is no Decimal")
        number = Decimal(value)
        if not number.is_finite():
            raise ValueError(f"{value} is no number")
        try:
            exact = number.quantize(step, context=_CONTEXT)
        except decimal.InvalidOperation:
            exact = None
        scaled = most if exact is None or exact != number else int(exact.scaleb(places, context=_CONTEXT))
        if not -most < scaled < most:
            raise ValueError(
                f"{shown(value)} does not fit into {digits} digits, {places} of them after the point"
            )
        return (scaled + half).to_bytes(width, "big")

    def decode(found: bytes) -> Decimal:
        return Decimal(int.from_bytes(found, "big") - half).scaleb(-places, context=_CONTEXT)

    return ColumnType(f"decimal({digits},{places})", encode, decode, width, digits=digits, places=places)


_PLAIN: Final = {
    one.name: one
    for one in (
        ColumnType("bool", _encode_bool, lambda found: found != b"\x00", 1),
        ColumnType("int", _encode_int, _decode_int, 8),
        ColumnType("float", _encode_float, _decode_float, 8),
        ColumnType("str", _encode_str, bytes.decode),
        ColumnType("bytes", _encode_bytes, lambda found: found),
        ColumnType("datetime", _encode_datetime, _decode_datetime, 8),
        ColumnType("date", _encode_date, _decode_date, 4),
        ColumnType("uuid", _encode_uuid, lambda found: UUID(bytes=found), 16),
        ColumnType("json", _encode_json, json.loads, has_order=False),
    )
}


@lru_cache(maxsize=256)
def column_type(name: str) -> ColumnType:
    """Return the type of that name.

    Raises:
        ValueError: there is no such type; or a decimal has 0 or over 38 digits, or more places than digits.
    """
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain
    found = _DECIMAL.fullmatch(name)
    if found is None:
        raise ValueError(f"there is no type {shown(name)}: use one of {', '.join(_PLAIN)} or decimal(p,s)")
    digits, places = int(found[1]), int(found[2])
    if not (1 <= digits <= MAX_DIGITS and places <= digits):
        raise ValueError(f"{name}: a decimal has 1 to {MAX_DIGITS} digits, and no more places than digits")
    return _decimal(digits, places)
