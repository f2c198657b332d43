"""One run of an observer on a leased cell: admission, transaction, commit, and retry or quarantine."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import greenlet

from percolator_core import telemetry
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
    described,
)
from percolator_core.layout.acknowledgements import Ack
from percolator_core.layout.keys import MARKER
from percolator_core.notifications.ack import acknowledge, trace
from percolator_core.notifications.dirty import DirtyIndex, Lease, known_table
from percolator_core.notifications.row_change import begin_row
from percolator_core.observers import Chain, Guard, Observer, ObserverTransaction, guards
from percolator_core.runtime import process
from percolator_core.runtime.log import Log
from percolator_core.scripts.calls import Call
from percolator_core.store import current_task
from percolator_core.transaction.client import Client
from percolator_core.transaction.metrics import NAMES, Cost
from percolator_core.transaction.prefetch import Habits
from percolator_core.transaction.transaction import Transaction
from percolator_core.worker.runs import EndedRun, Ending, RunListener
from percolator_core.worker.stop import ends_the_worker
from percolator_core.worker.watchdog import Watchdog, limited

if TYPE_CHECKING:
    from percolator_core.telemetry.spans import RunSpan
    from percolator_core.views.changes import AnyChange

CONFLICT_ROUNDS: Final = 5
"""After this many conflicts with other transactions, a run ends and its cell is given back."""

_FIRST_PAUSE: Final = 0.001
_GIVEN_BACK: Final = 0.05
"""Seconds until a cell that was given back after a conflict is due again."""

_WRONG_CHAIN: Final = 0.5
"""Seconds until a cell that another chain observes is due again."""

_LONGEST_TRACEBACK: Final = 16_000
_LONGEST_ERROR: Final = 2_000

log = Log("percolator.worker")


@dataclass(slots=True)
class ObserverCounts(Cost):
    """The outcomes of one observer's runs, and their cost.

    ``ran``: runs that committed. ``collapsed``: marks of changes that an earlier run had observed.
    ``conflicts``: runs that lost against another transaction and were repeated. ``failed``: runs that raised.
    ``quarantined``: cells put into quarantine. The fields of `Cost` also count runs that lost or raised.
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
    """The observer's own code raised ``cause``."""

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
        """Return True if the observer may run on the leased cell; give the cell back if not."""
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
        chain: Chain,
        counts: Mapping[str, ObserverCounts],
        habits: Mapping[str, Habits] | None = None,
        *,
        listener: RunListener | None = None,
    ) -> None:
        """``habits`` has the reads of each observer's earlier runs; with None nothing is prefetched."""
        self._client = client
        self._dirty = dirty
        self.guards: Final = guards(chain)
        """The observers by name."""
        self._counts = counts
        self._habits = habits
        self._models = chain.models
        self._traced = chain.trace
        self._listener = listener
        self._spans = telemetry.spans_of(client, chain)
        self._acks = {name: Ack(guard.observer.revision).pack() for name, guard in self.guards.items()}
        self._counting = process.Lock()

    def attempt(self, lease: Lease, watchdog: Watchdog) -> int:
        """Run the cell's observer and commit; then clear the mark, postpone it, or quarantine the cell.

        Return the number of the run's conflicts. Raise StoreUnavailable if the store does not answer; the
        lease then expires.
        """
        guard = self.guards[lease.observer]
        if self._spans is None:
            return self._attempt(lease, guard, watchdog, None)
        with self._spans.begin(lease, guard.observer) as span:
            return self._attempt(lease, guard, watchdog, span)

    def _attempt(self, lease: Lease, guard: Guard, watchdog: Watchdog, span: RunSpan | None) -> int:
        observer = guard.observer
        habits = None if self._habits is None else self._habits[observer.name]
        pause, began, start_ts = _FIRST_PAUSE, time.monotonic(), 0
        for lost in range(CONFLICT_ROUNDS):
            transaction = Transaction(self._client, habits=habits)
            try:
                cell = self._begin(transaction, lease, observer, lost)
                start_ts = transaction.start_timestamp
                if cell is not None:
                    self._observe(guard, transaction, cell, watchdog, span)
                    self._commit(lease, transaction, span)
                elif transaction.mutations():
                    transaction.commit()  # only the acknowledgement
            except (TransactionConflict, SnapshotTooOld) as conflict:
                self._lost(span, conflict)
                self.count(observer, "conflicts")
                if isinstance(conflict, TransactionConflict) and conflict.reason == CHANGED:
                    break  # if the cell's table was created again, the mark does not exist any more
                self._client.store.sleep(random.uniform(0, pause))
                pause *= 2
                continue
            except (CommitUndetermined, LockTimeout, UnknownTable) as error:
                self._lost(span, error)
                # If this run has committed, the next run finds the acknowledgement. If the cell's table was
                # dropped, the mark was deleted with it.
                break
            except StoreUnavailable:
                raise
            except _Failed as failed:
                self.failed(lease, transaction.start_timestamp, failed.cause, began, span)
                return lost
            except Exception as error:  # noqa: BLE001 - such as a write set that the store refuses
                self.failed(lease, transaction.start_timestamp, error, began, span)
                return lost
            finally:
                self.end(observer, transaction)
            self.done({"collapsed" if cell is None else "ran": [lease]}, transaction, began, span)
            return lost
        self._client.store.run(self._dirty.postpone(lease, _GIVEN_BACK, failed=False))
        self._report(lease, start_ts, "postponed", began, span)
        return CONFLICT_ROUNDS

    def _begin(
        self, transaction: Transaction, lease: Lease, observer: Observer, lost: int
    ) -> AnyChange | None:
        if lease.column == MARKER and observer.view is not None:
            return observer.view.begin(transaction, lease, is_contended=lost > 0)
        if lease.column == MARKER:
            return begin_row(transaction, lease, observer.revision, self._models)
        return acknowledge(transaction, lease, observer.mode, self._acks[observer.name])

    def _commit(self, lease: Lease, transaction: Transaction, span: RunSpan | None) -> None:
        if self._traced:
            trace(transaction, lease)
        if span is None:
            transaction.commit()
        else:
            span.commit(transaction)

    @staticmethod
    def _lost(span: RunSpan | None, error: Exception) -> None:
        if span is not None:
            span.lost(error)

    def end(self, observer: Observer, transaction: Transaction) -> None:
        """Discard a transaction that has not committed, and count its cost."""
        if transaction.commit_timestamp is None:
            transaction.rollback()
        self._add(observer.name, transaction.cost, NAMES)

    def _add(self, observer: str, more: Cost, names: Iterable[str]) -> None:
        counts = self._counts[observer]
        with self._counting:
            for name in names:
                number = getattr(more, name)
                if number:
                    setattr(counts, name, getattr(counts, name) + number)

    def _observe(
        self,
        guard: Guard,
        transaction: Transaction,
        change: AnyChange,
        watchdog: Watchdog,
        span: RunSpan | None,
    ) -> None:
        # The deadline covers the observer's own code only: a commit is never interrupted.
        token = None if span is None else span.attach(change)
        try:
            with limited(guard.observer.timeout, watchdog):
                t = ObserverTransaction(transaction, guard) if guard.observer.view is None else transaction
                guard.observer.function(t, change)
            transaction.learn()
        except (StoreUnavailable, LockTimeout, SnapshotTooOld, greenlet.GreenletExit):
            raise
        except TransactionConflict as conflict:
            if conflict.reason == CHANGED:
                raise  # a table was changed during the run, which is no failure of the observer
            raise _Failed(conflict) from conflict
        except BaseException as error:
            if ends_the_worker(error):
                raise
            raise _Failed(error) from error
        finally:
            if span is not None and token is not None:
                span.detach(token)

    @property
    def are_single(self) -> bool:
        """True if each run has to have a transaction of its own, because traces or spans tell what it did."""
        return self._traced or self._spans is not None

    def done(
        self,
        endings: Mapping[Ending, Sequence[Lease]],
        transaction: Transaction,
        began: float,
        span: RunSpan | None = None,
    ) -> None:
        """Clear the marks of an observer's runs that have committed together; count and report them."""
        leases = [lease for some in endings.values() for lease in some]
        observer = self.guards[leases[0].observer].observer
        self._clear(self._dirty.clear_all(leases, observer.mode, transaction.start_timestamp))
        for outcome, some in endings.items():
            self.count(observer, outcome, len(some))
            for lease in some:
                self._report(lease, transaction.start_timestamp, outcome, began, span)

    def _clear(self, calls: Sequence[Call[int]]) -> None:
        # A task of the hub sends the calls with the next batch. A thread waits for the replies: otherwise the
        # worker could claim a mark again before the mark is cleared.
        store = self._client.store
        if current_task() is None:
            store.run_all(calls)
            return
        for call in calls:
            store.defer(store.command(call))

    def add(self, observer: str, counts: ObserverCounts, ended: Iterable[EndedRun]) -> None:
        """Add the counts that a child process returned, and pass its ended runs to the listener."""
        self._add(observer, counts, [field.name for field in fields(counts)])
        if self._listener is not None:
            for run in ended:
                self._listener(run)

    def _report(
        self, lease: Lease, run: int, outcome: Ending, began: float, span: RunSpan | None = None
    ) -> None:
        if span is not None:
            span.end(outcome, run)
        if self._listener is not None:
            seconds = time.monotonic() - began
            column = self._client.catalog.column_name(lease.table, lease.column)
            self._listener(
                EndedRun(
                    lease.observer, lease.table, lease.row, column, lease.tries + 1, run, outcome, seconds
                )
            )

    def count(self, observer: Observer, what: str, number: int = 1) -> None:
        """Count an outcome of a run: the name of a field of `ObserverCounts`."""
        counts = self._counts[observer.name]
        with self._counting:
            setattr(counts, what, getattr(counts, what) + number)

    def failed(
        self, lease: Lease, start_ts: int, error: BaseException, began: float, span: RunSpan | None = None
    ) -> None:
        """Postpone the cell of a failed run or, after the last attempt, put it into quarantine.

        ``start_ts`` is the start timestamp of the run, ``began`` its begin in monotonic seconds.
        """
        observer = self.guards[lease.observer].observer
        if span is None and self._spans is not None:
            span = self._spans.begin(lease, observer)  # the process with the span of the run has ended
        self.count(observer, "failed")
        tries = lease.tries + 1
        where = {
            "observer": observer.name,
            "table": lease.table,
            "row": abbreviated(lease.row),
            "column": abbreviated(self._client.catalog.column_name(lease.table, lease.column)),
            "attempt": tries,
            "run": start_ts,
            "error": described(error, _LONGEST_ERROR),
        }
        quarantined = False
        if tries < observer.retry.attempts:
            longest = min(observer.retry.max_backoff, observer.retry.backoff * 2 ** (tries - 1))
            self._client.store.run(self._dirty.postpone(lease, longest * random.uniform(0.5, 1), failed=True))
            log.info("observer failed, will be retried", **where)
        else:
            record = {
                "error": where["error"],
                "traceback": "".join(traceback.format_exception(error))[-_LONGEST_TRACEBACK:],
                "attempts": tries,
                "time": start_ts,
            }
            quarantined = self._client.store.run(
                self._dirty.quarantine(lease, observer.mode, start_ts, record)
            )
        outcome: Ending = "quarantined" if quarantined else "failed"
        if span is not None:
            span.end(outcome, start_ts, error)
        self._report(lease, start_ts, outcome, began)
        if quarantined:
            self.count(observer, "quarantined")
            log.error("observer failed for the last time, the cell is in quarantine", **where)
