"""Follow the stream of a slot: apply its transactions, several at a time if they come fast."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from percolator_core.notation.amounts import show_size
from percolator_core.replication.apply import Applier
from percolator_core.replication.messages import Change, Commit, Decoder, Relation
from percolator_core.replication.report import ReplicationProgress, ReplicationStopped
from percolator_core.replication.server import PostgreSQL
from percolator_core.replication.stream import Stream
from percolator_core.runtime.log import Log

_BATCH_CHANGES: Final = 1000
_BATCH_BYTES: Final = 4 << 20
"""Limits of the transactions of PostgreSQL that are applied together; a single one may be larger."""

_LOOK: Final = 0.2
"""Seconds between two looks at ``stop`` while nothing comes."""

_POSITION_EVERY: Final = 10.0
_POSITION_BYTES: Final = 16 << 20
"""While changes of other tables pass, the position is written after this many seconds or bytes of the log, so
that PostgreSQL can drop its log."""

_LAG_EVERY: Final = 2.0
"""Seconds between two queries for the lag."""

log = Log("percolator.replication")


@dataclass(slots=True)
class Following:
    """One stream, until it fails, is stopped, or has reached its goal. ``max_transaction`` is in bytes."""

    server: PostgreSQL
    stream: Stream
    applier: Applier
    numbers: ReplicationProgress
    report: Callable[[], object]
    max_transaction: int
    _decoder: Decoder = field(init=False)
    _batch: list[Commit] = field(default_factory=list)
    _changes: int = 0
    _bytes: int = 0
    _not_replicated: set[str] = field(default_factory=set)
    _position_at: float = field(default_factory=time.monotonic)
    _lag_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._decoder = Decoder(frozenset(self.applier.targets), self.server.base_types)

    def run(self, goal: int | None, stop: Callable[[], bool]) -> None:
        """Apply what comes until ``stop`` returns True, or until everything before ``goal`` is applied.

        Raises:
            psycopg.OperationalError: the stream has ended.
            ReplicationStopped, SlotInUse, StoreUnavailable: as `Applier.apply`.
        """
        # After a crash between the transaction and its confirmation.
        self.stream.confirm(self.applier.state.lsn)
        while not stop():
            message = self.stream.receive()
            if message is not None:
                self._take(message)
                if not self._is_full:
                    continue
            if self._batch:
                self._apply(self._batch)
            elif message is None:
                if self._is_idle(goal):
                    break
                self.stream.wait(_LOOK)
            self.stream.keep_alive()
            self._note_lag()
        self._note_lag(now=True)

    @property
    def _is_full(self) -> bool:
        return self._changes >= _BATCH_CHANGES or self._bytes >= _BATCH_BYTES

    def _take(self, message: bytes) -> None:
        try:
            found = self._decoder.feed(message)
            if isinstance(found, Relation):
                self._describe(found)
            self._check_size()
        except ReplicationStopped:
            # The transactions before this one are whole, and fit.
            if self._batch:
                self._apply(self._batch)
            raise
        if isinstance(found, Commit):
            self.stream.reached = max(self.stream.reached, found.end)
            if found.changes and found.end > self.applier.state.lsn:
                self._batch.append(found)
                self._changes += len(found.changes)
                self._bytes += found.size
                self.numbers.waiting = len(self._batch)

    def _check_size(self) -> None:
        if self._decoder.size > self.max_transaction:
            raise ReplicationStopped(
                f"a transaction of PostgreSQL changes more than {show_size(self.max_transaction)} of the "
                "replicated tables, and is applied as a whole in memory: raise --max-transaction and start "
                "again, or drop the slot and copy again with --overwrite"
            )

    def _describe(self, relation: Relation) -> None:
        target = self.applier.targets.get(relation.name)
        if target is None:
            if relation.name not in self._not_replicated:
                self._not_replicated.add(relation.name)
                log.info(
                    "the publication has changes of a table that this slot does not replicate: use another "
                    "slot for it, or drop the slot and copy again with --overwrite",
                    source=relation.name,
                )
            return
        for change in target.describe(relation):
            log.warning(
                "the columns of a table of PostgreSQL have changed, and PostgreSQL sends only rows that are "
                "written from now on: to get the others, drop the slot and copy again with --overwrite",
                source=relation.name,
                table=target.table,
                change=change,
            )

    def _apply(self, batch: list[Commit]) -> None:
        """Apply the transactions together or, if one of them does not fit, each by itself."""
        changes: list[Change] = [change for one in batch for change in one.changes]
        try:
            counts = self.applier.apply(changes, batch[-1].end)
        except ReplicationStopped:
            if len(batch) == 1:
                raise
            for one in batch:
                self._apply([one])
            return
        self._batch, self._changes, self._bytes = [], 0, 0
        numbers = self.numbers
        numbers.transactions += len(batch)
        numbers.changes += len(changes)
        numbers.new += counts["new"]
        numbers.changed += counts["changed"]
        numbers.deleted += counts["deleted"]
        self._moved()

    def _moved(self) -> None:
        # Only now: what is confirmed is never sent again.
        self.stream.confirm(self.applier.state.lsn)
        self._position_at = time.monotonic()
        self.numbers.position = self.applier.state.lsn
        self.numbers.waiting = len(self._batch)
        self.report()

    def _is_idle(self, goal: int | None) -> bool:
        """Note how far the stream has come without changes; return True if the goal is reached."""
        done, reached = self.applier.state.lsn, self.stream.reached
        if not self._decoder.is_open and reached > done:
            is_due = (
                self.stream.is_asked
                or time.monotonic() - self._position_at > _POSITION_EVERY
                or reached - done > _POSITION_BYTES
            )
            if is_due or (goal is not None and reached >= goal):
                self.applier.apply((), reached)
                self._moved()
        if goal is None:
            return False
        if self.applier.state.lsn >= goal:
            return True
        self.stream.ask()
        return False

    def _note_lag(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._lag_at > _LAG_EVERY:
            self._lag_at = time.monotonic()
            self.numbers.lag_bytes = max(0, self.server.end_of_log() - self.applier.state.lsn)
            self.report()
