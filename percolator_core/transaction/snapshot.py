"""Reading at a timestamp (paper, figure 6, Get).

The newest version of a cell and its lock stand side by side in the row's hash, so most reads are one
``HMGET`` and no script: no lock, newest version below the snapshot. Everything else takes the slow path: an
older version, or a lock that may still commit below the snapshot and is therefore waited for or resolved.

A cell that is missing proves nothing by itself: garbage collection forgets deletions, and tables are
dropped. It is an answer if the tablet *stands*, which is asked behind the read: the tablet has a version, and
no safe point above the snapshot. For a column that rows often lack, the request goes along with the read.

A snapshot of the present uses the definitions of tables as of its timestamp, which the oracle returns with
the catalog's epoch. A snapshot of the past uses the definitions as of the moment when it was made.

Many cells are read in steps of bounded size; cells of one row that are asked for together share a command.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from time import monotonic
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeAlias

from percolator_core.catalog.catalog import CHANGED, Tables
from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import (
    LockTimeout,
    PercolatorError,
    SnapshotTooOld,
    TransactionConflict,
    of_another_process,
)
from percolator_core.layout.key_ranges import check_limit, scan_bounds
from percolator_core.layout.keys import decode_column
from percolator_core.layout.records import (
    KIND,
    LOCK_MARK,
    VALUE,
    VERSION_MARK,
    Version,
    pack_timestamp,
    row_bytes,
    unpack_version,
)
from percolator_core.runtime import process
from percolator_core.scripts import calls
from percolator_core.store import Store, is_being_ended
from percolator_core.store.packing import Command
from percolator_core.tables.operations import TypedReads
from percolator_core.tables.select import Batch, TabletSelect
from percolator_core.transaction.client import Client
from percolator_core.transaction.lock_resolver import Patience, Resolver
from percolator_core.transaction.row_read import UNREAD, RowRead, stands, tells
from percolator_core.transaction.scan import Row, TabletScan, first_page, merged, settled_row

CELLS_AT_ONCE: Final = 1000
BYTES_AT_ONCE: Final = 8 << 20
"""Bounds of one step of reading many cells. The bytes can only be guessed, from the step before."""

_FIRST_STEP: Final = 500
"""Cells of the first step: nothing is known yet of their size."""

_Cell: TypeAlias = tuple[TableHandle, bytes, str]
"""A cell that is read: its table, row and column."""


class _Found(NamedTuple):
    """What a slow read found: the visible version, None where there is none; or the lock in its way."""

    version: Version | None
    lock: bytes | None


class Snapshot(TypedReads):
    """The tables as of one timestamp; reads only.

    As a context manager it is pinned: garbage collection leaves what it sees alone until the block ends.
    """

    __slots__ = (
        "_client",
        "_handles",
        "_limit",
        "_operations",
        "_pin",
        "_process",
        "_requests",
        "_resolver",
        "_round_trips",
        "_scanned",
        "_scans",
        "_sent",
        "_start_ts",
    )

    def __init__(self, client: Client, start_ts: int | None = None) -> None:
        """``start_ts`` is None to fix the snapshot at the first read, or the first use of its timestamp."""
        self._client = client
        catalog = client.catalog
        if start_ts is not None:
            catalog.look()  # the timestamp may be younger than the last look
        elif monotonic() >= catalog.due:
            catalog.keep_fresh()
        self._handles: Tables = catalog.handles
        self._process = process.pid
        self._start_ts = start_ts
        self._limit = b"" if start_ts is None else pack_timestamp(start_ts)
        """The start timestamp as versions have theirs: a version below it compares as less."""
        self._pin = b""
        self._resolver: Resolver | None = None
        self._round_trips = self._requests = self._operations = self._sent = self._scans = self._scanned = 0

    def __enter__(self) -> Self:
        self._must_be_of_this_process()
        client = self._client
        # The owner in front ties the pin to our liveness token: that of a dead client does not count.
        self._pin = client.owner() + b":" + uuid.uuid4().bytes
        try:
            client.store.one((b"ZADD", client.store.keyspace.pins, self.start_timestamp, self._pin))
        except BaseException:
            self._let_go()  # whoever was interrupted here never comes to the end of the block
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process != process.pid:
            return  # the pin is the parent's
        if is_being_ended():
            self._let_go()
            return
        try:
            self._client.store.one((b"ZREM", self._client.store.keyspace.pins, self._pin))
        except PercolatorError:
            if error is None:
                raise
            # The block's own error says more. The pin goes with our liveness token.

    def _let_go(self) -> None:
        """Unpin it without waiting: a pin that stays holds collection back as long as the client lives."""
        try:
            self._client.store.defer((b"ZREM", self._client.store.keyspace.pins, self._pin))
        except PercolatorError:
            pass

    @property
    def start_timestamp(self) -> int:
        """The snapshot's timestamp in microseconds; fixes the snapshot if no read has."""
        if self._start_ts is None:
            self._round_trips += 1
            self._first_read(())
        assert self._start_ts is not None
        return self._start_ts

    def get(self, table: str, row: str | bytes, column: str) -> bytes | None:
        """The value of a cell, or None.

        Raises:
            UnknownTable, UnknownColumn: no such table, or a notify-only column.
            LockTimeout: another client has been committing to the cell for too long; try again later.
            SnapshotTooOld: garbage collection has passed this snapshot, or its table or a column was dropped
            since; begin a new one.
            TransactionConflict: the table was changed when the transaction began to read; run it again.
            StoreUnavailable: the store does not answer.
        """
        return self._read_cells([(table, row, column)])[0]

    def get_row(self, table: str, row: str | bytes, columns: Iterable[str] | None = None) -> dict[str, bytes]:
        """The cells of a row that exist, by column; all columns, or those named.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, SnapshotTooOld: as `get`.
            TransactionConflict, StoreUnavailable: as `get`.
        """
        handle = self._handles[table]
        if columns is None and handle.is_typed:
            columns = handle.columns
        if columns is None:
            return self._whole_row(handle, row_bytes(row))
        wanted = list(columns)
        values = self._read_cells((table, row, column) for column in wanted)
        return {column: value for column, value in zip(wanted, values, strict=True) if value is not None}

    def get_many(self, cells: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        """The values of many cells, in order.

        In one round trip where no lock is in the way, or a few if they are more than 500; cells of one row
        that stand close together in the list share a command.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, SnapshotTooOld, StoreUnavailable: as `get`.
        """
        return self._read_cells(cells)

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
        """The rows of a table with their cells, in row order across tablets.

        ``start`` is inclusive, ``stop`` exclusive; ``prefix`` narrows both. Rows that have none of the
        ``columns`` are left out. ``limit`` is how many rows come at most, 0 or more; None is all. Rows are
        fetched in bounded steps while the iterator is consumed.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, SnapshotTooOld, StoreUnavailable: as `get`; while it
            is consumed, too.
            TypeError, ValueError: ``limit`` is no int, or below 0.
        """
        if limit is not None:
            check_limit(limit, 0)
        handle = self._fixed()[table]
        low, high = scan_bounds(start, stop, prefix)
        if (high is not None and low >= high) or limit == 0:
            return iter(())
        return self._scan_store(handle, low, high, columns, limit, reverse)

    # What typed reads are made of.

    def values_of(
        self, wanted: Iterable[tuple[TableHandle, bytes, Sequence[ColumnFields]]]
    ) -> list[list[bytes | None]]:
        """The values of some cells of many rows, row by row, a command a row, in steps as `get_many`."""
        values: list[bytes | None] = []
        ends = [0]
        reads: list[RowRead] = []
        missing, size = 0, _FIRST_STEP
        for handle, row, fields in wanted:
            read = RowRead(handle, row)
            for one in fields:
                value = self._known(handle, row, one)
                if value is UNREAD:
                    read.columns.append(one)
                    read.positions.append(len(values))
                    value = None
                values.append(value)
            ends.append(len(values))
            if read.columns:
                reads.append(read)
                missing += len(read.columns)
            if missing >= size:
                self._fetch(reads, values)
                brought = sum([len(values[one] or b"") for read in reads for one in read.positions])
                size = max(1, min(CELLS_AT_ONCE, BYTES_AT_ONCE * missing // (brought + 1)))
                reads, missing = [], 0
        if reads:
            self._fetch(reads, values)
        return [values[start:end] for start, end in pairwise(ends)]

    def tablet_scans(  # noqa: PLR0917
        self,
        handle: TableHandle,
        low: bytes,
        high: bytes | None,
        columns: Iterable[str],
        rows: int,
        cut: int | None = None,
    ) -> list[TabletScan]:
        """Forward scans of all tablets that may have such rows, for `take_scans`.

        They are of some columns, none of them means all.

        Each step looks at ``rows`` rows at most; of whole rows ``cut`` bytes of each value are enough.
        """
        fields = [handle.columns[column] for column in columns]
        slowly = self._read_slowly
        tags = [handle.tag(low)] if high == low + b"\0" else handle.tags
        return [TabletScan(tag, low, high, fields, rows, False, slowly, cut) for tag in tags]

    def take_scans(self, scans: Sequence[TabletScan]) -> None:
        """The next step of each scan, in one round trip."""
        self._take_steps(scans)

    def take_batches(self, selects: Sequence[TabletSelect]) -> list[Batch]:
        """The next step of each select, in one round trip."""
        self._must_be_of_this_process()
        steps = [select.step(self.start_timestamp) for select in selects]
        self._round_trips += 1
        batches = []
        for select, found in zip(selects, self._client.store.run_all(steps), strict=True):
            if found is None:
                raise self._too_old()
            batch = select.take(found)
            self._scans += 1
            self._scanned += len(batch) * max(1, len(batch.layout.cells))
            batches.append(batch)
        return batches

    # Inside.

    @property
    def _store(self) -> Store:
        return self._client.store

    def _fixed(self) -> Tables:
        """The tables as they were at the snapshot's timestamp; fixes the snapshot if no read has."""
        self.start_timestamp  # noqa: B018 - its first use fixes the snapshot
        return self._handles

    def _must_be_of_this_process(self) -> None:
        """Two sides of a fork that both went on would be two transactions with one start."""
        if self._process != process.pid:
            raise of_another_process("transaction or snapshot")

    def _fix(self, timestamp: int) -> None:
        self._start_ts = timestamp
        self._limit = pack_timestamp(timestamp)

    def _read_cells(self, wanted: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        """The values of any number of cells, in steps that neither we nor the store choke on."""
        handles, known = self._handles, self._known
        values: list[bytes | None] = []
        reads: dict[tuple[TableHandle, bytes], RowRead] = {}
        missing, size, names = 0, _FIRST_STEP, 0
        for table, row, column in wanted:
            handle = handles[table]
            fields = handle.columns[column]
            key = row if type(row) is bytes else row_bytes(row)
            value = known(handle, key, fields)
            if value is UNREAD:
                read = reads.get((handle, key))
                if read is None:
                    read = reads[handle, key] = RowRead(handle, key)
                read.columns.append(fields)
                read.positions.append(len(values))
                missing += 1
                names += fields.names_bytes
                value = None
            values.append(value)
            if missing >= size or names > BYTES_AT_ONCE:
                self._fetch(list(reads.values()), values)
                brought = sum([len(values[one] or b"") for read in reads.values() for one in read.positions])
                size = max(1, min(CELLS_AT_ONCE, BYTES_AT_ONCE * missing // (brought + 1)))
                reads, missing, names = {}, 0, 0
                handles = self._handles  # the first step may have met a change
        if reads:
            self._fetch(list(reads.values()), values)
        return values

    def _known(self, handle: TableHandle, row: bytes, fields: ColumnFields) -> Any:  # noqa: ARG002
        """The value of a cell that need not be read, else `UNREAD`."""
        return UNREAD

    def _fetch(self, reads: Sequence[RowRead], values: list[bytes | None]) -> None:
        """Read the cells of ``reads`` and write each value to its position in ``values``.

        The versions and locks of extra cells go to ``brought`` of their read.
        """
        sparse = {read: read.handle.standing(read.row) for read in reads if read.is_sparse}
        cells = ((read.handle, read.row, read.columns[0].name) for read in reads)
        replies, standings = self._ask([read.command() for read in reads], cells, sparse.values())
        limit = self._limit
        unsettled: list[tuple[RowRead, ColumnFields, int]] = []
        for read, found in zip(reads, replies, strict=True):
            self._operations += len(read.columns)
            read.stands = read in sparse and standings[sparse[read]]
            pairs = iter(found)
            for fields, position, version, lock in zip(
                read.columns, read.positions, pairs, pairs, strict=False
            ):
                if version is None:
                    fields.note_missing()
                elif fields.sparse:
                    fields.sparse -= 1
                if not tells(version, lock, limit, read.stands):
                    unsettled.append((read, fields, position))
                elif version is not None and not version[KIND]:
                    values[position] = version[VALUE]
            read.brought = list(pairs) if read.extra else ()
        if unsettled:
            self._settle(unsettled, values)

    def _settle(
        self, unsettled: Sequence[tuple[RowRead, ColumnFields, int]], values: list[bytes | None]
    ) -> None:
        """Read cells of which the newest version and the lock do not tell the value."""
        located = [(read.handle.tag(read.row), read.row, fields.encoded) for read, fields, _ in unsettled]
        replies, _ = self._ask([self._slow_read(*where) for where in located])
        for where, (_, _, position), reply in zip(located, unsettled, replies, strict=True):
            found = self._found(reply)
            values[position] = _value(found.version if found.lock is None else self._read_slowly(*where))

    def _whole_row(self, handle: TableHandle, row: bytes) -> dict[str, bytes]:
        """All cells of a row: as they are now, if that tells what they were."""
        cells = self._row_as_it_is(handle, row)
        if cells is not None:
            return cells
        # A scan of one row: the bounds are the row key and the least key above it.
        for _, found in self._scan_store(handle, row, row + b"\0", None, 1, False):
            return found
        return {}

    def _row_as_it_is(self, handle: TableHandle, row: bytes) -> dict[str, bytes] | None:
        """The cells of a row; None if the newest versions do not tell them.

        So it is if the tablet does not stand, or a cell has a lock or a version above the snapshot.
        """
        self._must_be_of_this_process()
        self._round_trips += 1
        self._scans += 1
        commands = (b"HGETALL", handle.row_key(row)), handle.standing(row)
        if self._start_ts is None:
            flat, standing = self._first_read(commands, ((handle, row, "*"),))
        else:
            flat, standing = self._client.store.call(*commands)
        if not stands(standing, self.start_timestamp):
            return None
        limit = self._limit
        fields = iter(flat)
        for field, version in zip(fields, fields, strict=True):
            mark = field[:1]
            if mark == LOCK_MARK or (mark == VERSION_MARK and version >= limit):
                return None
        cells = settled_row(flat)
        self._scanned += len(cells)
        return cells

    def _ask(
        self, commands: Sequence[Command], cells: Iterable[_Cell] = (), standings: Iterable[bytes] = ()
    ) -> tuple[list[Any], dict[bytes, bool]]:
        """The replies to reads of some cells, and by request for a standing whether the tablet stands.

        The first ones fix the snapshot.
        """
        self._must_be_of_this_process()
        self._sent += len(commands)
        self._requests += 1
        # Behind the reads: a tablet that stands then has stood all the time.
        asked = list(dict.fromkeys(standings))
        whole = [*commands, *asked] if asked else commands
        if self._start_ts is None:
            replies = self._first_read(whole, cells)
        else:
            replies = self._client.store.exchange(whole).result()
        if not asked:
            return replies, {}
        at, count = self.start_timestamp, len(commands)
        return replies[:count], {
            one: stands(reply, at) for one, reply in zip(asked, replies[count:], strict=True)
        }

    def _first_read(self, commands: Sequence[Any], cells: Iterable[_Cell] = ()) -> list[Any]:
        """The read that fixes the snapshot carries the request for its timestamp in front of it."""
        self._must_be_of_this_process()
        timestamp, epoch, found = self._client.oracle.timestamp_then(*commands)
        if epoch != self._handles.epoch:
            timestamp = self._follow(timestamp, epoch, tuple(cells))
        self._fix(timestamp)
        return found

    def _follow(self, timestamp: int, epoch: bytes | None, cells: Sequence[_Cell]) -> int:
        """Take the tables as they were at the snapshot's timestamp: some were changed since the last look.

        Returns the timestamp, or a newer one where no cell was read at it.

        Raises:
            TransactionConflict: the cells were read by another definition of their table.
        """
        while True:
            tables = self._handles = self._client.catalog.refresh()
            for handle, row, column in cells:
                if tables.get(handle.name) is not handle or tables.epoch != epoch:
                    raise TransactionConflict(handle.name, row, column, CHANGED)
            if tables.epoch == epoch:
                return timestamp
            timestamp, epoch, _ = self._client.oracle.timestamp_then()

    def _judge(  # noqa: PLR0917
        self,
        tag: bytes,
        row: bytes,
        column: bytes,
        version: bytes | None,
        lock: bytes | None,
        stands: bool = False,
    ) -> Version | None:
        """The visible version, from the newest one and the lock if they settle it, else from the store."""
        if tells(version, lock, self._limit, stands):
            return None if version is None else unpack_version(version)
        return self._read_slowly(tag, row, column)

    def _slow_read(self, tag: bytes, row: bytes, column: bytes) -> Command:
        return self._client.store.command(calls.read(tag, self.start_timestamp, row, (column,)))

    def _found(self, reply: list[Any]) -> _Found:
        cells = calls.read_cells(reply)
        if cells is None:
            raise self._too_old()
        cell = cells[0]
        if len(cell) == 2:
            return _Found(None, cell[1])
        return _Found(unpack_version(cell[0]) if cell else None, None)

    def _read_slowly(self, tag: bytes, row: bytes, column: bytes) -> Version | None:
        patience = Patience(self._client)
        while True:
            (reply,), _ = self._ask([self._slow_read(tag, row, column)])
            found = self._found(reply)
            if found.lock is None:
                return found.version
            self._wait_or_resolve(patience, tag, row, column, found.lock)

    def _wait_or_resolve(
        self, patience: Patience, tag: bytes, row: bytes, column: bytes, lock: bytes
    ) -> None:
        if self._resolver is None:
            self._resolver = Resolver(self._client)
        if self._resolver.resolve(tag, row, column, lock).state == "live" and not patience.wait():
            raise LockTimeout.of_cell(row, decode_column(column), self._client.timeouts.lock_wait)

    def _too_old(self) -> SnapshotTooOld:
        return SnapshotTooOld(
            f"the snapshot at {self._start_ts} lies below the safe point: garbage collection has passed it, "
            "or the table or a column of it was dropped, or the table was made, since; begin a newer one"
        )

    def _scan_store(  # noqa: PLR0917
        self,
        handle: TableHandle,
        low: bytes,
        high: bytes | None,
        columns: Iterable[str] | None,
        limit: int | None,
        reverse: bool,
    ) -> Iterator[Row]:
        if columns is None and handle.is_typed:
            columns = handle.columns
        fields = [] if columns is None else [handle.columns[column] for column in columns]
        if columns is not None and not fields:
            return
        if high == low + b"\0":
            tags: Sequence[bytes] = [handle.tag(low)]
        else:
            tags = handle.tags
        page, slowly = first_page(limit, len(tags)), self._read_slowly
        scans = [TabletScan(tag, low, high, fields, page, reverse, slowly) for tag in tags]
        yield from merged(scans, self._take_steps, limit, reverse)

    def _take_steps(self, scans: Sequence[TabletScan]) -> None:
        """The next step of each, in one round trip."""
        self._must_be_of_this_process()
        steps = [scan.step(self.start_timestamp) for scan in scans]
        self._round_trips += 1
        for scan, found in zip(scans, self._client.store.run_all(steps), strict=True):
            if found is None:
                raise self._too_old()
            self._scans += 1
            self._scanned += scan.take(found)


def _value(version: Version | None) -> bytes | None:
    return None if version is None else version.value
