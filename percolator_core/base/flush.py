"""Flush: move rows that nobody has changed for a while from the store into the base of a tablet.

The steps are in an order in which a crash at any step does no harm (Kudu flushes a MemRowSet in this order):

0. A tablet without a base gets an empty one. From then on, garbage collection keeps deletions, because a
   deletion that is committed after its row was read has to hide the row in the base.
1. The rows are read. Before the flush, the locks of all transactions that began at or below the flush's
   timestamp were resolved in all tablets. So no commit at or below the timestamp can follow.
2. Row sets are written. A crash leaves files that no manifest names.
3. The manifest is published. A crash leaves rows both in the store and in the base, with equal values.
4. The cells that have not changed since step 1 are evicted from the store. A crash leaves some of them there.

Two flushes of one tablet do no harm: only one of them publishes, and the other one evicts nothing.

Import this module only after a call of `arrow_values.pyarrow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa

from percolator_core.base import row_set
from percolator_core.base.manifest import Entry, Manifest, Removed, TabletFolder, publish
from percolator_core.base.pace import Pace
from percolator_core.base.portion import Portion, repeated
from percolator_core.base.row_set import BaseRow
from percolator_core.base.tablet import TabletBase
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import KIND, PUT, VALUE, commit_of
from percolator_core.scripts import calls
from percolator_core.scripts.replies import ColdRows
from percolator_core.store import Store

_STEP_ROWS: Final = 100
_STEP_BYTES: Final = 1 << 20
"""Limits of one step that reads rows: its script blocks all other clients for about a millisecond."""

_EVICTED_ROWS: Final = 200
"""Limit of one step that evicts rows. It is higher: to evict a row takes less time than to read it."""

ROW_SET_BYTES: Final = 64 << 20
"""A row set, which is made in memory, has at most about this many bytes of cells."""


class Flushed(NamedTuple):
    """The numbers of rows that left the store, and of bytes of the row sets written."""

    rows: int
    bytes: int


class TabletFlush:
    """Flushes one tablet.

    ``reference`` names the manifest of ``base``; it is b"" without one. ``observers`` are all observers of
    the table.
    """

    def __init__(  # noqa: PLR0917
        self,
        store: Store,
        folder: TabletFolder,
        base: TabletBase,
        reference: bytes,
        observers: Sequence[str],
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._pace = pace or Pace(store)
        self._folder = folder
        self._definition = base.definition
        self._base = base
        self._reference = reference
        self._observers = list(observers)
        self._columns = {one.stored.encode() for one in base.definition.value_columns}

    def run(self, timestamp: int, before: int) -> Flushed:
        """Move into the base the rows that nobody has changed since the time ``before``.

        ``timestamp`` has to be at or below the safe point, and the locks of all transactions that began at or
        below ``timestamp`` have to be resolved, in all tablets. Both times are in microseconds.

        A row stays if it has a lock, an older version, or a cell that an observer has not processed yet. The
        flush ends early if another client has published a manifest, or if the table was changed.

        Raises:
            StoreUnavailable: the store or the location does not answer. Flushed rows are in the base.
            BaseDamaged: a file of the base is missing or damaged.
        """
        rows = size = 0
        for portion in self._portions(timestamp, min(timestamp, before)):
            written = self._add_to_base(portion, timestamp)
            if written is None:
                break
            size += written
            rows += self._evict(portion, timestamp)
        return Flushed(rows, size)

    def _portions(self, timestamp: int, before: int) -> Iterator[Portion]:
        """Yield the rows that may leave the store, in portions. Each portion is for one row set."""
        steps: list[ColdRows] = []
        size = 0
        bound = b"-"
        while bound:
            found = self._cold(timestamp, before, bound)
            if found.rows and not self._reference:
                if not self._publish(Manifest(0, before)):
                    return
                continue  # read again: a deletion in these rows may have been collected before
            bound = found.resume
            if found.rows:
                steps.append(found)
                size += self._size(found)
            if size >= ROW_SET_BYTES or (steps and not bound):
                yield Portion(steps)
                steps, size = [], 0

    def _cold(self, timestamp: int, before: int, bound: bytes) -> ColdRows:
        """Read the rows of one step. If garbage keeps rows in the store, collect it and read again."""
        most = self._pace.rows(_STEP_ROWS)
        call = calls.cold(self._folder.tag, before, bound, most, _STEP_BYTES, self._observers)
        found = self._pace.run(call)
        if found.has_garbage:
            while bound and (not found.resume or bound[1:] < found.resume[1:]):
                collect = calls.collect(self._folder.tag, bound, most, timestamp, self._observers)
                bound = self._pace.run(collect).resume
            found = self._pace.run(call)
        return found

    def _size(self, step: ColdRows) -> int:
        """The bytes of a step. A raw table's file repeats keys and names; repetitions count an eighth."""
        size = len(step.keys) + len(step.versions)
        return size if self._definition.is_typed else size + repeated(step) // 8

    def _add_to_base(self, portion: Portion, timestamp: int) -> int | None:
        """Return the bytes written, or None if the rows were not published."""
        merged, replaced = self._merge(portion)
        written = row_set.write(self._folder.location, self._folder.name, merged)
        entries = [*self._without(replaced), *([] if written is None else [Entry(written)])]
        last = self._base.manifest
        manifest = Manifest(last.number + 1, max(last.timestamp, timestamp), tuple(entries))
        if not self._publish(manifest):
            return None
        size = 0 if written is None else written.size
        self._pace.wrote(size)
        return size

    def _merge(self, portion: Portion) -> tuple[Iterator[pa.RecordBatch], dict[int, list[int]]]:
        """Merge the rows with those of the base.

        Return the result, and the positions of the rows of the base that are replaced, in a dict whose keys
        are the numbers of entries. If neither the store nor the base has the marker of a row of a typed
        table, the row does not exist, and its cells stay in the store.
        """
        unmarked = set(portion.without_marker().tolist()) if self._definition.is_typed else set()
        special = {*unmarked, *portion.deleting().tolist()}
        merged: list[BaseRow] = []
        replaced: dict[int, list[int]] = {}
        for number, key in enumerate(portion.keys.to_pylist()):
            found = self._base.find(key)
            if found is None and number not in special:
                continue
            special.add(number)
            old = None if found is None else self._base.row_at(*found)
            if number in unmarked and old is None:
                portion.staying.add(number)
                continue
            row = self._merged(key, old, portion.versions(number))
            if row is not None:
                merged.append(row)
            if found is not None:
                entry, spans = found
                replaced.setdefault(entry, []).extend(self._base.readers[entry].positions(spans))
        return portion.batches(self._definition, sorted(special), merged), replaced

    def _merged(self, key: bytes, old: BaseRow | None, versions: Mapping[bytes, bytes]) -> BaseRow | None:
        """Return the base's row with the store's cells set in it; None if the row was deleted."""
        exists = old is not None
        _, time, old_cells, old_times = old or BaseRow(key, 0, {}, {})
        cells, times = dict(old_cells), dict(old_times)
        is_typed, columns = self._definition.is_typed, self._columns
        for column, packed in versions.items():
            commit_ts = commit_of(packed)
            time = max(time, commit_ts)
            if column == MARKER:
                exists = packed[KIND] == PUT
            elif is_typed and column not in columns:
                continue  # the column was dropped
            elif packed[KIND] == PUT:
                cells[column] = packed[VALUE]
                times[column] = commit_ts
            else:
                cells.pop(column, None)
                times.pop(column, None)
        if is_typed:
            return BaseRow(key, time, cells, {}) if exists else None
        return BaseRow(key, time, cells, times) if cells else None

    def _without(self, replaced: Mapping[int, Iterable[int]]) -> Iterator[Entry]:
        """Yield the entries of the manifest, with the ``replaced`` rows marked as removed."""
        for number, entry in enumerate(self._base.manifest.entries):
            if number not in replaced:
                yield entry
                continue
            before = self._base.readers[number].removed_positions()
            positions = sorted({*replaced[number], *([] if before is None else before.tolist())})
            if len(positions) < entry.row_set.rows:
                folder = self._folder
                yield replace(entry, removed=Removed.write(folder.location, folder.name, positions))

    def _publish(self, manifest: Manifest) -> bool:
        reference = publish(self._store, self._folder, self._reference, manifest)
        if reference is None:
            return False
        base = self._base
        self._base = TabletBase(base.definition, base.location, manifest, base.cache)
        self._reference = reference
        return True

    def _evict(self, portion: Portion, timestamp: int) -> int:
        """Evict the rows from the store; return the number of rows that have left the store."""
        evicted, stamp = 0, portion.stamp
        folder = self._folder
        for rows in portion.steps(self._pace.rows(_EVICTED_ROWS)):
            call = calls.evict(
                folder.tag, self._reference, folder.version, timestamp, stamp, self._observers, rows
            )
            found = self._pace.run(call)
            if found is None:
                break
            evicted, stamp = evicted + found.rows, found.stamp
        return evicted
