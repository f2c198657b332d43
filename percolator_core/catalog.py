"""The catalog: which tables there are. Definitions live in the store, each client keeps a copy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from percolator_core.errors import UnknownColumn, UnknownTable
from percolator_core.keys import MARKER, acknowledged, decode_column, encode_column, tablet_of
from percolator_core.model import LOCK_MARK, VERSION_MARK
from percolator_core.schema.definition import TableDefinition, from_json, to_json
from percolator_core.schema.partition import placement
from percolator_core.store import Store
from percolator_core.store.packing import Command, pack_fields


class ColumnFields:
    """A column that holds data, and the fields of a row's hash that belong to it.

    A table handle has one of them for each column, so they are told apart by identity: a cheap key.
    """

    __slots__ = ("encoded", "lock", "name", "packed", "version")

    def __init__(self, name: str, encoded: bytes | None = None) -> None:
        """``encoded`` is the column as it stands in the store; None where that is its name."""
        self.name = name
        self.encoded = encode_column(name) if encoded is None else encoded
        self.version = VERSION_MARK + self.encoded
        self.lock = LOCK_MARK + self.encoded
        self.packed = pack_fields(self.version, self.lock)


T = TypeVar("T")

MOST_COLUMNS: Final = 100_000
"""Columns of a table that a client remembers, at most; it then begins anew. Some 400 bytes each."""

LOOKED_AT_EVERY: Final = 1.0
"""Seconds for which a client may take what it knows of tables for what they are."""

_EPOCH: Final = b"\xff"
"""The field of the catalog that counts its changes: no name of a table, which is UTF-8."""

_UNDER_WAY: Final = b"?"
"""The version of a table that is being changed: no tablet has it, so nothing is written meanwhile."""


class _Columns(dict[str, ColumnFields]):
    """The columns of a table that were asked for; a new one is made when it is looked up."""

    __slots__ = ("_definition",)

    def __init__(self, definition: TableDefinition) -> None:
        super().__init__()
        self._definition = definition

    def __missing__(self, column: str) -> ColumnFields:
        if column in self._definition.notify_only:
            raise UnknownColumn(
                f"{self._definition.name}.{column} is notify-only and holds no data: use notify"
            )
        if len(self) >= MOST_COLUMNS:
            self.clear()  # names that hold data themselves, such as a date, never end
        return self.setdefault(column, ColumnFields(column))  # one, also if two threads come at once


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
            f"the table {definition.name!r} has no column {column!r}: it has "
            f"{', '.join(self) or 'none but its key'}"
        )


class TableHandle:
    """What a client needs to reach the cells of one table.

    ``columns`` are those that hold data, by name: looking up a notify-only one, which holds none, raises
    UnknownColumn, and so does any that a typed table does not have.
    ``row_prefixes`` is what the keys of rows start with, by tablet.
    ``place`` tells the number of a row's tablet; None where that is ``crc32(row) % tablets``.
    ``by_encoded`` has the names of a typed table's columns by how they stand in the store; empty for a raw
    one, where a name stands there as it is.
    ``marker`` is the internal column that each row of a typed table has; ``bindings`` is where
    `percolator_core.tables.binding` keeps what it has made of models of the table.
    ``version`` is the entry's in the catalog as text; writers tell it to the tablets, which know theirs.
    Empty in an entry from before there were any.
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
        """What is known of encoded columns, by what they would be if their names were not changed."""
        if not self.by_encoded:
            return dict(cells)
        return {
            self.by_encoded[column].encode() if column in self.by_encoded else column: value
            for column, value in cells.items()
        }

    def notify_column(self, column: str) -> bytes:
        """A notify-only column, encoded; raises UnknownColumn for any other."""
        if column not in self.definition.notify_only:
            raise UnknownColumn(
                f"{self.name}.{column} is not notify-only: list it under notify_only of the table"
            )
        return encode_column(column)


class _Handles(dict[str, TableHandle]):
    """The handles known so far; another one is fetched when it is looked up."""

    __slots__ = ("_fetch",)

    def __init__(self, fetch: Callable[[str], TableHandle]) -> None:
        super().__init__()
        self._fetch = fetch

    def __missing__(self, name: str) -> TableHandle:
        return self._fetch(name)


@dataclass(frozen=True, slots=True)
class Entry:
    """A table as it stands in the catalog.

    ``pending`` is the change that is under way, None if there is none; whoever meets it carries on with it
    (`percolator_core.evolution`). ``sweep`` has the stored names of dropped columns of which some cells may
    be left. ``raw`` is all of it as it stands there, ``version`` 0 in an entry from before there were any.
    """

    raw: bytes
    definition: TableDefinition
    version: int
    pending: Mapping[str, Any] | None
    sweep: tuple[str, ...]

    @property
    def is_there(self) -> bool:
        """Whether there is such a table for who looks: not if it is being dropped."""
        return self.pending is None or self.pending["kind"] != "drop"

    @property
    def is_new(self) -> bool:
        """Whether it is being made."""
        return self.pending is not None and self.pending["kind"] == "create"

    @property
    def writers_version(self) -> bytes:
        """What writers who have read this entry tell the tablets."""
        if self.pending is not None and not self.is_new:
            return _UNDER_WAY
        return b"%d" % self.version if self.version else b""


class Catalog:
    """Definitions of tables, read from the store when first needed.

    ``handles`` has the tables by name: looking one up does what `table` does, and costs no call. Once
    `time.monotonic` has passed ``due``, `keep_fresh` looks whether they have changed.
    """

    __slots__ = ("_epoch", "_store", "due", "handles")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._epoch: bytes | None = None
        self.due = 0.0
        self.handles = _Handles(self._fetch)

    def table(self, name: str) -> TableHandle:
        """The table of that name.

        Raises:
            UnknownTable: there is none, also after a fresh look at the store.
        """
        return self.handles[name]

    def column_name(self, table: str, encoded: bytes) -> str:
        """The name of a column as it stands in the store, for people; also of a table that is gone."""
        try:
            return self.handles[table].decode(encoded)
        except UnknownTable:
            return decode_column(encoded)

    def tables(self) -> list[TableDefinition]:
        """All tables, by name. The handles of those that have changed are made anew."""
        return [entry.definition for entry in self.entries() if entry.is_there]

    def entries(self) -> list[Entry]:
        """All entries, by the names of their tables. The handles of those that have changed are made anew."""
        raw = self._store.one((b"HGETALL", self._store.keyspace.catalog))
        found = [_decode(value) for name, value in zip(raw[::2], raw[1::2], strict=True) if name != _EPOCH]
        names = {entry.definition.name for entry in found}
        for name in list(self.handles):
            if name not in names:
                self.forget(name)
        for entry in found:
            if entry.definition.name in self.handles:
                self.take_in(entry)
        return sorted(found, key=lambda entry: entry.definition.name)

    def entry(self, name: str) -> Entry | None:
        """A table's entry, None if there is none."""
        raw = self._store.one((b"HGET", self._store.keyspace.catalog, name))
        return None if raw is None else _decode(raw)

    def add(self, definition: TableDefinition, pending: Mapping[str, Any], format_: str) -> tuple[Any, Entry]:
        """Add an entry unless there is one of that name: the namespace's format, and the entry.

        It gets a version. The first one founds the namespace, which has the format from then on. In a
        namespace of another format nothing is added, and the entry is only what it would be.
        """
        store, keys = self._store, self._store.keyspace
        text = _encode(definition, pending=pending)
        found, *held = store.one(
            store.script("define_table", [keys.catalog, keys.format], definition.name, text, format_)
        )
        return found, _decode(held[0] if held else text.encode())

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
        keys = [store.keyspace.catalog]
        how = "numbered" if version is None else ""
        command = store.script("change_table", keys, name, entry.raw, text, how)
        # Durably: a failover must not take back what others then rest upon. Nothing rests on a new table.
        call = store.call if entry.is_new else store.call_durably
        (held,) = call(command)
        return _decode(held) if held else None

    def forget(self, name: str) -> None:
        """Fetch the table anew when it is asked for next."""
        self.handles.pop(name, None)

    def keep_fresh(self) -> None:
        """Look whether tables have changed, and take in those that have, unless that was done a moment ago.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + LOOKED_AT_EVERY
        if not self.handles:
            return
        self.notice(self._store.one(self.epoch_command))

    @property
    def epoch_command(self) -> Command:
        """Asks how often the catalog was changed, for `notice`."""
        return b"HGET", self._store.keyspace.catalog, _EPOCH

    def notice(self, epoch: bytes | None) -> None:
        """Take in what has changed, if the catalog was changed as often as that, and not as when we looked.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if epoch == self._epoch:
            return
        # Before the look: a table that another thread fetches meanwhile has us look once more.
        self._epoch = epoch
        try:
            self.entries()
        except BaseException:
            self._epoch = None
            raise
        if self._epoch != epoch:
            self._epoch = None  # another thread looked later, and we may have put back what it took in

    def _fetch(self, name: str) -> TableHandle:
        entry = self.entry(name)
        handle = None if entry is None else self.take_in(entry)
        # Another thread may have taken in a later entry while we held this one: look again before long.
        self._epoch = None
        if handle is None:
            self.forget(name)
            raise UnknownTable(
                f"there is no table {name!r} in the namespace {self._store.keyspace.namespace!r}: "
                "create it first"
            )
        return handle

    def take_in(self, entry: Entry) -> TableHandle | None:
        """The handle of a table that is so in the store: the one we have, if nothing has changed.

        What is known of a column hangs on its handle. None if the table is being dropped.
        """
        definition, version = entry.definition, entry.writers_version
        self.due = self.due or time.monotonic() + LOOKED_AT_EVERY
        if not entry.is_there:
            self.forget(definition.name)
            return None
        handle = self.handles.get(definition.name)
        if handle is None or handle.definition != definition or handle.version != version:
            handle = self.handles[definition.name] = TableHandle(definition, self._store, version)
        return handle


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
    plain = json.loads(raw)
    return Entry(
        raw, from_json(plain), plain.get("version", 0), plain.get("pending"), tuple(plain.get("sweep", ()))
    )
