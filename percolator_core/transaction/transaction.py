"""Transactions: a snapshot to read from, and writes that become visible together (paper, section 2.2)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self
from zlib import crc32

from percolator_core.catalog.catalog import CHANGED
from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import ConfigurationError, PercolatorError, SnapshotTooOld, TransactionConflict
from percolator_core.layout.key_ranges import check_limit, scan_bounds
from percolator_core.layout.keys import decode_column, is_internal
from percolator_core.layout.records import (
    DELETE,
    KIND,
    LOCK_MARK,
    MAX_ROW,
    MAX_VALUE,
    NOTIFY,
    PUT,
    VALUE,
    VERSION_MARK,
    Version,
    Write,
    row_bytes,
)
from percolator_core.runtime import process
from percolator_core.store.packing import READ
from percolator_core.tables.operations import TypedWrites
from percolator_core.tables.select import Batch, TabletSelect
from percolator_core.transaction.client import Client
from percolator_core.transaction.commit import Commit, Mutation, notify, primary_first
from percolator_core.transaction.metrics import Cost, Numbers
from percolator_core.transaction.row_read import UNREAD, RowRead
from percolator_core.transaction.scan import Row, TabletScan
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.write_buffer import RowWrites, merge, overlay

CACHE_BYTES: Final = 16 << 20
"""How much a transaction keeps of what it has read; what is read beyond is not kept, and read again."""

CACHE_CELL: Final = 150
"""What a cell takes in the cache beside its row key and value, in bytes, or a little less."""

CACHE_COLUMN: Final = 300
"""And what each column takes that was read."""

_BLIND_ROUNDS: Final = 16
"""Fresh starts that a transaction which never read takes, at most, when newer commits are in its way."""

_NO_CONFLICT: Final = ("newer commit", "failed over")
"""Refusals of an old start, which mean nothing to a transaction that has read nothing."""


class Transaction(Snapshot, TypedWrites):
    """Reads see one snapshot and the transaction's own writes; writes are buffered until `commit`.

    A cell that was read once is answered from memory the next time, up to `CACHE_BYTES`: the snapshot does
    not change.

    As a context manager it commits on a clean exit and discards on an exception. Not for use by several
    threads or tasks at once.
    """

    __slots__ = (
        "_after",
        "_cached",
        "_cells",
        "_commit_ts",
        "_exchange",
        "_gets",
        "_room",
        "_state",
        "_writes",
        "_written",
    )

    def __init__(self, client: Client, *, after: int | None = None) -> None:
        super().__init__(client)
        self._exchange = client.store.exchange
        self._after = after
        self._writes: dict[str, dict[bytes, RowWrites]] = {}
        self._written: dict[str, TableHandle] = {}
        """Of the tables that are written to, what was known of them with the first write."""
        self._commit_ts: int | None = None
        self._state: Literal["open", "committed", "discarded"] = "open"
        self._cells: dict[ColumnFields, dict[bytes, bytes | None]] = {}
        """What was read: by column, which stands for its table, too, and row."""
        self._room = CACHE_BYTES
        self._gets = 0
        """Reads of `get`: each is an operation, a command and a round trip."""
        self._cached = 0

    @property
    def commit_timestamp(self) -> int | None:
        """The commit timestamp in microseconds, None until committed."""
        return self._commit_ts

    # Reads: the snapshot, with our own writes in front of it.

    def get(  # noqa: C901 - in line, for most reads take this path
        self, table: str, row: str | bytes, column: str
    ) -> bytes | None:
        """The value of a cell in this transaction's view, or None. Raises as `Snapshot.get`."""
        if self._state != "open" or self._process != process.pid:
            self._must_be_open()
        handle = self._handles[table]
        fields = handle.columns[column]
        if type(row) is not bytes:
            row = row_bytes(row)
        if self._writes:
            own = self._own(table, row, fields.encoded)
            if own is not None:
                return own.value if own.kind == PUT else None
        cells = self._cells.get(fields)
        if cells is None:
            cells = self._begin_column(fields)
        else:
            known: bytes | None = cells.get(row, UNREAD)
            if known is not UNREAD:
                self._cached += 1
                return known
        if fields.sparse:
            return self._read_cells(((table, row, column),))[0]
        # `_read_cells`, `pack_read` and `tells` in line: this is the path that most reads take. What does not
        # pass here goes to `_judge`, so the line below may be narrower than the rule, never wider.
        place = handle.place
        key = handle.row_prefixes[crc32(row) % handle.tablets if place is None else place(row)] + row
        command = READ % (len(key), key, fields.packed)
        self._gets += 1
        if self._start_ts is None:
            version, lock = self._first_read((command,), ((handle, row, column),))[0]
        else:
            exchange = self._exchange((command,))
            version, lock = (exchange.replies or exchange.result())[0]
        if lock is None and version is not None and version < self._limit and not version[KIND]:
            value: bytes | None = version[VALUE]
            room = self._room - CACHE_CELL - len(row) - len(version)
            if room > 0:
                self._room = room
                cells[row] = value
            return value
        return self._get_slowly(handle, row, fields, version, lock)

    def get_row(self, table: str, row: str | bytes, columns: Iterable[str] | None = None) -> dict[str, bytes]:
        """The cells of a row that exist in this transaction's view, by column; all, or those named.

        Raises as `Snapshot.get`.
        """
        self._must_be_open()
        handle, key = self._handles[table], row_bytes(row)
        if columns is None and handle.is_typed:
            columns = handle.columns
        if columns is not None:
            wanted = list(columns)
            found = super().get_row(table, key, wanted)
            if wanted and self._start_ts is None:
                # A read of a row fixes the snapshot, also if all of it is our own.
                self._round_trips += 1
                self._first_read(())
            return found
        cells = super().get_row(table, key)
        for column, value in cells.items():
            self._keep(handle.columns[column], key, value)
        own = self._writes.get(table, {}).get(key, {})
        return overlay(cells, own, None)

    def get_many(self, cells: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        """The values of many cells in this transaction's view, in order, in few round trips.

        Raises as `Snapshot.get`.
        """
        self._must_be_open()
        return super().get_many(cells)

    def versions(self, table: str, row: bytes, columns: Sequence[bytes]) -> list[Version | None]:
        """The visible versions of cells of one row, by encoded column: they tell their times, too.

        Own writes aside: this is how a run of an observer begins.
        """
        handle = self._handles[table]
        extra = self._to_bring_along(handle, row, columns)
        names = [*columns, *(fields.encoded for fields in extra)]
        marked = (mark + name for name in names for mark in (VERSION_MARK, LOCK_MARK))
        cell, standing = (handle, row, handle.decode(columns[0])), handle.standing(row)
        (found,), standings = self._ask([(b"HMGET", handle.row_key(row), *marked)], (cell,), (standing,))
        stands = standings[standing]
        self._operations += len(columns)
        versions = [
            self._judge(handle.tag(row), row, column, found[2 * position], found[2 * position + 1], stands)
            for position, column in enumerate(columns)
        ]
        for column, version in zip(columns, versions, strict=True):
            if not is_internal(column):
                value = None if version is None else version.value
                self._keep(handle.fields(column), row, value)
        if extra:
            read = RowRead(handle, row)
            read.extra, read.brought, read.stands = extra, found[2 * len(columns) :], stands
            self._bring_along(read)
        return versions

    def versions_of(
        self, handle: TableHandle, rows: Sequence[bytes], fields: Sequence[ColumnFields]
    ) -> list[list[Version | None]]:
        """The visible versions of the same cells of many rows, row by row: a command each, in one round trip.

        Own writes aside, as `versions`. The caller keeps the number of rows bounded.
        """
        self._must_be_open()
        if not rows or not fields:
            return [[] for _ in rows]
        reads = []
        for row in rows:
            read = RowRead(handle, row)
            read.columns = list(fields)
            reads.append(read)
        self._operations += len(rows) * len(fields)
        found = []
        cells, standings = ((handle, row, fields[0].name) for row in rows), map(handle.standing, rows)
        replies, stand = self._ask([read.command() for read in reads], cells, standings)
        for row, flat in zip(rows, replies, strict=True):
            pairs = iter(flat)
            tag, stands = handle.tag(row), stand[handle.standing(row)]
            versions = []
            for one, version, lock in zip(fields, pairs, pairs, strict=False):
                seen = self._judge(tag, row, one.encoded, version, lock, stands)
                self._keep(one, row, None if seen is None else seen.value)
                versions.append(seen)
            found.append(versions)
        return found

    def scan(  # noqa: PLR0917
        self,
        table: str,
        start: str | bytes | None = None,
        stop: str | bytes | None = None,
        prefix: str | bytes | None = None,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """As `Snapshot.scan`, with the writes made before the call. Raises as it does."""
        self._must_be_open()
        if limit is not None:
            check_limit(limit, 0)
        wanted = None if columns is None else list(columns)
        own = self._writes.get(table)
        if not own:
            return super().scan(table, start, stop, prefix, wanted, limit, reverse)
        low, high = scan_bounds(start, stop, prefix)
        named = self._handles[table].named
        mine = sorted(
            (
                (row, named(cells))
                for row, cells in own.items()
                if low <= row and (high is None or row < high)
            ),
            key=itemgetter(0),
            reverse=reverse,
        )
        # Each of our own rows may take the place of a stored one, or hide it.
        most = None if limit is None else limit + len(mine)
        stored = super().scan(table, start, stop, prefix, wanted, most, reverse)
        return itertools.islice(merge(stored, mine, wanted, reverse), limit)

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
            self._refuse_raw(table)
        self.put(handle, row_bytes(row), handle.columns[column].encoded, Write(PUT, value))

    def delete(self, table: str, row: str | bytes, column: str) -> None:
        """Delete a cell; one that does not exist may be deleted too. Raises as `set`."""
        handle = self._handles[table]
        if handle.is_typed:
            self._refuse_raw(table)
        self.put(handle, row_bytes(row), handle.columns[column].encoded, Write(DELETE, b""))

    def delete_row(self, table: str, row: str | bytes) -> None:
        """Delete all cells of a row that exist in this transaction's view. Raises as `set`."""
        if self._handles[table].is_typed:
            self._refuse_raw(table)
        for column in self.get_row(table, row):
            self.delete(table, row, column)

    def notify(self, table: str, row: str | bytes, column: str) -> None:
        """Wake the weak observers of a notify-only column once this transaction has committed.

        Never conflicts; many notifications of one cell may be collapsed into one run.
        """
        handle = self._handles[table]
        self.put(handle, row_bytes(row), handle.notify_column(column), Write(NOTIFY, b""))

    def column_name(self, table: str, column: bytes) -> str:
        """The name of an encoded column."""
        return self._handles[table].decode(column)

    def write(self, table: str, row: bytes, column: bytes, write: Write) -> None:
        """Buffer a write to an encoded column; acknowledgements are written so."""
        self.put(self._handles[table], row, column, write)

    # The end.

    def commit(self) -> int:
        """Make the writes visible; returns the commit timestamp (without writes, the start timestamp).

        Raises:
            TransactionConflict: another transaction wrote a cell since the snapshot, or is writing it now.
                Nothing was written: run the whole transaction again (`Database.run` does).
            TransactionAborted: another client took this one for dead. Nothing was written: run it again.
            CommitUndetermined: the outcome could not be learned.
            SnapshotTooOld: garbage collection has passed the snapshot: run it again.
            StoreUnavailable: nothing was committed.
        """
        self._must_be_open()
        self._state = "discarded"
        try:
            if not self._writes:
                # One that saw nothing may be of any time; only a client that has seen none asks for one.
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
        was_open = self._state == "open"
        self._state = "discarded"
        self._writes.clear()
        if was_open:
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

    @property
    def cost(self) -> Cost:
        """What it has asked for so far, and what that took."""
        return Cost(*self._numbers())

    # Inside.

    def _numbers(self) -> Numbers:
        gets, cached = self._gets, self._cached
        requests = self._requests + gets
        return (
            self._round_trips + requests,
            requests,
            self._operations + gets + cached,
            self._sent + gets,
            cached,
            0,
            0,
            self._scans,
            self._scanned,
        )

    def _end(self) -> None:
        self._client.tally.add(self._state == "committed", self._numbers())
        self._cells = {}

    def _known(self, handle: TableHandle, row: bytes, fields: ColumnFields) -> Any:
        if self._writes:
            own = self._own(handle.name, row, fields.encoded)
            if own is not None:
                return own.value if own.kind == PUT else None
        cells = self._cells.get(fields)
        if cells is None:
            return UNREAD
        value = cells.get(row, UNREAD)
        if value is not UNREAD:
            self._count_found(handle, row, fields)
        return value

    def _fetch(self, reads: Sequence[RowRead], values: list[bytes | None]) -> None:
        super()._fetch(reads, values)
        for read in reads:
            for fields, position in zip(read.columns, read.positions, strict=True):
                self._keep(fields, read.row, values[position])

    def _get_slowly(
        self, handle: TableHandle, row: bytes, fields: ColumnFields, version: bytes | None, lock: bytes | None
    ) -> bytes | None:
        if version is None:
            fields.note_missing()
        found = self._judge(handle.tag(row), row, fields.encoded, version, lock)
        value = None if found is None else found.value
        self._keep(fields, row, value)
        return value

    def _keep(self, fields: ColumnFields, row: bytes, value: bytes | None) -> None:
        cells = self._cells.get(fields)
        if cells is None:
            cells = self._begin_column(fields)
        room = self._room - CACHE_CELL - len(row) - (0 if value is None else len(value))
        if room > 0:
            self._room = room
            cells[row] = value

    def _begin_column(self, fields: ColumnFields) -> dict[bytes, bytes | None]:
        """Where to keep what is read of a column; it is forgotten at once where there is no room."""
        cells: dict[bytes, bytes | None] = {}
        # The catalog may forget a column whose name is long, and then it is kept here alone.
        size = CACHE_COLUMN + fields.names_bytes
        if self._room > size:
            self._room -= size
            self._cells[fields] = cells
        return cells

    def _count_found(self, handle: TableHandle, row: bytes, fields: ColumnFields) -> None:  # noqa: ARG002
        """An operation was answered from the cache."""
        self._cached += 1

    def _to_bring_along(
        self,
        handle: TableHandle,  # noqa: ARG002
        row: bytes,  # noqa: ARG002
        columns: Sequence[bytes],  # noqa: ARG002
    ) -> Sequence[ColumnFields]:
        """What else to read of a row when a run begins with these columns of it."""
        return ()

    def _bring_along(self, read: RowRead) -> None:
        """Keep the extra cells of a read, as far as version and lock settle what they hold."""

    def _fix(self, timestamp: int) -> None:
        if self._after is not None and timestamp <= self._after:
            raise ConfigurationError(
                f"the timestamp {self._after} to begin after comes from another store, or from the future"
            )
        super()._fix(timestamp)

    def _take_steps(self, scans: Sequence[TabletScan]) -> None:
        # A scan that is consumed after the commit: a blind one may have begun before what others have seen.
        self._must_be_open()
        super()._take_steps(scans)

    def _refuse_raw(self, table: str) -> NoReturn:
        raise ConfigurationError(f"{table} is a typed table: use insert, upsert, update and remove")

    def _must_be_open(self) -> None:
        self._must_be_of_this_process()
        if self._state != "open":
            raise PercolatorError(f"the transaction is {self._state}: begin a new one")

    def values_of(
        self, wanted: Iterable[tuple[TableHandle, bytes, Sequence[ColumnFields]]]
    ) -> list[list[bytes | None]]:
        """The values of some cells of many rows in this transaction's view."""
        self._must_be_open()
        return super().values_of(wanted)

    def take_batches(self, selects: Sequence[TabletSelect]) -> list[Batch]:
        """The next step of each select; own writes are not in it."""
        self._must_be_open()
        return super().take_batches(selects)

    def own_rows(self, table: str) -> Collection[bytes]:
        """The rows of a table that have writes of our own."""
        return self._writes.get(table, {}).keys()

    def _own(self, table: str, row: bytes, column: bytes) -> Write | None:
        rows = self._writes.get(table)
        return rows.get(row, {}).get(column) if rows else None

    def put(self, handle: TableHandle, row: bytes, column: bytes, write: Write) -> None:
        """Buffer a write to an encoded column.

        Raises:
            TransactionConflict: the table was changed since the first write to it: run the transaction again.
        """
        self._must_be_open()
        if len(row) > MAX_ROW:
            raise ValueError(f"a row key has at most {MAX_ROW} bytes, this one has {len(row)}")
        rows = self._writes.get(handle.name)
        if rows is None:
            rows = self._writes[handle.name] = {}
            self._written[handle.name] = handle
        elif self._written[handle.name] is not handle:
            # The first read met a change. The writes before it were made by the definition before.
            raise TransactionConflict(handle.name, row, decode_column(column), CHANGED)
        columns = rows.get(row)
        if columns is None:
            rows[row] = {column: write}
        else:
            columns[column] = write

    def mutations(self) -> list[Mutation]:
        """What a commit would write now; the first one is the primary."""
        mutations: list[Mutation] = []
        for table, rows in self._writes.items():
            handle = self._written[table]
            version = handle.version
            for row, columns in rows.items():
                tag = handle.tag(row)
                for column, (kind, value) in columns.items():
                    mutations.append(Mutation(tag, table, row, column, kind, value, version))
        return primary_first(mutations)

    def _commit_writes(self, start_ts: int, *, restock: bool = False) -> int:
        mutations = self.mutations()
        self._round_trips += 1
        if mutations[0].kind == NOTIFY:
            return notify(self._client, mutations)
        commit = Commit(self._client, start_ts, mutations, restock=restock)
        if not commit.in_one_call:
            self._round_trips += 1
        return commit.run()

    def _commit_blindly(self) -> int:
        """Commit a transaction that never read.

        It is ordered at its commit, so a newer commit is no conflict: it takes a newer start instead.
        """
        spare = self._client.oracle.spare(self._after)
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
