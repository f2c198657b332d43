"""What transactions asked for, and what it took.

An *operation* is a cell asked for by its name: one by ``get``, each by ``get_many``, each of the columns that
``get_row`` names, and the cells of an observer's acknowledgement. A read that is *sent* is one command to the
store: an ``HMGET``, which brings any number of columns of one row, or a call of the script that reads older
versions. So ``operations / sent`` is what cache, prefetch and grouping by rows save together, against a store
that is asked for one cell at a time, as in the paper (section 2.5). Scans, and rows read whole, name no
cells: they are counted apart. What a transaction reads of its own writes counts nowhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from operator import add
from typing import Final, TypeAlias

from percolator_core.runtime import process


@dataclass(slots=True)
class Cost:
    """What one transaction asked for, and what it took.

    Attributes:
        round_trips: exchanges with the store that it waited for, whatever number of commands each had. A
            commit counts 1 where one call does it, and 2 in two phases: what a very large write set, a lost
            reply or the lock of another adds is left out.
        requests: those of them that carried reads of cells by name.
        operations: cells asked for by name.
        sent: commands for them.
        cached: operations that were answered because the transaction had read the cell before.
        served: operations that were answered because prefetch had brought the cell.
        prefetched: cells that prefetch brought, asked for later or not.
        scans: steps of scans, each one command to one tablet.
        scanned: cells that scans brought.
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
    """The sums over the transactions of a database connection that have ended, since it was opened.

    ``transactions`` were committed or rolled back, ``commits`` were committed; the others are as in `Cost`.
    Plain snapshots do not end and are not counted.
    """

    transactions: int = 0
    commits: int = 0

    @property
    def saved(self) -> int:
        """Operations that took no command of their own."""
        return self.operations - self.sent

    @property
    def unused(self) -> int:
        """Cells that prefetch brought and nobody asked for."""
        return self.prefetched - self.served


Numbers: TypeAlias = tuple[int, int, int, int, int, int, int, int, int]
"""The numbers of a `Cost`, in its order: an object would take longer to make, once a transaction."""

NAMES: Final = tuple(field.name for field in fields(Cost))

_FOLD: Final = 1000
"""Ended transactions that are added up together."""


class Tally:
    """Adds up what the transactions of all threads cost.

    They only put their numbers into a queue, which takes no lock; now and then somebody adds them up.
    """

    __slots__ = ("_ended", "_lock", "_sums")

    def __init__(self) -> None:
        self._ended: deque[tuple[bool, Numbers]] = deque()
        self._lock = process.Lock()
        self._sums = [0] * len(fields(Metrics))

    def add(self, committed: bool, numbers: Numbers) -> None:
        """A transaction has ended."""
        ended = self._ended
        ended.append((committed, numbers))
        if len(ended) >= _FOLD:
            self._fold()

    def metrics(self) -> Metrics:
        """The sums so far."""
        self._fold()
        with self._lock:
            return Metrics(*self._sums)

    def _fold(self) -> None:
        with self._lock:
            rows = []
            try:
                while True:
                    committed, numbers = self._ended.popleft()
                    rows.append((*numbers, 1, committed))
            except IndexError:
                pass  # all are taken out, some perhaps by a signal handler
            if rows:
                sums = [sum(column) for column in zip(*rows, strict=True)]
                # In a single step of the interpreter's: a signal handler may come in between any two.
                self._sums[:] = map(add, self._sums, sums)
