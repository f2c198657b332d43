"""Compaction: merge row sets of one tablet, so that a read looks at fewer of them, and drop removed rows.

Row sets whose key ranges do not overlap form a *run*; the number of runs is the height of the base. A
merge takes as many of the smallest runs as possible, but the largest of them must not be larger than all the
others together. So a row is written again about once for each doubling of the base (as in Cassandra's
size-tiered compaction).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import percolator_core.base.manifest as manifests
from percolator_core.base import row_set
from percolator_core.base.cache import ByteCache
from percolator_core.base.manifest import Entry, Manifest, TabletFolder, publish
from percolator_core.base.pace import Pace
from percolator_core.base.row_set import KEY, RowSet
from percolator_core.base.tablet import TabletBase
from percolator_core.schema.definitions import TableDefinition
from percolator_core.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

ROW_SET_BYTES: Final = 64 << 20
"""A row set has at most about this many bytes in memory, before it is compressed."""

FEWEST_RUNS: Final = 4
"""If runs are merged because of their sizes, at least this many are merged."""

_REMOVED: Final = 0.3
"""The share of removed rows above which a row set is written again."""

_CACHE_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class MergePlan:
    """The entries to merge, as positions in the manifest, and the gain per written byte.

    ``gain`` grows with the number of runs and removed rows that disappear.
    """

    entries: tuple[int, ...]
    gain: float


def plan(manifest: Manifest, *, everything: bool = False) -> MergePlan | None:
    """Return the next row sets to merge; None if a merge gains too little.

    With ``everything`` all runs become one, without removed rows or needlessly small row sets.
    """
    runs = _runs(manifest.entries)
    chosen = _all(manifest) if everything else _small_runs(manifest, runs)
    if not chosen:
        chosen = tuple(
            number
            for number, entry in enumerate(manifest.entries)
            if _removed(entry) > (0 if everything else _REMOVED)
        )[:1]
    if not chosen:
        return None
    inside = set(chosen)
    height = sum(1 for run in runs if inside.issuperset(run))
    entries = [manifest.entries[number] for number in chosen]
    removed = sum(map(_removed, entries)) / len(entries)
    return MergePlan(chosen, (max(0, height - 1) + removed) / sum(entry.row_set.size for entry in entries))


def _all(manifest: Manifest) -> tuple[int, ...]:
    """Return all positions; none if the entries form one run, and are at most twice as many as needed."""
    entries = manifest.entries
    fewest = sum(map(_size, entries)) / ROW_SET_BYTES + 1
    gains = manifest.height > 1 or len(entries) > 2 * fewest
    return tuple(range(len(entries))) if gains else ()


def _small_runs(manifest: Manifest, runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the positions of the entries of the smallest runs, by the rule in the module's docstring."""
    sizes = sorted((sum(_size(manifest.entries[number]) for number in run), run) for run in runs)
    total, best = 0.0, 0
    for count, (size, _) in enumerate(sizes, 1):
        if size <= total and count >= FEWEST_RUNS:
            best = count
        total += size
    return tuple(number for _, run in sizes[:best] for number in run)


def _runs(entries: Sequence[Entry]) -> list[list[int]]:
    """Divide the entries into as few runs as possible; return the positions of the entries of each run."""
    runs: list[list[int]] = []
    for number in sorted(range(len(entries)), key=lambda number: entries[number].row_set.low):
        fitting = (run for run in runs if entries[run[-1]].row_set.high < entries[number].row_set.low)
        run = next(fitting, None)
        if run is None:
            runs.append([number])
        else:
            run.append(number)
    return runs


def _removed(entry: Entry) -> float:
    return 0.0 if entry.removed is None else entry.removed.rows / entry.row_set.rows


def _size(entry: Entry) -> float:
    return entry.row_set.size * (1 - _removed(entry))


def compact(
    store: Store,
    definition: TableDefinition,
    folder: TabletFolder,
    reference: bytes,
    pace: Pace,
    *,
    everything: bool,
) -> Iterator[int]:
    """Merge row sets of a tablet as long as `plan` chooses some; yield the bytes that each merge has written.

    ``reference`` names the tablet's manifest. If another client has published a manifest, the merges end.

    Raises:
        BaseDamaged: a file is missing or damaged.
        StoreUnavailable: the store or the location does not answer. Finished merges are valid.
    """
    last = manifests.load(folder.location, manifests.split_reference(reference)[1])
    while chosen := plan(last, everything=everything):
        inside = set(chosen.entries)
        parts = tuple(last.entries[number] for number in chosen.entries)
        rest = [entry for number, entry in enumerate(last.entries) if number not in inside]
        written = list(_written(definition, folder, Manifest(last.number, last.timestamp, parts), pace))
        manifest = Manifest(last.number + 1, last.timestamp, (*rest, *map(Entry, written)))
        new = publish(store, folder, reference, manifest)
        if new is None:
            return
        last, reference = manifest, new
        yield sum(one.size for one in written)


def _written(
    definition: TableDefinition, folder: TabletFolder, parts: Manifest, pace: Pace
) -> Iterator[RowSet]:
    # The merge has its own cache, so that it does not displace the values of readers.
    cache: ByteCache[Any] = ByteCache(_CACHE_BYTES)
    for some in _in_pieces(TabletBase(definition, folder.location, parts, cache).compacted()):
        written = row_set.write(folder.location, folder.name, some)
        if written is not None:
            pace.wrote(written.size)
            yield written


def _in_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield the batches of one row set at a time. The cells of one row are in one row set."""
    piece: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if size >= ROW_SET_BYTES and piece[-1][KEY][-1] != batch[KEY][0]:
            yield piece
            piece, size = [], 0
        piece.append(batch)
        size += batch.nbytes
    if piece:
        yield piece
