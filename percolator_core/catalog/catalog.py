"""The catalog: which tables there are. Definitions live in the store, each client keeps a copy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from percolator_core.errors import PercolatorError, UnknownColumn, UnknownTable, abbreviated
from percolator_core.layout.keys import MARKER, acknowledged, decode_column, encode_column, tablet_of
from percolator_core.layout.records import LOCK_MARK, VERSION_MARK
from percolator_core.schema.definitions import TableDefinition, from_json, to_json
from percolator_core.schema.partitions import placement
from percolator_core.scripts import calls
from percolator_core.store import Store
from percolator_core.store.packing import Command, pack, pack_fields

SPARSE: Final = 64
"""Reads of a column that ask for the tablet's standing, too, once a row was found without the column."""


class ColumnFields:
    """A column that holds data, and the fields of a row's hash that belong to it.

    A table handle has one of them for each column, so they are told apart by identity: a cheap key.
    ``sparse`` is the number of further reads that ask for the tablet's standing, too, without which a missing
    cell proves nothing. It starts at 1, and a read that meets a row without the column sets it to `SPARSE`.
    """

    __slots__ = ("encoded", "lock", "name", "packed", "sparse", "version")

    def __init__(self, name: str, encoded: bytes | None = None) -> None:
        """``encoded`` is the column as it stands in the store; None where that is its name."""
        self.name = name
        self.encoded = encode_column(name) if encoded is None else encoded
        self.version = VERSION_MARK + self.encoded
        self.lock = LOCK_MARK + self.encoded
        self.packed = pack_fields(self.version, self.lock)
        self.sparse = 1

    def note_missing(self) -> None:
        """A read has met a row without the column."""
        self.sparse = SPARSE

    @property
    def names_bytes(self) -> int:
        """Estimated memory of the name, in bytes: there are about six copies."""
        return 6 * len(self.encoded)


T = TypeVar("T")

COLUMNS_BYTES: Final = 64 << 20
"""Memory for the columns of a table that a client remembers, at most, in bytes; it then begins anew."""

COLUMN_BYTES: Final = 400
"""What a column takes of that beside its name."""

LOOKED_AT_EVERY: Final = 1.0
"""Seconds after which a transaction that begins looks again whether tables have changed.

Correctness does not depend on it: the timestamp of a snapshot comes with the catalog's epoch. A transaction
that has looked is seldom refused for a change.
"""

CHANGED: Final = "table changed"
"""Why a transaction conflicts with the change of a table's definition, or its end."""

_EPOCH: Final = b"\xff"
"""The field of the catalog that counts its changes: no name of a table, which is UTF-8."""

_ENTRY: Final = b"{"
"""How the entry of a table begins: it is a JSON object."""

_UNDER_WAY: Final = b"?"
"""The version of a table that is being changed: no tablet has it, so nothing is written meanwhile."""


class _Columns(dict[str, ColumnFields]):
    """The columns of a table that were asked for; a new one is made when it is looked up."""

    __slots__ = ("_definition", "_room")

    def __init__(self, definition: TableDefinition) -> None:
        super().__init__()
        self._definition = definition
        self._room = COLUMNS_BYTES

    def __missing__(self, column: str) -> ColumnFields:
        if column in self._definition.notify_only:
            raise UnknownColumn(
                f"{self._definition.name}.{abbreviated(column)} is notify-only and holds no data: use notify"
            )
        fields = ColumnFields(column)
        size = COLUMN_BYTES + fields.names_bytes
        self._room -= size
        if self._room < 0:
            self.clear()  # names that hold data themselves, such as a date, never end
            self._room = COLUMNS_BYTES - size
        return self.setdefault(column, fields)  # one, also if two threads come at once


class _TypedColumns(dict[str, ColumnFields]):
    """The columns of a typed table that hold data; there are no others."""

    __slots__ = ("_definition",)

    def __init__(self, definition: TableDefinition) -> None:
        super().__init__(
            (column.name, ColumnFields(column.name, encode_column(column.stored)))
            for column in definition.value_columns
        )
        self._definition = definition

    def __missing__(self, column: str) -> ColumnFields:
        definition = self._definition
        if column in definition.notify_only:
            raise UnknownColumn(f"{definition.name}.{column} is notify-only and holds no data: use notify")
        if column in definition.key:
            raise UnknownColumn(
                f"{definition.name}.{column} is part of the key: it is in the row key and is no cell"
            )
        raise UnknownColumn(
            f"the table {definition.name!r} has no column {abbreviated(column)!r}: it has "
            f"{', '.join(self) or 'none but its key'}"
        )


class TableHandle:
    """What a client needs to reach the cells of one table.

    ``columns`` are those that hold data, by name: looking up a notify-only one, which holds none, raises
    UnknownColumn, and so does any that a typed table does not have.
    ``row_prefixes`` is what the keys of rows start with, by tablet.
    ``standings`` are packed commands that ask for the standing of each tablet: its version and safe point.
    ``place`` tells the number of a row's tablet; None where that is ``crc32(row) % tablets``.
    ``by_encoded`` has the names of a typed table's columns by how they stand in the store; empty for a raw
    one, where a name stands there as it is.
    ``marker`` is the internal column that each row of a typed table has; ``bindings`` is where
    `percolator_core.tables.binding` keeps what it has made of models of the table.
    ``version`` is the version of the catalog's entry, as text, or ``?`` while the table is changed. Writes
    name it, and a tablet that has another version refuses them.
    """

    __slots__ = (
        "bindings",
        "by_encoded",
        "columns",
        "definition",
        "is_typed",
        "marker",
        "name",
        "place",
        "row_prefixes",
        "standings",
        "tablets",
        "tags",
        "version",
    )

    def __init__(self, definition: TableDefinition, store: Store, version: bytes = b"") -> None:
        self.definition = definition
        self.name = definition.name
        self.is_typed = definition.is_typed
        self.bindings: dict[Any, Any] = {}
        self.tablets = definition.tablets
        self.version = version
        self.tags = tuple(store.keyspace.tag(definition.name, number) for number in range(definition.tablets))
        self.row_prefixes = tuple(tag + b"r:" for tag in self.tags)
        self.standings = tuple(pack((b"HMGET", tag + b"meta", b"version", b"safe")) for tag in self.tags)
        self.place = placement(definition)
        self.marker = ColumnFields(decode_column(MARKER), MARKER)
        self.columns: dict[str, ColumnFields] = (
            _TypedColumns(definition) if definition.is_typed else _Columns(definition)
        )
        self.by_encoded: dict[bytes, str] = (
            {fields.encoded: name for name, fields in self.columns.items()} if definition.is_typed else {}
        )

    def tablet(self, row: bytes) -> int:
        """The number of the tablet that holds the row. Raises ValueError for what is no key of the table."""
        place = self.place
        return tablet_of(row, self.tablets) if place is None else place(row)

    def tag(self, row: bytes) -> bytes:
        """The tag of the tablet that holds the row. Raises as `tablet`."""
        return self.tags[self.tablet(row)]

    def row_key(self, row: bytes) -> bytes:
        """The key of the row's hash. Raises as `tablet`."""
        return self.row_prefixes[self.tablet(row)] + row

    def encode(self, column: str) -> bytes:
        """A column, notify-only ones too, as it stands in the store.

        Raises:
            UnknownColumn: a typed table has no such column, or it is one of its key.
        """
        if column in self.definition.notify_only:
            return encode_column(column)
        return self.columns[column].encoded

    def decode(self, encoded: bytes) -> str:
        """The name of a column that stands so in the store, an internal one in words."""
        if not self.is_typed:
            return decode_column(encoded)
        name = self.by_encoded.get(encoded)
        if name is not None:
            return name
        observed = acknowledged(encoded)
        if observed:
            return decode_column(encoded[: -len(observed)]) + self.decode(observed)
        plain = decode_column(encoded)
        # Another column may have the name by now that a dropped one had.
        return f"{plain} (dropped)" if plain in self.definition.retired else plain

    def fields(self, encoded: bytes) -> ColumnFields:
        """The column that stands so in the store. Raises UnknownColumn where there is none such."""
        if not self.is_typed:
            return self.columns[decode_column(encoded)]
        if encoded == MARKER:
            return self.marker
        name = self.by_encoded.get(encoded)
        if name is None:
            raise UnknownColumn(
                f"the table {self.name!r} has no column {self.decode(encoded)!r} that holds data"
            )
        return self.columns[name]

    def named(self, cells: Mapping[bytes, T]) -> dict[bytes, T]:
        """Return ``cells`` under the present names of their columns instead of the names in the store."""
        if not self.by_encoded:
            return dict(cells)
        return {
            self.by_encoded[column].encode() if column in self.by_encoded else column: value
            for column, value in cells.items()
        }

    def standing(self, row: bytes) -> bytes:
        """The packed command that asks for the standing of the row's tablet. Raises as `tablet`."""
        return self.standings[self.tablet(row)]

    def notify_column(self, column: str) -> bytes:
        """A notify-only column, encoded; raises UnknownColumn for any other."""
        if column not in self.definition.notify_only:
            raise UnknownColumn(
                f"{self.name}.{abbreviated(column)} is not notify-only: list it under notify_only of the "
                "table"
            )
        return encode_column(column)


class Tables(dict[str, TableHandle]):
    """The handles of all tables as they were at one moment, by name.

    ``epoch`` counts the changes of the catalog up to then; None before the first one. ``entries`` has all
    that the catalog held. A table that is not here is looked up in the store, and added: it may have been
    made since. Its tablets refuse snapshots that are older.
    """

    __slots__ = ("_find", "entries", "epoch")

    def __init__(self, epoch: bytes | None, find: Callable[[str], TableHandle]) -> None:
        super().__init__()
        self.epoch = epoch
        self.entries: dict[str, Entry] = {}
        self._find = find

    def __missing__(self, name: str) -> TableHandle:
        handle = self[name] = self._find(name)
        return handle


@dataclass(frozen=True, slots=True)
class Entry:
    """A table as it stands in the catalog.

    ``pending`` is the change that is under way, None if there is none; whoever meets it carries on with it
    (`percolator_core.maintenance.schema_change`). ``sweep`` has the stored names of dropped columns of which
    some cells may be left. ``raw`` is all of it as it stands there.
    """

    raw: bytes
    definition: TableDefinition
    version: int
    pending: Mapping[str, Any] | None
    sweep: tuple[str, ...]

    @property
    def is_there(self) -> bool:
        """True unless the table is being dropped."""
        return self.pending is None or self.pending["kind"] != "drop"

    @property
    def is_published(self) -> bool:
        """True if snapshots read the table: it is neither being made nor being dropped."""
        return self.is_there and not self.is_new

    @property
    def is_new(self) -> bool:
        """Whether it is being made."""
        return self.pending is not None and self.pending["kind"] == "create"

    @property
    def writers_version(self) -> bytes:
        """What writers who have read this entry tell the tablets."""
        if self.pending is not None and not self.is_new:
            return _UNDER_WAY
        return b"%d" % self.version


class Catalog:
    """Definitions of tables: each client keeps a copy of all of them.

    ``handles`` is the newest copy. A transaction keeps the one by which it began to read. Once
    `time.monotonic` has passed ``due``, `keep_fresh` looks for changes.
    """

    __slots__ = ("_store", "due", "handles")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.due = 0.0
        self.handles = Tables(None, self._find)

    def table(self, name: str) -> TableHandle:
        """The table of that name.

        Raises:
            UnknownTable: there is none, also after a fresh look at the store.
        """
        self.keep_fresh()
        return self.handles[name]

    def column_name(self, table: str, encoded: bytes) -> str:
        """The name of a column as it stands in the store, for people; also of a table that is gone."""
        try:
            return self.handles[table].decode(encoded)
        except UnknownTable:
            return decode_column(encoded)

    def tables(self) -> list[TableDefinition]:
        """All tables as they are now, by name."""
        return [entry.definition for entry in self.entries() if entry.is_published]

    def entries(self) -> list[Entry]:
        """All entries as they are now, by the names of their tables."""
        entries = self.refresh().entries
        return [entries[name] for name in sorted(entries)]

    def entry(self, name: str) -> Entry | None:
        """A table's entry as it is now, None if there is none."""
        raw = self._store.one((b"HGET", self._store.keyspace.catalog, name))
        return None if raw is None else _decode(raw)

    def add(self, definition: TableDefinition, pending: Mapping[str, Any], format_: str) -> tuple[Any, Entry]:
        """Add a table's entry, with a new version, unless there is one of that name.

        Returns the namespace's format and the entry that the catalog now holds. The first entry founds the
        namespace and sets its format. If the namespace has another format, nothing is added, and the returned
        entry is not in the catalog.
        """
        store, keys = self._store, self._store.keyspace
        text = _encode(definition, pending=pending)
        defined = store.run(calls.define_table(keys.catalog, keys.format, definition.name, text, format_))
        self.expire()
        return defined.format, _decode(defined.entry or text.encode())

    def replace(
        self,
        entry: Entry,
        definition: TableDefinition | None,
        version: int | None = None,
        pending: Mapping[str, Any] | None = None,
        sweep: Sequence[str] = (),
    ) -> Entry | None:
        """Replace an entry if it still stands there as it was read; returns what stands there now.

        ``definition`` is None to take it out, ``version`` None for a new one.
        """
        name, store = entry.definition.name, self._store
        text = "" if definition is None else _encode(definition, version, pending, sweep)
        keys = store.keyspace
        change = calls.change_table(keys.catalog, name, entry.raw, text, numbered=version is None)
        # Durably: a failover must not take back what others then rest upon. Nothing rests on a new table.
        (held,) = store.run_all([change], durably=not entry.is_new)
        self.expire()
        return _decode(held) if held else None

    def expire(self) -> None:
        """Have the next transaction look for changes."""
        self.due = 0.0

    def keep_fresh(self) -> None:
        """Look for changes of tables, and take them in, unless that was done a moment ago.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + LOOKED_AT_EVERY  # before the look: of many tasks one looks
        try:
            self.look()
        except BaseException:
            self.expire()
            raise

    def look(self) -> None:
        """Look for changes of tables, and take them in. Raises as `keep_fresh`."""
        looked = time.monotonic()
        if not self.handles or self._store.one(self._epoch_command) != self.handles.epoch:
            self.refresh()
        else:
            self.due = looked + LOOKED_AT_EVERY

    def refresh(self) -> Tables:
        """A copy of the catalog as it is now, which is ``handles`` from now on.

        A table that has not changed keeps its handle, on which hangs what is known of its columns.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        looked = time.monotonic()
        flat = self._store.one((b"HGETALL", self._store.keyspace.catalog))
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        before, tables = self.handles, Tables(found.pop(_EPOCH, None), self._find)
        for raw in found.values():
            if not raw.startswith(_ENTRY):
                continue  # not a table: one who may only count can add such a field (docs/how-to/secure.md)
            entry = _decode(raw)
            name = entry.definition.name
            tables.entries[name] = entry
            if entry.is_published:
                tables[name] = self._handle(entry, before.get(name))
        self.handles = tables
        self.due = looked + LOOKED_AT_EVERY
        return tables

    @property
    def _epoch_command(self) -> Command:
        return b"HGET", self._store.keyspace.catalog, _EPOCH

    def _find(self, name: str) -> TableHandle:
        """A table that was made after a copy."""
        handle = self.refresh().get(name)
        if handle is None:
            raise UnknownTable(
                f"there is no table {name!r} in the namespace {self._store.keyspace.namespace!r}: "
                "create it first"
            )
        return handle

    def _handle(self, entry: Entry, held: TableHandle | None) -> TableHandle:
        definition, version = entry.definition, entry.writers_version
        if held is not None and held.definition == definition and held.version == version:
            return held
        return TableHandle(definition, self._store, version)


def _encode(
    definition: TableDefinition,
    version: int | None = None,
    pending: Mapping[str, Any] | None = None,
    sweep: Sequence[str] = (),
) -> str:
    """An entry as JSON. One that gets its version in the store has none; the script puts it at the end."""
    plain = to_json(definition)
    if pending is not None:
        plain["pending"] = dict(pending)
    if sweep:
        plain["sweep"] = list(sweep)
    if version:
        plain["version"] = version
    return json.dumps(plain, sort_keys=True)


def _decode(raw: bytes) -> Entry:
    if not raw.startswith(_ENTRY):
        raise PercolatorError(
            f"the catalog has a field of that name whose value is {raw[:40]!r}, which is no table: delete it"
        )
    plain = json.loads(raw)
    return Entry(
        raw, from_json(plain), plain.get("version", 0), plain.get("pending"), tuple(plain.get("sweep", ()))
    )
