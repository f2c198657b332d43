"""Format values for pages: text, indented JSON or a dump of bytes, cut to a size.

Characters that are invisible or change the direction of text are shown by their numbers, so that no value
looks like another one.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from percolator_core.notation.typedtext import show_typed
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.types import column_type

LONGEST: Final = 20_000
"""The page of a row shows at most this many characters of a value."""

LINE: Final = 140
"""A list shows at most this many characters of a value."""

_LARGEST_JSON: Final = 200_000
"""A value of at most this many bytes is parsed as JSON."""

_DUMPED: Final = 16
"""A line of a dump has this many bytes."""

_KEPT: Final = frozenset("\n\t\u200d")
_INDENTED: Final = json.JSONEncoder(ensure_ascii=False, indent=2)


@dataclass(frozen=True, slots=True)
class Shown:
    """A value on a page. ``size`` is in bytes; ``cut`` is True if ``text`` is only the beginning.

    ``at_least`` is True if only the beginning was fetched, so that the value may be larger than ``size``.
    """

    kind: Literal["text", "json", "bytes", "null", "deleted"]
    text: str
    size: int
    cut: bool = False
    at_least: bool = False


def show(definition: TableDefinition, column: str, value: bytes | None, longest: int = LONGEST) -> Shown:
    """Format a cell's value for the page of its row. None means a deleted cell, or null in a typed table."""
    if value is None:
        return Shown("null" if definition.is_typed else "deleted", "", 0)
    kind = definition.by_name[column].type if column in definition.by_name else "bytes"
    if definition.is_typed and kind not in {"bytes", "str", "json"}:
        return Shown("text", show_typed(definition, column, decoded(definition, column, value)), len(value))
    found = None if kind == "str" else _as_json(value, longest)
    if found is not None:
        return found
    text = _as_text(value, longest)
    if text is None:
        return _dump(value, longest)
    return Shown("text", visible(text[:longest]), len(value), len(text) > longest or len(value) > 4 * longest)


def show_line(definition: TableDefinition, column: str, value: bytes | None, longest: int = LINE) -> Shown:
    """Format a cell's value for a line of a list."""
    if value is None:
        return Shown("null" if definition.is_typed else "deleted", "", 0)
    kind = definition.by_name[column].type if column in definition.by_name else "bytes"
    if definition.is_typed and kind not in {"bytes", "str", "json"}:
        line = show_typed(definition, column, decoded(definition, column, value))
        return Shown("text", line[:longest], len(value), len(line) > longest)
    text = _as_text(value, longest)
    if text is None:
        return Shown("bytes", value[: longest // 4].hex(" "), len(value), len(value) > longest // 4)
    line = visible(" ".join(text.split()))
    return Shown("text", line[:longest], len(value), len(line) > longest or len(value) > 4 * longest)


def decoded(definition: TableDefinition, column: str, value: bytes) -> Any:
    """Return a typed cell's Python value."""
    return column_type(definition.by_name[column].type).decode(value)


def _as_text(value: bytes, longest: int) -> str | None:
    """Decode the beginning of a text: ``longest`` characters or more; None if the bytes are not text."""
    data = value[: 4 * longest]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # The cut may be within a character.
        if len(data) == len(value) or error.start < len(data) - 4:
            return None
        text = data[: error.start].decode()
    # Control characters other than white space show that the bytes are not text.
    return None if re.search(r"[\x00-\x08\x0e-\x1f]", text) else text


def visible(text: str) -> str:
    """Replace each character that is invisible, or that moves other characters, with its number."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in _KEPT or unicodedata.category(letter) == "Zs"
        else "␍"
        if letter == "\r"
        else f"⟨U+{ord(letter):04X}⟩"
        for letter in text
    )


def _as_json(value: bytes, longest: int) -> Shown | None:
    if len(value) > _LARGEST_JSON or value[:1] not in {b"{", b"["}:
        return None
    try:
        # Stop after the shown part: indentation makes deeply nested JSON a thousand times larger.
        text = ""
        for part in _INDENTED.iterencode(_exactly(value)):
            text += part
            if len(text) > longest:
                break
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return Shown("json", visible(text[:longest]), len(value), len(text) > longest)


def _exactly(value: bytes) -> Any:
    """Parse JSON. Raises ValueError if the indented form would differ in content."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name comes twice")
        return found

    def number(text: str) -> float:
        found = float(text)
        if Decimal(text) != Decimal(repr(found)):
            raise ValueError("more digits than a float has")
        return found

    return json.loads(value, object_pairs_hook=members, parse_float=number)


def _dump(value: bytes, longest: int) -> Shown:
    """Format bytes as a dump: offset, hexadecimal, ASCII."""
    most = max(_DUMPED, longest // 10)
    lines = []
    for start in range(0, min(len(value), most), _DUMPED):
        part = value[start : start + _DUMPED]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<{3 * _DUMPED - 1}}  {plain}")
    return Shown("bytes", "\n".join(lines), len(value), len(value) > most)
