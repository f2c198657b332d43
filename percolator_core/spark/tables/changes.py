"""The rows of a table that changed after one timestamp, up to and including a second timestamp.

The store returns each row of which a cell, or the row's marker, has a version with a commit timestamp in this
range. Then these rows are read as of the second timestamp. So a row that changed several times appears once,
and a row that was inserted and removed in the range appears as deleted. Each change is in exactly one of two
adjacent ranges, because the read waits for the lock of any transaction that may still commit in the range.

The rows of a base did not change after the safe point, and only a range from 0 begins below the safe point.
So a range from 0 has all rows of the base, and any other range has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from percolator_core.base.bases import above_base
from percolator_core.database import Database
from percolator_core.errors import SnapshotTooOld
from percolator_core.runtime.batches import batched
from percolator_core.schema.definitions import Column
from percolator_core.schema.partitions import Piece
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Changed
from percolator_core.tables import rows
from percolator_core.tables.arrow import from_rows
from percolator_core.tables.query import Query
from percolator_core.transaction.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

CHANGE_COLUMNS: Final = (Column("_commit_timestamp", "int"), Column("_deleted", "bool"))
"""The additional columns of changes: the time of the row's newest change (µs), and True if it is deleted."""

_ROWS: Final = 500
_BYTES: Final = 1 << 20
"""Limits of one step of the store."""

Change = tuple[bytes, int]
"""A row, and the timestamp of its newest change."""


def as_changed(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Make the columns nullable: in a deleted row, all columns outside the key are null."""
    return tuple(replace(column, nullable=True, missing=None) for column in columns)


def changed_rows(
    db: Database, snapshot: Snapshot, query: Query, pieces: Sequence[Piece], since: int
) -> Iterator[pa.RecordBatch]:
    """Read the changed rows of some pieces, with `CHANGE_COLUMNS` after the columns of the query.

    Raises:
        SnapshotTooOld: ``since`` or the snapshot is below the safe point of garbage collection.
    """
    key = query.handle.definition.key
    codec = KeyCodec(query.handle.definition)
    names = [column.name for column in query.columns if column.name not in key]
    for found in changed_keys(db, snapshot, query, pieces, since):
        read = rows.read_many(snapshot, query.handle, [row for row, _ in found], names)
        values, times, gone = [], [], []
        for (row, commit_ts), cells in zip(found, read, strict=True):
            parts = dict(zip(key, codec.split(row), strict=True))
            if query.bound is not None and query.bound.holds(parts.__getitem__) is not True:
                continue
            if cells is None and not since:
                continue  # with ``since`` 0 the reader has not seen the row, so its deletion is no news
            known = {**(cells or dict.fromkeys(names)), **parts}
            values.append([known[column.name] for column in query.columns])
            times.append(commit_ts)
            gone.append(cells is None)
        if values:
            yield _batch(as_changed(query.columns), values, times, gone)


def changed_keys(
    db: Database, snapshot: Snapshot, query: Query, pieces: Sequence[Piece], since: int
) -> Iterator[list[Change]]:
    """Find the keys of the changed rows, one step at a time."""
    for piece in pieces:
        low: bytes = b"[" + piece.low
        high = b"+" if piece.high is None else b"(" + piece.high
        while low:
            found = _step(db, snapshot, query, piece.tablet, low, high, since)
            changes: Iterable[Change] = found.rows
            if found.base and not since:
                bounds = _range(low, piece.high, found.resume)
                changes = _with_base(db, query, piece.tablet, found, *bounds)
            for some in batched(changes, _ROWS):
                settled = [change for change in some if change[1]]
                for row in [row for row, commit_ts in some if not commit_ts]:
                    settled += _wait_for_lock(db, snapshot, query, piece.tablet, row, since)
                yield settled
            low = found.resume


def _range(low: bytes, end: bytes | None, resume: bytes) -> tuple[bytes, bytes | None]:
    """Return the range of keys of a step: its first key, and its exclusive end or None."""
    first = low[1:] + b"\0" if low[:1] == b"(" else low[1:]
    return first, resume[1:] + b"\0" if resume else end


def _with_base(  # noqa: PLR0917
    db: Database, query: Query, tablet: int, found: Changed, low: bytes, high: bytes | None
) -> Iterator[Change]:
    """Yield the rows of a step, and the base's rows in the step's range, each with its newest change."""
    handle = query.handle
    where = handle, handle.tags[tablet], found.base, low, high
    for key, changed, row in above_base(found.rows, db.client.bases.rows(*where, (), reverse=False)):
        if row is None or changed == 0:
            yield key, changed or 0
        else:
            yield key, max(row.time, changed or 0)


def _wait_for_lock(  # noqa: PLR0917
    db: Database, snapshot: Snapshot, query: Query, tablet: int, row: bytes, since: int
) -> list[Change]:
    """Find the change of a locked row. A read of its cells waits for the lock, or resolves it."""
    handle = query.handle
    bound = b"[" + row
    while True:
        snapshot.values(handle, row, [handle.marker, *handle.columns.values()])
        found = _step(db, snapshot, query, tablet, bound, bound, since)
        if all(commit_ts for _, commit_ts in found.rows):
            if not found.base or since:
                return found.rows
            return list(_with_base(db, query, tablet, found, row, row + b"\0"))


def _step(  # noqa: PLR0917
    db: Database, snapshot: Snapshot, query: Query, tablet: int, low: bytes, high: bytes, since: int
) -> Changed:
    handle = query.handle
    columns = (handle.marker.encoded, *(fields.encoded for fields in handle.columns.values()))
    bounds = (since, snapshot.start_timestamp, low, high, _ROWS, _BYTES)
    found = db.store.run(calls.changes(handle.tags[tablet], *bounds, columns))
    if found is None:
        raise too_old(since)
    return found


def too_old(since: int) -> SnapshotTooOld:
    """Return the error for changes whose old versions were removed."""
    return SnapshotTooOld(
        f"the changes since {since} are below the safe point, or the table was created again: read the whole "
        "table once (since=0; for a stream, a new checkpoint folder), or keep versions longer"
    )


def _batch(
    columns: Sequence[Column], values: Sequence[Sequence[bytes | None]], times: list[int], gone: list[bool]
) -> pa.RecordBatch:
    import pyarrow as pa

    read = from_rows(columns, values)
    arrays = [*read.columns, pa.array(times, pa.int64()), pa.array(gone, pa.bool_())]
    names = [*read.schema.names, *(column.name for column in CHANGE_COLUMNS)]
    return pa.RecordBatch.from_arrays(arrays, names=names)
