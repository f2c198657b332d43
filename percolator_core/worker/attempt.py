"""One run of an observer on a leased cell: admission, transaction, commit, and retry or quarantine.

The code has no callbacks. It runs as a task of the worker's hub, or in one of the worker's threads.
"""

from __future__ import annotations

import random
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
    UnknownColumn,
    UnknownTable,
    abbreviated,
)
from percolator_core.layout.acknowledgements import Ack
from percolator_core.layout.records import Cell
from percolator_core.notifications.ack import acknowledge, trace
from percolator_core.notifications.dirty import DirtyIndex, Lease, known_table
from percolator_core.observers import Guard, Observer, ObserverTransaction
from percolator_core.runtime import process
from percolator_core.runtime.log import Log
from percolator_core.scripts.calls import Call
from percolator_core.store import current_task
from percolator_core.transaction.client import Client
from percolator_core.transaction.metrics import NAMES, Cost
from percolator_core.transaction.prefetch import Habits
from percolator_core.transaction.transaction import Transaction
from percolator_core.worker.runs import EndedRun, Ending, RunListener
from percolator_core.worker.watchdog import Deadline, ObserverTimeout, Watchdog, uninterrupted

CONFLICT_ROUNDS: Final = 5
"""A run that conflicts with other transactions is tried at most this many times; then its cell is given
back."""

_FIRST_PAUSE: Final = 0.001
_GIVEN_BACK: Final = 0.05
_WRONG_CHAIN: Final = 0.5
"""Seconds until a cell that was given back is due: after conflicts, and if another chain observes it."""

_LONGEST_TRACEBACK: Final = 16_000
_LONGEST_ERROR: Final = 2_000

log = Log("percolator.worker")


@dataclass(slots=True)
class ObserverCounts(Cost):
    """The outcomes of one observer's runs, and their cost.

    ``ran``: runs that committed. ``collapsed``: marks of changes that an earlier run had observed.
    ``conflicts``: runs that lost against another transaction and were repeated. ``failed``: runs that raised.
    ``quarantined``: cells put into quarantine. The fields of `percolator_core.transaction.metrics.Cost` are
    sums over all runs, also over runs that lost or raised.
    """

    ran: int = 0
    collapsed: int = 0
    conflicts: int = 0
    failed: int = 0
    quarantined: int = 0

    @classmethod
    def sum(cls, counts: Iterable[ObserverCounts]) -> ObserverCounts:
        """Return the sum of each field."""
        every = list(counts)
        return cls(*(sum(getattr(one, field.name) for one in every) for field in fields(cls)))


class _Failed(Exception):
    """The observer's own code raised ``cause``, which counts as a failed attempt."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class Admission:
    """Checks before a run that its mark belongs to the current table and to this chain."""

    def __init__(self, client: Client, dirty: DirtyIndex, observers: Iterable[Observer]) -> None:
        self._client = client
        self._dirty = dirty
        self._columns = {observer.name: observer.observe for observer in observers}
        self._observed: dict[str, set[tuple[str, bytes]]] = {name: set() for name in self._columns}
        # Look up the stored names of the columns now: after a rename, the catalog does not know the names
        # that the chain declares.
        for name, columns in self._columns.items():
            for table in {table for table, _ in columns}:
                self._encode_columns(name, table)

    def admits(self, lease: Lease) -> bool:
        """Return True if the observer may run on the leased cell; give the cell back if not.

        Raises:
            StoreUnavailable: the store does not answer; the lease then expires.
        """
        handle = known_table(self._client.catalog, lease.table)
        if handle is None:
            return False  # the table was dropped, and the mark with it
        if handle.version != lease.version:
            # Either the table was changed, and the catalog of this client may be out of date. Or the mark
            # belonged to a dropped table of that name and was deleted with it: giving back does nothing.
            self._client.catalog.expire()
            with suppress(LockTimeout):  # the next attempt finishes the schema change
                self._client.finish_schema_change(lease.table, handle.version)
            self._give_back(lease, _GIVEN_BACK)
            return False
        if not self._observes(lease):
            # The mark is for another chain, in which an observer of this name watches the column. While that
            # chain is active, its workers take the mark. Later the mark is removed.
            self._give_back(lease, _WRONG_CHAIN)
            return False
        return True

    def _observes(self, lease: Lease) -> bool:
        cell = (lease.table, lease.column)
        if cell not in self._observed[lease.observer]:
            # A table that was created again may store its columns under other names.
            self._encode_columns(lease.observer, lease.table)
        return cell in self._observed[lease.observer]

    def _encode_columns(self, observer: str, table: str) -> None:
        handle = known_table(self._client.catalog, table)
        for of, column in self._columns[observer]:
            if handle is not None and of == table:
                with suppress(UnknownColumn):  # renamed, or the table was created again without the column
                    self._observed[observer].add((table, handle.encode(column)))

    def _give_back(self, lease: Lease, seconds: float) -> None:
        self._client.store.run(self._dirty.postpone(lease, seconds, failed=False))


class Attempts:
    """Runs the observers of one chain on leased cells, and counts the outcomes."""

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
        """``habits`` has, for each observer, the reads of its earlier runs; with None nothing is prefetched.

        With ``traced`` the acknowledgement of a run lists the cells that the run wrote. ``listener`` is
        called with each run that has ended.
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
        """Run the cell's observer and commit; then clear the mark, postpone it, or quarantine the cell.

        Return the number of conflicts of the run with other transactions. Raise StoreUnavailable if the store
        does not answer; the lease then expires.
        """
        guard = self._guards[lease.observer]
        observer = guard.observer
        habits = None if self._habits is None else self._habits[observer.name]
        pause, began, start_ts = _FIRST_PAUSE, time.monotonic(), 0
        for lost in range(CONFLICT_ROUNDS):
            transaction = Transaction(self._client, habits=habits)
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
                    break  # if the cell's table was created again, the mark does not exist any more
                self._client.store.sleep(random.uniform(0, pause))
                pause *= 2
                continue
            except (CommitUndetermined, LockTimeout, UnknownTable):
                # If this run has committed, the next run finds the acknowledgement. If the cell's table was
                # dropped, the mark was deleted with it.
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
            self.clear(self._dirty.clear(lease, observer.mode, transaction.start_timestamp))
            self._report(lease, transaction.start_timestamp, outcome, began)
            return lost
        self._client.store.run(self._dirty.postpone(lease, _GIVEN_BACK, failed=False))
        self._report(lease, start_ts, "postponed", began)
        return CONFLICT_ROUNDS

    def _end(self, observer: Observer, transaction: Transaction) -> None:
        """Add up the cost of a transaction, and roll it back if it did not commit."""
        if transaction.commit_timestamp is None:
            transaction.rollback()
        counts, cost = self._counts[observer.name], transaction.cost
        with self._counting:
            for name in NAMES:
                number = getattr(cost, name)
                if number:
                    setattr(counts, name, getattr(counts, name) + number)

    def _observe(self, guard: Guard, transaction: Transaction, cell: Cell, watchdog: Watchdog) -> None:
        # The deadline covers the observer's own code only: a commit is never interrupted.
        try:
            with _limited(guard.observer.timeout, watchdog):
                guard.observer.function(ObserverTransaction(transaction, guard), cell)
            transaction.learn()
        except (StoreUnavailable, LockTimeout, SnapshotTooOld, greenlet.GreenletExit):
            raise
        except TransactionConflict as conflict:
            if conflict.reason == CHANGED:
                raise  # a table was changed during the run, which is no failure of the observer
            raise _Failed(conflict) from conflict
        except BaseException as error:
            if _ends_the_worker(error):
                raise
            raise _Failed(error) from error

    def clear(self, call: Call[bool]) -> None:
        """Clear the mark of a run that has committed."""
        # A task of the hub sends the call with the next batch. A thread waits for the reply: otherwise the
        # worker could claim the mark again before the mark is cleared.
        store = self._client.store
        if current_task() is not None:
            store.defer(store.command(call))
        else:
            store.run(call)

    def add(self, observer: str, counts: ObserverCounts, ended: Iterable[EndedRun]) -> None:
        """Add the counts that a child process returned, and pass its ended runs to the listener."""
        with self._counting:
            so_far = self._counts[observer]
            for field in fields(counts):
                setattr(so_far, field.name, getattr(so_far, field.name) + getattr(counts, field.name))
        if self._listener is not None:
            for run in ended:
                self._listener(run)

    def _report(self, lease: Lease, run: int, outcome: Ending, began: float) -> None:
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
        """Postpone the cell of a failed run or, after the last attempt, put it into quarantine.

        ``start_ts`` is the start timestamp of the run, ``began`` its begin in monotonic seconds. Raise
        StoreUnavailable if the store does not answer.
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
            self._client.store.run(self._dirty.postpone(lease, longest * random.uniform(0.5, 1), failed=True))
            self._report(lease, start_ts, "failed", began)
            log.info("observer failed, will be retried", **where)
            return
        record = {
            "error": where["error"],
            "traceback": "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:],
            "attempts": tries,
            "time": start_ts,
        }
        quarantined = self._client.store.run(self._dirty.quarantine(lease, observer.mode, start_ts, record))
        self._report(lease, start_ts, "quarantined" if quarantined else "failed", began)
        if quarantined:
            self._count(observer, "quarantined")
            log.error("observer failed for the last time, the cell is in quarantine", **where)


def _described(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - an exception of the user's, with a __str__ of its own
        message = "<it cannot be printed>"
    return f"{type(error).__name__}: {message}"[:_LONGEST_ERROR]


def _ends_the_worker(error: BaseException) -> bool:
    """Return True if an exception out of an observer has to end the whole worker.

    Ctrl-C, or a signal handler that exits, raises an exception in the code that the main thread runs. This
    may be an observer. If an observer itself calls ``sys.exit``, its run has failed, and the worker goes on.
    Otherwise the cell would end every worker that claims it.
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
    """Limit the time of a block. The watchdog enforces the limit; in a task, the hub enforces it, too."""
    task = current_task()
    deadline = Deadline(seconds, None if task is not None else threading.get_ident())
    if task is not None:
        task.deadline = deadline
    else:
        watchdog.guard(deadline)
    try:
        yield
        if deadline.passed:
            raise deadline.error()  # the code could not be interrupted, but its time is over
    except ObserverTimeout as late:
        # In a thread the interpreter raises the class, without arguments.
        late.args = deadline.error().args
        raise
    finally:
        if task is not None:
            task.deadline = None
        else:
            watchdog.release(deadline)
