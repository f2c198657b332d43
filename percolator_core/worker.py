"""The worker: finds dirty cells, runs their observers, and keeps at it (paper, section 2.4).

Many runs are under way at a time, as tasks of one hub. Each is a transaction: the acknowledgement, the
observer's reads and writes, the commit; then the dirty mark is cleared. Whatever goes wrong in between, the
mark is still there and its lease ends by itself, so another run follows; the acknowledgement keeps two runs
for one change from both committing.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from percolator_core.attempt import Attempts, ObserverCounts
from percolator_core.database import Database
from percolator_core.dirty import LEASE, DirtyIndex, Lease, LeasedCell, Registration, Stranded, active_digest
from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.log import Log
from percolator_core.observers import Chain, guards
from percolator_core.prefetch import Habits
from percolator_core.store import Future, Hub
from percolator_core.watchdog import Watchdog

IDLE_LOOK: Final = 1.0
"""Seconds between two looks at the dirty index when no call wakes the worker: the backstop of the push."""

_FIRST_LOOK: Final = 0.002
_LONGEST_LOOK: Final = 0.1
"""Seconds until the next look while runs are under way: more with every look that finds nothing."""

_LOOKS_BEFORE_LISTENING: Final = 4

_STOP_GRACE: Final = 0.5
"""Seconds that a stopping worker waits for the answer to its last look, to give back what that leased."""

_STORE_PAUSE: Final = 0.5

_FEW: Final = 16

_TURNS: Final = 16
"""Turns of the hub between two looks at the clock and at everything else: each is one reply taken in."""

_BUSY: Final = 64
"""Cells found at once that make it pointless to listen for more."""

log = Log("percolator.worker")

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """What a worker did, per observer and in all. ``seconds`` is how long it worked."""

    observers: dict[str, ObserverCounts] = field(default_factory=dict)
    seconds: float = 0.0

    def total(self) -> ObserverCounts:
        """The sums over all observers."""
        return ObserverCounts.sum(self.observers.values())

    @property
    def ran(self) -> int:
        """Runs that committed."""
        return self.total().ran

    @property
    def quarantined(self) -> int:
        """Cells put aside."""
        return self.total().quarantined


class _Found(NamedTuple):
    """What a look at the dirty index found: leases, when the next cell is due, whether nothing is left."""

    leases: list[Lease]
    next_due: float | None
    idle: bool


class Worker:
    """Runs the observers of a chain.

    Args:
        db: where the tables are.
        chain: which observers; workers with another set must not run at the same time.
        threads: how many observers with ``executor: threads`` run at a time; 1 or more.
        width: how many runs are under way at a time; 1 or more.
        prefetch: whether to read along what earlier runs of an observer have read of such a row.
    """

    def __init__(
        self, db: Database, chain: Chain, threads: int = 8, width: int = 256, *, prefetch: bool = True
    ) -> None:
        if threads < 1 or width < 1:
            raise ValueError(f"threads and width are 1 or more, not {threads} and {width}")
        self._db = db
        self._chain = chain
        self._threads = threads
        self._width = width
        self._habits = {name: Habits() for name in chain.observers} if prefetch else None
        self._stopping = threading.Event()
        self._hub: Hub | None = None
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return self._counts

    def run(self) -> Counts:
        """Run until `stop` is called. While the store is away, wait for it.

        Raises:
            ConfigurationError: workers with another set of observers are running.
        """
        return self._work(None, until_idle=False)

    def run_until_idle(self, timeout: float | None = None) -> Counts:
        """Run until no notification is left, not even one that waits for a retry.

        Cells in quarantine do not count, nor do transactions that are still being committed.

        Raises:
            TimeoutError: after ``timeout`` seconds something was still left.
            ConfigurationError: as `run`.
            StoreUnavailable: the store does not answer.
        """
        return self._work(timeout, until_idle=True)

    def stop(self) -> None:
        """Have `run` return once the runs under way are over. For any thread, and for signal handlers."""
        self._stopping.set()
        hub = self._hub
        if hub is not None:
            hub.call_soon(lambda: None)

    def _work(self, timeout: float | None, *, until_idle: bool) -> Counts:
        started = time.monotonic()
        self._counts = Counts({name: ObserverCounts() for name in sorted(self._chain.observers)})
        # Announced before the others are looked for: of two that start at once, one at least sees the other.
        registration = Registration(
            self._db, self._chain.digest, f"process {os.getpid()} on {socket.gethostname()}"
        )
        try:
            self._chain.create_tables(self._db)
            with (
                self._a_hub() as hub,
                Watchdog(hub) as watchdog,
                ThreadPoolExecutor(self._threads, "percolator-observer") as pool,
            ):
                shift = _Shift(self, hub, watchdog, pool, registration)
                with shift.giving_back():
                    shift.run(None if timeout is None else started + timeout, until_idle=until_idle)
        finally:
            self._stopping.clear()
            _quietly(registration.withdraw)
            self._counts.seconds = time.monotonic() - started
        return self._counts

    @contextmanager
    def _a_hub(self) -> Iterator[Hub]:
        # Two tasks of the worker itself, and one more so that they never wait for a place.
        self._hub = hub = self._db.store.hub(self._width + 3)
        try:
            yield hub
        finally:
            self._hub = None
            hub.close()


class _Shift:
    """One stretch of work: from the start of a worker until it stops or is idle."""

    def __init__(
        self,
        worker: Worker,
        hub: Hub,
        watchdog: Watchdog,
        pool: ThreadPoolExecutor,
        registration: Registration,
    ) -> None:
        db, chain = worker._db, worker._chain  # noqa: SLF001 - the two make one thing
        self._db = db
        self._digest = chain.digest
        self._registration = registration
        self._stopping = worker._stopping  # noqa: SLF001
        self._hub = hub
        self._watchdog = watchdog
        self._pool = pool
        self._rooms = [
            _Room(db, chain, "hub", worker._width),  # noqa: SLF001
            _Room(db, chain, "threads", worker._threads),  # noqa: SLF001
        ]
        self._dirty = DirtyIndex(db.client, chain.observed)
        self._attempts = Attempts(
            db.client,
            self._dirty,
            guards(chain),
            worker.counts.observers,
            worker._habits,  # noqa: SLF001
        )
        self._subscription = db.store.subscription()
        self._stranded = Stranded(db, chain.observed)
        self._next: dict[LeasedCell, Lease] = {}
        self._look_at = 0.0
        self._look_again = False
        self._empty_looks = 0
        self._looking: Future[_Found] | None = None
        self._tending: Future[None] | None = None
        self._tend_at = time.monotonic() + LEASE / 3

    def run(self, deadline: float | None, *, until_idle: bool) -> None:
        """The loop: look for work while there is room, let the hub run, wait when there is nothing to do."""
        stop_at: float | None = None
        while True:
            now = time.monotonic()
            if self._stopping.is_set() and not self._running():
                stop_at = stop_at or now + _STOP_GRACE
                if self._looking is None or now > stop_at:
                    return
            if deadline is not None and now > deadline:
                raise TimeoutError(
                    "the chain was not idle in the given time: what is left runs with the next worker"
                )
            self._tend(now)
            if self._looking is None and now >= self._look_at and self._wants_more():
                self._look_again = False
                self._looking = self._hub.submit(self._find, until_idle)
            progressed = self._some_turns()
            if self._looking is not None and self._looking.done():
                found = self._take_in(raising=until_idle)
                if until_idle and found is not None and found.idle and not self._running():
                    return
            elif not progressed:
                self._wait(min(limit for limit in (deadline, stop_at, now + LEASE / 3) if limit is not None))

    def _some_turns(self) -> bool:
        """Let the hub run for a while; False when there was nothing to do."""
        for turn in range(_TURNS):
            if not self._hub.turn():
                return turn > 0
        return True

    @contextmanager
    def giving_back(self) -> Iterator[None]:
        """On the way out, give back what is leased, so that nobody has to wait for the leases to end."""
        try:
            yield
        finally:
            self._subscription.close()
            # A look under way may have leased cells that nobody knows of yet.
            found = _quietly(self._last_look) or []
            left = [self._dirty.postpone(lease, 0, failed=False) for lease in self._held() + found]
            if left:
                _quietly(lambda: self._db.store.call(*left))

    def _last_look(self) -> list[Lease]:
        """The leases of the look that is under way, if any. The runs end here, without a commit."""
        if self._looking is None:
            return []
        self._hub.finish_only(self._looking)
        return [] if self._looking.exception() is not None else self._looking.result().leases

    # Looking for work.

    def _wants_more(self) -> bool:
        return not self._stopping.is_set() and any(room.wanted() for room in self._rooms)

    def _find(self, until_idle: bool) -> _Found:
        found = self._claim()
        if found.leases:
            return found
        if not self._subscription.sockets() and (
            not self._running() or self._empty_looks >= _LOOKS_BEFORE_LISTENING
        ):
            # Under load nobody needs to be woken. What came before we listened is found by looking once more.
            self._subscription.listen()
            found = self._claim()
        if not until_idle or found.leases or self._running():
            return found
        left = sum(self._dirty.backlog().values()) or self._stranded.roll_forward(0)
        return _Found(found.leases, 0.0 if left and found.next_due is None else found.next_due, not left)

    def _claim(self) -> _Found:
        leases: list[Lease] = []
        next_due: float | None = None
        for room in self._rooms:
            if room.wanted():
                found, due = room.dirty.claim(room.free())
                leases += found
                if due is not None:
                    next_due = due if next_due is None else min(next_due, due)
        return _Found(leases, next_due, False)

    def _take_in(self, *, raising: bool) -> _Found | None:
        """Start what the look found, and decide when to look again."""
        looking, self._looking = self._looking, None
        assert looking is not None
        now = time.monotonic()
        try:
            found = looking.result()
        except StoreUnavailable as error:
            if raising:
                raise
            log.warning("the store is away, waiting for it", error=str(error))
            self._look_at = now + _STORE_PAUSE
            return None
        for lease in found.leases:
            self._take(lease)
        if found.leases:
            self._look_at, self._empty_looks = now, 0
            if len(found.leases) > _BUSY:
                self._subscription.close()
        else:
            longest = min(_FIRST_LOOK * 2**self._empty_looks, _LONGEST_LOOK) if self._running() else IDLE_LOOK
            self._empty_looks = min(self._empty_looks + 1, 10)
            # Not at once, even if a cell is due: it may be leased by another worker before we come.
            due = longest if found.next_due is None else max(found.next_due, _FIRST_LOOK)
            # A run that ended while we looked may have left something that we did not see.
            self._look_at = now if self._look_again else now + min(longest, due)
        return found

    # Running.

    def _running(self) -> int:
        return sum(len(room.running) for room in self._rooms)

    def _held(self) -> list[Lease]:
        return [lease for room in self._rooms for lease in room.running.values()] + list(self._next.values())

    def _take(self, lease: Lease) -> None:
        room = self._rooms[lease.observer in self._rooms[1].observers]
        if lease.cell in room.running or self._stopping.is_set():
            # Two runs of one cell would only collide: the next one begins when this one is over. Of several
            # leases of the same cell the last is the one that stands.
            self._next[lease.cell] = lease
            return
        room.running[lease.cell] = lease
        if room is self._rooms[0]:
            self._hub.submit(self._attempt, lease, self._ended)
        else:
            self._pool.submit(self._attempt, lease, self._ended_in_thread)

    def _attempt(self, lease: Lease, ended: Callable[[Lease], None]) -> None:
        try:
            self._attempts.attempt(lease, self._watchdog)
        except StoreUnavailable as error:
            log.warning("the store went away during a run", observer=lease.observer, error=str(error))
        except Exception:
            # Nothing that an observer does comes here. The lease ends by itself.
            log.exception("a run could not be brought to its end", observer=lease.observer, table=lease.table)
        # Not after Ctrl-C or SystemExit: then the lease is still held, and given back.
        ended(lease)

    def _ended_in_thread(self, lease: Lease) -> None:
        self._hub.call_soon(lambda: self._ended(lease))

    def _ended(self, lease: Lease) -> None:
        for room in self._rooms:
            room.running.pop(lease.cell, None)
        following = None if self._stopping.is_set() else self._next.pop(lease.cell, None)
        if following is not None:
            self._take(following)
        # What the run wrote may have made other cells dirty.
        self._look_soon()

    def _look_soon(self) -> None:
        self._look_at, self._look_again, self._empty_looks = 0.0, True, 0

    def _wait(self, until: float) -> None:
        if self._looking is None and self._wants_more():
            until = min(until, self._look_at)
        self._hub.idle(max(0.0, until - time.monotonic()), *self._subscription.sockets())
        if self._subscription.heard():
            self._look_soon()

    # Staying in order.

    def _tend(self, now: float) -> None:
        """Now and then: renew leases, see whether we may still work, look for stranded notifications."""
        if self._tending is not None and self._tending.done():
            tending, self._tending = self._tending, None
            try:
                tending.result()
            except StoreUnavailable:
                pass  # the next look will say so
        if self._tending is None and now >= self._tend_at and not self._stopping.is_set():
            self._tend_at = now + LEASE / 3
            self._tending = self._hub.submit(self._tend_task)

    def _tend_task(self) -> None:
        self._dirty.renew(self._held())
        self._registration.refresh()
        if active_digest(self._db) != self._digest:
            raise ConfigurationError(
                "another set of observers was activated while this worker did not answer: start it with that"
            )
        self._stranded.roll_forward(LEASE)


class _Room:
    """The observers of one executor, where their dirty cells are, and the runs that are under way."""

    def __init__(self, db: Database, chain: Chain, executor: str, places: int) -> None:
        self.observers = {name for name, observer in chain.observers.items() if observer.executor == executor}
        mine = {
            column: [name for name in names if name in self.observers]
            for column, names in chain.observed.items()
        }
        delays = [chain.observers[name].retry.max_backoff for name in self.observers]
        self.dirty = DirtyIndex(
            db.client, {column: names for column, names in mine.items() if names}, max(delays, default=0)
        )
        self.running: dict[LeasedCell, Lease] = {}
        self._places = places

    def free(self) -> int:
        """How many more runs may begin."""
        return self._places - len(self.running)

    def wanted(self) -> bool:
        """Whether to look for more.

        With half of the places free, that is, for a look costs as much for one cell as for many. Observers in
        threads are given no more cells than threads: the others may go to another worker.
        """
        return bool(self.observers) and self.free() >= (self._places // 2 if self._places > _FEW else 1)


def _quietly(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except PercolatorError:
        return None  # the store is away; leases and liveness tokens end by themselves


__all__ = ["Counts", "ObserverCounts", "Worker"]
