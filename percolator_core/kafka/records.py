"""Convert records of Kafka to rows.

The value is a JSON object, whose fields are columns, as in a load of JSON lines; in a raw table it may also
be one cell. A record without a value (a tombstone) deletes its row.

In a raw table the row key is the record's key. In a typed table the columns of the key are fields of the
value; those that it lacks come from the record's key, which is a JSON object with these fields or, if the key
has one column, its value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.loading.formats.json_lines import parse_object
from percolator_core.loading.records import HEAD, BadRecord, Origin, Record, build_record, encode_key
from percolator_core.loading.typed_records import TypedRecords, typed_records
from percolator_core.loading.values import JsonNumber


class Message(NamedTuple):
    """A record of Kafka in a partition of the topic."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Deletion:
    """The deletion of a row."""

    key: bytes


@dataclass(slots=True)
class Converter:
    """Converts the records of one topic. ``columns`` and ``column`` are the arguments of `consume`."""

    topic: str
    columns: Mapping[str, str] | None
    column: str | None
    _typed: TypedRecords | None = field(default=None, init=False)

    def typed(self, handle: TableHandle) -> TypedRecords | None:
        """Return what encodes rows of the table as it is now; None for a raw table.

        Raises ConfigurationError if the table is an index, or if ``columns`` or ``column`` do not fit it.
        """
        definition = handle.definition
        if not handle.is_typed:
            return None
        if self.column is not None:
            raise ConfigurationError(
                f"{definition.name} is typed, and its rows are made of JSON objects: leave --column out"
            )
        if self._typed is None or self._typed.version != handle.version:
            self._typed = typed_records(
                definition, handle.version, "json", None, self.columns, "", dialect="json", page_fields=()
            )
        return self._typed

    def convert(
        self, typed: TypedRecords | None, partition: int, message: Message
    ) -> Record | Deletion | BadRecord:
        """Return what the record does to its row, or the malformed record with the reason."""
        head = (message.value or b"")[:HEAD]
        origin = Origin(f"{self.topic}/{partition}", "row", message.offset)
        try:
            if typed is None:
                return self._raw(origin, message, head)
            if message.value is None:
                return Deletion(typed.row_key(_key_fields(typed, message.key)))
            fields = parse_object(message.value, is_typed=True)
            if any(name not in fields for name in typed.key_fields):
                fields = _key_fields(typed, message.key) | fields
            return typed.build(origin, fields, head)
        except ValueError as error:
            return BadRecord(origin, str(error), head)

    def _raw(self, origin: Origin, message: Message, head: bytes) -> Record | Deletion | BadRecord:
        key = encode_key(message.key)
        if message.value is None:
            return Deletion(key)
        if self.column is not None:
            return build_record(origin, key, {self.column: message.value}, None, head)
        return build_record(origin, key, parse_object(message.value, is_typed=False), self.columns, head)


def _key_fields(typed: TypedRecords, key: bytes | None) -> dict[str, Any]:
    """Return the fields of the row key in a record's key. Raises ValueError."""
    if key is None:
        raise ValueError("the record has no key")
    names = typed.key_fields
    try:
        text = key.decode()
    except UnicodeDecodeError:
        raise ValueError("the record's key is not UTF-8") from None
    try:
        found = json.loads(text, parse_float=JsonNumber)
    except (ValueError, RecursionError):
        found = text
    if isinstance(found, dict):
        return {name: found.get(name) for name in names}
    if len(names) > 1:
        raise ValueError(f"the record's key is not a JSON object with the fields {', '.join(names)}")
    is_text = typed.definition.key_columns[0].type in {"str", "bytes"}
    return {names[0]: text if is_text and not isinstance(found, str) else found}
