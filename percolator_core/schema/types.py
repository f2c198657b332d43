"""The types of columns, and each one's bytes in the store.

Encoded values sort as bytes just as the values do, so that keys, partition rules and the comparisons that the
store makes need not know types. ``json`` aside, which has no order and is compared with nothing.

=================  =====================  ==============================================================
type               in Python              bytes
=================  =====================  ==============================================================
``bool``           bool                   1: 0 or 1
``int``            int, 64 bits           8, big-endian, the sign bit turned round
``float``          float                  8, IEEE 754; negative ones with all bits turned round, others with
                                          the sign bit set. One zero, one NaN, which is above all others
``str``            str                    UTF-8
``bytes``          bytes                  as they are
``datetime``       aware datetime         microseconds since 1970 as an int; comes back in UTC
``date``           date                   days since 1970, 4, as an int
``decimal(p,s)``   Decimal                the value times 10**s as an int: 8 bytes for p of 18 or less, else 16
``uuid``           UUID                   16
``json``           list, dict, any model  JSON in UTF-8
=================  =====================  ==============================================================
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

MAX_DIGITS: Final = 38
"""Most digits of a decimal, as in Arrow and Spark."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_INT64: Final = 1 << 63
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_DOUBLE: Final = struct.Struct(">d")
_WORD: Final = struct.Struct(">Q")
_CONTEXT: Final = decimal.Context(prec=MAX_DIGITS + 2, traps=[decimal.InvalidOperation])


@dataclass(frozen=True, slots=True)
class ColumnType:
    """How the values of a column become bytes.

    ``encode`` raises TypeError for a value of another type, ValueError for one that does not fit; both say why.
    ``width`` is the length of every encoded value, None where lengths differ. ``has_order`` is False for what
    cannot be compared, nor be in a key.
    """

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    width: int | None = None
    has_order: bool = True
    digits: int = 0
    places: int = 0
    """Of a decimal: all digits, and those behind the point."""


def _expect(value: object, kind: type, name: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r} is no {name}")


def _encode_bool(value: Any) -> bytes:
    _expect(value, bool, "bool")
    return b"\x01" if value else b"\x00"


def _decode_bool(found: bytes) -> bool:
    return found != b"\x00"


def _encode_int(value: Any) -> bytes:
    _expect(value, int, "int")
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{value} does not fit into 64 bits")
    return _WORD.pack(value + _INT64)


def _decode_int(found: bytes) -> int:
    word: int = _WORD.unpack(found)[0]
    return word - _INT64


def _encode_float(value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise TypeError(f"{value!r} is no float")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{value} does not fit into a float") from None
    if math.isnan(number):
        number = math.nan
    word: int = _WORD.unpack(_DOUBLE.pack(number + 0.0 if number else 0.0))[0]
    if math.isnan(number):
        word = 0x7FF8 << 48
    return _WORD.pack(word ^ (_INT64 if not word & _INT64 else _INT64 * 2 - 1))


def _decode_float(found: bytes) -> float:
    word: int = _WORD.unpack(found)[0]
    number: float = _DOUBLE.unpack(_WORD.pack(word ^ (_INT64 if word & _INT64 else _INT64 * 2 - 1)))[0]
    return number


def _encode_str(value: Any) -> bytes:
    _expect(value, str, "str")
    try:
        encoded: bytes = value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{value!r} is no text that UTF-8 can hold") from None
    return encoded


def _encode_bytes(value: Any) -> bytes:
    _expect(value, bytes, "bytes")
    same: bytes = value
    return same


def _same(found: bytes) -> bytes:
    return found


def _encode_datetime(value: Any) -> bytes:
    _expect(value, datetime, "datetime")
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone: give an aware datetime")
    return _encode_int((value - _EPOCH) // _MICROSECOND)


def _decode_datetime(found: bytes) -> datetime:
    return _EPOCH + timedelta(microseconds=_decode_int(found))


def _encode_date(value: Any) -> bytes:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError(f"{value!r} is no date")
    return ((value - _FIRST_DAY).days + (1 << 31)).to_bytes(4, "big")


def _decode_date(found: bytes) -> date:
    return _FIRST_DAY + timedelta(days=int.from_bytes(found, "big") - (1 << 31))


def _encode_uuid(value: Any) -> bytes:
    _expect(value, UUID, "UUID")
    found: bytes = value.bytes
    return found


def _decode_uuid(found: bytes) -> UUID:
    return UUID(bytes=found)


def _encode_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"no JSON can be made of it: {error}") from None


def _decimal(digits: int, places: int) -> ColumnType:
    width = 8 if digits <= 18 else 16
    half = 1 << (8 * width - 1)
    most = 10**digits
    step = Decimal(1).scaleb(-places)

    def encode(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, Decimal | int):
            raise TypeError(f"{value!r} is no Decimal")
        number = Decimal(value)
        if not number.is_finite():
            raise ValueError(f"{value} is no number")
        try:
            exact = number.quantize(step, context=_CONTEXT)
        except decimal.InvalidOperation:
            exact = None
        scaled = None if exact is None else int(exact.scaleb(places, context=_CONTEXT))
        if exact is None or scaled is None or exact != number or abs(scaled) >= most:
            raise ValueError(f"{value} does not fit into {digits} digits, {places} of them behind the point")
        return (scaled + half).to_bytes(width, "big")

    def decode(found: bytes) -> Decimal:
        return Decimal(int.from_bytes(found, "big") - half).scaleb(-places, context=_CONTEXT)

    return ColumnType(f"decimal({digits},{places})", encode, decode, width, digits=digits, places=places)


_PLAIN: Final = {
    one.name: one
    for one in (
        ColumnType("bool", _encode_bool, _decode_bool, 1),
        ColumnType("int", _encode_int, _decode_int, 8),
        ColumnType("float", _encode_float, _decode_float, 8),
        ColumnType("str", _encode_str, bytes.decode),
        ColumnType("bytes", _encode_bytes, _same),
        ColumnType("datetime", _encode_datetime, _decode_datetime, 8),
        ColumnType("date", _encode_date, _decode_date, 4),
        ColumnType("uuid", _encode_uuid, _decode_uuid, 16),
        ColumnType("json", _encode_json, json.loads, has_order=False),
    )
}


@lru_cache(maxsize=256)
def column_type(name: str) -> ColumnType:
    """The type of that name.

    Raises:
        ValueError: there is none, or a decimal's digits are not 1 to 38, or fewer than its places.
    """
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain
    found = _DECIMAL.fullmatch(name)
    if found is None:
        raise ValueError(f"there is no type {name!r}: it is one of {', '.join(_PLAIN)} or decimal(p,s)")
    digits, places = int(found[1]), int(found[2])
    if not (1 <= digits <= MAX_DIGITS and places <= digits):
        raise ValueError(f"{name}: a decimal has 1 to {MAX_DIGITS} digits, and no more places than digits")
    return _decimal(digits, places)
