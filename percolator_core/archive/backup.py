"""Backups: a namespace as of one time, while its clients work on.

A backup has the definitions of all tables, every cell that a snapshot sees, with its timestamps, the
observers of the active chain, and the cells that they had still to process. The acknowledgements of observers
are cells like any other. So a restored chain runs again for no change that it has processed, and for each
that it has not.

Tablets are read one by one, from one pinned snapshot. A tablet in which nothing has changed since the last
backup is not written: the new manifest names the files of the last one. Of a tablet that has changed, the
changed cells are written, until they are half as large as the rest. If garbage collection has passed the last
backup, a tablet is read whole, and those of its row sets are written that have changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from percolator_core.archive import files
from percolator_core.archive.cells import RowCells, settle, tablet_cells
from percolator_core.archive.files import Line, Manifest, TableFiles, TabletFiles
from percolator_core.archive.marks import Marks
from percolator_core.archive.publication import namespace_id
from percolator_core.base.location import Location
from percolator_core.base.row_set import RowSet
from percolator_core.catalog.catalog import Entry
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, SnapshotTooOld
from percolator_core.layout.keys import acknowledged
from percolator_core.layout.records import KIND
from percolator_core.schema.definitions import to_json
from percolator_core.transaction.client import Client
from percolator_core.transaction.snapshot import Snapshot

Progress = Callable[[str, int, int], None]
"""Is called with the name of a table, the number of tablets that are done, and of all tablets."""

RESTORING: Final = b"restoring"
"""The field of the chain's record that a namespace has until its restore is complete."""

CHAIN_FIELDS: Final = ("digest", "observers", "observed")

_ATTEMPTS: Final = 3
_DELTAS: Final = 8


class Connection(Protocol):
    """The part of `percolator_core.Database` that a backup uses."""

    client: Client
    schema_changes: SchemaChanges


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A backup: its number, from 1, and the ``timestamp`` (µs) of what it has.

    ``bytes`` were written, in ``written`` files. ``shared`` files are those of earlier backups.
    """

    number: int
    timestamp: int
    tables: int
    written: int
    shared: int
    bytes: int
    seconds: float


def backup(
    db: Connection, url: str, *, keep: int | None = None, progress: Progress | None = None
) -> BackedUp:
    """Write a backup of the namespace of ``db``, as of one time, while its clients work on.

    It can be repeated at any time, also after a crash, which leaves the earlier backups as they were. Files
    of earlier backups are shared, so never remove files by hand.

    Args:
        db: the namespace.
        url: a path, ``file:PATH``, ``s3://BUCKET/PREFIX`` or another URL of ``pyarrow.fs``. It belongs to
            the backups of this namespace alone.
        keep: afterwards remove all but this many backups (1 or more), and files that only these had.
        progress: is called with a table's name, the number of tablets that are done, and of all tablets.

    Raises:
        ConfigurationError: pyarrow is not installed, the URL cannot be used, or the namespace is being
            restored.
        LockTimeout: a transaction that began before is still committing; back up again later.
        SnapshotTooOld: tables were changed again and again meanwhile.
        BaseDamaged: a file of a table's base is missing or damaged.
        StoreUnavailable: the store or the location does not answer.
        ValueError: ``keep`` is below 1.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep is 1 or more, not {keep}")
    begun, location = time.monotonic(), Location(url)
    check_complete(db.client)
    for remaining in reversed(range(_ATTEMPTS)):
        run = _Run(db, location, progress)
        try:
            manifest = run.write()
        except SnapshotTooOld:
            # A column or table was dropped meanwhile.
            if not remaining:
                raise
        else:
            break
    else:
        raise AssertionError("unreachable")
    if keep is not None:
        _remove_old(location, keep)
    return BackedUp(
        manifest.number,
        manifest.timestamp,
        len(manifest.tables),
        len(run.written),
        len(manifest.files - set(run.written)),
        sum(run.written.values()),
        time.monotonic() - begun,
    )


def check_complete(client: Client) -> None:
    """Raise ConfigurationError if a restore into the namespace has not ended."""
    keys = client.store.keyspace
    if client.store.one((b"HGET", keys.chain, RESTORING)) is not None:
        raise ConfigurationError(
            f"the namespace {keys.namespace!r} is being restored: run the same restore again to complete it"
        )


class _Run:
    """One attempt at a backup. ``written`` has the sizes of the files that it has written."""

    def __init__(self, db: Connection, location: Location, progress: Progress | None) -> None:
        self._db = db
        self._client = db.client
        self._location = location
        self._progress = progress
        self.written: dict[str, int] = {}
        self._last = files.newest(location)
        self._number = 1 + max(files.manifests(location).values(), default=0)

    def write(self) -> Manifest:
        """Write the files and the manifest. Raises as `backup`."""
        client = self._client
        history = namespace_id(client)
        timestamp, entries = self._moment()
        with Snapshot(client, timestamp) as snapshot:
            settle(client, timestamp)
            # After the snapshot: an observer that was activated later had nothing to do at its time.
            chain = self._chain()
            observers = sorted(filter(None, chain.get("observers", "").split(",")))
            floor = int(client.store.one((b"HGET", client.store.keyspace.oracle, b"floor")) or 0)
            last = self._last
            if last is not None and (last.history != history or not floor <= last.timestamp < timestamp):
                last = None
            total, done, tables = sum(entry.definition.tablets for entry in entries), 0, []
            for entry in entries:
                handle = snapshot.handle_of(entry.definition.name)
                before = _before(last, entry)
                tablets = []
                for number in range(handle.tablets):
                    marks = Marks(client, snapshot, handle, handle.tags[number], observers)
                    known = before[number] if before else None
                    since = last.timestamp if last else 0
                    tablets.append(self._tablet(snapshot, handle, number, marks, known, since))
                    done += 1
                    if self._progress is not None:
                        self._progress(handle.name, done, total)
                tables.append(TableFiles(to_json(entry.definition), entry.version, tuple(tablets)))
        namespace = client.store.keyspace.namespace
        manifest = Manifest(self._number, timestamp, namespace, history, chain, tuple(tables))
        files.save(self._location, manifest)
        return manifest

    def _moment(self) -> tuple[int, list[Entry]]:
        """Return a fresh timestamp, and the tables of that time, none of which is being changed."""
        catalog = self._client.catalog
        while True:
            self._db.schema_changes.finish_all()
            entries = catalog.entries()
            timestamp, epoch, _ = self._client.oracle.timestamp_then()
            if epoch == catalog.handles.epoch and not any(entry.pending for entry in entries):
                return timestamp, entries

    def _chain(self) -> dict[str, str]:
        names = [name.encode() for name in CHAIN_FIELDS]
        found = self._client.store.one((b"HMGET", self._client.store.keyspace.chain, *names))
        return {name: one.decode() for name, one in zip(CHAIN_FIELDS, found, strict=True) if one is not None}

    def _tablet(  # noqa: PLR0917
        self,
        snapshot: Snapshot,
        handle: TableHandle,
        number: int,
        marks: Marks,
        last: TabletFiles | None,
        since: int,
    ) -> TabletFiles:
        folder = str(self._number)

        def written(after: int) -> dict[str, RowSet]:
            lines = self._lines(snapshot, handle, number, marks, after)
            known = dict(zip(last.digests, last.row_sets, strict=True)) if last else {}
            found = files.write_cells(self._location, folder, lines, known)
            self.written |= {one.file: one.size for digest, one in found.items() if digest not in known}
            return found

        made: TabletFiles | None = None
        if last is not None and not _is_overgrown(last):
            try:
                made = last.with_deltas(written(since))
            except SnapshotTooOld:
                pass  # versions since the last backup were collected: all cells are read
        if made is None:
            found = written(0)
            made = TabletFiles(tuple(found.values()), tuple(found), len(found))
        known = None if last is None else last.marks
        dirty = files.write_marks(self._location, folder, marks.at_snapshot(), known)
        if dirty is not None and dirty is not known:
            self.written[dirty.file] = dirty.size
        return replace(made, marks=dirty)

    def _lines(
        self, snapshot: Snapshot, handle: TableHandle, number: int, marks: Marks, since: int
    ) -> Iterator[Line]:
        for row in tablet_cells(self._client, handle, number, snapshot.start_timestamp, since):
            marks.add_later(row.key, row.later)
            cells = row.cells if since else _needed(handle, row, marks)
            for column in sorted(cells):
                yield row.key, column, cells[column]


def _needed(handle: TableHandle, row: RowCells, marks: Marks) -> dict[bytes, bytes]:
    """Return the cells of a row that garbage collection keeps: then a tablet is the same before and after it.

    Without deletions that no observer has still to see, and the acknowledgements of cells that are gone.
    """
    weak = {column.encode() for column in handle.definition.notify_only}
    cells = {
        column: version
        for column, version in row.cells.items()
        if not version[KIND] or marks.may_have(row.key, column)
    }
    return {
        column: version
        for column, version in cells.items()
        if (observed := acknowledged(column)) is None or observed in cells or observed in weak
    }


def _before(last: Manifest | None, entry: Entry) -> Sequence[TabletFiles] | None:
    """Return the tablets of the same table in the last backup, if it had the same definition then."""
    for table in last.tables if last else ():
        if table.definition["name"] == entry.definition.name and table.version == entry.version:
            return table.tablets
    return None


def _is_overgrown(tablet: TabletFiles) -> bool:
    """Return True if the changed cells are so many that all cells are written again."""
    full, deltas = tablet.row_sets[: tablet.full], tablet.row_sets[tablet.full :]
    return len(deltas) >= _DELTAS or sum(one.size for one in deltas) * 2 > sum(one.size for one in full)


def _remove_old(location: Location, keep: int) -> None:
    """Remove all but the newest backups, and the files that only these named."""
    names = files.manifests(location)
    numbers = sorted(set(names.values()), reverse=True)[:keep]
    loaded = {name: files.load(location, name) for name in names}
    old = {name for name, number in names.items() if number not in numbers}
    needed = {file for name, one in loaded.items() if one and name not in old for file in one.files}
    for name in old:
        # First the manifest: no backup names a file that is gone.
        location.remove(name)
    for file in {file for name in old if (one := loaded[name]) for file in one.files} - needed:
        location.remove(file)
