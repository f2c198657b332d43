"""The cells of a tablet as of one timestamp, with their versions, from the store and the base.

The caller pins a snapshot, then calls `settle`. After that, no transaction can commit at or below the
snapshot's timestamp, because a commit takes its timestamp after its last prewrite. So the remaining locks do
not matter: the snapshot sees none of the versions that their transactions may write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from percolator_core.base.bases import above_base
from percolator_core.base.left_behind import acknowledgements
from percolator_core.base.row_set import BaseRow
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import SnapshotTooOld
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import KIND, pack_version
from percolator_core.maintenance.locks import Locks
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Cells
from percolator_core.transaction.client import Client

_ROWS: Final = 500
_BYTES: Final = 1 << 20
"""The limits of one step that reads rows."""


class RowCells(NamedTuple):
    """The cells of a row: packed versions by encoded column.

    ``later`` has the encoded columns of acknowledgements that were written after the snapshot.
    """

    key: bytes
    cells: dict[bytes, bytes]
    later: list[bytes]


def settle(client: Client, at: int) -> None:
    """Resolve the locks of all transactions that began at ``at`` or before. Raises as `Locks.settle`."""
    Locks(client).settle(lambda lock: lock.start_ts <= at)


def tablet_cells(
    client: Client, handle: TableHandle, tablet: int, at: int, since: int = 0
) -> Iterator[RowCells]:
    """Yield the rows of a tablet in the order of their keys, with the cells that changed after ``since``.

    With ``since`` 0 these are all cells. Deletions are included. Call `settle` first.

    Raises:
        SnapshotTooOld: garbage collection has passed ``since`` or ``at``, or the table was dropped.
        BaseDamaged, StoreUnavailable: as for a read.
    """
    tag, bound, observed = handle.tags[tablet], b"-", client.observed_columns()
    while bound:
        found = client.store.run(calls.cells(tag, since, at, bound, _ROWS, _BYTES))
        if found is None:
            raise SnapshotTooOld(
                f"the versions of {handle.name!r} at {since or at} are below the safe point, or the table "
                "was dropped: try again, or keep versions longer"
            )
        if found.base and not since:
            yield from _with_base(client, handle, tag, bound, found, observed)
        else:
            yield from (RowCells(*row) for row in found.rows)
        bound = found.resume


def _with_base(  # noqa: PLR0917
    client: Client,
    handle: TableHandle,
    tag: bytes,
    bound: bytes,
    found: Cells,
    observed: Mapping[str, Mapping[str, Sequence[str]]],
) -> Iterator[RowCells]:
    """Yield the rows of a step, merged with the rows of the base in the same range of keys."""
    low = b"" if bound == b"-" else bound[1:] + b"\0"
    high = found.resume[1:] + b"\0" if found.resume else None
    below = client.bases.rows(handle, tag, found.base, low, high, None, reverse=False)
    stored = ((row[0], RowCells(*row)) for row in found.rows)
    for key, above, row in above_base(stored, below):
        if row is not None:
            yield _merged(handle, key, above, row, acknowledgements(handle, observed, row))
        elif above is not None:
            yield above


def _merged(
    handle: TableHandle, key: bytes, above: RowCells | None, row: BaseRow, acks: Mapping[bytes, bytes]
) -> RowCells:
    """Merge ``row`` of the base with ``above``, the cells of the same row in the store, which replace it."""
    made = {column: _version(row.time, value) for column, value in acks.items()}
    times = dict.fromkeys(row.cells, row.time) | dict(row.times)
    cells = {column: _version(times[column], value) for column, value in row.cells.items()}
    if handle.is_typed:
        cells[MARKER] = _version(row.time, b"")
    if above is None:
        return RowCells(key, cells | made, [])
    marker = above.cells.get(MARKER)
    if marker is not None and marker[KIND]:
        cells = {}
    return RowCells(key, cells | made | above.cells, above.later)


def _version(commit_ts: int, value: bytes) -> bytes:
    """Pack a cell of a base. Its start timestamp is arbitrary: the base has none, and no reader needs it."""
    return pack_version(commit_ts, max(0, commit_ts - 1), value)
