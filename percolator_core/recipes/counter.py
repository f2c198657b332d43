"""Exact counters that many transactions change at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from percolator_core.database import Database
from percolator_core.layout.records import Cell
from percolator_core.recipes.combine import CombineQueue
from percolator_core.recipes.rows import AnyReader, AnyTransaction


class Counter:
    """Whole numbers, one for each key, each in a cell with a `CombineQueue` of increments.

    Declare tables and observer as for `CombineQueue`. The cell has the number in decimal digits, and the
    number has no limit. The cell may lack the newest increments; `value` adds them.
    """

    __slots__ = ("_into", "_queue")

    def __init__(self, table: str, into: tuple[str, str], *, most: int = 512) -> None:
        """``into`` is the table and column of the cells; a counter's key is the row of its cell.

        Nothing else may write to these cells. One transaction folds at most ``most`` increments (1 or more,
        else ValueError).
        """
        self._into = into
        self._queue = CombineQueue(table, into, _sum, most=most)

    def add(self, t: AnyTransaction, key: str | bytes, n: int = 1) -> None:
        """Add ``n``, which may be negative, when ``t`` commits. This conflicts with no other transaction.

        Raises:
            TypeError: ``n`` is no int.
            Others: as `CombineQueue.add`.
        """
        if not isinstance(n, int):
            raise TypeError(f"a counter is changed by an int, not {type(n).__name__}")
        self._queue.add(t, key, b"%d" % n)

    def value(self, t: AnyReader, key: str | bytes) -> int:
        """Return the exact sum of all increments that ``t`` sees, including its own; 0 without increments.

        Two transactions may read the same value and then add: they do not conflict. The cost is that of
        `CombineQueue.waiting`.

        Raises:
            LockTimeout, SnapshotTooOld, StoreUnavailable, UnknownTable: as `Transaction.scan`.
        """
        table, column = self._into
        return int(t.get(table, key, column) or 0) + sum(map(int, self._queue.waiting(t, key)))

    def drain(self, t: AnyTransaction, cell: Cell) -> int:
        """Fold increments into the cell, and return their number, as `CombineQueue.drain` does."""
        return self._queue.drain(t, cell)

    def notify_all(self, db: Database) -> int:
        """Wake the observer for all increments that still wait, as `CombineQueue.notify_all` does."""
        return self._queue.notify_all(db)


def _sum(folded: bytes | None, items: Sequence[bytes]) -> bytes:
    return b"%d" % (int(folded or 0) + sum(map(int, items)))
