"""Counters of transactions: operations, and the commands and round trips that they took.

An *operation* is the read of one cell by name. ``get`` counts one operation, ``get_many`` counts one for each
cell, and ``get_row`` counts one for each column that it reads by name. The cells that a run of an observer
reads for its acknowledgement also count. A *sent* read is one command to the store: an ``HMGET``, which reads
any number of columns of one row, or a call of the script that reads older versions. The paper (section 2.5)
sends one command for each cell, so ``operations / sent`` measures what cache, prefetch and grouping by rows
save. Scans, and reads of whole rows, name no cells and are counted separately. Reads of a transaction's own
writes are not counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from operator import add
from typing import Final, TypeAlias

from percolator_core.runtime import process
from percolator_core.runtime.html import ShownInNotebook


@dataclass(slots=True)
class Cost(ShownInNotebook):
    """Counters of one transaction.

    Attributes:
        round_trips: requests whose replies the transaction waited for; each has any number of commands. A
            commit in one call counts as 1, a commit in two phases as 2. A commit may send further requests,
            for a very large write set, a lost reply or another client's lock; these are not counted.
        requests: round trips with reads of cells by name.
        operations: cells read by name.
        sent: commands that read cells by name.
        cached: operations that found the cell of an earlier read in the cache.
        served: operations that found a prefetched cell in the cache.
        prefetched: cells that prefetch read, with or without a later operation.
        scans: steps of scans, each one command to one tablet.
        scanned: cells that scans returned.
    """

    round_trips: int = 0
    requests: int = 0
    operations: int = 0
    sent: int = 0
    cached: int = 0
    served: int = 0
    prefetched: int = 0
    scans: int = 0
    scanned: int = 0


@dataclass(slots=True)
class Metrics(Cost):
    """Sums over the transactions that have ended since `connect`, for one database connection.

    ``transactions`` counts all transactions that were committed or rolled back, and ``commits`` counts those
    that were committed. The other fields are as in `Cost`. A plain snapshot is neither committed nor rolled
    back, so it is not counted.
    """

    transactions: int = 0
    commits: int = 0

    @property
    def saved(self) -> int:
        """Operations that needed no command of their own."""
        return self.operations - self.sent

    @property
    def unused(self) -> int:
        """Prefetched cells that no later operation has read."""
        return self.prefetched - self.served


Numbers: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""The fields of a `Cost` in their order. A tuple is faster to make than an object."""

NAMES: Final = tuple(field.name for field in fields(Cost))

FOLD: Final = 1000
"""Ended transactions are added to the sums in groups of this size."""


class Tally:
    """Adds up the costs of transactions of all threads.

    A transaction that ends appends a pair to ``ended``: True if it committed, and its `Numbers`. Appending
    takes no lock. If ``ended`` then has `FOLD` entries, the transaction calls `fold`.
    """

    __slots__ = ("_lock", "_sums", "ended")

    def __init__(self) -> None:
        self.ended: deque[tuple[bool, Numbers]] = deque()
        self._lock = process.Lock()
        self._sums = [0] * len(fields(Metrics))

    def metrics(self) -> Metrics:
        """The sums so far."""
        self.fold()
        with self._lock:
            return Metrics(*self._sums)

    def fold(self) -> None:
        """Add the entries of ``ended`` to the sums."""
        with self._lock:
            rows = []
            try:
                while True:
                    committed, numbers = self.ended.popleft()
                    rows.append((*numbers, 1, committed))
            except IndexError:
                pass  # the queue is empty; a signal handler may have taken some entries
            if rows:
                sums = [sum(column) for column in zip(*rows, strict=True)]
                # One step of the interpreter changes all sums: a signal handler may run between two steps.
                self._sums[:] = map(add, self._sums, sums)
