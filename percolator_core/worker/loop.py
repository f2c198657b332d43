"""The loop of a worker: claim dirty cells, start their runs, clear their marks (paper, section 2.4).

Many runs are under way at a time, as tasks of one hub, in threads, or in child processes. Each run is a
transaction: the acknowledgement, the observer's reads and writes, the commit. Then the dirty mark is cleared.
After a crash in between the mark is still there and its lease expires, so another run follows. The
acknowledgement lets only one of two runs for the same change commit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from percolator_core.database import Database
from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.notifications.activation import Registration
from percolator_core.notifications.dirty import DirtyIndex, Lease, LeasedCell
from percolator_core.observers import Chain
from percolator_core.observers.graph import leading_to
from percolator_core.runtime.log import Log
from percolator_core.store import Future, Hub
from percolator_core.transaction.prefetch import Habits
from percolator_core.worker.attempt import Admission, Attempts, ObserverCounts
from percolator_core.worker.candidates import Candidates
from percolator_core.worker.executors import Executors, observed_by, slots_of
from percolator_core.worker.housekeeping import PERIOD, Housekeeping
from percolator_core.worker.plan import Plan
from percolator_core.worker.runs import RunListener
from percolator_core.worker.stop import Stop
from percolator_core.worker.together import RunsTogether
from percolator_core.worker.watchdog import Watchdog

_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.1
"""Seconds until the next claim while runs are under way. The pause doubles if a claim finds nothing."""

_CLAIMS_BEFORE_LISTENING: Final = 4

_STOP_GRACE: Final = 0.5
"""Seconds that a stopping worker waits for its last claim, to give back the claimed cells."""

_STORE_PAUSE: Final = 0.5
_LOG_PAUSE: Final = 10.0
"""Seconds after StoreUnavailable until the next claim, and until the log repeats the warning."""

_TURNS: Final = 16
"""Turns of the hub, with one reply each, between two readings of the clock."""

_BUSY: Final = 64
"""After a claim of more cells than this the worker stops listening for wake-up messages."""

log = Log("percolator.worker")

T = TypeVar("T")


class _Claimed(NamedTuple):
    """The result of a claim that examined the tablets ``tags``; None means all.

    ``next_due`` is the number of seconds until the next cell is due. ``complete`` is True if no due cell is
    left, and ``idle`` is True if no mark is left.
    """

    leases: list[Lease]
    next_due: float | None
    tags: frozenset[bytes] | None
    complete: bool
    idle: bool = False


class WorkerLoop:
    """The work of one call of `Worker.run`. ``turned_at``: when the loop last began a turn (monotonic s)."""

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
        self._hub = hub
        self._watchdog = watchdog
        self._executors = executors
        self._stop = stop
        self.turned_at = now = time.monotonic()
        self._slots = {
            name: slots_of(db, chain, name, count, plan.observers) for name, count in plan.slots.items()
        }
        self._settling = _settling(chain, plan.observers)
        # The index has this worker's observers only: cells of other observers do not keep the worker from
        # being idle.
        self._dirty = DirtyIndex(db.client, observed_by(chain, plan.observers))
        self._admission = Admission(db.client, self._dirty, chain.observers.values())
        self._attempts = Attempts(db.client, self._dirty, chain, counts, habits, listener=listener)
        self._together = RunsTogether(db.client, self._attempts, watchdog)
        self._subscription = db.store.subscription()
        self._candidates = Candidates(self._subscription)
        self.housekeeping = Housekeeping(
            db,
            chain,
            plan,
            dirty=self._dirty,
            held=self._held,
            stopping=stop.is_set,
            registration=registration,
            now=now,
        )
        self._next: dict[LeasedCell, Lease] = {}
        self._claim_at = 0.0
        self._claim_again = False
        self._empty_claims = 0
        self._claiming: Future[_Claimed] | None = None

    def run(self, deadline: float | None, *, until_idle: bool) -> None:
        """Claim cells while slots are free, give the hub its turns, and wait when there is nothing to do."""
        stop_at: float | None = None
        while True:
            now = self.turned_at = time.monotonic()
            if self._stop.is_set() and (not self._running() or now > self._stop.until):
                stop_at = stop_at or now + _STOP_GRACE
                if self._claiming is None or now > stop_at:
                    return
            if deadline is not None and now > deadline:
                raise TimeoutError(
                    "the chain was not idle in the given time: the next worker runs the remaining cells"
                )
            self.housekeeping.tick(self._hub, now)
            if self._claiming is None and now >= self._claim_at and self._wants_more(now):
                self._begin_claim(now, until_idle=until_idle)
            progressed = self._some_turns()
            if self._claiming is not None and self._claiming.done():
                claimed = self._start_claimed(raising=until_idle)
                if until_idle and claimed is not None and claimed.idle and not self._running():
                    return
            elif not progressed:
                limits = (deadline, stop_at, self._stop.until, now + PERIOD)
                self._wait(min(limit for limit in limits if limit is not None))

    def _some_turns(self) -> bool:
        """Return False if the hub had nothing to do."""
        for turn in range(_TURNS):
            if not self._hub.turn():
                return turn > 0
        return True

    @contextmanager
    def giving_back(self) -> Iterator[None]:
        """Give back all leased cells at the end of the block."""
        try:
            yield
        finally:
            self._subscription.close()
            # The reply of a claim under way may bring further leases.
            last = _quietly(self._last_claim) or []
            postponed = [self._dirty.postpone(lease, 0, failed=False) for lease in self._held() + last]
            if postponed:
                _quietly(lambda: self._db.store.run_all(postponed))

    def _last_claim(self) -> list[Lease]:
        """Finish the claim that is under way, if any. Runs that are tasks of the hub end without a commit."""
        if self._claiming is None:
            return []
        self._hub.finish_only(self._claiming)
        return [] if self._claiming.exception() is not None else self._claiming.result().leases

    # Claiming.

    def _wants_more(self, now: float) -> bool:
        return not self._stop.is_set() and any(now >= slots.claim_at for slots in self._slots.values())

    def _begin_claim(self, now: float, *, until_idle: bool) -> None:
        tags = None if until_idle else self._candidates.take(now)
        self._claim_again = False
        if tags is not None and not tags:
            # A busy hub never reaches `_wait`, so the messages are read here.
            until = now + _LONGEST_PAUSE if self._running() else math.inf
            self._claim_at = min(self._candidates.all_at, until)
            return
        for slots in self._slots.values():
            slots.claimed_at = now
        self._claiming = self._hub.submit(self._claim, tags, until_idle)

    def _claim(self, tags: frozenset[bytes] | None, until_idle: bool) -> _Claimed:
        claimed = self._claim_for_free_slots(tags)
        if claimed.leases:
            return claimed
        if not self._subscription.sockets() and (
            not self._running() or self._empty_claims >= _CLAIMS_BEFORE_LISTENING
        ):
            # The worker subscribes only when it is not busy. No message arrives for a mark that was set
            # before the subscription began, so claim once more.
            self._subscription.listen()
            claimed = self._claim_for_free_slots(None)
        if not until_idle or claimed.leases or self._running():
            return claimed
        left = sum(self._dirty.backlog().values()) or self.housekeeping.stranded.roll_forward(0)
        next_due = 0.0 if left and claimed.next_due is None else claimed.next_due
        return claimed._replace(next_due=next_due, idle=not left)

    def _claim_for_free_slots(self, tags: frozenset[bytes] | None) -> _Claimed:
        leases: list[Lease] = []
        next_due: float | None = None
        busy = {name for slots in self._slots.values() for name in slots.busy()}
        waits = {name: most for name, (most, before) in self._settling.items() if not before.isdisjoint(busy)}
        complete = not waits  # when the busy observers end, waiting marks become due without a message
        for slots in self._slots.values():
            more, due, none_left = slots.claim(waits, self.housekeeping.own, tags)
            leases += more
            complete = complete and none_left
            if due is not None:
                next_due = due if next_due is None else min(next_due, due)
        return _Claimed(leases, next_due, tags, complete)

    def _start_claimed(self, *, raising: bool) -> _Claimed | None:
        """Start the runs of a claim that has ended, and set the time of the next claim."""
        claiming, self._claiming = self._claiming, None
        assert claiming is not None
        now = time.monotonic()
        try:
            claimed = claiming.result()
        except StoreUnavailable as error:
            if raising:
                raise
            log.warning_once_in(_LOG_PAUSE, "the store does not answer, waiting for it", error=str(error))
            self._claim_at = now + _STORE_PAUSE
            self._candidates.lose()
            return None
        leased = {lease.tag for lease in claimed.leases}
        self._candidates.examined(claimed.tags, now, claimed.next_due, leased, complete=claimed.complete)
        for lease in claimed.leases:
            self._start(lease)
        if claimed.leases:
            self._claim_at = now + (_FIRST_PAUSE if claimed.complete else 0.0)
            self._empty_claims = 0
            if len(claimed.leases) > _BUSY:
                self._subscription.close()
        else:
            longest = self._candidates.all_at - now
            if self._running():
                longest = min(_FIRST_PAUSE * 2**self._empty_claims, _LONGEST_PAUSE)
            self._empty_claims = min(self._empty_claims + 1, 10)
            # The next claim does not begin at once, even for a due cell: another worker may be leasing it.
            due = longest if claimed.next_due is None else claimed.next_due
            # But if a run ended during the claim, claim at once: the claim may have missed marks of the run.
            self._claim_at = now if self._claim_again else now + max(_FIRST_PAUSE, min(longest, due))
        return claimed

    # Running.

    def _running(self) -> int:
        return sum(len(slots.running) for slots in self._slots.values())

    def _held(self) -> list[Lease]:
        running = [lease for slots in self._slots.values() for lease in slots.running.values()]
        return running + list(self._next.values())

    def _start(self, lease: Lease) -> None:
        name = self._chain.observers[lease.observer].executor
        slots = self._slots[name]
        if lease.cell in slots.running or self._stop.is_set():
            # Two runs of one cell would conflict, so the next run begins after the current one. Of several
            # leases of one cell the newest is valid.
            self._next[lease.cell] = lease
            return
        slots.begin(lease)
        if name == "hub" and self._together.may_wait(lease):
            if self._together.add(lease):
                self._hub.submit(self._run_together, lease.observer)
        elif name == "hub":
            self._hub.submit(self._run_as_task, lease)
        else:
            self._executors.submit(self._run_in_thread, lease)

    def _run_as_task(self, lease: Lease) -> None:
        conflicts = self._run(lease, self._attempt_here)
        # After Ctrl-C or SystemExit this line is not reached: the lease is still held, and is given back.
        self._ended(lease, conflicts)

    def _run_together(self, observer: str) -> None:
        while leases := self._together.take(observer):
            alone: list[Lease] = []
            try:
                admitted = [lease for lease in leases if self._admission.admits(lease)]
                alone = self._together.attempt(admitted) if admitted else []
            except StoreUnavailable as error:
                _warn_of_store(observer, error)
            except Exception:  # noqa: BLE001 - the run of its row reports it
                # If this task ended here, nothing would take the rows that wait.
                alone = leases
            left = {lease.cell for lease in alone}
            for lease in leases:
                if lease.cell not in left:
                    self._ended(lease, 0)
            for lease in alone:
                self._hub.submit(self._run_as_task, lease)

    def _run_in_thread(self, lease: Lease) -> None:
        offloaded = self._chain.observers[lease.observer].executor == "processes"
        conflicts = 0
        try:
            conflicts = self._run(lease, self._attempt_in_child if offloaded else self._attempt_here)
        finally:
            # After any exception: otherwise the slot would be lost, and the lease renewed without end.
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
            # The child process has ended, so the failure is counted here. If the run has committed
            # nevertheless, the next run finds its acknowledgement.
            if not self._executors.closed:
                self._attempts.failed(lease, start_ts, error, began)
            return 0
        self._attempts.add(lease.observer, done.counts, done.ended)
        return done.conflicts

    def _run(self, lease: Lease, attempt: Callable[[Lease], int]) -> int:
        """Attempt a cell that this worker may run. Return the number of conflicts of the run."""
        try:
            return attempt(lease) if self._admission.admits(lease) else 0
        except StoreUnavailable as error:
            _warn_of_store(lease.observer, error)
        except Exception:
            # No exception of an observer arrives here. The lease expires.
            log.exception("a run could not be finished", observer=lease.observer, table=lease.table)
        return 0

    def _ended(self, lease: Lease, conflicts: int) -> None:
        self._slots[self._chain.observers[lease.observer].executor].end(lease, conflicts)
        following = None if self._stop.is_set() else self._next.pop(lease.cell, None)
        if following is not None:
            self._start(following)
        self._candidates.add(lease.tag)
        # The run may have made other cells dirty, too.
        self._claim_soon()

    def _claim_soon(self) -> None:
        self._claim_at, self._claim_again, self._empty_claims = 0.0, True, 0

    def _wait(self, until: float) -> None:
        if self._claiming is None and not self._stop.is_set():
            until = min(until, max(self._claim_at, min(slots.claim_at for slots in self._slots.values())))
        self._hub.idle(max(0.0, until - time.monotonic()), *self._subscription.sockets())
        if self._candidates.hear():
            self._claim_soon()


def _warn_of_store(observer: str, error: StoreUnavailable) -> None:
    failed = "the store did not answer during a run"
    log.warning_once_in(_LOG_PAUSE, failed, observer=observer, error=str(error))


def _settling(chain: Chain, observers: frozenset[str]) -> dict[str, tuple[float, frozenset[str]]]:
    """Return, by observer, the longest wait of its marks, and the observers whose runs they wait for."""
    settle = {name: most for name in observers if (most := chain.observers[name].settle)}
    before = leading_to(chain.graph) if settle else {}
    return {name: (most, before[name]) for name, most in settle.items()}


def _quietly(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except PercolatorError:
        return None  # the store does not answer; leases and liveness tokens expire
