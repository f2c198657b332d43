"""Counters that many transactions change at the same time, and that are exact all the same.

A `CombineQueue` whose items are increments: no two of them collide. What a counter is worth as of a snapshot
is what is folded into its cell, and the increments that still wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from percolator_core.database import Database
from percolator_core.layout.records import Cell
from percolator_core.recipes.combine import CombineQueue
from percolator_core.recipes.rows import AnyReader, AnyTransaction


class Counter:
    """Whole numbers, one a key: each is a cell, with a queue in front of it.

    The queue's table has a notify-only column ``added`` and needs few tablets; the observer is weak::

        tables:
          hits: {tablets: 1, notify_only: [added]}
          pages: {}

        observer: count
        observe: hits.added
        mode: weak
        function: site:count
        reads: [hits.value, pages.hits]
        writes: [hits.added, hits.value, pages.hits]
        feedback: true

    and in ``site.py``::

        hits = Counter("hits", ("pages", "hits"))

        def count(t, cell):
            hits.drain(t, cell)

    The cell holds decimal digits, any number of them. Read by itself it lags behind; `value` does not.
    """

    __slots__ = ("_into", "_queue")

    def __init__(self, table: str, into: tuple[str, str], *, most: int = 512) -> None:
        """``into`` is the table and column of the cells; the row is the key. Nothing else writes there.

        ``most`` is how many increments one transaction folds, 1 or more, else ValueError.
        """
        self._into = into
        self._queue = CombineQueue(table, into, _sum, most=most)

    def add(self, t: AnyTransaction, key: str | bytes, n: int = 1) -> None:
        """Add ``n``, which may be negative, when ``t`` commits, without a conflict with anybody.

        Raises:
            TypeError: ``n`` is no int.
            Others: as `CombineQueue.add`.
        """
        if not isinstance(n, int):
            raise TypeError(f"a counter is changed by an int, not {type(n).__name__}")
        self._queue.add(t, key, b"%d" % n)

    def value(self, t: AnyReader, key: str | bytes) -> int:
        """The sum of all that was added, exactly, as ``t`` sees it, its own increments included; 0 for none.

        Reads the cell and the increments that wait, and passes what was drained since garbage was collected.
        Nothing keeps two transactions from reading the same value and both adding: they do not conflict.

        Raises:
            LockTimeout, SnapshotTooOld, StoreUnavailable, UnknownTable: as `Transaction.scan`.
        """
        table, column = self._into
        return int(t.get(table, key, column) or 0) + sum(map(int, self._queue.waiting(t, key)))

    def drain(self, t: AnyTransaction, cell: Cell) -> int:
        """Fold waiting increments into the cell; returns how many. The body of the observer.

        Raises as `CombineQueue.drain`.
        """
        return self._queue.drain(t, cell)

    def notify_all(self, db: Database) -> int:
        """Wake the observer for all that waits, as `CombineQueue.notify_all`."""
        return self._queue.notify_all(db)


def _sum(folded: bytes | None, items: Sequence[bytes]) -> bytes:
    return b"%d" % (int(folded or 0) + sum(map(int, items)))
