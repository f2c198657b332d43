"""Typed values and keys on the command line: texts in, texts and JSON out.

A key of one column is given as its value: ``http://a``, ``7``, ``2026-11-20T10:00:00Z``. One of several
columns is given as ``column=value`` for each, with blanks in between: ``'shop=ada number=7'``, one argument.
A value with blanks is put into quotes, as in a shell. Text and bytes, and rows of raw tables, are written as
`bytestext` has it.
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
    """A row key as it was given, to be parsed once its table is known; NotationError for no bytes."""
    parse_bytes(text)
    return text


def parse_row(definition: TableDefinition, text: str) -> bytes:
    """The row key that an argument stands for.

    Raises NotationError for what is no key of a typed table, or no bytes.
    """
    if not definition.is_typed:
        return parse_bytes(text)
    from percolator_core.schema.row_keys import KeyCodec

    values = parse_key(definition, text)
    return KeyCodec(definition).encode([values[name] for name in definition.key])


def parse_key(definition: TableDefinition, text: str) -> dict[str, Any]:
    """The values of a typed table's key, by column. Raises NotationError."""
    names = definition.key
    if len(names) == 1:
        return {names[0]: parse_value(definition, names[0], text)}
    form = " ".join(f"{name}=…" for name in names)
    try:
        parts = shlex.split(text)
    except ValueError:
        raise NotationError(f"{text!r} has a quote without its end: write '{form}'") from None
    given: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name not in names or name in given:
            raise NotationError(
                f"{part!r} is no column of the key and its value: the key of {definition.name} is "
                f"({', '.join(names)}), write it as one argument, '{form}'"
            )
        given[name] = value
    missing = [name for name in names if name not in given]
    if missing:
        raise NotationError(
            f"{text!r} lacks {missing[0]}: the key of {definition.name} is ({', '.join(names)}), write it as "
            f"one argument, '{form}'"
        )
    return {name: parse_value(definition, name, value) for name, value in given.items()}


def parse_value(definition: TableDefinition, name: str, text: str) -> Any:
    """The value of a column that a text stands for. Raises NotationError."""
    from percolator_core.schema.literals import Token, read
    from percolator_core.schema.types import column_type

    kind = column_type(definition.by_name[name].type)
    if kind.name in {"str", "bytes"}:
        found = parse_bytes(text)
        try:
            return found if kind.name == "bytes" else found.decode()
        except UnicodeDecodeError:
            raise NotationError(f"{text!r} is no text, which {name} of {definition.name} is") from None
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
    raise NotationError(f"{text!r} is no {kind.name}, which {name} of {definition.name} is")


def show_row(definition: TableDefinition, row: bytes) -> str:
    """A row key as `parse_row` takes it."""
    if not definition.is_typed:
        return show_bytes(row)
    return show_key(definition, key_of(definition, row))


def show_key(definition: TableDefinition, key: dict[str, Any]) -> str:
    """The values of a typed table's key as `parse_row` takes them."""
    shown = {name: _show_part(definition, name, key[name]) for name in definition.key}
    if len(shown) == 1:
        return next(iter(shown.values()))
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in shown.items())


def _show_part(definition: TableDefinition, name: str, value: Any) -> str:
    if isinstance(value, str | bytes):
        return show_bytes(value.encode() if isinstance(value, str) else value)
    return show_typed(definition, name, value)


def key_of(definition: TableDefinition, row: bytes) -> dict[str, Any]:
    """The values in a typed table's row key, by column."""
    from percolator_core.schema.row_keys import KeyCodec

    return dict(zip(definition.key, KeyCodec(definition).decode(row), strict=True))


def json_row(definition: TableDefinition, row: bytes) -> Any:
    """A row key in JSON: bytes of a raw table, an object of the key's columns of a typed one."""
    if not definition.is_typed:
        return json_bytes(row)
    key = key_of(definition, row)
    return {name: json_typed(definition, name, value) for name, value in key.items()}


class Rows:
    """Row keys of some tables for people and in JSON; as bytes where a table is not known, or is raw."""

    def __init__(self, definitions: Iterable[TableDefinition] = ()) -> None:
        self._typed = {one.name: one for one in definitions if one.is_typed}

    def show(self, table: str, row: bytes, longest: int | None = None) -> str:
        """A row key as `parse_row` takes it; cut off with ``…`` behind ``longest`` characters."""
        definition = self._typed.get(table)
        try:
            shown = show_bytes(row, longest) if definition is None else show_row(definition, row)
        except ValueError:
            # Of a table that was there before under this name.
            shown = show_bytes(row, longest)
        return shown if longest is None else abbreviated(shown, longest)

    def data(self, table: str, row: bytes) -> Any:
        """A row key in JSON, as `json_row`."""
        definition = self._typed.get(table)
        try:
            return json_bytes(row) if definition is None else json_row(definition, row)
        except ValueError:
            return json_bytes(row)


def show_typed(definition: TableDefinition, name: str, value: Any, longest: int | None = None) -> str:
    """A value for people; cut off with ``…`` behind ``longest`` characters."""
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


def json_typed(definition: TableDefinition, name: str, value: Any) -> Any:
    """A value in JSON: numbers as numbers, times in ISO 8601, decimals and UUIDs as text, bytes as keys."""
    if definition.by_name[name].type == "json" or value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return json_bytes(value)
    return _iso(value) if isinstance(value, datetime | date) else str(value)


def raw_typed(definition: TableDefinition, name: str, value: Any) -> bytes:
    """A value as it goes into a file: bytes as they are, all else as text."""
    return value if isinstance(value, bytes) else show_typed(definition, name, value).encode()


def _iso(moment: datetime | date) -> str:
    return moment.isoformat().replace("+00:00", "Z")
