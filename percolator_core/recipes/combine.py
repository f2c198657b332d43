"""A queue for a cell that many transactions change (paper, section 2.4: weak notifications).

Each transaction writes a new row, and a weak observer folds many rows into the cell in one transaction. The
rows of a key are in *slices* of time, and each slice has its own notification. A drained row stays as a
deletion until garbage collection removes it; a run does not read the drained rows of earlier slices.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from percolator_core.database import Database
from percolator_core.layout.records import MAX_TIMESTAMP, Cell, row_bytes
from percolator_core.recipes.rows import AnyReader, AnyTransaction, key_row, split_row

Fold: TypeAlias = Callable[[bytes | None, Sequence[bytes]], bytes | None]

ADDED: Final = "added"
"""The notify-only column of the queue's table."""

VALUE: Final = "value"

_SLICE: Final = 1 << 15
"""Microseconds of a slice. With longer slices, a run reads more drained rows. With shorter slices, more
runs conflict."""

_BYTES: Final = 4 << 20
"""The approximate limit for the bytes of items that one transaction folds."""

_TIME: Final = struct.Struct(">Q")
_ITEM: Final = struct.Struct(">QQ")
_END: Final = MAX_TIMESTAMP // _SLICE + 1

_sequence: Final = itertools.count()
"""The last part of a row's key, after the start timestamp: it distinguishes the rows of one transaction."""


class CombineQueue:
    """Items for many keys, in one table, which are folded into one cell for each key.

    The table has a notify-only column ``added``. Use few tablets, because every run reads all tablets. The
    observer is weak, observes ``added``, and calls `drain`. It declares ``feedback: true``, because it
    notifies itself if items are left.

    Every item is folded exactly once: the transaction that folds an item deletes it. A run folds the items of
    a key in the order of their transactions' start timestamps, and the items of one transaction in the order
    of the calls. Across runs the order can differ: a transaction can commit after the items of a transaction
    that started later were folded.
    """

    __slots__ = ("_fold", "_into", "_most", "_table")

    def __init__(self, table: str, into: tuple[str, str], fold: Fold, *, most: int = 512) -> None:
        """``into`` is the table and the column of the cells. The key of the items is the row of their cell.

        ``fold`` gets the value of a cell (None without a cell) and a sequence of items, and returns the new
        value, or None to delete the cell. ``fold`` must not have side effects, because a run may be repeated.
        One transaction folds at most ``most`` items (1 or more, else ValueError), and at most about 4 MiB.
        """
        if most < 1:
            raise ValueError(f"most is 1 or more, not {most}")
        self._table = table
        self._into = into
        self._fold = fold
        self._most = most

    def add(self, t: AnyTransaction, key: str | bytes, value: bytes) -> None:
        """Add an item for ``key`` when ``t`` commits. The item conflicts with no other transaction.

        The call takes the snapshot of ``t``, which costs a round trip if ``t`` has read nothing yet.

        Raises:
            UnknownTable, UnknownColumn: the queue's table does not exist, or has no such notify-only column.
            ConfigurationError: the observer does not declare the queue's column.
            TypeError, ValueError: as `Transaction.set`; a key has at most 65,000 bytes.
            StoreUnavailable: the store does not answer.
        """
        start = t.start_timestamp
        slice_row = _slice_row(row_bytes(key), start // _SLICE)
        t.set(self._table, slice_row + _ITEM.pack(start, next(_sequence)), VALUE, value)
        t.notify(self._table, slice_row, ADDED)

    def waiting(self, t: AnyReader, key: str | bytes) -> Iterator[bytes]:
        """Yield the items of ``key`` that are not folded yet, as ``t`` sees them, in the order of `drain`.

        In one snapshot each item either is in the cell or waits. The scan is lazy, and has to skip all rows
        that were drained since the previous garbage collection.

        Raises:
            ValueError: the key has more than 65,000 bytes.
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
        """
        found = row_bytes(key)
        return (item for _, item in self._items(t, _slice_row(found, 0), _slice_row(found, _END)))

    def notify_all(self, db: Database) -> int:
        """Read the whole queue, notify every slice with items, and return the number of slices.

        Call this for items that were added without an active observer, or while the observer had another
        name: they have no notification.

        Raises:
            UnknownTable, UnknownColumn, StoreUnavailable: as `add`.
        """
        slice_rows = {row[: -_ITEM.size] for row, _ in db.snapshot().scan(self._table, columns=[VALUE])}
        for slice_row in slice_rows:
            with db.transaction() as t:
                t.notify(self._table, slice_row, ADDED)
        return len(slice_rows)

    def drain(self, t: AnyTransaction, cell: Cell) -> int:
        """Fold items of the notified cell's key, in ``t``, and return their number.

        Call this in the observer. If items may be left, the call notifies the cell again.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            ConfigurationError: the observer does not declare its writes.
        """
        key, time = split_row(cell.row)
        later = _slice_row(key, _TIME.unpack(time)[0] + 1)
        taken = list(self._items(t, cell.row, later, self._most))
        if not taken:
            return 0  # a run for an earlier slice has folded them
        if len(taken) < self._most:
            # Fold later slices, too: separate runs for them would conflict with this run in the key's cell.
            taken += self._items(t, later, _slice_row(key, _END), self._most - len(taken))
        sizes = itertools.accumulate(len(item) for _, item in taken)
        folded = taken[: 1 + sum(size < _BYTES for size in sizes)]
        table, column = self._into
        value = self._fold(t.get(table, key, column), [item for _, item in folded])
        if value is None:
            t.delete(table, key, column)
        else:
            t.set(table, key, column, value)
        for row, _ in folded:
            t.delete(self._table, row, VALUE)
        if len(folded) < len(taken) or len(taken) == self._most:
            # Items of later slices have notifications of their own.
            t.notify(self._table, cell.row, ADDED)
        return len(folded)

    def _items(
        self, t: AnyReader, start: bytes, stop: bytes, most: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = t.scan(self._table, start, stop, columns=[VALUE], limit=most)
        return ((row, cells[VALUE]) for row, cells in rows)


def _slice_row(key: bytes, number: int) -> bytes:
    """Return the prefix of the row keys of a slice. It is also the key of the row that is notified."""
    return key_row(key) + _TIME.pack(number)
