"""The tokens of filter expressions, and the conversion of values and names from and to text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from percolator_core.schema.types import ColumnType, shown

_NUMBER: Final = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TOKEN: Final = re.compile(
    rf"""(?P<space>\s+)
    |(?:[hH][eE][xX]|[xX])'(?P<bytes>[^']*+)'
    |'(?P<text>(?:[^']|'')*+)'
    |"(?P<name>(?:[^"]|"")*+)"
    |(?P<number>{_NUMBER})(?![\w.])
    |(?P<word>[^\W\d]\w*)
    |(?P<mark>==|!=|<>|<=|>=|\^=|[=<>(),])""",
    re.VERBOSE,
)
_PLAIN_NUMBER: Final = re.compile(_NUMBER)
_PLAIN_NAME: Final = re.compile(r"[^\W\d]\w*")
_WORD: Final = re.compile(r"[\w.]+")

RESERVED: Final = frozenset(("and", "or", "not", "in", "between", "is", "null", "like", "true", "false"))
"""Words of the filter language; a column with such a name needs double quotes."""

_BEFORE: Final = 40
_BEHIND: Final = 30


@dataclass(frozen=True, slots=True)
class Token:
    """A token of an expression. ``text`` is its content without quotes; ``at`` is its position.

    ``kind`` is ``text``, ``bytes``, ``name`` (in double quotes), ``number``, ``word``, ``mark`` or, after the
    last token, ``end``.
    """

    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The text of a word or mark in lower case; empty for all other kinds."""
        return self.text.lower() if self.kind in {"word", "mark"} else ""

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        text = self.text if len(self.text) <= _BEFORE else f"{self.text[:_BEFORE]}…"
        return {"text": f"'{text}'", "name": f'"{text}"', "bytes": f"x'{text}'"}.get(self.kind, text)


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of the text, then ``end``. Raises ValueError at a character that begins no token."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(pointed(text, at, _unreadable(text, at)))
        kind = found.lastgroup
        if kind in {"text", "name"}:
            quote = text[at]
            yield Token(kind, found[kind].replace(quote * 2, quote), at)
        elif kind is not None and kind != "space":
            yield Token(kind, found[kind], at)
        at = found.end()
    yield Token("end", "", at)


def _unreadable(text: str, at: int) -> str:
    if text[at] in {"'", '"'}:
        return f"the closing {text[at]} is missing"
    if text[at] in "&|!~":
        return "write the words and, or, not"
    word = _WORD.match(text, at)
    return f"{shown(word[0])} is no number" if word else f"{shown(text[at])} has no meaning here"


def pointed(text: str, at: int, sentence: str) -> str:
    """Return the sentence, the text around the position, and a caret below the position."""
    start = max(0, at - _BEFORE)
    around = "".join(one if one.isprintable() else " " for one in text[start : at + _BEHIND])
    return f"{sentence}, at character {at + 1}:\n  {around}\n  {' ' * (at - start)}^"


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("too large")
    return value


def _no_number(text: str) -> float:
    if text.lower() not in {"nan", "inf", "-inf"}:
        raise ValueError("a number needs no quotes")
    return float(text)


def _decimal(text: str) -> Decimal:
    if not _PLAIN_NUMBER.fullmatch(text):
        raise ValueError("no number")
    return Decimal(text)


def _time(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.utcoffset() is None:
        raise ValueError("no zone")
    return value


def _uuid(text: str) -> UUID:
    value = UUID(text)
    if value.hex != text.replace("-", "").lower():
        raise ValueError("no UUID")
    return value


_READERS: Final[Mapping[tuple[str, str], Callable[[str], Any]]] = {
    ("bool", "word"): lambda text: {"true": True, "false": False}[text.lower()],
    ("int", "number"): int,
    ("float", "number"): _float,
    ("float", "text"): _no_number,
    ("str", "text"): str,
    ("bytes", "bytes"): bytes.fromhex,
    ("datetime", "text"): _time,
    ("date", "text"): date.fromisoformat,
    ("decimal", "number"): _decimal,
    ("decimal", "text"): _decimal,
    ("uuid", "text"): _uuid,
}
_WRITTEN: Final[Mapping[str, str]] = {
    "bool": "true and false",
    "int": "whole numbers",
    "float": "numbers, 'nan', 'inf' and '-inf'",
    "str": "texts in single quotes",
    "bytes": "bytes such as x'00ff'",
    "datetime": "times with their zone such as '2025-06-01T12:00:00Z'",
    "date": "days such as '2025-06-01'",
    "decimal": "numbers",
    "uuid": "UUIDs in single quotes",
}


def read(kind: ColumnType, token: Token) -> Any:
    """Return the value of a token for a column of that type. Raises ValueError if it is no such value."""
    try:
        return _READERS[kind.family, token.kind](token.text)
    except (KeyError, ValueError, ArithmeticError):
        raise ValueError(f"is {kind.name}, so its values are {_WRITTEN[kind.family]}, not {token}") from None


def name(column: str) -> str:
    """Return a column's name as part of a filter."""
    if _PLAIN_NAME.fullmatch(column) and column.lower() not in RESERVED:
        return column
    return '"' + column.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any) -> str:
    """Return a value as part of a filter. Return some text for a value that no column can have."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, datetime | date):
        return _quoted(value.isoformat())
    text = str(value) if isinstance(value, Decimal | UUID) else shown(value)
    is_plain = isinstance(value, int | float | Decimal) and _PLAIN_NUMBER.fullmatch(text)
    return text if is_plain else _quoted(text)
