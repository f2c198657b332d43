"""The catalog: the definitions of all tables, in the store. Each client has a copy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import PercolatorError, UnknownTable
from percolator_core.layout.keys import decode_column
from percolator_core.schema.definitions import TableDefinition, from_json, to_json
from percolator_core.scripts import calls
from percolator_core.store import Store

LOOKED_AT_EVERY: Final = 1.0
"""Seconds after which a new transaction looks for changed tables again.

Correctness does not depend on this interval, because the timestamp of a snapshot comes with the catalog's
epoch. But with a fresh copy a transaction is seldom refused after a schema change.
"""

CHANGED: Final = "table changed"
"""The reason of a conflict with a schema change or with the drop of a table."""

_EPOCH: Final = b"\xff"
"""The catalog's field that counts the changes. No table has this name, because names are UTF-8."""

_ENTRY: Final = b"{"
"""The first byte of a table's entry, which is a JSON object."""

_CHANGING: Final = b"?"
"""The version of a table during a schema change. No tablet has this version, so every write is refused."""


class Tables(dict[str, TableHandle]):
    """The handles of all tables at one moment, by name; ``entries`` has all entries of the catalog.

    ``epoch`` is the catalog's number of changes at that moment; None before the first change. The lookup of a
    missing table reads the catalog again, because the table may be newer than this copy. The tablets of a
    newer table refuse older snapshots.
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
    """A table's entry in the catalog; ``raw`` is its text.

    ``pending`` is an unfinished schema change, which any client may finish
    (`percolator_core.catalog.schema_change`). ``sweep`` has the stored names of dropped columns whose cells
    are not all removed yet. ``left`` has the location and the folder of each earlier base in which
    tablets of the table may still have rows.
    """

    raw: bytes
    definition: TableDefinition
    version: int
    pending: Mapping[str, Any] | None
    sweep: tuple[str, ...]
    left: tuple[tuple[str, str], ...] = ()

    @property
    def is_there(self) -> bool:
        """True unless the table is being dropped."""
        return self.pending is None or self.pending["kind"] != "drop"

    @property
    def is_published(self) -> bool:
        """True if snapshots read the table: it is neither being created nor being dropped."""
        return self.is_there and not self.is_new

    @property
    def is_new(self) -> bool:
        """True while the table is being created."""
        return self.pending is not None and self.pending["kind"] == "create"

    @property
    def writers_version(self) -> bytes:
        """The version that writers send to the tablets after they have read this entry."""
        if self.pending is not None and not self.is_new:
            return _CHANGING
        return b"%d" % self.version


class Catalog:
    """A client's copy of the catalog.

    ``handles`` is the newest copy; a transaction uses one copy for all its reads. `keep_fresh` looks for
    changes if `time.monotonic` is past ``due``.
    """

    __slots__ = ("_store", "due", "handles")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.due = 0.0
        self.handles = Tables(None, self._find)

    def table(self, name: str) -> TableHandle:
        """Return the table. Raises UnknownTable if there is none in the store."""
        self.keep_fresh()
        return self.handles[name]

    def column_name(self, table: str, encoded: bytes) -> str:
        """Return a column's name for messages, from its stored name; the table may have been dropped."""
        try:
            return self.handles[table].decode(encoded)
        except UnknownTable:
            return decode_column(encoded)

    def tables(self) -> list[TableDefinition]:
        """Return the present definitions of all tables, sorted by name.

        A view has two: one with the name of the view, and one with that of the version that it shows.
        """
        return [handle.definition for _, handle in sorted(self.refresh().items())]

    def entries(self) -> list[Entry]:
        """Return all present entries, sorted by name."""
        entries = self.refresh().entries
        return [entries[name] for name in sorted(entries)]

    def unknown_table(self, name: str) -> UnknownTable:
        """Return the error for a missing table."""
        namespace = self._store.keyspace.namespace
        return UnknownTable(f"there is no table {name!r} in the namespace {namespace!r}: create it first")

    def entry(self, name: str) -> Entry | None:
        """Return a table's present entry, or None; for a view, that of the version that it shows."""
        raw = self._store.one((b"HGET", self._store.keyspace.catalog, name))
        if raw is None:
            handle = self.refresh().get(name)
            return None if handle is None else self.handles.entries.get(handle.definition.stored)
        return _decode(raw)

    def add(self, definition: TableDefinition, pending: Mapping[str, Any], format_: str) -> tuple[Any, Entry]:
        """Add an entry with a new version, unless the table has an entry.

        Return the namespace's format and the entry of the catalog. The first entry of a namespace sets the
        format. If the namespace has another format, nothing is added, and the returned entry is not in the
        catalog.
        """
        store, keys = self._store, self._store.keyspace
        text = _encode(definition, pending=pending)
        defined = store.run(calls.define_table(keys.catalog, keys.format, definition.name, text, format_))
        self.expire()
        return defined.format, _decode(defined.entry or text.encode())

    def replace(  # noqa: PLR0917
        self,
        entry: Entry,
        definition: TableDefinition | None,
        version: int | None = None,
        pending: Mapping[str, Any] | None = None,
        sweep: Sequence[str] = (),
        left: Sequence[tuple[str, str]] | None = None,
    ) -> Entry | None:
        """Replace an entry unless it has changed since it was read; return the present entry.

        A ``definition`` of None removes the entry; a ``version`` of None means a new version. A ``left`` of
        None does not change `Entry.left`.
        """
        name, store = entry.definition.name, self._store
        left = entry.left if left is None else left
        text = "" if definition is None else _encode(definition, version, pending, sweep, left)
        keys = store.keyspace
        change = calls.change_table(keys.catalog, name, entry.raw, text, numbered=version is None)
        # The write is durable, because other clients rely on the entry. The entry of a new table need not be
        # durable, because no client relies on it yet.
        (held,) = store.run_all([change], durably=not entry.is_new)
        self.expire()
        return _decode(held) if held else None

    def expire(self) -> None:
        """Make the next transaction look for changes."""
        self.due = 0.0

    def keep_fresh(self) -> None:
        """Look for changes if the copy is older than `LOOKED_AT_EVERY`. Raises StoreUnavailable."""
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + LOOKED_AT_EVERY  # set first, so that only one of many tasks looks
        try:
            self.look()
        except BaseException:
            self.expire()
            raise

    def look(self) -> None:
        """Refresh the copy if the catalog has changed. Raises StoreUnavailable."""
        looked = time.monotonic()
        epoch = (b"HGET", self._store.keyspace.catalog, _EPOCH)
        if not self.handles or self._store.one(epoch) != self.handles.epoch:
            self.refresh()
        else:
            self.due = looked + LOOKED_AT_EVERY

    def refresh(self) -> Tables:
        """Read the catalog into ``handles``. An unchanged table keeps its handle. Raises StoreUnavailable."""
        looked = time.monotonic()
        flat = self._store.one((b"HGETALL", self._store.keyspace.catalog))
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        before, tables = self.handles, Tables(found.pop(_EPOCH, None), self._find)
        for raw in found.values():
            if not raw.startswith(_ENTRY):
                continue  # not an entry: a user with few rights can add such a field (docs/how-to/secure.md)
            entry = _decode(raw)
            name = entry.definition.name
            tables.entries[name] = entry
        for name, definition, version in _named(tables.entries):
            held = before.get(name)
            if held is None or (held.definition, held.version) != (definition, version):
                held = TableHandle(definition, self._store, version)
            tables[name] = held
        self.handles = tables
        self.due = looked + LOOKED_AT_EVERY
        return tables

    def tablets(self) -> list[tuple[str, bytes]]:
        """Return the table and the tag of every present tablet, sorted by table and number."""
        tables = self.refresh()
        return [(name, tag) for name in sorted(tables) if name in tables.entries for tag in tables[name].tags]

    def _find(self, name: str) -> TableHandle:
        handle = self.refresh().get(name)
        if handle is None:
            raise self.unknown_table(name)
        return handle


def _named(entries: Mapping[str, Entry]) -> Iterator[tuple[str, TableDefinition, bytes]]:
    """Yield the name, the definition and the version of each published table, and of each shown view."""
    shown: dict[str, tuple[int, Entry]] = {}
    for name, entry in entries.items():
        if not entry.is_published:
            continue
        yield name, entry.definition, entry.writers_version
        view = entry.definition.view
        if view is not None and view.shown > shown.get(view.view, (0, entry))[0]:
            shown[view.view] = view.shown, entry
    for name, (_, entry) in shown.items():
        if name not in entries:
            yield name, entry.definition.with_(name=name), entry.writers_version


def raise_safe_points(
    store: Store, tags: Iterable[bytes], timestamp: int = 0, *, durably: bool = False
) -> list[int]:
    """Raise the safe points of tablets to at least ``timestamp``, and return the new safe points.

    ``durably`` also makes all earlier writes to the tablets durable. For this a timestamp of 0 is enough: the
    call then raises nothing, but it is a write, and replicas acknowledge only writes. Raises StoreUnavailable
    if they do not acknowledge in time.
    """
    raised = [calls.raise_safe_point(tag, timestamp) for tag in tags]
    return store.run_all(raised, durably=durably) if raised else []


def _encode(
    definition: TableDefinition,
    version: int | None = None,
    pending: Mapping[str, Any] | None = None,
    sweep: Sequence[str] = (),
    left: Sequence[tuple[str, str]] = (),
) -> str:
    """Return an entry as JSON. Without ``version`` the script appends a new one."""
    plain = to_json(definition)
    if pending is not None:
        plain["pending"] = dict(pending)
    if sweep:
        plain["sweep"] = list(sweep)
    if left:
        plain["left"] = list(left)
    if version:
        plain["version"] = version
    return json.dumps(plain, sort_keys=True)


def _decode(raw: bytes) -> Entry:
    if not raw.startswith(_ENTRY):
        raise PercolatorError(
            f"the catalog has a field of that name with {raw[:40]!r}, which is no table: delete the field"
        )
    plain = json.loads(raw)
    return Entry(
        raw,
        from_json(plain),
        plain.get("version", 0),
        plain.get("pending"),
        tuple(plain.get("sweep", ())),
        tuple((location, folder) for location, folder in plain.get("left", ())),
    )
