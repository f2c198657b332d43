"""Transactions: a snapshot to read, and writes that become visible together (paper, section 2.2)."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Final, Self

from percolator_core.catalog.catalog import CHANGED
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, PercolatorError, SnapshotTooOld, TransactionConflict
from percolator_core.layout.keys import acknowledged, decode_column
from percolator_core.layout.records import DELETE, MAX_ROW, MAX_VALUE, NOTIFY, PUT, Write, row_bytes
from percolator_core.runtime import process
from percolator_core.tables.operations import TypedWrites
from percolator_core.transaction.cache import CACHE_BYTES, Cache
from percolator_core.transaction.client import Client
from percolator_core.transaction.commit import Commit, commit_at_once, notify
from percolator_core.transaction.metrics import FOLD, Cost, Numbers
from percolator_core.transaction.prefetch import Habits, Prefetch
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.write_set import Mutation, TableWrites, mutations_of

_BLIND_ROUNDS: Final = 16
"""A transaction that has read nothing tries to commit with at most this many fresh start timestamps."""

SPARE_LIFE: Final = 1.0
"""Seconds for which a spare timestamp may start a transaction."""

_NO_CONFLICT: Final = ("newer commit", "failed over")
"""The reasons of conflicts after which a transaction that has read nothing may commit with a newer start."""


class Transaction(Snapshot, TypedWrites):
    """Reads see one snapshot and the transaction's own writes; writes are buffered until `commit`.

    A cell that was read once is returned from memory the next time, because the snapshot does not change. The
    memory for such cells is limited to 16 MiB.

    As a context manager it commits on a clean exit and discards on an exception. Several threads or tasks
    must not use it at the same time.
    """

    __slots__ = ("_commit_ts", "_written", "writes_view")

    def __init__(self, client: Client, *, after: int | None = None, habits: Habits | None = None) -> None:
        """``habits`` are the reads of earlier runs like this one, for prefetch; None means no prefetch."""
        # The attributes of a snapshot are set here too: calling its constructor would slow each transaction.
        catalog = client.catalog
        if monotonic() >= catalog.due:
            catalog.keep_fresh()
        self._client = client
        self._handles = catalog.handles
        self._process = process.pid
        self._state = "open"
        self._start_ts = None
        self._commit_ts: int | None = None
        self._after = after
        self._writes: dict[str, TableWrites] = {}
        self._written: dict[str, TableHandle] = {}
        """The handles of the tables with writes, as of the first write to each table."""
        self.writes_view = ""
        """The fingerprint of the plan of the view whose tables this transaction may write; none if empty."""
        self._cache = cache = Cache()
        cache.room = CACHE_BYTES
        cache.prefetch = None if habits is None else Prefetch(habits)
        self._resolver = None
        self._round_trips = self._requests = self._operations = self._sent = 0
        self._scans = self._scanned = self._gets = self._cached = 0

    @property
    def commit_timestamp(self) -> int | None:
        """The commit timestamp in microseconds, None until committed."""
        return self._commit_ts

    @property
    def cost(self) -> Cost:
        """The reads and round trips so far."""
        return Cost(*self._numbers())

    def learn(self) -> None:
        """Let later runs prefetch the columns that this run has read. Does nothing without `habits`."""
        if self._cache.prefetch is not None:
            self._cache.prefetch.learn()

    # Writes.

    def set(self, table: str, row: str | bytes, column: str, value: bytes) -> None:
        """Write a cell.

        Raises TypeError for a value that is not bytes, ValueError for a row key over 64 KiB or a value over
        128 MiB, ConfigurationError for a typed table.
        """
        if not isinstance(value, bytes):
            raise TypeError(f"a value is bytes, not {type(value).__name__}: encode it first")
        if len(value) > MAX_VALUE:
            raise ValueError(
                f"a value has at most {MAX_VALUE} bytes, this one has {len(value)}: cut it into several cells"
            )
        handle = self._handles[table]
        if handle.is_typed:
            self._raw(table)  # raises
        key = row if type(row) is bytes else row.encode() if type(row) is str else row_bytes(row)
        self.put(handle, key, handle.columns[column].encoded, (PUT, value))

    def delete(self, table: str, row: str | bytes, column: str) -> None:
        """Delete a cell, which need not exist. Raises as `set`."""
        handle = self._raw(table)
        self.put(handle, row_bytes(row), handle.columns[column].encoded, (DELETE, b""))

    def delete_row(self, table: str, row: str | bytes) -> None:
        """Delete all cells of a row that exist in this transaction's view. Raises as `set`."""
        self._raw(table)
        for column in self.get_row(table, row):
            self.delete(table, row, column)

    def notify(self, table: str, row: str | bytes, column: str) -> None:
        """Wake the weak observers of a notify-only column after the commit of this transaction.

        Never conflicts. Several notifications of one cell may lead to only one run.
        """
        handle = self._handles[table]
        self.put(handle, row_bytes(row), handle.notify_column(column), (NOTIFY, b""))

    def boost(self, table: str, row: str | bytes, column: str, observers: bytes) -> None:
        """Notify as `notify`. Due marks of the named ``observers`` move ahead (`_dirty.lua`)."""
        handle = self._handles[table]
        self.put(handle, row_bytes(row), handle.notify_column(column), (NOTIFY, observers))

    def column_name(self, table: str, column: bytes) -> str:
        """The name of an encoded column."""
        return self._handles[table].decode(column)

    def write(self, table: str, row: bytes, column: bytes, write: Write) -> None:
        """Buffer a write to an encoded column, such as an acknowledgement."""
        self.put(self._handles[table], row, column, write)

    def put(self, handle: TableHandle, row: bytes, column: bytes, write: Write) -> None:
        """Buffer a write to an encoded column.

        Raises:
            ConfigurationError: the table belongs to a view, and this is no run of the view. Observers may
                acknowledge its rows.
            TransactionConflict: the table's definition has changed since the first write to the table: run
                the transaction again.
        """
        if self._state != "open" or self._process != process.pid:
            self._must_be_open()
        if handle.view and handle.view != self.writes_view and acknowledged(column) is None:
            handle.definition.refuse_of_view()
        if len(row) > MAX_ROW:
            raise ValueError(f"a row key has at most {MAX_ROW} bytes, this one has {len(row)}")
        rows = self._writes.get(handle.name)
        if rows is None:
            # The write comes last: an exception of a signal handler between the two lines leaves no write.
            self._written[handle.name] = handle
            self._writes[handle.name] = {row: {column: write}}
            return
        if self._written[handle.name] is not handle:
            # The first read found a new definition of the table; earlier writes were made with the old one.
            raise TransactionConflict(handle.name, row, decode_column(column), CHANGED)
        columns = rows.get(row)
        if columns is None:
            rows[row] = {column: write}
        else:
            columns[column] = write

    def mutations(self) -> list[Mutation]:
        """The buffered writes; the first one is the primary."""
        return mutations_of(self._writes, self._written)

    # The end.

    def commit(self) -> int:
        """Make the writes visible; return the commit timestamp.

        Without writes, this is the start timestamp or, without reads too, the newest timestamp known.

        Raises:
            TransactionConflict: another transaction wrote a cell since the snapshot, or is writing it now.
                Nothing was written: run the whole transaction again (`Database.run` does).
            TransactionAborted: another client rolled this one back. Nothing was written: run it again.
            CommitUndetermined: the outcome could not be learned.
            SnapshotTooOld: garbage collection has passed the snapshot: run it again.
            StoreUnavailable: nothing was committed.
        """
        if self._state != "open" or self._process != process.pid:
            self._must_be_open()
        self._state = "discarded"
        try:
            if not self._writes:
                # Without reads any timestamp is right. Request a timestamp only if the client has seen none.
                seen = max(self._client.oracle.seen, self._after or 0)
                commit_ts = self._start_ts or seen or self.start_timestamp
            elif self._start_ts is None:
                commit_ts = self._commit_blindly()
            else:
                commit_ts = self._commit_writes(self._start_ts)
            self._state, self._commit_ts = "committed", commit_ts
        finally:
            self._end()
        return commit_ts

    def rollback(self) -> None:
        """Discard the writes. Idempotent; a committed transaction cannot be rolled back."""
        if self._state == "committed":
            raise PercolatorError(
                "the transaction is committed and cannot be rolled back: write the old values again"
            )
        # A signal handler may call this in the middle of a commit, which still needs the writes.
        if self._state == "open":
            self._state = "discarded"
            self._writes.clear()
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state != "open":
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    def _end(self) -> None:
        tally = self._client.tally
        tally.ended.append((self._state == "committed", self._numbers()))
        if len(tally.ended) >= FOLD:
            tally.fold()
        self._cache.clear()

    def _numbers(self) -> Numbers:
        gets, cached, prefetch = self._gets, self._cached, self._cache.prefetch
        served, brought = (0, 0) if prefetch is None else (prefetch.served, prefetch.brought)
        requests = self._requests + gets
        return (
            self._round_trips + requests,
            requests,
            self._operations + gets + cached + served,
            self._sent + gets,
            cached,
            served,
            brought,
            self._scans,
            self._scanned,
        )

    def _commit_writes(self, start_ts: int, *, restock: bool = False) -> int:
        client = self._client
        self._round_trips += 1
        owner = self._process
        at_once = commit_at_once(client, start_ts, self._writes, self._written, restock, owner)
        if at_once is not None and at_once[1][0] == "committed":
            return at_once[1][1]
        mutations = self.mutations()
        if mutations[0].kind == NOTIFY:
            return notify(client, mutations)
        if at_once is None:
            self._round_trips += 1
        return Commit(client, start_ts, mutations, restock=restock, owner=owner).run(at_once)

    def _commit_blindly(self) -> int:
        """Commit a transaction that never read.

        Its commit timestamp alone decides its place in the order. So after a conflict with a newer commit,
        the commit is tried again with a newer start timestamp.
        """
        spare = self._spare_timestamp()
        if spare is not None:
            self._start_ts = spare
            try:
                return self._commit_writes(spare, restock=True)
            except SnapshotTooOld:
                pass
            except TransactionConflict as conflict:
                if conflict.reason not in _NO_CONFLICT:
                    raise
        for remaining in reversed(range(_BLIND_ROUNDS)):
            self._start_ts = None
            try:
                return self._commit_writes(self.start_timestamp, restock=True)
            except TransactionConflict as conflict:
                if conflict.reason not in _NO_CONFLICT or not remaining:
                    raise
        raise AssertionError("unreachable")

    def _spare_timestamp(self) -> int | None:
        """A recent spare timestamp that may start this transaction, or None."""
        spares = self._client.oracle.spares
        if not spares:
            return None
        timestamp, since, owner = spares.pop()
        if owner != process.pid:
            # A forked child has a copy of its parent's spares: two transactions would have the same start.
            spares.clear()
            return None
        is_recent = monotonic() - since <= SPARE_LIFE
        return timestamp if is_recent and timestamp > (self._after or 0) else None

    def _raw(self, table: str) -> TableHandle:
        handle = self._handles[table]
        if handle.is_typed:
            raise ConfigurationError(f"{table} is a typed table: use insert, upsert, update and remove")
        return handle
