"""The types of SQL expressions: which types mix, and the conversions between them, as in DuckDB.

A kind is the name of a column type, or an empty text for a bare NULL. All ints have 64 bits; a result that
leaves them is an error, as in an insert.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias
from uuid import UUID

from percolator_core.schema.types import MAX_DIGITS, SIGN, column_type, shown

Convert: TypeAlias = Callable[[Any], Any]

NULL: Final = ""
INT_DIGITS: Final = 19
EXACT: Final = Context(prec=100, rounding=ROUND_HALF_UP)
"""The context of decimal arithmetic: more digits than any two decimals need."""

_NUMERIC: Final = {"int": 0, "decimal": 1, "float": 2}
_INT_TEXT: Final = re.compile(r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*")
_FLOAT_TEXT: Final = re.compile(_INT_TEXT.pattern + r"|\s*[+-]?(?:inf|infinity|nan)\s*", re.IGNORECASE)
_TIME_TEXT: Final = re.compile(
    r"\s*(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?\s?(Z|[+-]\d{2}(?::?\d{2})?)?)?\s*"
)
_UUID_TEXT: Final = re.compile(
    r"[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{4}\1[0-9a-fA-F]{12}"
)
_BYTES_TEXT: Final = re.compile(r"\\x([0-9a-fA-F]{2})|([\x20-\x5b\x5d-\x7e])")
_TRUE: Final = {"true", "t", "yes", "y", "1"}
_FALSE: Final = {"false", "f", "no", "n", "0"}


def family(kind: str) -> str:
    """Return the kind without digits and places."""
    return "decimal" if kind.startswith("decimal") else kind


def is_numeric(kind: str) -> bool:
    """Return True for int, decimal and float."""
    return family(kind) in _NUMERIC


def decimal_kind(digits: int, places: int) -> str:
    """Return the kind of a decimal, with at most 38 digits. Raises ValueError for more than 38 places."""
    if places > MAX_DIGITS:
        raise ValueError(f"the result has {places} places, and a decimal has at most {MAX_DIGITS}")
    return f"decimal({min(digits, MAX_DIGITS)},{places})"


def digits_of(kind: str) -> tuple[int, int]:
    """Return the digits and places of a decimal, or of an int as a decimal."""
    if kind == "int":
        return INT_DIGITS, 0
    found = column_type(kind)
    return found.digits, found.places


def common_kind(one: str, other: str) -> str | None:
    """Return the kind to which two values are converted to compare or mix them; None if they do not mix."""
    if one == other or not other:
        return one
    if not one:
        return other
    if {one, other} == {"date", "datetime"}:
        return "datetime"
    if not (is_numeric(one) and is_numeric(other)):
        return None
    if "float" in {one, other}:
        return "float"
    (digits, places), (more_digits, more_places) = digits_of(one), digits_of(other)
    most = max(places, more_places)
    return decimal_kind(max(digits - places, more_digits - more_places) + most, most)


def _same(value: Any) -> Any:
    return value


def _to_places(places: int) -> Convert:
    step = Decimal(1).scaleb(-places)
    return lambda value: Decimal(value).quantize(step, context=EXACT)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def widening(source: str, target: str) -> Convert | None:
    """Return the conversion that SQL makes unasked, to a `common_kind`; None if it makes none."""
    if source == target or not source:
        return _same
    pair = family(source), family(target)
    if pair in {("int", "decimal"), ("decimal", "decimal")}:
        return _to_places(digits_of(target)[1])
    if pair in {("int", "float"), ("decimal", "float")}:
        return float
    return _midnight if pair == ("date", "datetime") else None


def int64(value: int) -> int:
    """Return the value. Raises ValueError if it does not fit into 64 bits."""
    if not -SIGN <= value < SIGN:
        raise ValueError(f"{shown(value)} does not fit into 64 bits")
    return value


def half_away(value: float) -> float:
    """Return the nearest whole number; of two, the one further from zero."""
    if not math.isfinite(value):
        return value
    whole = math.trunc(value)
    return float(whole) if abs(value - whole) < 0.5 else float(whole + (1 if value > 0 else -1))


def _float_to_int(value: float) -> int:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no int")
    return int64(round(value))


def _decimal_to_int(value: Decimal) -> int:
    return int64(int(value.to_integral_value(ROUND_HALF_UP)))


def _text_to_decimal(text: str) -> Decimal:
    # A "_" between two digits is allowed.
    plain = re.sub(r"(?<=\d)_(?=\d)", "", text)
    if not _INT_TEXT.fullmatch(plain):
        raise ValueError(f"{shown(text)} is no number")
    return Decimal(plain.strip())


def _text_to_int(text: str) -> int:
    value = _text_to_decimal(text)
    if value.adjusted() > INT_DIGITS:
        raise ValueError(f"{shown(text)} does not fit into 64 bits")
    return _decimal_to_int(value)


def _text_to_float(text: str) -> float:
    plain = re.sub(r"(?<=\d)_(?=\d)", "", text)
    if not _FLOAT_TEXT.fullmatch(plain):
        raise ValueError(f"{shown(text)} is no number")
    return float(plain)


def _text_to_bool(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{shown(text)} is neither 'true' nor 'false'")
    return word in _TRUE


def _text_to_time(text: str) -> datetime:
    found = _TIME_TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{shown(text)} is no time such as '2025-06-01 12:00:00+00'")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    zone = "+00:00" if zone in {None, "Z"} else zone if len(zone) > 3 else f"{zone}:00"
    clock = f"{int(hour or 0):02}:{minute or '00'}:{second or '00'}.{fraction or '0':0<6}"
    return datetime.fromisoformat(f"{year}-{int(month):02}-{int(day):02}T{clock}{zone}").astimezone(UTC)


def _text_to_date(text: str) -> date:
    found = _TIME_TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{shown(text)} is no day such as '2025-06-01'")
    return date(int(found[1]), int(found[2]), int(found[3]))


def _text_to_uuid(text: str) -> UUID:
    if not _UUID_TEXT.fullmatch(text):
        raise ValueError(f"{shown(text)} is no UUID")
    return UUID(text)


def _text_to_bytes(text: str) -> bytes:
    found = bytearray()
    at = 0
    while at < len(text):
        part = _BYTES_TEXT.match(text, at)
        if part is None:
            raise ValueError(f"{shown(text)} is not bytes such as '\\x00\\xFF'")
        found.append(int(part[1], 16) if part[1] else ord(part[2]))
        at = part.end()
    return bytes(found)


def _time_to_text(value: datetime) -> str:
    value = value.astimezone(UTC)
    fraction = f".{value.microsecond:06}".rstrip("0").rstrip(".")
    return f"{value.year:04}-{value:%m-%d %H:%M:%S}{fraction}+00"


_CASTS: Final[dict[tuple[str, str], Convert]] = {
    ("bool", "int"): int,
    ("bool", "str"): lambda value: "true" if value else "false",
    ("int", "bool"): bool,
    ("int", "str"): str,
    ("float", "int"): _float_to_int,
    ("float", "str"): repr,
    ("decimal", "int"): _decimal_to_int,
    ("decimal", "str"): lambda value: format(value, "f"),
    ("str", "bool"): _text_to_bool,
    ("str", "int"): _text_to_int,
    ("str", "float"): _text_to_float,
    ("str", "date"): _text_to_date,
    ("str", "datetime"): _text_to_time,
    ("str", "uuid"): _text_to_uuid,
    ("date", "str"): date.isoformat,
    ("datetime", "date"): lambda value: value.astimezone(UTC).date(),
    ("datetime", "str"): _time_to_text,
    ("uuid", "str"): str,
}


def cast(source: str, target: str) -> Convert | None:
    """Return the conversion of CAST; None if there is none. It raises ValueError where a value has none."""
    if family(target) == "decimal":
        return _cast_to_decimal(source, target)
    return widening(source, target) or _CASTS.get((family(source), target))


def _cast_to_decimal(source: str, target: str) -> Convert | None:
    digits, places = digits_of(target)
    quantize = _to_places(places)
    most = Decimal(10) ** (digits - places)

    def limited(value: Any) -> Decimal:
        try:
            found: Decimal = quantize(value)
        except InvalidOperation:
            found = most
        if not -most < found < most:
            raise ValueError(f"{shown(value)} does not fit into {target}")
        return found

    def of_float(value: float) -> Decimal:
        scaled = half_away(value * 10.0**places)
        if not math.isfinite(scaled):
            raise ValueError(f"{value} does not fit into {target}")
        return limited(Decimal(int(scaled)).scaleb(-places, context=EXACT))

    first: dict[str, Convert] = {
        "int": limited,
        "decimal": limited,
        "bool": lambda value: limited(int(value)),
        "str": lambda value: limited(_text_to_decimal(value)),
        "float": of_float,
        NULL: _same,
    }
    return first.get(family(source))


def read_literal(text: str, kind: str) -> Any:
    """Return the value of a text literal that is compared with a value of that kind. Raises ValueError."""
    if kind == "bytes":
        return _text_to_bytes(text)
    convert = cast("str", kind)
    if convert is None:
        raise ValueError(f"a text is no {kind}")
    return convert(text)


def sort_key(kind: str) -> Convert | None:
    """Return the function to compare values with, None for the values themselves. NaN is above all floats."""
    if family(kind) != "float":
        return None
    return lambda value: (1, 0.0) if math.isnan(value) else (0, value)
