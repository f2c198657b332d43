"""The periodic tasks of a worker: leases, registration, rolling starts, stranded marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from percolator_core.database import Database
from percolator_core.errors import (
    ConfigurationError,
    LockTimeout,
    StoreUnavailable,
    UnknownColumn,
    UnknownTable,
)
from percolator_core.layout.keys import locks_key
from percolator_core.maintenance.locks import Locks
from percolator_core.notifications.activation import Active, Registration, activate, active, live_workers
from percolator_core.notifications.dirty import LEASE, DirtyIndex, Lease, known_table
from percolator_core.observers import Chain
from percolator_core.runtime.log import Log
from percolator_core.store import Future, Hub
from percolator_core.worker.plan import Plan

PERIOD: Final = LEASE / 3
"""Seconds between two rounds: a lease is still valid if one round fails."""

log = Log("percolator.worker")


class Stranded:
    """Locks of committed transactions that were not rolled forward because their client died.

    Such a lock can hold a weak notification, or the dirty mark of a write that began before its column was
    observed. The mark is set when the lock is rolled forward.
    """

    def __init__(self, db: Database, observed: Iterable[tuple[str, str]]) -> None:
        """``observed`` has the observed columns, each as table and column."""
        self._client = db.client
        self._tables = sorted({table for table, _ in observed})

    def roll_forward(self, older_than: float) -> int:
        """Resolve locks older than ``older_than`` seconds; return the number of locks rolled forward."""
        client = self._client
        handles = [known_table(client.catalog, table) for table in self._tables]
        tablets = [
            (handle.name, number, tag)
            for handle in handles
            if handle is not None
            for number, tag in enumerate(handle.tags)
        ]
        if not tablets:
            return 0
        counts = client.store.call(*[(b"ZCARD", locks_key(tag)) for _, _, tag in tablets])
        locked = [(table, number) for (table, number, _), count in zip(tablets, counts, strict=True) if count]
        if not locked:
            return 0
        try:
            return Locks(client).resolve(older_than, locked).committed
        except (UnknownTable, ValueError):
            return 0  # a table was dropped with its locks, and perhaps made again


class Housekeeping:
    """Does a round every `PERIOD` seconds, as a task of the hub. ``own`` is as in `Worker.own_tablets`."""

    def __init__(
        self,
        db: Database,
        chain: Chain,
        plan: Plan,
        *,
        dirty: DirtyIndex,
        held: Callable[[], list[Lease]],
        stopping: Callable[[], bool],
        registration: Registration,
        now: float,
    ) -> None:
        self._db = db
        self._chain = chain
        self._plan = plan
        self._dirty = dirty
        self._held = held
        self._stopping = stopping
        self._registration = registration
        # These are the columns of the whole chain, because any worker may roll forward a stranded lock.
        self.stranded = Stranded(db, chain.observed)
        self.own = plan.own or frozenset()
        # A partitioned worker learns at once which tablets are its own.
        self._next_at = now if plan.partitioned and plan.own is None else now + PERIOD
        self._round: Future[None] | None = None

    def tick(self, hub: Hub, now: float) -> None:
        """Begin a round if one is due. Raise the error of the last round, except StoreUnavailable."""
        if self._round is not None and self._round.done():
            ended, self._round = self._round, None
            with suppress(StoreUnavailable):  # the next claim fails in the same way
                ended.result()
        if self._round is None and now >= self._next_at:
            self._next_at = now + PERIOD
            self._round = hub.submit(self._do_round)

    def _do_round(self) -> None:
        self._dirty.renew(self._held())
        if self._stopping():
            return  # a stopping worker only renews leases: its grace period is longer than a lease
        self._registration.refresh()
        now_active = active(self._db.client)
        if not now_active.allows(self._chain.digest):
            raise ConfigurationError(
                "another set of observers was activated while this worker did not answer: start the worker "
                "again with the active chain, or with rolling=True (--rolling)"
            )
        if self._plan.partitioned or now_active.beside:
            self._compare_with_other_workers(now_active)
        self.stranded.roll_forward(LEASE)

    def _compare_with_other_workers(self, now_active: Active) -> None:
        """Share out the tablets among the workers of this chain; end a rolling start that is over."""
        workers = live_workers(self._db)
        same = [worker for worker in workers if worker.digest == self._chain.digest]
        # Only workers with the same observers share the tablets. If a worker without one of our observers got
        # tablets, every worker with that observer would claim from those tablets last.
        names = [worker.name for worker in same if worker.observers == self._registration.observers]
        if self._plan.partitioned and self._plan.own is None and self._registration.name in names:
            mine = names.index(self._registration.name)
            self.own = frozenset(range(mine, self._dirty.tablets, len(names)))
        # The digest is empty if the activation of another chain was interrupted. Then no other worker will
        # end the rolling start, so this one does.
        mine_is_new = now_active.digest in ("", self._chain.digest)
        if mine_is_new and now_active.beside and len(same) == len(workers):
            self._end_rolling_start()

    def _end_rolling_start(self) -> None:
        try:
            activate(self._db, self._chain.observed, self._chain.digest)
        except (ConfigurationError, LockTimeout):
            pass  # another rolling start has just begun, or a schema change waits for a transaction
        except UnknownColumn as error:
            # The column was renamed after the activation. Workers of a chain that declares the new name will
            # end the rolling start.
            log.warning("the rolling start cannot be ended", error=str(error))
