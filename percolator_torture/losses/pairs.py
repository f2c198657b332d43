"""Clients that write each number to two cells, and a search for the numbers afterwards.

Two suites that kill a server in the middle of a write share this module.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from operator import add
from typing import Final

from percolator_core.database import Database, connect
from percolator_core.errors import CommitUndetermined, StoreUnavailable, TransactionConflict
from percolator_core.store import Durability
from percolator_torture.histories.settling import end_locks

TABLES: Final = ("left", "right")
"""Two tables, so that the two cells of a number are never in one tablet."""

_COLUMN: Final = "numbers"
_NAMESPACE: Final = "pairs"
_PATIENCE: Final = 0.3
_LOCK_TTL: Final = 0.3
CLIENTS: Final = 8
"""Clients under a hub; without a hub there are fewer clients, each a thread."""

_THREADS: Final = 4
_LIMIT: Final = 60.0
"""Seconds after which a run without progress is ended."""


def open_pairs(url: str, *, two_phase: bool = False, durability: Durability | None = None) -> Database:
    """Open a database for pairs, with short timeouts. Raises the errors of `percolator_core.connect`."""
    db = connect(url, _NAMESPACE, lock_ttl=_LOCK_TTL, patience=_PATIENCE, durability=durability)
    db.client.one_call_a_tablet = db.client.one_call_a_tablet or two_phase
    return db


def create_tables(db: Database) -> None:
    """Create the tables for the pairs."""
    for table in TABLES:
        db.create_table(table, tablets=4)


@dataclass(frozen=True, slots=True)
class Found:
    """The fate of the numbers. Outcomes can be added.

    ``acknowledged`` is the number of commits that returned, and ``undetermined`` is the number of those that
    raised CommitUndetermined. ``lost`` numbers were acknowledged, but are in no cell. ``torn`` numbers are in
    only one of their two cells. ``doubled`` numbers were committed more than once. ``unexpected`` numbers
    were reported as not committed, but exist.
    """

    acknowledged: int = 0
    undetermined: int = 0
    lost: int = 0
    torn: int = 0
    doubled: int = 0
    unexpected: int = 0

    def __add__(self, other: Found) -> Found:
        return Found(*map(add, astuple(self), astuple(other)))


class Pairs:
    """Concurrent clients, each with its own row, which write one number after another to the two tables."""

    def __init__(
        self, db: Database, label: str, *, under_hub: bool, on_acknowledged: Callable[[], None] = lambda: None
    ) -> None:
        """``label`` distinguishes their rows; ``on_acknowledged`` is called after acknowledged commits."""
        self._db = db
        self._under_hub = under_hub
        self._on_acknowledged = on_acknowledged
        self.rows: Final = [f"{label}-{client}" for client in range(CLIENTS if under_hub else _THREADS)]
        self.acknowledged: dict[str, set[int]] = {row: set() for row in self.rows}
        """Numbers whose commit returned, by row."""
        self.undetermined: dict[str, set[int]] = {row: set() for row in self.rows}
        """Numbers whose commit raised CommitUndetermined, by row."""
        self._numbers = itertools.count(1)
        self._finished = 0
        self._changed = threading.Condition()
        self._over = threading.Event()

    def write(self, strike: Callable[[], None]) -> None:
        """Write until ``strike``, which runs in a thread of its own, has ended. Raises its error."""
        with ThreadPoolExecutor(1 + _THREADS) as pool:
            striking = pool.submit(self._oversee, strike)
            try:
                if self._under_hub:
                    with self._db.concurrency(CLIENTS) as executor:
                        tasks = [executor.submit(self._client, row) for row in self.rows]
                        for task in tasks:
                            task.result()
                else:
                    for thread in [pool.submit(self._client, row) for row in self.rows]:
                        thread.result()
            finally:
                self._end()
            striking.result()

    def await_finished(self, count: int, at_least: float = 0.0) -> None:
        """Wait until ``count`` commits have `finished`, and ``at_least`` seconds have passed."""
        began = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._finished >= count or self._over.is_set(), _LIMIT)
        self._over.wait(max(0.0, began + at_least - time.monotonic()))

    @property
    def finished(self) -> int:
        """Number of commits that have ended, with any outcome but a conflict."""
        return self._finished

    @property
    def acknowledgements(self) -> int:
        """Number of commits that returned."""
        return sum(map(len, self.acknowledged.values()))

    def find(self, db: Database) -> Found:
        """Resolve the locks that are left, and look for every number.

        Raises:
            StoreUnavailable: some locks are still live after a minute.
        """
        if not end_locks(db):
            raise StoreUnavailable("locks do not end: check that no other client writes to the tables")
        lost = torn = doubled = unexpected = 0
        for row in self.rows:
            left, right = (_numbers_in(db, table, row) for table in TABLES)
            whole, seen = left.keys() & right.keys(), left.keys() | right.keys()
            lost += len(self.acknowledged[row] - seen)
            torn += len(seen - whole)
            doubled += sum(1 for number in seen if left[number] > 1 or right[number] > 1)
            unexpected += len(seen - self.acknowledged[row] - self.undetermined[row])
        undetermined = sum(map(len, self.undetermined.values()))
        return Found(self.acknowledgements, undetermined, lost, torn, doubled, unexpected)

    def _client(self, row: str) -> None:
        while not self._over.is_set():
            number = next(self._numbers)
            try:
                transaction = self._db.begin()
                for table in TABLES:
                    transaction.set(table, row, _COLUMN, number.to_bytes(8, "big"))
                transaction.commit()
            except TransactionConflict:
                continue  # its start, a spare timestamp, is older than the row's last commit
            except StoreUnavailable:
                pass  # nothing was committed, which `find` verifies
            except CommitUndetermined:
                self.undetermined[row].add(number)
            else:
                self.acknowledged[row].add(number)
                self._on_acknowledged()
            with self._changed:
                self._finished += 1
                self._changed.notify_all()

    def _oversee(self, strike: Callable[[], None]) -> None:
        try:
            strike()
        finally:
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._over.set()
            self._changed.notify_all()


def _numbers_in(db: Database, table: str, row: str) -> Counter[int]:
    versions = db.history(table, row, _COLUMN, limit=1_000_000)
    return Counter(int.from_bytes(version.value or b"", "big") for version in versions)
