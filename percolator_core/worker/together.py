"""Runs for many changed rows of a view in one transaction.

The changed rows of a table that a view reads wait here while a transaction for earlier ones is under way, so
a transaction takes more rows if more rows change. It changes each group of the view once. If it fails for
another reason than a conflict, each of its rows gets a run of its own, as other observers have them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import greenlet

from percolator_core.errors import StoreUnavailable, TransactionConflict
from percolator_core.layout.keys import MARKER
from percolator_core.notifications.dirty import Lease
from percolator_core.transaction.client import Client
from percolator_core.transaction.transaction import Transaction
from percolator_core.worker.attempt import CONFLICT_ROUNDS, Attempts
from percolator_core.worker.runs import Ending
from percolator_core.worker.stop import ends_the_worker
from percolator_core.worker.watchdog import Watchdog, limited

if TYPE_CHECKING:
    from percolator_core.views.changes import SourceRow
    from percolator_core.views.runs import ViewRuns

_MOST: Final = 256
"""The most rows of one transaction. A transaction of more than a thousand cells needs two phases."""


class RunsTogether:
    """The changed rows that wait to be processed together, by observer. For tasks of one hub only."""

    def __init__(self, client: Client, attempts: Attempts, watchdog: Watchdog) -> None:
        self._client = client
        self._attempts = attempts
        self._watchdog = watchdog
        self._waiting: dict[str, list[Lease]] = {}

    def may_wait(self, lease: Lease) -> bool:
        """Return True if a row may wait for others. With traces or spans, each row needs a run of its own."""
        view = self._attempts.guards[lease.observer].observer.view
        if view is None or lease.column != MARKER or self._attempts.are_single or lease.tries:
            return False
        return view.may_run_together(lease.table)

    def add(self, lease: Lease) -> bool:
        """Let a row wait. If it returns True, begin a task that calls `take` until no row waits."""
        waiting = self._waiting.get(lease.observer)
        if waiting is None:
            self._waiting[lease.observer] = [lease]
            return True
        waiting.append(lease)
        return False

    def take(self, observer: str) -> list[Lease]:
        """Return the rows to process next. If it is empty, no row waits, and the task has to end."""
        waiting = self._waiting.pop(observer)
        if waiting:
            self._waiting[observer] = waiting[_MOST:]
        return waiting[:_MOST]

    def attempt(self, leases: Sequence[Lease]) -> list[Lease]:
        """Process rows of one observer, and clear their marks. Return the rows that need runs of their own.

        Raises StoreUnavailable if the store does not answer; the leases then expire.
        """
        guard = self._attempts.guards[leases[0].observer]
        alone: list[Lease] = []
        for lost in range(CONFLICT_ROUNDS):
            if not leases:
                return alone
            t, began = Transaction(self._client), time.monotonic()
            try:
                with limited(guard.observer.timeout, self._watchdog):
                    collapsed, refused = _run(guard.observer.view, t, leases, is_contended=lost > 0)
                t.commit()
            except TransactionConflict as conflict:
                # A row that another worker has run meanwhile leaves the others alone.
                alone += [lease for lease in leases if _is_in(lease, conflict)]
                leases = [lease for lease in leases if not _is_in(lease, conflict)]
                self._attempts.count(guard.observer, "conflicts")
                continue
            except (StoreUnavailable, greenlet.GreenletExit):
                raise
            except BaseException as error:
                if ends_the_worker(error):
                    raise
                break  # the run of its row reports it
            finally:
                self._attempts.end(guard.observer, t)
            endings: dict[Ending, list[Lease]] = {"collapsed": [], "ran": []}
            for lease in leases:
                where = (lease.table, lease.row)
                if where in refused:
                    alone.append(lease)
                else:
                    endings["collapsed" if where in collapsed else "ran"].append(lease)
            if any(endings.values()):
                self._attempts.done(endings, t, began)
            return alone
        return [*alone, *leases]


def _run(
    view: ViewRuns | None, t: Transaction, leases: Sequence[Lease], *, is_contended: bool
) -> tuple[set[SourceRow], set[SourceRow]]:
    assert view is not None
    rows_of: dict[str, list[bytes]] = {}
    for lease in leases:
        rows_of.setdefault(lease.table, []).append(lease.row)
    return view.run_together(t, rows_of, is_contended=is_contended)


def _is_in(lease: Lease, conflict: TransactionConflict) -> bool:
    return (lease.table, lease.row) == (conflict.table, conflict.row)
