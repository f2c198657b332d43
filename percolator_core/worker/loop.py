"""One stretch of a worker's work: from its start until it stops or is idle (paper, section 2.4).

Many runs are under way at a time, as tasks of one hub, in threads, or in child processes. Each is a
transaction: the acknowledgement, the observer's reads and writes, the commit; then the dirty mark is cleared.
Whatever goes wrong in between, the mark is still there and its lease ends by itself, so another run follows;
the acknowledgement keeps two runs for one change from both committing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from percolator_core.database import Database
from percolator_core.errors import (
    ConfigurationError,
    LockTimeout,
    PercolatorError,
    StoreUnavailable,
    UnknownColumn,
)
from percolator_core.notifications.activation import Active, Registration, activate, active, live_workers
from percolator_core.notifications.dirty import LEASE, DirtyIndex, Lease, LeasedCell
from percolator_core.notifications.stranded import Stranded
from percolator_core.observers import Chain, guards
from percolator_core.runtime.log import Log
from percolator_core.store import Future, Hub
from percolator_core.transaction.prefetch import Habits
from percolator_core.worker.attempt import Attempts, ObserverCounts
from percolator_core.worker.concurrency_limits import Room
from percolator_core.worker.executors import Executors
from percolator_core.worker.leases import Admission
from percolator_core.worker.plan import Plan, Stop
from percolator_core.worker.runs import RunListener
from percolator_core.worker.watchdog import Watchdog

IDLE_LOOK: Final = 1.0
"""Seconds between two looks at the dirty index when no call wakes the worker: the backstop of the push."""

_FIRST_LOOK: Final = 0.002
_LONGEST_LOOK: Final = 0.1
"""Seconds until the next look while runs are under way: more with every look that finds nothing."""

_LOOKS_BEFORE_LISTENING: Final = 4

_STOP_GRACE: Final = 0.5
"""Seconds that a stopping worker waits for the answer to its last look, to give back what that leased."""

_STORE_PAUSE: Final = 0.5

_TURNS: Final = 16
"""Turns of the hub between two looks at the clock and at everything else: each is one reply taken in."""

_BUSY: Final = 64
"""Cells found at once that make it pointless to listen for more."""

log = Log("percolator.worker")

T = TypeVar("T")


class _Found(NamedTuple):
    """What a look at the dirty index found: leases, when the next cell is due, whether nothing is left."""

    leases: list[Lease]
    next_due: float | None
    idle: bool


class WorkerLoop:
    """One stretch of work. ``turned_at`` is when its loop went round last, in monotonic seconds."""

    def __init__(
        self,
        db: Database,
        chain: Chain,
        plan: Plan,
        *,
        hub: Hub,
        watchdog: Watchdog,
        executors: Executors,
        counts: Mapping[str, ObserverCounts],
        habits: Mapping[str, Habits] | None,
        listener: RunListener | None,
        stop: Stop,
        registration: Registration,
    ) -> None:
        self._db = db
        self._chain = chain
        self._plan = plan
        self._hub = hub
        self._watchdog = watchdog
        self._executors = executors
        self._stop = stop
        self._registration = registration
        self._rooms = {
            name: _room(db, chain, name, places, plan.observers) for name, places in plan.places.items()
        }
        # Of its own observers alone: what is left for others does not keep it from being idle.
        self._dirty = DirtyIndex(db.client, _observed_by(chain, plan.observers))
        self._own = plan.own or frozenset()
        self._admission = Admission(db.client, self._dirty, chain.observers.values())
        self._attempts = Attempts(
            db.client, self._dirty, guards(chain), counts, habits, traced=chain.trace, listener=listener
        )
        self._subscription = db.store.subscription()
        # Of the whole chain: whoever passes them on, others find them.
        self._stranded = Stranded(db, chain.observed)
        self._next: dict[LeasedCell, Lease] = {}
        self._look_at = 0.0
        self._look_again = False
        self._empty_looks = 0
        self._looking: Future[_Found] | None = None
        self._tending: Future[None] | None = None
        # A partitioned worker learns at once which tablets are its own.
        self._tend_at = time.monotonic() + (0.0 if plan.partitioned and plan.own is None else LEASE / 3)
        self.turned_at = time.monotonic()

    def run(self, deadline: float | None, *, until_idle: bool) -> None:
        """The loop: look for work while there is room, let the hub run, wait when there is nothing to do."""
        stop_at: float | None = None
        while True:
            now = self.turned_at = time.monotonic()
            if self._stop.is_set() and (not self._running() or now > self._stop.until):
                stop_at = stop_at or now + _STOP_GRACE
                if self._looking is None or now > stop_at:
                    return
            if deadline is not None and now > deadline:
                raise TimeoutError(
                    "the chain was not idle in the given time: what is left runs with the next worker"
                )
            self._tend(now)
            if self._looking is None and now >= self._look_at and self._wants_more(now):
                self._look_again = False
                for room in self._rooms.values():
                    room.looked(now)
                self._looking = self._hub.submit(self._find, until_idle)
            progressed = self._some_turns()
            if self._looking is not None and self._looking.done():
                found = self._take_in(raising=until_idle)
                if until_idle and found is not None and found.idle and not self._running():
                    return
            elif not progressed:
                limits = (deadline, stop_at, self._stop.until, now + LEASE / 3)
                self._wait(min(limit for limit in limits if limit is not None))

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

    def _wants_more(self, now: float) -> bool:
        return not self._stop.is_set() and any(room.wants_more(now) for room in self._rooms.values())

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
        for room in self._rooms.values():
            if room.observers and room.free > 0:
                found, due = room.dirty.claim(room.free, limits=room.limits(), own=self._own)
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
        return sum(len(room.running) for room in self._rooms.values())

    def _held(self) -> list[Lease]:
        return [one for room in self._rooms.values() for one in room.running.values()] + list(
            self._next.values()
        )

    def _take(self, lease: Lease) -> None:
        name = self._chain.observers[lease.observer].executor
        room = self._rooms[name]
        if lease.cell in room.running or self._stop.is_set():
            # Two runs of one cell would only collide: the next one begins when this one is over. Of several
            # leases of the same cell the last is the one that stands.
            self._next[lease.cell] = lease
            return
        room.begin(lease)
        if name == "hub":
            self._hub.submit(self._run_as_task, lease)
        else:
            self._executors.submit(self._run_in_executor, lease)

    def _run_as_task(self, lease: Lease) -> None:
        conflicts = self._brought_to_its_end(lease, self._attempt_here)
        # Not after Ctrl-C or SystemExit: then the lease is still held, and given back.
        self._ended(lease, conflicts)

    def _run_in_executor(self, lease: Lease) -> None:
        offloaded = self._chain.observers[lease.observer].executor == "processes"
        conflicts = 0
        try:
            conflicts = self._brought_to_its_end(
                lease, self._attempt_in_child if offloaded else self._attempt_here
            )
        finally:
            # Whatever came out of it: else the place were lost, and the lease renewed for ever.
            self._hub.call_soon(lambda: self._ended(lease, conflicts))

    def _attempt_here(self, lease: Lease) -> int:
        return self._attempts.attempt(lease, self._watchdog)

    def _attempt_in_child(self, lease: Lease) -> int:
        offload = self._executors.offload
        assert offload is not None
        began, start_ts = time.monotonic(), self._db.timestamp()
        try:
            done = offload.run(lease, self._chain.observers[lease.observer].timeout)
        except StoreUnavailable:
            raise
        except PercolatorError as error:
            # Nobody else can say so: the process is gone. Where the run committed nevertheless, the mark is
            # found to be acknowledged.
            if not self._executors.left:
                self._attempts.failed(lease, start_ts, error, began)
            return 0
        self._attempts.add(lease.observer, done.counts, done.ended)
        return done.conflicts

    def _brought_to_its_end(self, lease: Lease, attempt: Callable[[Lease], int]) -> int:
        try:
            return attempt(lease) if self._admission.admits(lease) else 0
        except StoreUnavailable as error:
            log.warning("the store went away during a run", observer=lease.observer, error=str(error))
        except Exception:
            # Nothing that an observer does comes here. The lease ends by itself.
            log.exception("a run could not be brought to its end", observer=lease.observer, table=lease.table)
        return 0

    def _ended(self, lease: Lease, conflicts: int) -> None:
        self._rooms[self._chain.observers[lease.observer].executor].end(lease, conflicts)
        following = None if self._stop.is_set() else self._next.pop(lease.cell, None)
        if following is not None:
            self._take(following)
        # What the run wrote may have made other cells dirty.
        self._look_soon()

    def _look_soon(self) -> None:
        self._look_at, self._look_again, self._empty_looks = 0.0, True, 0

    def _wait(self, until: float) -> None:
        if self._looking is None and not self._stop.is_set():
            until = min(until, max(self._look_at, min(room.look_at for room in self._rooms.values())))
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
        if self._tending is None and now >= self._tend_at:
            self._tend_at = now + LEASE / 3
            self._tending = self._hub.submit(self._tend_task)

    def _tend_task(self) -> None:
        self._dirty.renew(self._held())
        if self._stop.is_set():
            return  # its grace is longer than a lease: what still runs is kept, and that is all
        self._registration.refresh()
        now_active = active(self._db.client)
        if not now_active.allows(self._chain.digest):
            raise ConfigurationError(
                "another set of observers was activated while this worker did not answer: start it again "
                "with the active chain, or as a rolling one"
            )
        if self._plan.partitioned or now_active.beside:
            self._look_around(now_active)
        self._stranded.roll_forward(LEASE)

    def _look_around(self, now_active: Active) -> None:
        """See who else works: with whom to share the tablets, and whether a rolling start is over."""
        others = live_workers(self._db)
        same = [worker for worker in others if worker.digest == self._chain.digest]
        # Only with those that take cells of the same observers: an own tablet of one that does not run some
        # of ours would come last with all who do.
        names = [worker.name for worker in same if worker.observers == self._registration.observers]
        if self._plan.partitioned and self._plan.own is None and self._registration.name in names:
            mine = names.index(self._registration.name)
            self._own = frozenset(range(mine, self._dirty.tablets, len(names)))
        # Empty: the activation of another chain has broken off, so nobody else will end the rolling start.
        mine_is_new = now_active.digest in ("", self._chain.digest)
        if mine_is_new and now_active.beside and len(same) == len(others):
            try:
                activate(self._db, self._chain.observed, self._chain.digest)
            except ConfigurationError:
                pass  # another rolling start has just begun: then this one is not over
            except LockTimeout:
                pass  # a table is being changed, and a transaction still commits to it: at the next look
            except UnknownColumn as error:
                # The column was renamed since the chain was activated. Its workers go on; a chain with the
                # new name will end the rolling start.
                log.warning("the rolling start cannot be ended", error=str(error))


def _room(db: Database, chain: Chain, executor: str, places: int, chosen: frozenset[str]) -> Room:
    observers = frozenset(name for name in chosen if chain.observers[name].executor == executor)
    delays = [chain.observers[name].retry.max_backoff for name in observers]
    dirty = DirtyIndex(db.client, _observed_by(chain, observers), max(delays, default=0))
    return Room(dirty, observers, places)


def _observed_by(chain: Chain, observers: frozenset[str]) -> dict[tuple[str, str], list[str]]:
    """Who of these watches which column."""
    mine = {column: [name for name in names if name in observers] for column, names in chain.observed.items()}
    return {column: names for column, names in mine.items() if names}


def _quietly(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except PercolatorError:
        return None  # the store is away; leases and liveness tokens end by themselves
