"""One attempt at one dirty cell: the observer's transaction, and what follows when it fails.

Straight-line code, run as a task of the worker's hub or in one of its threads.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Final

import greenlet

from percolator_core.catalog.catalog import CHANGED
from percolator_core.errors import (
    CommitUndetermined,
    LockTimeout,
    SnapshotTooOld,
    StoreUnavailable,
    TransactionConflict,
    UnknownTable,
    abbreviated,
)
from percolator_core.layout.records import Cell
from percolator_core.notifications.ack import Ack, acknowledge, trace
from percolator_core.notifications.dirty import DirtyIndex, Lease
from percolator_core.observers import Guard, Observer, ObserverTransaction
from percolator_core.runtime import process
from percolator_core.runtime.log import Log
from percolator_core.store import current_task
from percolator_core.store.packing import Command
from percolator_core.transaction.client import Client
from percolator_core.transaction.metrics import NAMES, Cost
from percolator_core.transaction.prefetch import Habits, PrefetchingTransaction
from percolator_core.transaction.transaction import Transaction
from percolator_core.worker.runs import EndedRun, Ending, RunListener
from percolator_core.worker.watchdog import Deadline, ObserverTimeout, Watchdog, uninterrupted

CONFLICT_ROUNDS: Final = 5
"""Times that a run which lost against another one is repeated at once; then its cell is given back."""

_FIRST_PAUSE: Final = 0.001
_GIVEN_BACK: Final = 0.05
_LONGEST_TRACEBACK: Final = 16_000
_LONGEST_ERROR: Final = 2_000

log = Log("percolator.worker")


@dataclass(slots=True)
class ObserverCounts(Cost):
    """What happened to one observer's cells.

    ``ran``: runs that committed. ``collapsed``: marks that an earlier run had dealt with. ``conflicts``: runs
    that lost against another transaction and were repeated. ``failed``: runs that raised. ``quarantined``:
    cells put aside. The others are the sums of all runs, those that lost or raised included, each as in
    `percolator_core.transaction.metrics.Cost`.
    """

    ran: int = 0
    collapsed: int = 0
    conflicts: int = 0
    failed: int = 0
    quarantined: int = 0

    @classmethod
    def sum(cls, counts: Iterable[ObserverCounts]) -> ObserverCounts:
        """Added up, field by field."""
        every = list(counts)
        return cls(*(sum(getattr(one, field.name) for one in every) for field in fields(cls)))


class _Failed(Exception):
    """The observer's own code raised: whatever it was, it counts as a failed attempt."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class Attempts:
    """Attempts the dirty cells of one chain's observers, and counts."""

    def __init__(
        self,
        client: Client,
        dirty: DirtyIndex,
        guards: Mapping[str, Guard],
        counts: Mapping[str, ObserverCounts],
        habits: Mapping[str, Habits] | None = None,
        *,
        traced: bool = False,
        listener: RunListener | None = None,
    ) -> None:
        """``habits`` is what is known of how each observer reads, by name; None is to prefetch nothing.

        ``traced`` runs record in their acknowledgements what they have written. ``listener`` is told of each
        run that has ended.
        """
        self._client = client
        self._dirty = dirty
        self._guards = guards
        self._counts = counts
        self._habits = habits
        self._traced = traced
        self._listener = listener
        self._acks = {name: Ack(guard.observer.revision).pack() for name, guard in guards.items()}
        self._counting = process.Lock()

    def attempt(self, lease: Lease, watchdog: Watchdog) -> int:
        """Run the cell's observer and commit; clear its mark, give the cell back, or put it aside.

        Returns how often it lost against another transaction. Raises StoreUnavailable when the store is away:
        the lease then ends by itself.
        """
        guard = self._guards[lease.observer]
        observer = guard.observer
        pause, began, start_ts = _FIRST_PAUSE, time.monotonic(), 0
        for lost in range(CONFLICT_ROUNDS):
            transaction = self._begin(observer)
            try:
                cell = acknowledge(transaction, lease, observer.mode, self._acks[observer.name])
                start_ts = transaction.start_timestamp
                if cell is not None:
                    self._observe(guard, transaction, cell, watchdog)
                    if self._traced:
                        trace(transaction, lease, observer.revision)
                    transaction.commit()
            except (TransactionConflict, SnapshotTooOld) as conflict:
                self._count(observer, "conflicts")
                if isinstance(conflict, TransactionConflict) and conflict.reason == CHANGED:
                    break  # the cell's table may have been made again: then the mark is gone
                self._client.store.sleep(random.uniform(0, pause))
                pause *= 2
                continue
            except (CommitUndetermined, LockTimeout, UnknownTable):
                # Another run will find out: the acknowledgement tells whether this one committed. Where the
                # cell's table was dropped, the mark is gone, too.
                break
            except StoreUnavailable:
                raise
            except _Failed as failed:
                self.failed(lease, transaction.start_timestamp, failed.cause, began)
                return lost
            except Exception as error:  # noqa: BLE001 - such as a write set that the store refuses
                self.failed(lease, transaction.start_timestamp, error, began)
                return lost
            finally:
                self._end(observer, transaction)
            outcome: Ending = "collapsed" if cell is None else "ran"
            self._count(observer, outcome)
            self._clear(self._dirty.clear(lease, observer.mode, transaction.start_timestamp))
            self._tell(lease, transaction.start_timestamp, outcome, began)
            return lost
        self._client.store.one(self._dirty.postpone(lease, _GIVEN_BACK, failed=False))
        self._tell(lease, start_ts, "postponed", began)
        return CONFLICT_ROUNDS

    def _begin(self, observer: Observer) -> Transaction:
        if self._habits is None:
            return Transaction(self._client)
        return PrefetchingTransaction(self._client, self._habits[observer.name])

    def _end(self, observer: Observer, transaction: Transaction) -> None:
        """Count what an attempt has cost; one that did not commit ends here."""
        if transaction.commit_timestamp is None:
            transaction.rollback()
        counts, cost = self._counts[observer.name], transaction.cost
        with self._counting:
            for name in NAMES:
                number = getattr(cost, name)
                if number:
                    setattr(counts, name, getattr(counts, name) + number)

    def _observe(self, guard: Guard, transaction: Transaction, cell: Cell, watchdog: Watchdog) -> None:
        # Only the observer's own code is under the deadline: a commit is never cut short.
        try:
            with _limited(guard.observer.timeout, watchdog):
                guard.observer.function(ObserverTransaction(transaction, guard), cell)
            if isinstance(transaction, PrefetchingTransaction):
                transaction.learn()
        except (StoreUnavailable, LockTimeout, SnapshotTooOld, greenlet.GreenletExit):
            raise
        except TransactionConflict as conflict:
            if conflict.reason == CHANGED:
                raise  # a table was changed while the run was under way, which is none of its doing
            raise _Failed(conflict) from conflict
        except BaseException as error:
            if _means_the_worker(error):
                raise
            raise _Failed(error) from error

    def _clear(self, command: Command) -> None:
        # Under the hub the mark goes with the next batch. A thread waits: nobody else would hurry its command
        # along, and the worker would find the mark still there.
        if current_task() is not None:
            self._client.store.defer(command)
        else:
            self._client.store.one(command)

    def add(self, observer: str, counts: ObserverCounts, ended: Iterable[EndedRun]) -> None:
        """Add what a run of that observer in another process has counted, and pass on what it told."""
        with self._counting:
            so_far = self._counts[observer]
            for field in fields(counts):
                setattr(so_far, field.name, getattr(so_far, field.name) + getattr(counts, field.name))
        if self._listener is not None:
            for run in ended:
                self._listener(run)

    def _tell(self, lease: Lease, run: int, outcome: Ending, began: float) -> None:
        if self._listener is not None:
            seconds = time.monotonic() - began
            column = self._client.catalog.column_name(lease.table, lease.column)
            self._listener(
                EndedRun(
                    lease.observer, lease.table, lease.row, column, lease.tries + 1, run, outcome, seconds
                )
            )

    def _count(self, observer: Observer, what: str) -> None:
        counts = self._counts[observer.name]
        with self._counting:
            setattr(counts, what, getattr(counts, what) + 1)

    def failed(self, lease: Lease, start_ts: int, error: BaseException, began: float) -> None:
        """A run that began at ``start_ts`` failed: put its cell off or, after the last attempt, aside.

        ``began`` is when it did, in monotonic seconds. Raises StoreUnavailable.
        """
        observer = self._guards[lease.observer].observer
        self._count(observer, "failed")
        tries = lease.tries + 1
        where = {
            "observer": observer.name,
            "table": lease.table,
            "row": abbreviated(lease.row),
            "column": abbreviated(self._client.catalog.column_name(lease.table, lease.column)),
            "attempt": tries,
            "run": start_ts,
            "error": _described(error),
        }
        if tries < observer.retry.attempts:
            longest = min(observer.retry.max_backoff, observer.retry.backoff * 2 ** (tries - 1))
            self._client.store.one(self._dirty.postpone(lease, longest * random.uniform(0.5, 1), failed=True))
            self._tell(lease, start_ts, "failed", began)
            log.info("observer failed, will be retried", **where)
            return
        record = {
            "error": where["error"],
            "traceback": "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:],
            "attempts": tries,
            "time": start_ts,
        }
        reply = self._client.store.one(self._dirty.quarantine(lease, observer.mode, start_ts, record))
        self._tell(lease, start_ts, "quarantined" if reply == b"quarantined" else "failed", began)
        if reply == b"quarantined":
            self._count(observer, "quarantined")
            log.error("observer failed for the last time, the cell is in quarantine", **where)


def _described(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - an exception of the user's, with a __str__ of its own
        words = "<it cannot be printed>"
    return f"{type(error).__name__}: {words}"[:_LONGEST_ERROR]


def _means_the_worker(error: BaseException) -> bool:
    """Whether an exception that came out of an observer was meant for the whole worker.

    Ctrl-C, or a signal handler that exits, strikes in the main thread wherever that happens to be. An
    observer that calls ``sys.exit`` itself has merely failed: it must not take the worker down, again and
    again.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    if not isinstance(error, SystemExit):
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


@contextmanager
@uninterrupted
def _limited(seconds: float, watchdog: Watchdog) -> Iterator[None]:
    """Bound the time of a block: a task's by the hub and the watchdog, a thread's by the watchdog alone."""
    task = current_task()
    deadline = Deadline(seconds) if task is not None else Deadline.of_this_thread(seconds)
    if task is not None:
        task.deadline = deadline
    else:
        watchdog.guard(deadline)
    try:
        yield
        if deadline.passed:
            raise deadline.error()  # nothing could interrupt it: it is too late all the same
    except ObserverTimeout as late:
        # In a thread it was raised by its class alone.
        late.args = deadline.error().args
        raise
    finally:
        if task is not None:
            task.deadline = None
        else:
            watchdog.release(deadline)
