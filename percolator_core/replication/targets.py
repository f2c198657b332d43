"""Each table of PostgreSQL and its table: which columns, which key, and how a row is encoded.

In a typed table, `percolator_core.loading` parses the text of a value as the type of the column of the same
name. Columns of PostgreSQL that the typed table does not have are left out.

In a raw table each column of PostgreSQL is a column, also the key, so each row has a cell. The row key is the
text of the primary key; a primary key of several columns is a JSON list of texts. A null has no cell.

======================  ==================================================================================
type in PostgreSQL      text in a raw table, and before it is parsed for a typed table
======================  ==================================================================================
bool                    ``true`` or ``false``
bytea                   the bytes
timestamptz             ISO 8601 in UTC
timestamp               ISO 8601; for a typed table as a time in UTC, because the column has no time zone
every other type        as PostgreSQL prints it with ISO dates
======================  ==================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError, UnknownTable
from percolator_core.loading.records import BadRecord, Origin, Record, build_record
from percolator_core.loading.typed_records import TypedRecords
from percolator_core.loading.values import bytes_of
from percolator_core.replication.messages import FULL, Fields, Relation
from percolator_core.replication.report import ReplicationStopped
from percolator_core.replication.server import Published
from percolator_core.runtime.log import Log

_BOOL: Final = 16
_BYTEA: Final = 17
_TIMESTAMP: Final = 1114
_TIMESTAMPTZ: Final = 1184
"""Numbers of types (OIDs), which are the same in all versions of PostgreSQL."""

log = Log("percolator.replication")


@dataclass(slots=True)
class Target:
    """The table that replicates a table of PostgreSQL.

    ``columns`` has the types of PostgreSQL's columns, by name, as the stream last described them.
    ``gone`` has columns that PostgreSQL has dropped; their cells stay until their rows are deleted.
    """

    source: str
    table: str
    key: tuple[str, ...]
    columns: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    _typed: TypedRecords | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that JSON can represent; `of_json` reads them."""
        return {
            "table": self.table,
            "key": list(self.key),
            "columns": self.columns,
            "gone": sorted(self.gone),
        }

    @classmethod
    def of_json(cls, source: str, found: Mapping[str, Any]) -> Target:
        """Return the target that `to_json` has described."""
        return cls(source, found["table"], tuple(found["key"]), dict(found["columns"]), set(found["gone"]))

    def describe(self, relation: Relation) -> list[str]:
        """Take the columns of the relation; return a text for each change since the last time.

        Raises ReplicationStopped if changes of the relation no longer identify the row.
        """
        now = relation.types
        sent = {one.name for one in relation.columns if one.is_identity or relation.identity == FULL}
        missing = [name for name in self.key if name not in sent]
        if missing:
            raise ReplicationStopped(
                f"PostgreSQL does not send {missing[0]!r} of changed rows of {self.source}, which is part of "
                f"the key of {self.table}: ALTER TABLE {self.source} REPLICA IDENTITY FULL, or drop the slot "
                "and copy into another table"
            )
        changes: list[str] = []
        if self.columns:
            changes = [
                *(f"new column {name!r}" for name in now if name not in self.columns),
                *(f"dropped column {name!r}" for name in self.columns if name not in now),
                *(
                    f"new type of column {name!r}"
                    for name, kind in now.items()
                    if self.columns.get(name, kind) != kind
                ),
            ]
        self.gone = (self.gone | self.columns.keys()) - now.keys()
        self.columns = dict(now)
        return changes

    def left_out(self, handle: TableHandle) -> list[str]:
        """Return the columns of PostgreSQL that a typed table does not have."""
        known = handle.definition.by_name
        return [name for name in self.columns if handle.is_typed and name not in known]

    def cell_columns(self, handle: TableHandle) -> list[str]:
        """Return the columns whose cells make up a replicated row."""
        if handle.is_typed:
            return [one.name for one in handle.definition.value_columns if one.copy is None]
        return [*self.columns, *sorted(self.gone)]

    def record(self, handle: TableHandle, relation: Relation, fields: Fields) -> Record:
        """Encode the known fields of a row.

        Raises ReplicationStopped if a value does not fit, or the key is not known.
        """
        missing = [name for name in self.key if name not in fields]
        if missing:
            raise ReplicationStopped(
                f"PostgreSQL sent a row of {self.source} without {missing[0]!r}, a part of its key: ALTER "
                f"TABLE {self.source} REPLICA IDENTITY FULL, and drop the slot to copy the table again"
            )
        origin = Origin(self.source, "row", 0)
        if handle.is_typed:
            if self._typed is None or self._typed.version != handle.version:
                # null_text: an empty text of PostgreSQL is not null.
                self._typed = TypedRecords(handle.definition, handle.version, "text", null_text=None)
            known = handle.definition.by_name
            texts = {
                name: _text(relation.types[name], text) for name, text in fields.items() if name in known
            }
            found = self._typed.build(origin, texts)
        else:
            cells = {name: _bytes(relation.types[name], text) for name, text in fields.items()}
            found = build_record(origin, self._raw_key(cells), cells, None)
        if isinstance(found, BadRecord):
            key = ", ".join(f"{name}={fields[name]!r}" for name in self.key)
            raise ReplicationStopped(
                f"the row {key} of {self.source} does not fit into {self.table}: {found.reason}; change the "
                "table and start again, or drop the slot and copy again with --overwrite"
            )
        return found

    def _raw_key(self, cells: Mapping[str, bytes | None]) -> object:
        parts = [cells[name] for name in self.key]
        if len(parts) == 1:
            return parts[0]
        texts = [None if part is None else part.decode("utf-8", "surrogateescape") for part in parts]
        return bytes_of(json.dumps(texts, ensure_ascii=False, separators=(",", ":")))


def _text(kind: int, text: str | None) -> str | None:
    """Return a value as the text that a load would parse; surrogates are bytes that are not UTF-8."""
    if text is None:
        return None
    if kind == _BOOL:
        return {"t": "true", "f": "false"}[text]
    if kind == _BYTEA:
        return bytes.fromhex(text.removeprefix("\\x")).decode("utf-8", "surrogateescape")
    return f"{text}+00:00" if kind == _TIMESTAMP else text


def _bytes(kind: int, text: str | None) -> bytes | None:
    if text is None:
        return None
    if kind not in {_TIMESTAMP, _TIMESTAMPTZ}:
        return bytes_of(_text(kind, text) or "")
    try:
        return datetime.fromisoformat(text).isoformat().encode()
    except ValueError:
        return text.encode()  # such as infinity, which Python does not have


def parse_tables(given: Sequence[str]) -> dict[str, str]:
    """Parse ``PGTABLE=TABLE`` texts: a table of PostgreSQL to a table. A name without schema is in public.

    Raises ConfigurationError for another form, or a name that is given twice.
    """
    found: dict[str, str] = {}
    for text in given:
        source, equals, table = text.partition("=")
        source = source if "." in source else f"public.{source}"
        table = table if equals else source.partition(".")[2]
        if not source.partition(".")[2] or not table:
            raise ConfigurationError(f"--table {text!r} is not valid: write PGTABLE=TABLE, or PGTABLE")
        if source in found or table in found.values():
            raise ConfigurationError(f"--table {text!r}: each table has one source, and may be named once")
        found[source] = table
    return found


def choose_targets(
    db: Database, published: Iterable[Published], tables: Mapping[str, str] | None
) -> dict[str, Target]:
    """Return the target of each table of PostgreSQL, by its name.

    ``tables`` maps names in PostgreSQL to names of tables. None means all tables of the publication, each
    into the table of its name without the schema.

    Raises:
        UnknownTable: a table does not exist.
        ConfigurationError: the publication lacks a table, or the rows of a table cannot be identified.
        ReplicationStopped: PostgreSQL does not send the key of changed rows.
    """
    by_name = {one.relation.name: one for one in published}
    chosen = {name: one.table for name, one in by_name.items()} if tables is None else dict(tables)
    for name in chosen:
        if name not in by_name:
            raise ConfigurationError(
                f"the publication has no table {name}: it has {', '.join(by_name)}; add it with ALTER "
                "PUBLICATION, or leave it out"
            )
    for table in chosen.values():
        sources = [name for name, other in chosen.items() if other == table]
        if len(sources) > 1:
            raise ConfigurationError(
                f"{' and '.join(sources)} have the same table {table}: name one for each with --table"
            )
    return {name: _target(db, by_name[name], table) for name, table in chosen.items()}


def _target(db: Database, published: Published, table: str) -> Target:
    name = published.relation.name
    if all(definition.name != table for definition in db.tables()):
        raise UnknownTable(
            f"there is no table {table!r} in {db.namespace!r} for {name}: create it, name its chain with "
            "--chain, or name another table with --table"
        )
    handle = db.catalog.table(table)
    definition = handle.definition
    definition.refuse_of_view()
    if definition.index_of:
        raise ConfigurationError(
            f"{table} is an index of {definition.index_of}: replicate into {definition.index_of}, which "
            "updates the index"
        )
    key = definition.key if handle.is_typed else published.primary_key
    if not key:
        raise ConfigurationError(
            f"{name} has no primary key, or a DEFERRABLE one; it would be the row key of {table}: add a key "
            "that is checked at once, or replicate into a typed table whose key is such a unique index"
        )
    missing = [column for column in key if column not in published.relation.types]
    if missing:
        raise ConfigurationError(
            f"{name} has no published column {missing[0]!r}, which is part of the key of {table}"
            f": it has {', '.join(published.relation.types)}"
        )
    if not any(columns <= frozenset(key) for columns in published.unique):
        raise ConfigurationError(
            f"several rows of {name} may have the same key ({', '.join(key)}) of {table}: create a unique "
            f"index of these columns, or give {table} the primary key of {name}"
        )
    _check_required(published, handle)
    target = Target(name, table, tuple(key))
    target.describe(published.relation)
    left_out = target.left_out(handle)
    if left_out:
        log.info(
            "columns of PostgreSQL have no column of this name in the typed table, and are left out",
            source=name,
            table=table,
            columns=left_out,
        )
    return target


def _check_required(published: Published, handle: TableHandle) -> None:
    """Raise ConfigurationError if the table requires a column that PostgreSQL does not have."""
    needed = [
        one.name
        for one in (handle.definition.value_columns if handle.is_typed else ())
        if not one.nullable and one.default is None and one.copy is None
    ]
    needed = [column for column in needed if column not in published.relation.types]
    if needed:
        raise ConfigurationError(
            f"{handle.name} needs a value for {needed[0]!r}, and {published.relation.name} has no published "
            "column of this name: allow null in the table, or publish the column"
        )
