"""A queue in front of a cell that many transactions want to change (paper, section 2.4: weak notifications).

Transactions that read and write one cell collide. With a queue each writes a row of its own, which nothing
else writes, so it never conflicts; a weak observer folds what has gathered into the cell, many items in one
transaction. The cell lags behind by a run of the observer.

The queue's rows lie in *slices* of time, a key's slices one after the other, and each slice is notified by
itself. A drained row is a deletion that stays until garbage is collected; a run looks at one slice, not at
all that was ever drained. Run ``collect_garbage`` now and then, as everywhere.
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
"""Microseconds of a slice: a run passes the drained rows of one, and a backlog has few that collide."""

_BYTES: Final = 4 << 20
"""Bytes of items that one transaction folds, about."""

_TIME: Final = struct.Struct(">Q")
_ITEM: Final = struct.Struct(">QQ")
_END: Final = MAX_TIMESTAMP // _SLICE + 1

_sequence: Final = itertools.count()
"""For the whole process: unique under one start timestamp, which no other transaction has."""


class CombineQueue:
    """Items for many keys, in one table; folded into one cell a key.

    The table has a notify-only column ``added`` and needs few tablets, since every run looks into all of
    them. The observer is weak and feeds back to itself where more is left than one run takes::

        tables:
          deposits: {tablets: 1, notify_only: [added]}
          accounts: {}

        observer: deposit
        observe: deposits.added
        mode: weak
        function: bank:deposit
        reads: [deposits.value, accounts.balance]
        writes: [deposits.added, deposits.value, accounts.balance]
        feedback: true

    and in ``bank.py``::

        deposits = CombineQueue("deposits", ("accounts", "balance"), fold=add_up)

        def deposit(t, cell):
            deposits.drain(t, cell)

    Every item is folded exactly once: the transaction that folds it deletes it. Only what is notified is
    folded: after a time in which items were added while no such observer was active, or in which it had
    another name, `notify_all` wakes it for what has gathered. Items of a key that are
    folded together come in the order of their transactions' starts, and as added within one. Those of other
    runs come in any order: a transaction may commit after a later one was drained.
    """

    __slots__ = ("_fold", "_into", "_most", "_table")

    def __init__(self, table: str, into: tuple[str, str], fold: Fold, *, most: int = 512) -> None:
        """``into`` is the table and column of the cells; the row is the key.

        ``fold`` is called with a cell's value (None where there is none) and a sequence of items, and returns
        the new value, or None to delete the cell. It has no side effects: a run may be repeated. ``most`` is
        how many items one transaction folds, 1 or more, else ValueError; it ends earlier at 4 MiB.
        """
        if most < 1:
            raise ValueError(f"most is 1 or more, not {most}")
        self._table = table
        self._into = into
        self._fold = fold
        self._most = most

    def add(self, t: AnyTransaction, key: str | bytes, value: bytes) -> None:
        """Add an item for ``key`` when ``t`` commits, without a conflict with anybody.

        Fixes the snapshot of ``t``, which costs a round trip where it has read nothing yet.

        Raises:
            UnknownTable, UnknownColumn: the queue's table is not there, or has no such notify-only column.
            ConfigurationError: in an observer which does not declare the queue's column.
            TypeError, ValueError: as `Transaction.set`; a key has at most 65,000 bytes.
            StoreUnavailable: the store does not answer.
        """
        start = t.start_timestamp
        slice_row = _slice_row(row_bytes(key), start // _SLICE)
        t.set(self._table, slice_row + _ITEM.pack(start, next(_sequence)), VALUE, value)
        t.notify(self._table, slice_row, ADDED)

    def waiting(self, t: AnyReader, key: str | bytes) -> Iterator[bytes]:
        """The items of ``key`` that are not folded yet, as ``t`` sees them, its own included.

        A drain takes items away and changes the cell in one commit, so the cell and what is waiting, read
        from the same snapshot, are each item once. In the order of `drain`. It passes whatever was drained
        since garbage was collected, and reads while it is consumed.

        Raises:
            ValueError: the key has more than 65,000 bytes.
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
        """
        found = row_bytes(key)
        rows = t.scan(self._table, _slice_row(found, 0), _slice_row(found, _END), columns=[VALUE])
        return (cells[VALUE] for _, cells in rows)

    def notify_all(self, db: Database) -> int:
        """Notify every slice that has items; returns how many those are. It reads the whole queue.

        Raises:
            UnknownTable, UnknownColumn, StoreUnavailable: as `add`.
        """
        slice_rows = {row[: -_ITEM.size] for row, _ in db.snapshot().scan(self._table, columns=[VALUE])}
        for slice_row in slice_rows:
            with db.transaction() as t:
                t.notify(self._table, slice_row, ADDED)
        return len(slice_rows)

    def drain(self, t: AnyTransaction, cell: Cell) -> int:
        """Fold waiting items of the notified cell's key, in ``t``; returns how many they were.

        The body of the observer. Where more may be left it notifies the cell once more.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            ConfigurationError: the observer does not declare what it writes.
        """
        key, number = _split(cell.row)
        taken = self._take(t, cell.row, _slice_row(key, number + 1), self._most)
        if not taken:
            return 0  # a run for an earlier slice came here before
        if len(taken) < self._most:
            # Later slices too: their own runs would only collide with this one in the key's cell.
            rest = self._most - len(taken)
            taken += self._take(t, _slice_row(key, number + 1), _slice_row(key, _END), rest)
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

    def _take(self, t: AnyTransaction, start: bytes, stop: bytes, most: int) -> list[tuple[bytes, bytes]]:
        rows = t.scan(self._table, start, stop, columns=[VALUE], limit=most)
        return [(row, cells[VALUE]) for row, cells in rows]


def _slice_row(key: bytes, number: int) -> bytes:
    """The rows of a key's slice begin with this; it is itself the row that is notified."""
    return key_row(key) + _TIME.pack(number)


def _split(slice_row: bytes) -> tuple[bytes, int]:
    key, rest = split_row(slice_row)
    return key, int(_TIME.unpack(rest)[0])
