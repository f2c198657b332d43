"""Backups: a namespace as of one time, while its clients work on.

A backup has the definitions of all tables, and every cell that a snapshot sees, with its timestamps. It also
has the observers of the active chain, and a record of the cells that these observers had still to process.
Acknowledgements are cells like any other, so they are included. So a restored chain runs for exactly the
changes that it has not processed.

Tablets are read one by one, from one pinned snapshot. If nothing in a tablet has changed since the last
backup, the new manifest names the files of that backup. Otherwise only the changed cells are written. But
if the tablet already has 8 row sets of changed cells, or if these row sets together are more than half as
large as the other row sets, all cells are written. If the safe point is above the timestamp of the last
backup, all cells are read, and only the row sets whose cells have changed are written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from percolator_core.archive import files
from percolator_core.archive.cells import RowCells, settle, tablet_cells
from percolator_core.archive.files import Line, Manifest, TableFiles, TabletFiles
from percolator_core.archive.marks import Marks
from percolator_core.base.location import Location
from percolator_core.base.row_set import RowSet
from percolator_core.catalog.catalog import Entry
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, SnapshotTooOld
from percolator_core.layout.keys import MARKER, acknowledged, is_internal
from percolator_core.layout.records import KIND
from percolator_core.maintenance.methods import Maintenance
from percolator_core.runtime.html import ShownInNotebook
from percolator_core.schema.definitions import to_json
from percolator_core.transaction.client import Client
from percolator_core.transaction.snapshot import Snapshot

Progress = Callable[[str, int, int], None]
"""A callable that takes a table's name, the number of finished tablets, and the number of all tablets."""

RESTORING: Final = b"restoring"
"""The chain's record has this field until a restore into the namespace is complete."""

_CHAIN_FIELDS: Final = ("digest", "observers", "observed")
"""The fields of the chain's record that a backup has."""

_ATTEMPTS: Final = 3
_DELTAS: Final = 8
"""The number of row sets of changed cells after which all cells of a tablet are written."""


@dataclass(frozen=True, slots=True)
class BackedUp(ShownInNotebook):
    """The result of a backup: its ``number``, from 1, and the ``timestamp`` (microseconds) of its snapshot.

    ``tables`` counts the tables, indexes included. ``written`` counts the new files except the manifest, and
    ``bytes`` is their size. ``shared`` counts the files of earlier backups that this backup also uses.
    """

    number: int
    timestamp: int
    tables: int
    written: int
    shared: int
    bytes: int
    seconds: float


def backup(
    db: Maintenance, url: str, *, keep: int | None = None, progress: Progress | None = None
) -> BackedUp:
    """Write a backup of the namespace of ``db``, as of one time, while its clients work on.

    Call it again at any time, also after a crash: earlier backups are never changed. A backup shares files
    with earlier ones, so never remove files by hand.

    Args:
        db: the namespace.
        url: a path, ``file:PATH``, ``s3://BUCKET/PREFIX`` or another URL of ``pyarrow.fs``. Each namespace
            needs a URL of its own.
        keep: the number of backups (1 or more) that remain. At the end, older backups are removed, with the
            files that no remaining backup uses. None means that all backups remain.
        progress: takes a table's name, the number of finished tablets, and the number of all tablets.

    Raises:
        ConfigurationError: pyarrow is not installed, the URL cannot be used, or the namespace is being
            restored; complete the restore first.
        LockTimeout: an earlier transaction is still committing; back up again later.
        SnapshotTooOld: columns or tables were dropped during each of 3 attempts; back up again later.
        BaseDamaged: a file of a table's base is missing or damaged; restore the file.
        PercolatorError: a later version of this library wrote the last backup; use that version.
        StoreUnavailable: the store or the location does not answer; back up again.
        ValueError: ``keep`` is below 1.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep is 1 or more, not {keep}")
    begun, location = time.monotonic(), Location(url)
    check_complete(db.client)
    manifest, written = _write(db, location, progress)
    if keep is not None:
        _remove_old(location, keep)
    return BackedUp(
        manifest.number,
        manifest.timestamp,
        len(manifest.tables),
        len(written),
        len(manifest.files - set(written)),
        sum(written.values()),
        time.monotonic() - begun,
    )


def _write(db: Maintenance, location: Location, progress: Progress | None) -> tuple[Manifest, dict[str, int]]:
    """Write a backup; return its manifest, and the size of each new file."""
    attempt = 1
    while True:
        run = _Run(db, location, progress)
        try:
            return run.write(), run.written
        except SnapshotTooOld:  # a column or table was dropped during the attempt
            if attempt == _ATTEMPTS:
                raise
            attempt += 1


def check_complete(client: Client) -> None:
    """Raise ConfigurationError if a restore into the namespace has begun and not ended."""
    keys = client.store.keyspace
    if client.store.one((b"HGET", keys.chain, RESTORING)) is not None:
        raise ConfigurationError(
            f"the namespace {keys.namespace!r} is being restored: run the same restore again to complete it"
        )


class _Run:
    """One attempt at a backup. ``written`` has the sizes of the new files by name."""

    def __init__(self, db: Maintenance, location: Location, progress: Progress | None) -> None:
        self._db = db
        self._client = db.client
        self._location = location
        self._progress = progress
        self.written: dict[str, int] = {}
        self._last = files.newest(location)
        self._number = 1 + max(files.manifests(location).values(), default=0)

    def write(self) -> Manifest:
        client = self._client
        timestamp, entries = self._moment()
        with Snapshot(client, timestamp) as snapshot:
            settle(client, timestamp)
            # Read after the snapshot was taken: an observer that is activated later has no cell to process in
            # the snapshot.
            chain = self._chain()
            observers = sorted(filter(None, chain.get("observers", "").split(",")))
            history = client.oracle.history()
            oldest = client.oracle.last_failover()
            last = self._last
            if last is not None and (last.history != history or not oldest <= last.timestamp < timestamp):
                last = None
            total, done, tables = sum(entry.definition.tablets for entry in entries), 0, []
            for entry in entries:
                handle = snapshot.handle_of(entry.definition.name)
                before, tablets = _before(last, entry), []
                for number, tag in enumerate(handle.tags):
                    marks = Marks(client, snapshot, handle, tag, observers)
                    since = last.timestamp if last else 0
                    tablets.append(self._tablet(snapshot, handle, number, marks, before.get(number), since))
                    done += 1
                    if self._progress is not None:
                        self._progress(handle.name, done, total)
                tables.append(TableFiles(to_json(entry.definition), entry.version, tuple(tablets)))
        namespace = client.store.keyspace.namespace
        manifest = Manifest(self._number, timestamp, namespace, history, chain, tuple(tables))
        files.save(self._location, manifest)
        return manifest

    def _moment(self) -> tuple[int, list[Entry]]:
        """Return a fresh timestamp, and the tables of that time, without pending schema changes."""
        catalog = self._client.catalog
        while True:
            self._db.schema_changes.finish_all()
            entries = catalog.entries()
            timestamp, epoch, _ = self._client.oracle.timestamp_then()
            if epoch == catalog.handles.epoch and not any(entry.pending for entry in entries):
                return timestamp, entries

    def _chain(self) -> dict[str, str]:
        names = [name.encode() for name in _CHAIN_FIELDS]
        found = self._client.store.one((b"HMGET", self._client.store.keyspace.chain, *names))
        return {name: one.decode() for name, one in zip(_CHAIN_FIELDS, found, strict=True) if one is not None}

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

        def write_cells(after: int) -> dict[str, RowSet]:
            lines = self._lines(snapshot, handle, number, marks, after)
            known = dict(zip(last.digests, last.row_sets, strict=True)) if last else {}
            found = files.write_cells(self._location, folder, lines, known)
            self.written |= {one.file: one.size for digest, one in found.items() if digest not in known}
            return found

        made: TabletFiles | None = None
        if last is not None and not _is_overgrown(last):
            try:
                made = last.with_deltas(write_cells(since))
            except SnapshotTooOld:
                pass  # the last backup is below the safe point: all cells are read
        if made is None:
            found = write_cells(0)
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
    """Leave out the cells of a row that garbage collection may drop.

    Otherwise each collection would change row sets. A collection drops deletions that all observers have
    processed, and acknowledgements of dropped cells.
    """
    weak = {column.encode() for column in handle.definition.notify_only}
    cells = {
        column: version
        for column, version in row.cells.items()
        if not version[KIND] or marks.may_have(row.key, column)
    }
    # A run for a whole row needs the acknowledgement also if all cells of the row are gone.
    is_needed = marks.may_have(row.key, MARKER) or any(not is_internal(column) for column in cells)
    needed = {*cells, *weak, *((MARKER,) if is_needed else ())}
    return {
        column: version
        for column, version in cells.items()
        if (observed := acknowledged(column)) is None or observed in needed
    }


def _before(last: Manifest | None, entry: Entry) -> dict[int, TabletFiles]:
    """Return the tablets of a table in the last backup; none if its definition has changed since."""
    for table in last.tables if last else ():
        if table.definition["name"] == entry.definition.name and table.version == entry.version:
            return dict(enumerate(table.tablets))
    return {}


def _is_overgrown(tablet: TabletFiles) -> bool:
    full, deltas = tablet.row_sets[: tablet.full], tablet.row_sets[tablet.full :]
    return len(deltas) >= _DELTAS or sum(one.size for one in deltas) * 2 > sum(one.size for one in full)


def _remove_old(location: Location, keep: int) -> None:
    """Remove all backups except the newest ``keep``, and the files that only the removed backups named."""
    names = files.manifests(location)
    numbers = sorted(set(names.values()), reverse=True)[:keep]
    loaded = {name: files.load(location, name) for name in names}
    old = {name for name, number in names.items() if number not in numbers}
    needed = {file for name, one in loaded.items() if one and name not in old for file in one.files}
    for name in old:
        # The manifests are removed first, so that no manifest names a file that is gone.
        location.remove(name)
    for file in {file for name in old if (one := loaded[name]) for file in one.files} - needed:
        location.remove(file)
