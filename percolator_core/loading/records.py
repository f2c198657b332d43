"""Records of raw tables, and malformed records.

This table shows how a value of each type is encoded in a cell.

======================  =====================================================================
bytes                   unchanged
text                    UTF-8
bool                    ``true`` or ``false``
int, Decimal            decimal digits
float                   the shortest text that determines the float; ``nan``, ``inf``, ``-inf``
date, time, datetime    ISO 8601
list, dict              JSON in UTF-8: keys sorted, no spaces, bytes inside as base64
None                    no cell: an existing cell is deleted
======================  =====================================================================
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal, NamedTuple
from uuid import UUID

from percolator_core.layout.keys import encode_column
from percolator_core.layout.records import MAX_ROW
from percolator_core.schema.types import shown

MAX_LOADED_VALUE: Final = 64 * 1024 * 1024
"""The limit of a value in bytes. The store's limit is higher, but a task has many records in memory."""

HEAD: Final = 200
"""The put-aside file has at most this many bytes of a malformed record: the first ones."""

Unit = Literal["byte", "line", "row", "file"]


class Origin(NamedTuple):
    """The position of a record: the byte or row (counted from 0) or the line (from 1) of a file."""

    file: str
    unit: Unit
    position: int


@dataclass(frozen=True, slots=True)
class Record:
    """One row to load. A value of None deletes the cell; other columns stay unchanged."""

    key: bytes
    cells: dict[str, bytes | None]
    origin: Origin

    @property
    def size(self) -> int:
        """The size in bytes of the key, the names of the columns and the values."""
        return len(self.key) + sum(len(column) + len(value or b"") for column, value in self.cells.items())


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A malformed record. ``key`` is its row key, if known.

    In a typed table ``shown`` is the key as text, because the bytes are not readable.
    """

    origin: Origin
    reason: str
    head: bytes = b""
    key: bytes | None = None
    shown: str | None = None

    def to_json(self) -> str:
        """Return a line for the put-aside file."""
        fields: dict[str, object] = {"file": self.origin.file}
        if self.origin.unit != "file":
            fields[self.origin.unit] = self.origin.position
        fields["reason"] = self.reason
        if self.key is not None:
            fields["key"] = _readable(self.key) if self.shown is None else self.shown
        fields["head"] = _readable(self.head)
        return json.dumps(fields)


def _readable(data: bytes) -> str:
    return data[:HEAD].decode("utf-8", "backslashreplace")


def build_record(
    origin: Origin,
    key: object,
    fields: Mapping[str, object],
    columns: Mapping[str, str] | None,
    head: bytes = b"",
) -> Record | BadRecord:
    """Build the record with this key and these fields, or a malformed record with the reason.

    ``columns`` maps fields to table columns: only these fields are loaded, and a missing field counts as
    None. Without ``columns`` each field is loaded into the column of the same name.
    """
    try:
        row = encode_key(key)
    except ValueError as error:
        return BadRecord(origin, str(error), head)
    chosen = fields if columns is None else {column: fields.get(name) for name, column in columns.items()}
    cells: dict[str, bytes | None] = {}
    for column, value in chosen.items():
        try:
            _check_column(column)
            encoded = encode_value(value)
        except ValueError as error:
            return BadRecord(origin, f"column {shown(column)}: {error}", head, row)
        if encoded is not None and len(encoded) > MAX_LOADED_VALUE:
            return BadRecord(origin, f"column {shown(column)}: {too_large(len(encoded))}", head, row)
        cells[column] = encoded
    return Record(row, cells, origin)


def too_large(size: int) -> str:
    """Return the reason why a record with a value of this size is malformed."""
    return f"the value has {size} bytes, more than {MAX_LOADED_VALUE}"


def encode_key(key: object) -> bytes:
    """Encode a row key: bytes unchanged, text as UTF-8; ints, decimals, dates and UUIDs as text.

    Raises ValueError for None, an empty key, a key over ``MAX_ROW`` bytes, and any other type.
    """
    if key is None:
        raise ValueError("the row key is missing")
    kinds = bytes | bytearray | memoryview | str | int | Decimal | date | UUID
    if isinstance(key, bool) or not isinstance(key, kinds):
        raise ValueError(f"a {type(key).__name__} cannot be a row key")
    row = encode_value(key)
    if not row:
        raise ValueError("the row key is empty")
    if len(row) > MAX_ROW:
        raise ValueError(f"the row key has {len(row)} bytes, more than {MAX_ROW}")
    return row


def encode_value(value: object) -> bytes | None:
    """Encode a value as in the module's docstring.

    Raises ValueError for a type without an encoding and for text that is not Unicode.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return _as_text(value).encode()


def _as_text(value: object) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | Decimal() | UUID():
            return str(value)
        case float():
            return repr(value)
        case date() | time():  # a datetime is a date
            return value.isoformat()
        case list() | tuple() | dict():
            return json.dumps(
                value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=_nested
            )
        case _:
            raise ValueError(f"a {type(value).__name__} has no encoding as a cell")


def _nested(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    return _as_text(value)


_check_column = lru_cache(maxsize=4096)(encode_column)
