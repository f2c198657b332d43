"""Restore a backup into an empty namespace, in the same store or another one.

The steps, each of which can be repeated:

1. The chain's record gets a field that keeps workers out. The oracle moves above the backup's timestamps.
2. The observers are written into the record, so that each table is created with its observers.
3. The tables are created.
4. The marks and then the cells of each tablet are written; all cells are read again and compared.
5. The digest of the chain is written, and the field is removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Final

from percolator_core.archive import files
from percolator_core.archive.backup import RESTORING, Progress
from percolator_core.archive.cells import tablet_cells
from percolator_core.archive.files import Line, Manifest, Mark, TabletFiles
from percolator_core.base.location import Location
from percolator_core.catalog.catalog import raise_safe_points
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, PercolatorError, abbreviated
from percolator_core.layout.keys import dirty_key, encode_mark, failed_key, is_internal
from percolator_core.layout.records import KIND, unpack_version
from percolator_core.maintenance.methods import Maintenance
from percolator_core.runtime.html import ShownInNotebook
from percolator_core.schema.definitions import from_json
from percolator_core.scripts import calls

_STEP_CELLS: Final = 1000
_STEP_BYTES: Final = 1 << 20
"""The limits of one call that writes cells: its script blocks all other clients."""

_FLUSH_BYTES: Final = 64 << 20
"""While a table with a base is restored, its rows are flushed whenever this many bytes were written."""

_MARKS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Restored(ShownInNotebook):
    """The result of a restore of the backup ``number``, which is as of ``timestamp`` (microseconds).

    ``tables`` counts the tables, indexes included. ``rows`` and ``cells`` include internal ones, such as
    acknowledgements. ``marks`` counts the cells that observers have still to process. ``quarantined`` counts
    how many of these cells are in quarantine.
    """

    number: int
    timestamp: int
    tables: int
    rows: int
    cells: int
    marks: int
    quarantined: int
    seconds: float


def restore(
    url: str,
    db: Maintenance,
    *,
    number: int | None = None,
    bases: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Restored:
    """Write a backup into the empty namespace of ``db``, which may have another name and another store.

    All bytes of the backup are verified when they are read, and all cells are compared after they were
    written. After a crash, call again. Until the end, no other client may use the namespace, and workers
    refuse to start.

    Args:
        url: the location, as for `backup`.
        db: a namespace without tables.
        number: the number of the backup; None means the newest.
        bases: the locations of new bases, by table. The rows of these tables move there during the restore.
            All other tables are restored into the store, even if they had a base.
        progress: as for `backup`.

    Raises:
        ConfigurationError: pyarrow is not installed, the URL cannot be used, there is no such backup,
            ``bases`` names a table that the backup does not have, or the namespace has tables.
        PercolatorError: a file is missing or damaged: restore an earlier backup. Or another client has
            changed the namespace: restore into another, empty one.
        StoreUnavailable: the store or the location does not answer; call again to continue.
    """
    begun, location = time.monotonic(), Location(url)
    manifest = files.newest(location, number)
    if manifest is None:
        which = "" if number is None else f" {number}"
        raise ConfigurationError(f"there is no backup{which} at {location.shown}: check the URL")
    names = {table.definition["name"] for table in manifest.tables}
    unknown = sorted(set(bases or {}) - names)
    if unknown:
        raise ConfigurationError(f"the backup has no table {unknown[0]!r}: it has {', '.join(sorted(names))}")
    return _Restore(db, location, manifest, bases or {}, progress).run(begun)


class _Restore:
    def __init__(
        self,
        db: Maintenance,
        location: Location,
        manifest: Manifest,
        bases: Mapping[str, str],
        progress: Progress | None,
    ) -> None:
        self._db = db
        self._client = db.client
        self._store = db.client.store
        self._location = location
        self._manifest = manifest
        self._bases = bases
        self._progress = progress
        self._rows = self._cells = self._marks = self._quarantined = 0

    def run(self, begun: float) -> Restored:
        manifest = self._manifest
        self._begin()
        self._create_tables()
        total, done = sum(len(table.tablets) for table in manifest.tables), 0
        for table in manifest.tables:
            handle = self._client.catalog.table(table.definition["name"])
            for number, tablet in enumerate(table.tablets):
                self._restore(handle, number, tablet)
                done += 1
                if self._progress is not None:
                    self._progress(handle.name, done, total)
        tags = [tag for _, tag in self._client.catalog.tablets()]
        # Durable, because workers can start after the next lines. From then on, a failover must not lose
        # restored cells.
        raise_safe_points(self._store, tags, durably=True)
        self._record({name: one for name, one in manifest.chain.items() if name == "digest"})
        self._store.call_durably((b"HDEL", self._store.keyspace.chain, RESTORING))
        return Restored(
            manifest.number,
            manifest.timestamp,
            len(manifest.tables),
            self._rows,
            self._cells,
            self._marks,
            self._quarantined,
            time.monotonic() - begun,
        )

    def _begin(self) -> None:
        """Claim the empty namespace, move its oracle, and record the chain's observers."""
        keys, manifest = self._store.keyspace, self._manifest
        name = f"{manifest.history} {manifest.number} {manifest.timestamp}".encode()
        begun = self._store.one((b"HGET", keys.chain, RESTORING))
        if begun != name and (begun is not None or self._client.catalog.entries()):
            raise ConfigurationError(
                f"the namespace {keys.namespace!r} is not empty: restore into one without tables"
                + ("" if begun is None else "; the restore of another backup into it has not ended")
            )
        self._store.call_durably((b"HSET", keys.chain, RESTORING, name))
        self._store.run(calls.advance(keys.oracle, manifest.timestamp))
        self._record({name: one for name, one in manifest.chain.items() if name != "digest"})

    def _record(self, fields: Mapping[str, str]) -> None:
        activation = self._client.oracle.timestamp()
        call = calls.record_chain(self._store.keyspace.chain, activation, {"beside": "", **fields})
        self._store.run_all([call], durably=True)

    def _create_tables(self) -> None:
        for table in self._manifest.tables:
            definition = from_json(dict(table.definition)).with_(base=None)
            # The indexes of a table are created with it.
            if not definition.index_of:
                self._db.schema_changes.create(definition)
        for table in self._manifest.tables:
            name, definition = table.definition["name"], from_json(dict(table.definition))
            if name in self._bases:
                self._db.set_base(name, self._bases[name])
            entry = self._client.catalog.entry(name)
            if entry is None or entry.definition.with_(base=None) != definition.with_(base=None):
                raise _changed(name)

    def _restore(self, handle: TableHandle, number: int, tablet: TabletFiles) -> None:
        with_base = handle.name in self._bases
        marks = files.read_marks(self._location, tablet.marks)
        # The marks are written first, because a flush evicts all cells without marks.
        self._write_marks(handle.tags[number], marks)
        wanted = {(mark.row, mark.column) for mark in marks}
        size = 0
        for step in _steps(self._lines(tablet, wanted)):
            reply = self._store.run(calls.write_cells(handle.tags[number], handle.version, step))
            if reply == "changed":
                raise _changed(handle.name)
            size += sum(len(part) for part in step if isinstance(part, bytes))
            if with_base and size >= _FLUSH_BYTES:
                self._db.flush(handle.name, everything=True)
                size = 0
        if with_base:
            self._db.flush(handle.name, everything=True)
        self._verify(handle, number, self._lines(tablet, wanted))
        self._marks += len(marks)
        self._quarantined += sum(mark.record is not None for mark in marks)

    def _write_marks(self, tag: bytes, marks: Iterable[Mark]) -> None:
        # The score is even, because an odd score is a lease.
        due = b"%d" % (int(time.time() * 500_000) * 2)
        commands = [
            (b"ZADD", dirty_key(tag, mark.observer), b"NX", due, encode_mark(mark.column, mark.row))
            if mark.record is None
            else (b"HSET", failed_key(tag, mark.observer), encode_mark(mark.column, mark.row), mark.record)
            for mark in marks
        ]
        self._store.call_many(commands, _MARKS_AT_ONCE)

    def _lines(self, tablet: TabletFiles, marked: set[tuple[bytes, bytes]]) -> Iterator[Line]:
        """Yield the cells to be written: all except the deletions that every observer has processed."""
        for line in files.read_cells(self._location, tablet):
            if not line[2][KIND] or line[:2] in marked:
                yield line

    def _verify(self, handle: TableHandle, number: int, lines: Iterable[Line]) -> None:
        """Compare the rows of a tablet with those of the backup. Raises PercolatorError if they differ."""
        at = self._client.oracle.timestamp()
        with_base = handle.name in self._bases
        wanted = (
            (key, {column: version for _, column, version in cells})
            for key, cells in groupby(lines, itemgetter(0))
        )
        found = ((row.key, row.cells) for row in tablet_cells(self._client, handle, number, at))
        for one, other in zip_longest(_comparable(wanted, with_base), _comparable(found, with_base)):
            if one != other:
                row = repr((one or other or (b"",))[0])
                raise PercolatorError(
                    f"the row {abbreviated(row)} of {handle.name!r} is not as in the backup: another client "
                    "has written to the namespace; restore into an empty one"
                )
            self._rows += 1
            self._cells += len(one[1]) if one else 0


def _changed(table: str) -> PercolatorError:
    return PercolatorError(
        f"another client has changed the table {table!r} during the restore: restore into an empty namespace"
    )


def _comparable(
    rows: Iterable[tuple[bytes, dict[bytes, bytes]]], with_base: bool
) -> Iterator[tuple[bytes, Mapping[bytes, object]]]:
    """Yield rows for the comparison; if the table has a base, only their keys and values.

    A base has no start timestamps and no acknowledgements, and for a typed table only one timestamp per row.
    """
    for key, cells in rows:
        if not with_base:
            yield key, cells
            continue
        values = {
            column: unpack_version(version).value
            for column, version in cells.items()
            if not is_internal(column) and not version[KIND]
        }
        if values:
            yield key, values


def _steps(lines: Iterable[Line]) -> Iterator[list[bytes | int]]:
    """Yield the arguments of `calls.write_cells` in steps of a bounded size."""
    some: list[Line] = []
    size = 0
    for line in lines:
        some.append(line)
        size += sum(map(len, line))
        if size >= _STEP_BYTES or len(some) >= _STEP_CELLS:
            yield _flat(some)
            some, size = [], 0
    if some:
        yield _flat(some)


def _flat(lines: Iterable[Line]) -> list[bytes | int]:
    flat: list[bytes | int] = []
    for key, some in groupby(lines, itemgetter(0)):
        cells = [part for line in some for part in line[1:]]
        flat += (key, len(cells) // 2, *cells)
    return flat
