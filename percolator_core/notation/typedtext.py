"""Parse typed keys and values from text, and format them as text or JSON.

A key of one column is written as its value: ``http://a``, ``7``, ``2026-11-20T10:00:00Z``. A key of several
columns is one argument, with ``column=value`` for each column, separated by blanks: ``'shop=ada number=7'``.
A value with blanks needs quotes, as in a shell. `bytestext` defines how text, bytes, and row keys of raw
tables are written.
"""

from __future__ import annotations

import json
import math
import shlex
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from percolator_core.errors import abbreviated
from percolator_core.notation.bytestext import json_bytes, parse_bytes, show_bytes, show_value
from percolator_core.notation.error import NotationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from percolator_core.schema.definitions import TableDefinition

NULL: Final = "null"


def row_text(text: str) -> str:
    """Return the text unchanged. Raises NotationError if its ``hex:`` or ``base64:`` form is invalid."""
    parse_bytes(text)
    return text


def parse_row(definition: TableDefinition, text: str) -> bytes:
    """Parse an argument into a row key. Raises NotationError if it is not a key of the table."""
    if not definition.is_typed:
        return parse_bytes(text)
    from percolator_core.schema.row_keys import KeyCodec

    values = parse_key(definition, text)
    return KeyCodec(definition).encode([values[name] for name in definition.key])


def parse_key(definition: TableDefinition, text: str) -> dict[str, Any]:
    """Parse a typed table's key into its values, by column. Raises NotationError for an invalid key."""
    names = definition.key
    if len(names) == 1:
        return {names[0]: parse_value(definition, names[0], text)}
    form = " ".join(f"{name}=…" for name in names)
    try:
        parts = shlex.split(text)
    except ValueError:
        raise NotationError(f"{text!r} has a quote that is not closed: write '{form}'") from None
    given: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name not in names or name in given:
            raise NotationError(
                f"{part!r} is not column=value for a column of the key, or repeats one: the key of "
                f"{definition.name} is ({', '.join(names)}); write it as one argument, '{form}'"
            )
        given[name] = value
    missing = [name for name in names if name not in given]
    if missing:
        raise NotationError(
            f"{text!r} lacks {missing[0]}: the key of {definition.name} is ({', '.join(names)}); write it as "
            f"one argument, '{form}'"
        )
    return {name: parse_value(definition, name, value) for name, value in given.items()}


def parse_value(definition: TableDefinition, name: str, text: str) -> Any:
    """Parse the value of a column. Raises NotationError for text that is not of the column's type."""
    from percolator_core.schema.literals import Token, read
    from percolator_core.schema.types import column_type

    kind = column_type(definition.by_name[name].type)
    if kind.name in {"str", "bytes"}:
        found = parse_bytes(text)
        try:
            return found if kind.name == "bytes" else found.decode()
        except UnicodeDecodeError:
            raise NotationError(
                f"{text!r} is not UTF-8: {name} of {definition.name} is of type str"
            ) from None
    for form in ("number", "word", "text"):
        try:
            value = read(kind, Token(form, text, 0))
        except ValueError:
            continue
        try:
            kind.encode(value)
        except ValueError as error:
            raise NotationError(f"{name}: {error}") from None
        return value
    raise NotationError(f"{text!r} is not valid: {name} of {definition.name} is of type {kind.name}")


def show_row(definition: TableDefinition, row: bytes) -> str:
    """Return a row key as text that `parse_row` accepts."""
    if not definition.is_typed:
        return show_bytes(row)
    return show_key(definition, key_of(definition, row))


def show_key(definition: TableDefinition, key: dict[str, Any]) -> str:
    """Return the values of a typed table's key as text that `parse_row` accepts."""
    shown = {name: _show_part(definition, name, key[name]) for name in definition.key}
    if len(shown) == 1:
        return next(iter(shown.values()))
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in shown.items())


def _show_part(definition: TableDefinition, name: str, value: Any) -> str:
    if isinstance(value, str | bytes):
        return show_bytes(value.encode() if isinstance(value, str) else value)
    return show_typed(definition, name, value)


def key_of(definition: TableDefinition, row: bytes) -> dict[str, Any]:
    """Decode a typed table's row key into its values, by column."""
    from percolator_core.schema.row_keys import KeyCodec

    return dict(zip(definition.key, KeyCodec(definition).decode(row), strict=True))


def json_row(definition: TableDefinition, row: bytes) -> Any:
    """Return a row key for JSON: for a raw table its bytes, for a typed table the key's values by column."""
    if not definition.is_typed:
        return json_bytes(row)
    return {name: json_value(value) for name, value in key_of(definition, row).items()}


class Rows:
    """Row keys of some tables as text and in JSON; keys of raw and unknown tables are shown as bytes."""

    def __init__(self, definitions: Iterable[TableDefinition] = ()) -> None:
        self._typed = {one.name: one for one in definitions if one.is_typed}

    def show(self, table: str, row: bytes, longest: int | None = None) -> str:
        """Return a key as text that `parse_row` accepts, cut off with ``…`` after ``longest`` characters."""
        definition = self._typed.get(table)
        try:
            shown = show_bytes(row, longest) if definition is None else show_row(definition, row)
        except ValueError:
            # The key is from an earlier table with this name.
            shown = show_bytes(row, longest)
        return shown if longest is None else abbreviated(shown, longest)

    def data(self, table: str, row: bytes) -> Any:
        """Return a row key for JSON, as `json_row` does."""
        definition = self._typed.get(table)
        try:
            return json_bytes(row) if definition is None else json_row(definition, row)
        except ValueError:
            return json_bytes(row)


def show_typed(definition: TableDefinition, name: str, value: Any, longest: int | None = None) -> str:
    """Return a value as text, cut off with ``…`` after ``longest`` characters."""
    if value is None:
        return NULL
    kind = definition.by_name[name].type
    if kind == "json":
        text = json.dumps(value, ensure_ascii=False)
    elif kind == "bool":
        text = str(value).lower()
    elif isinstance(value, datetime | date):
        text = _iso(value)
    elif isinstance(value, bytes):
        return show_value(value, longest)
    else:
        text = str(value)
    if longest is None:
        return text
    line = text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]
    return abbreviated(line, longest)


def json_value(value: Any) -> Any:
    """Return the value of a column for JSON.

    Numbers stay numbers, times are ISO 8601, decimals and UUIDs are text, bytes are as in `json_bytes`. The
    value of a json column is returned as it is.
    """
    if value is None or isinstance(value, bool | int | str | dict | list):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return json_bytes(value)
    return _iso(value) if isinstance(value, datetime | date) else str(value)


def raw_typed(definition: TableDefinition, name: str, value: Any) -> bytes:
    """Return the bytes to write into a file: bytes unchanged, any other value as text."""
    return value if isinstance(value, bytes) else show_typed(definition, name, value).encode()


def _iso(moment: datetime | date) -> str:
    return moment.isoformat().replace("+00:00", "Z")
