"""The executors of a worker (hub, threads, child processes), and the number of runs in each.

An observer with many dirty cells must not take all slots. So each observer has *reserved* slots, which no
other observer gets. Runs that conflict waste each other's work, and tasks of the hub share one processor. So
the *concurrency limit* of an observer falls while its runs conflict or outlast their leases, and otherwise
rises, as a congestion window does.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from percolator_core.database import Database
from percolator_core.notifications.dirty import LEASE, DirtyIndex, Lease, LeasedCell
from percolator_core.observers import Chain
from percolator_core.runtime.exit import OBSERVER_THREADS
from percolator_core.worker.offload import Offload
from percolator_core.worker.plan import Plan

_FEW: Final = 16
"""If an executor has at most this many slots, one free slot is enough to claim cells."""

_RESERVED: Final = 4
"""One in this many slots is reserved."""

_MANY_CONFLICTS: Final = 0.25
_FEW_CONFLICTS: Final = 0.05
"""Conflicts per run above which a concurrency limit falls, and below which it rises."""

_FIRST_LIMIT: Final = 16
"""The first limit of an observer whose runs are tasks of the hub."""

_SLOW: Final = LEASE / 2
"""A task of the hub that takes more than these seconds counts as a conflict.

Many tasks that compute for long would all end late: after their leases, so that other workers run the same
cells, and after their time limits.
"""

_FEWEST_RUNS: Final = 8
"""A concurrency limit is adjusted after this many runs, or after as many as the limit if that is more."""

_RESERVED_PAUSE: Final = 0.01
_FREE_PAUSE: Final = 0.1
"""Seconds between two claims while fewer than half of the slots are free. The first number counts if a
reserved slot is free, else the second."""

_ORDERED_LIMIT: Final = 64
"""The limit for ``order: most_notified``, because concurrent runs do not see each other's results."""

_AFTER_A_KILL: Final = 1.0
"""Seconds to wait for the threads whose child processes were killed."""


class ConcurrencyLimit:
    """The limit for the concurrent runs of one observer."""

    __slots__ = ("_conflicts", "_doubles", "_most", "_runs", "limit")

    def __init__(self, most: int, first: int) -> None:
        """Begin with the limit ``first``, and double it until runs conflict."""
        self.limit = min(first, most)
        self._most = most
        self._doubles = True
        self._runs = self._conflicts = 0

    def ended(self, conflicts: int) -> None:
        """Count a run that has ended, and its conflicts with other transactions."""
        self._runs += 1
        self._conflicts += conflicts
        if self._runs < max(_FEWEST_RUNS, self.limit):
            return
        share = self._conflicts / self._runs
        if share > _MANY_CONFLICTS:
            self.limit = max(1, self.limit // 2)
            self._doubles = False
        elif share < _FEW_CONFLICTS:
            more = self.limit if self._doubles else max(1, self.limit // 8)
            self.limit = min(self._most, self.limit + more)
        self._runs = self._conflicts = 0


class Slots:
    """The slots of one executor, and the runs that hold them.

    ``dirty`` is the index of this executor's observers alone. ``ordered`` has the observers that take the
    cells with the most notifications first. ``are_tasks`` is True if the runs are tasks of the hub.
    """

    def __init__(
        self,
        dirty: DirtyIndex,
        observers: frozenset[str],
        count: int,
        ordered: frozenset[str],
        *,
        are_tasks: bool = False,
    ) -> None:
        self.dirty = dirty
        self.observers = observers
        self.running: dict[LeasedCell, Lease] = {}
        self._count = count
        self._by_observer: Counter[str] = Counter()
        # With fewer slots than observers no slot can be reserved; a claim still divides the slots fairly.
        share = count // (_RESERVED * len(observers)) if observers else 0
        self._reserved = (
            min(max(1, share), (count - 1) // max(1, len(observers) - 1)) if len(observers) > 1 else 0
        )
        most = count - self._reserved * (len(observers) - 1) if observers else count
        few, first = min(most, _ORDERED_LIMIT), _FIRST_LIMIT if are_tasks else most
        self._limits = {name: ConcurrencyLimit(few if name in ordered else most, first) for name in observers}
        self._are_tasks = are_tasks
        self.claimed_at = 0.0
        """When the last claim began, in monotonic seconds."""

    def claim(
        self, waits: Mapping[str, float], own: Collection[int], only: Collection[bytes] | None
    ) -> tuple[list[Lease], float | None, bool]:
        """Lease due cells for the free slots, as `DirtyIndex.claim` does.

        Also return True if no due cell is left.
        """
        free = self.free  # before the claim: runs may end while the claim waits for the store
        if not self.observers or free <= 0:
            return [], None, not self.observers
        limits = self.limits()
        leases, next_due = self.dirty.claim(free, limits=limits, waits=waits, own=own, only=only)
        taken = Counter(lease.observer for lease in leases)
        # If a worker's own tablets have due cells, no others are examined.
        complete = len(leases) < free and not (own and leases)
        return leases, next_due, complete and all(taken[name] < limit for name, limit in limits.items())

    def begin(self, lease: Lease) -> None:
        """Take a slot for a run."""
        self.running[lease.cell] = lease
        lease.begun = time.monotonic()
        self._by_observer[lease.observer] += 1

    def end(self, lease: Lease, conflicts: int) -> None:
        """Free the slot of a run."""
        if self.running.pop(lease.cell, None) is not None:
            self._by_observer[lease.observer] -= 1
            is_slow = self._are_tasks and time.monotonic() - lease.begun > _SLOW
            self._limits[lease.observer].ended(conflicts + is_slow)

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self._count - len(self.running)

    def busy(self) -> Iterator[str]:
        """Yield the observers that have runs under way."""
        return (name for name, count in self._by_observer.items() if count)

    def limits(self) -> Mapping[str, int]:
        """Return, by observer, the number of runs that may still begin."""
        taken = self._by_observer
        return {name: max(0, one.limit - taken[name]) for name, one in self._limits.items()}

    @property
    def claim_at(self) -> float:
        """When to claim more cells, in monotonic seconds; infinity while no slot is free.

        While fewer than half of the slots are free, a claim waits, because a claim of one cell costs as much
        as a claim of many cells. In an executor with few slots, one free slot is enough.
        """
        free = self.free
        if free <= 0 or not self.observers:
            return float("inf")
        if free >= (self._count // 2 if self._count > _FEW else 1):
            return 0.0
        if any(self._by_observer[name] < self._reserved for name in self.observers):
            return self.claimed_at + _RESERVED_PAUSE
        return self.claimed_at + _FREE_PAUSE


def slots_of(db: Database, chain: Chain, executor: str, count: int, chosen: frozenset[str]) -> Slots:
    """Return the slots of one executor, for the ``chosen`` observers that run in it."""
    observers = frozenset(name for name in chosen if chain.observers[name].executor == executor)
    delays = [chain.observers[name].retry.max_backoff for name in observers]
    dirty = DirtyIndex(db.client, observed_by(chain, observers), max(delays, default=0))
    ordered = frozenset(name for name in observers if chain.observers[name].order == "most_notified")
    return Slots(dirty, observers, count, ordered, are_tasks=executor == "hub")


def observed_by(chain: Chain, observers: frozenset[str]) -> dict[tuple[str, str], list[str]]:
    """Return the columns that these observers watch, each with its observers."""
    mine = {column: [name for name in names if name in observers] for column, names in chain.observed.items()}
    return {column: names for column, names in mine.items() if names}


class Executors:
    """Executes the runs that are not tasks of the hub, each in a thread that may wait for a child process."""

    def __init__(self, db: Database, chain: Chain, plan: Plan, *, prefetch: bool) -> None:
        used = {chain.observers[name].executor for name in plan.observers}
        threads = sum(plan.slots[name] for name in ("threads", "processes") if name in used)
        self._pool = ThreadPoolExecutor(max(1, threads), OBSERVER_THREADS)
        self._under_way: set[concurrent.futures.Future[None]] = set()
        self.offload = Offload(db, chain, prefetch=prefetch) if "processes" in used else None
        self.closed = False

    def submit(self, run: Callable[[Lease], None], lease: Lease) -> None:
        """Call ``run(lease)`` in a thread."""
        future = self._pool.submit(run, lease)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def close(self, grace: float) -> int:
        """Wait ``grace`` seconds at most for the runs under way; return the number of runs that remain."""
        late = concurrent.futures.wait(list(self._under_way), grace).not_done
        self.closed = True
        if self.offload is not None:
            # Late child processes are killed, with the same effect as the death of a worker.
            self.offload.close(kill=bool(late))
            late = concurrent.futures.wait(late, _AFTER_A_KILL).not_done
        self._pool.shutdown(wait=not late, cancel_futures=True)
        return len(late)
