"""Replicate: copy the tables as of the slot's start, then follow the stream, and reconnect after failures.

The order survives a crash at each step:

1. The store gets the state ``copying``. A slot without a state in the store belongs to another program.
2. The slot is made, and with it the snapshot of its start. After a crash the snapshot is lost: the next start
   finds ``copying``, drops the slot, and copies again from the beginning; equal cells are not written again.
3. The tables are copied as of the snapshot, and rows that PostgreSQL lacks are removed.
4. The state becomes ``following`` with the slot's first position.
5. Each transaction of the store applies whole transactions of PostgreSQL, and stores the position of their
   end. Then this position is confirmed to PostgreSQL. After a crash in between, PostgreSQL sends transactions
   again, and those up to the stored position are skipped. If a slot was confirmed beyond the stored position,
   changes are lost, and the slot is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict

from percolator_core.database import Database
from percolator_core.errors import (
    ConfigurationError,
    LockTimeout,
    PercolatorError,
    StoreUnavailable,
    TransactionConflict,
)
from percolator_core.observers import Chain
from percolator_core.replication.apply import (
    STATE,
    Applier,
    Removal,
    SlotState,
    existing_keys,
    stored_targets,
)
from percolator_core.replication.follow import Following
from percolator_core.replication.messages import Fields, RowChange
from percolator_core.replication.report import (
    ReplicationProgress,
    ReplicationReport,
    ReplicationStopped,
    SlotInUse,
    lsn_text,
)
from percolator_core.replication.server import PostgreSQL, Published, Slot
from percolator_core.replication.stream import Stream
from percolator_core.replication.targets import Target, choose_targets
from percolator_core.runtime.batches import batched, batched_by_size
from percolator_core.runtime.log import Log
from percolator_core.runtime.patience import Patience

MAX_TRANSACTION: Final = 256 << 20
"""By default the limit, in bytes, of the changes of one transaction of PostgreSQL."""

_BATCH_ROWS: Final = 1000
_BATCH_CHARACTERS: Final = 4 << 20
"""Limits of the rows that one transaction copies; a single row may be larger."""

_PASSING: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    StoreUnavailable,
    LockTimeout,
    TransactionConflict,
    SlotInUse,
)
"""Failures after which the next attempt may succeed."""

log = Log("percolator.replication")


def replicate(
    db: Database,
    conninfo: str,
    *,
    slot: str,
    publication: str,
    tables: Mapping[str, str] | None = None,
    chain: Chain | None = None,
    once: bool = False,
    overwrite: bool = False,
    patience: float = 300.0,
    max_transaction: int = MAX_TRANSACTION,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[ReplicationProgress], object] | None = None,
) -> ReplicationReport:
    """Copy tables of PostgreSQL, and then apply each transaction of PostgreSQL exactly once.

    A transaction of PostgreSQL is applied as a whole; several that come fast share a transaction. Only cells
    that differ are written. The position is a cell of the table ``replication``, in the row ``slot``.

    Args:
        db: the database of the tables.
        conninfo: the database of PostgreSQL, as for libpq: ``host=… dbname=…`` or ``postgresql://…``. The
            user needs the attribute REPLICATION, and SELECT for the copy.
        slot: the name of the replication slot, which the first call makes. Each slot has its own tables.
        publication: the name of the publication, which has to exist.
        tables: for each table of PostgreSQL, named ``schema.table``, the name of the table to write. None
            means all tables of the publication, each into the table of the same name.
        chain: its tables are created, and its observers activated, first.
        once: return when everything is applied that was committed before the call.
        overwrite: copy into tables that have rows, and copy again if the slot is lost. Rows that PostgreSQL
            lacks are then removed.
        patience: seconds for which a server that does not answer is tried again, above 0. An error of the
            first attempt is raised at once.
        max_transaction: the limit of the changes of one transaction of PostgreSQL, in bytes, above 0.
        stop: called several times a second; if it returns True, the call returns.
        progress: called after each transaction, and every few seconds.

    Raises:
        ConfigurationError: the slot, the publication or a table cannot be used; the message says why.
        UnknownTable: a table does not exist.
        ReplicationStopped: a change does not fit into its table.
        SlotInUse: another process replicates the slot.
        StoreUnavailable: the store or PostgreSQL did not answer for ``patience`` seconds.
    """
    if not patience > 0 or max_transaction < 1:
        raise ValueError(
            f"patience and max_transaction are above 0, not {patience} and {max_transaction}: leave them out"
        )
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        # The text of psycopg's error may have the password.
        raise ConfigurationError(
            "the address of PostgreSQL is not valid: write postgresql://USER@HOST/DATABASE, or host=HOST "
            "dbname=DATABASE"
        ) from None
    if chain is not None:
        chain.create_tables(db)
    db.create_table(STATE, tablets=1)
    replicator = _Replicator(
        db, conninfo, slot, publication, tables, once, overwrite, patience, max_transaction, stop, progress
    )
    return replicator.run()


class _Stop(Exception):
    """``stop`` returned True during the copy."""


@dataclass(slots=True)
class _Replicator:
    """One call of `replicate`; the fields are its arguments."""

    db: Database
    conninfo: str
    slot: str
    publication: str
    tables: Mapping[str, str] | None
    once: bool
    overwrite: bool
    patience: float
    max_transaction: int
    stop: Callable[[], bool]
    progress: Callable[[ReplicationProgress], object] | None
    _owner: str = field(default_factory=lambda: uuid4().hex)
    _numbers: ReplicationProgress = field(default_factory=ReplicationProgress)
    _names: dict[str, str] = field(default_factory=dict)
    _was_connected: bool = False
    _attempts: Patience = field(init=False)

    def __post_init__(self) -> None:
        self._attempts = Patience(self.patience, self.stop)

    def run(self) -> ReplicationReport:
        """Repeat sessions until one ends by itself, is stopped, or cannot go on."""
        began = time.monotonic()
        while not self.stop():
            try:
                with PostgreSQL(self.conninfo, self.slot) as server:
                    server.lock()
                    self._was_connected = True
                    self._session(server)
                break
            except _Stop:
                break
            except _PASSING as error:
                self._wait_after(error)
            except psycopg.Error as error:
                raise ConfigurationError(
                    f"PostgreSQL refused a command: {_first_line(error)}; correct this, and start again"
                ) from error
        numbers = self._numbers
        return ReplicationReport(
            self.slot,
            self._names,
            numbers.copied,
            numbers.transactions,
            numbers.changes,
            numbers.new,
            numbers.changed,
            numbers.deleted,
            lsn_text(numbers.position),
            numbers.lag_bytes,
            time.monotonic() - began,
        )

    def _wait_after(self, error: Exception) -> None:
        """Wait before the next attempt. Raises the error if no attempt has succeeded for too long."""
        if self._attempts.is_over() or not self._was_connected:
            if isinstance(error, PercolatorError):
                raise error
            raise StoreUnavailable(
                f"PostgreSQL cannot be reached: {_first_line(error)}; check its address, the password, "
                "pg_hba.conf, and that it runs"
            ) from error
        log.warning("the replication was interrupted, and is tried again", error=_first_line(error))
        self._attempts.wait()

    def _report(self) -> None:
        """Report numbers after a success."""
        self._attempts.succeeded()
        if self.progress is not None:
            self.progress(self._numbers)

    def _session(self, server: PostgreSQL) -> None:
        state = SlotState.of(self.db.snapshot(), self.slot)
        if state is None or self._must_copy(server, state):
            applier = self._copy(server, state)
        else:
            applier = Applier(self.db, self.slot, replace(state, owner=self._owner), self._stored())
            applier.take_over()
        self._numbers.phase = "following"
        self._numbers.position = applier.state.lsn
        self._names = {name: target.table for name, target in applier.targets.items()}
        goal = server.end_of_log() if self.once else None
        stream = Stream(server.replication, self.slot, self.publication, applier.state.lsn)
        following = Following(server, stream, applier, self._numbers, self._report, self.max_transaction)
        following.run(goal, self.stop)

    def _must_copy(self, server: PostgreSQL, state: SlotState) -> bool:
        """Return True if the tables have to be copied. Raises ConfigurationError if a copy is not allowed."""
        if state.phase == "copying":
            return True
        if state.publication != self.publication:
            raise ConfigurationError(
                f"the slot {self.slot!r} follows the publication {state.publication!r}, and with another "
                "one changes would be missing: name that one, or use another slot"
            )
        why = self._lost(server, server.slot(), state)
        if why is not None and not self.overwrite:
            raise ConfigurationError(
                f"{why}, so changes are lost: copy the tables again with --overwrite, which also removes the "
                "rows that PostgreSQL lacks"
            )
        return why is not None

    def _lost(self, server: PostgreSQL, slot: Slot | None, state: SlotState) -> str | None:
        """Return why the stream cannot go on after the state, or None."""
        if (server.system, server.database) != (state.system, state.database):
            return (
                f"the tables were copied from the database {state.database!r} of the server "
                f"{state.system}, and this is {server.database!r} of {server.system}"
            )
        if slot is None:
            return f"PostgreSQL has no slot {self.slot!r}"
        if slot.is_lost:
            return f"PostgreSQL has invalidated the slot {self.slot!r} to bound its log"
        if (end := server.end_of_log()) < state.lsn:
            return (
                f"PostgreSQL has gone back to {lsn_text(end)}, before the store's position "
                f"{lsn_text(state.lsn)}, as after the restore of an old copy"
            )
        if slot.confirmed > state.lsn:
            return (
                f"the slot {self.slot!r} begins at {lsn_text(slot.confirmed)}, after the store's position "
                f"{lsn_text(state.lsn)}"
            )
        return None

    def _stored(self) -> dict[str, Target]:
        """Return the tables that were copied. Raises ConfigurationError if others are wanted."""
        targets = stored_targets(self.db, self.slot)
        copied = {name: target.table for name, target in targets.items()}
        if self.tables is not None and dict(self.tables) != copied:
            shown = ", ".join(f"{name}={table}" for name, table in copied.items())
            raise ConfigurationError(
                f"the slot {self.slot!r} replicates {shown}: use another slot for other tables, or drop the "
                "slot and copy all again with --overwrite"
            )
        return targets

    def _copy(self, server: PostgreSQL, state: SlotState | None) -> Applier:
        """Make the slot, and copy the tables as of its start."""
        published = server.published(self.publication)
        targets = choose_targets(self.db, published, self.tables)
        self._check_before_copy(server, state, targets)
        start = SlotState("copying", 0, server.system, server.database, self._owner, self.publication)
        applier = Applier(self.db, self.slot, start, targets)
        # The state is written before the slot is made. So after a crash the next start recognizes the slot.
        applier.begin_copy()
        if server.slot() is not None:
            server.drop_slot()
        lsn, snapshot = server.create_slot()
        self._numbers.phase, self._numbers.copied = "copying", 0
        try:
            with server.snapshot(snapshot):
                for one in published:
                    if one.relation.name in targets:
                        self._copy_table(server, applier, one)
        except (ReplicationStopped, _Stop):
            # The next copy makes another slot. Until then this one would only fill PostgreSQL's disk.
            with suppress(psycopg.Error):
                server.drop_slot()
            raise
        applier.apply((), lsn)
        return applier

    def _check_before_copy(
        self, server: PostgreSQL, state: SlotState | None, targets: Mapping[str, Target]
    ) -> None:
        slot, here = server.slot(), (server.system, server.database)
        made_here = state is not None and (state.system, state.database) == here
        if slot is not None and not (
            made_here and (slot.plugin, slot.database) == ("pgoutput", server.database)
        ):
            raise ConfigurationError(
                f"PostgreSQL has a slot {self.slot!r} that this namespace has not made: name another one or, "
                f"if no program needs it, drop it with SELECT pg_drop_replication_slot('{self.slot}')"
            )
        if self.overwrite:
            return
        copied = stored_targets(self.db, self.slot)
        for target in targets.values():
            begun = copied.get(target.source)
            if begun is not None and begun.table == target.table:
                continue  # rows of an unfinished copy are its own
            if any(True for _ in existing_keys(self.db.snapshot(), target)):
                raise ConfigurationError(
                    f"{target.table} has rows, and the copy of {target.source} would remove those that "
                    "PostgreSQL lacks: allow this with --overwrite, or use an empty table"
                )

    def _copy_table(self, server: PostgreSQL, applier: Applier, published: Published) -> None:
        """Copy the rows of a table, then remove the rows that PostgreSQL lacks."""
        target = applier.targets[published.relation.name]
        handle = self.db.catalog.table(target.table)
        # A new table has no rows, so this set needs memory only after an earlier copy or other writers.
        extra = set(existing_keys(self.db.snapshot(), target))
        for rows in batched_by_size(server.rows(published), _characters, _BATCH_CHARACTERS, _BATCH_ROWS):
            changes = [RowChange(published.relation, None, row, is_insert=True) for row in rows]
            self._write(applier, changes, len(rows))
            if extra:
                keys = ({name: row[name] for name in target.key} for row in rows)
                extra.difference_update(target.record(handle, published.relation, key).key for key in keys)
        removals = [Removal(published.relation, key) for key in extra]
        for some in batched(removals, _BATCH_ROWS):
            self._write(applier, some, 0)

    def _write(self, applier: Applier, changes: Sequence[RowChange | Removal], copied: int) -> None:
        """Write rows of the copy; repeat it after a failure, because a new session would copy all again."""
        while not self.stop():
            try:
                counts = applier.copy(changes)
            except (StoreUnavailable, LockTimeout, TransactionConflict) as error:
                self._wait_after(error)
                continue
            self._numbers.copied += copied
            self._numbers.new += counts["new"]
            self._numbers.changed += counts["changed"]
            self._numbers.deleted += counts["deleted"]
            self._report()
            return
        raise _Stop


def _characters(row: Fields) -> int:
    return sum(len(text or "") for text in row.values())


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
