"""Flush: move rows that nobody has changed for a while from the store into the base of a tablet.

The order survives a crash at every step (Kudu flushes a MemRowSet in this order):

0. A tablet without a base gets one without rows: from then on, no collection takes a deletion. One that is
   committed after the row was read has to hide the row in the base.
1. The rows are read. Every lock that began at or below the flush's timestamp was resolved before, in all
   tablets, so no commit at or below it can follow.
2. Row sets are written. A crash leaves files that nobody names.
3. The manifest is published. A crash leaves rows both in the store and in the base, where they are equal.
4. The cells are evicted from the store, those that are unchanged. A crash leaves some of them.

Two flushes of one tablet do no harm: only one of them publishes, and the other one evicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from percolator_core.base import removed, row_set
from percolator_core.base.location import Location
from percolator_core.base.manifest import Entry, Manifest, Place, publish
from percolator_core.base.pace import Pace
from percolator_core.base.row_set import BaseRow
from percolator_core.base.tablet import TabletBase
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import KIND, PUT, VALUE, commit_of
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Cold
from percolator_core.store import Store
from percolator_core.tables.arrow_values import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

    from percolator_core.base.portion import Portion

_STEP_ROWS: Final = 100
_STEP_BYTES: Final = 1 << 20
"""Bounds of one step of reading rows: a script blocks all other clients, this one for about a millisecond."""

_EVICTED_ROWS: Final = 200
"""Bound of one step of evicting rows: to evict a row takes less time than to read it."""

ROW_SET_BYTES: Final = 64 << 20
"""About the most bytes of cells in one row set. It is made in memory, and its rows are evicted after it."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """The result of a flush: ``rows`` that left the store, and the ``bytes`` of the row sets written."""

    rows: int
    bytes: int


class TabletFlush:
    """Flushes one tablet.

    ``base`` is the tablet's base, and ``reference`` that of its manifest, b"" without one.
    ``folder`` is the tablet's folder in the location. ``observers`` are all observers of the table.
    ``pace`` makes pauses between the steps.
    """

    def __init__(  # noqa: PLR0917
        self,
        store: Store,
        handle: TableHandle,
        tag: bytes,
        location: Location,
        folder: str,
        base: TabletBase,
        reference: bytes,
        observers: Sequence[str],
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._pace = pace or Pace(store)
        self._place = Place(tag, handle.version, location, folder)
        self._handle = handle
        self._tag = tag
        self._location = location
        self._folder = folder
        self._base = base
        self._reference = reference
        self._observers = list(observers)
        self._columns = {one.stored.encode() for one in handle.definition.value_columns}

    def run(self, timestamp: int, before: int) -> Flushed:
        """Move into the base the rows that nobody has changed after ``before``.

        ``timestamp`` is at or below the safe point, and all locks that began at or below it are resolved, in
        all tablets. ``before`` is at or below ``timestamp``. Both are in microseconds.

        Rows with a lock, with older versions, and with cells that an observer has not processed yet stay.
        The flush ends early if another one has published, or if the table was changed.

        Raises:
            StoreUnavailable: the store or the location does not answer. What was flushed is in the base.
            BaseDamaged: a file of the base is missing or damaged.
        """
        rows = size = 0
        for some in self._portions(timestamp, min(timestamp, before)):
            written = self._flush(some, timestamp)
            if written is None:
                break
            size += written
            rows += self._evict(some, timestamp)
        return Flushed(rows, size)

    def _portions(self, timestamp: int, before: int) -> Iterator[Portion]:
        """The rows that may leave, in portions for one row set each."""
        steps: list[Cold] = []
        size = 0
        bound = b"-"
        while bound:
            found = self._cold(timestamp, before, bound)
            if found.rows and not self._reference:
                if not self._publish(Manifest(0, before)):
                    return
                continue  # a deletion of one of these rows may have been collected before
            bound = found.resume
            if found.rows:
                steps.append(found)
                size += self._size(found)
            if size >= ROW_SET_BYTES or (steps and not bound):
                yield _portion(steps)
                steps, size = [], 0

    def _cold(self, timestamp: int, before: int, bound: bytes) -> Cold:
        """Read the rows of one step; if more of them may leave after a collection, then after it."""
        most = self._pace.rows(_STEP_ROWS)
        call = calls.cold(self._tag, before, bound, most, _STEP_BYTES, self._observers)
        found = self._pace.run(call)
        if found.has_garbage:
            while bound and (not found.resume or bound[1:] < found.resume[1:]):
                collect = calls.collect(self._tag, bound, most, timestamp, self._observers)
                bound = self._pace.run(collect).resume
            found = self._pace.run(call)
        return found

    def _size(self, step: Cold) -> int:
        """The size of a step as `ROW_SET_BYTES` counts it: bytes that Arrow repeats count an eighth."""
        size = len(step.keys) + len(step.versions)
        return size if self._handle.is_typed else size + _repeated(step) // 8

    def _flush(self, rows: Portion, timestamp: int) -> int | None:
        """Write and publish the rows; return the bytes written, or None if they were not published."""
        merged, gone = self._merge(rows)
        written = row_set.write(self._location, self._folder, merged)
        entries = [*self._without(gone), *([] if written is None else [Entry(written)])]
        last = self._base.manifest
        manifest = Manifest(last.number + 1, max(last.timestamp, timestamp), tuple(entries))
        if not self._publish(manifest):
            return None
        size = 0 if written is None else written.size
        self._pace.wrote(size)
        return size

    def _merge(self, rows: Portion) -> tuple[Iterator[pa.RecordBatch], dict[int, list[int]]]:
        """Merge the rows with the base's; return them, and the positions that they replace by entry.

        Cells of a typed table without the marker of their row, in the store and in the base, are no row. They
        stay in the store.
        """
        is_typed = self._handle.is_typed
        unmarked = set(rows.without_marker().tolist()) if is_typed else set()
        special = {*unmarked, *rows.deleting().tolist()}
        merged: list[BaseRow] = []
        gone: dict[int, list[int]] = {}
        for place, key in enumerate(rows.keys.to_pylist()):
            found = self._base.find(key)
            if found is None and place not in special:
                continue
            special.add(place)
            old = None if found is None else self._base.row_at(*found)
            if place in unmarked and old is None:
                rows.staying.add(place)
                continue
            row = self._merged(key, old, rows.versions(place))
            if row is not None:
                merged.append(row)
            if found is not None:
                entry, places = found
                gone.setdefault(entry, []).extend(self._base.readers[entry].positions(places))
        return rows.batches(self._handle.definition, sorted(special), merged), gone

    def _merged(self, key: bytes, old: BaseRow | None, versions: Mapping[bytes, bytes]) -> BaseRow | None:
        """Return the row that the store's cells make of the base's row; None if it was deleted."""
        cells = dict(old.cells) if old is not None else {}
        times = dict(old.times) if old is not None else {}
        time = old.time if old is not None else 0
        exists = old is not None
        is_typed, columns = self._handle.is_typed, self._columns
        for column, packed in versions.items():
            commit_ts = commit_of(packed)
            time = max(time, commit_ts)
            if column == MARKER:
                exists = packed[KIND] == PUT
            elif is_typed and column not in columns:
                continue  # it was dropped
            elif packed[KIND] == PUT:
                cells[column] = packed[VALUE]
                times[column] = commit_ts
            else:
                cells.pop(column, None)
                times.pop(column, None)
        if is_typed:
            return BaseRow(key, time, cells, {}) if exists else None
        return BaseRow(key, time, cells, times) if cells else None

    def _without(self, gone: Mapping[int, Iterable[int]]) -> Iterator[Entry]:
        """The entries of the manifest, without the rows at these positions of each."""
        for number, entry in enumerate(self._base.manifest.entries):
            if number not in gone:
                yield entry
                continue
            before = self._base.readers[number].removed_positions()
            positions = sorted({*gone[number], *([] if before is None else before.tolist())})
            if len(positions) < entry.row_set.rows:
                yield replace(entry, removed=removed.write(self._location, self._folder, positions))

    def _publish(self, manifest: Manifest) -> bool:
        published, reference = publish(self._store, self._place, self._reference, manifest)
        if published != "published":
            return False
        self._base = self._base.with_manifest(manifest)
        self._reference = reference
        return True

    def _evict(self, rows: Portion, timestamp: int) -> int:
        """Evict the rows from the store; return how many of them have left it."""
        evicted, stamp = 0, rows.stamp
        for some in rows.steps(self._pace.rows(_EVICTED_ROWS)):
            version = self._handle.version
            call = calls.evict(self._tag, self._reference, version, timestamp, stamp, self._observers, some)
            found = self._pace.run(call)
            if found is None:
                break
            evicted, stamp = evicted + found.rows, found.stamp
        return evicted


def _repeated(step: Cold) -> int:
    pyarrow()
    from percolator_core.base.portion import repeated  # it needs pyarrow

    return repeated(step)


def _portion(steps: Sequence[Cold]) -> Portion:
    pyarrow()
    from percolator_core.base.portion import Portion  # it needs pyarrow

    return Portion(steps)
