"""Snapshots: the tables as of one timestamp, read by cell, by row and by range."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Final, Self
from zlib import crc32

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import PercolatorError
from percolator_core.layout.key_ranges import check_limit, scan_bounds
from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import (
    KIND,
    LOCK_MARK,
    PUT,
    VALUE,
    VERSION_MARK,
    Version,
    pack_timestamp,
    row_bytes,
)
from percolator_core.runtime import process
from percolator_core.runtime.html import Rows
from percolator_core.scripts.replies import Based
from percolator_core.store import is_being_ended
from percolator_core.store.packing import READ
from percolator_core.tables.select import RowBatch, TabletSelect
from percolator_core.transaction.cache import CACHE_CELL, Cache
from percolator_core.transaction.client import Client
from percolator_core.transaction.row_read import UNREAD, RowRead
from percolator_core.transaction.scan import Row, TabletScan, at_most, first_page, merged, scans_of_tablets
from percolator_core.transaction.whole_rows import WholeRows
from percolator_core.transaction.write_set import TableWrites, merge, rows_between, with_writes

_NO_WRITES: Final[dict[str, TableWrites]] = {}


class Snapshot(WholeRows):
    """The tables as of one timestamp; reads only.

    A ``with`` statement pins the snapshot: garbage collection keeps each visible version until the block
    ends.
    """

    __slots__ = ("_pin",)

    def __init__(self, client: Client, start_ts: int | None = None) -> None:
        """Without ``start_ts`` the first read, or the first use of the timestamp, fixes the snapshot."""
        catalog = client.catalog
        if start_ts is not None:
            catalog.look()  # the timestamp may be newer than this client's copy
        elif monotonic() >= catalog.due:
            catalog.keep_fresh()
        self._client = client
        self._handles = catalog.handles
        self._process = process.pid
        self._state = "open"
        self._start_ts = start_ts
        self._limit = b"" if start_ts is None else pack_timestamp(start_ts)
        self._after = None
        self._writes = _NO_WRITES
        self._cache = Cache()
        self._cache.room, self._cache.prefetch = 0, None
        self._resolver = None
        self._round_trips = self._requests = self._operations = self._sent = 0
        self._scans = self._scanned = self._gets = self._cached = 0

    def __enter__(self) -> Self:
        self._must_be_of_this_process()
        client = self._client
        # The owner's name ties the pin to the liveness token: the pin of a dead client does not count.
        self._pin = client.owner() + b":" + uuid.uuid4().bytes
        try:
            client.store.one((b"ZADD", client.store.keyspace.pins, self.start_timestamp, self._pin))
        except BaseException:
            self._unpin_unawaited()  # if an exception ends __enter__, __exit__ is never called
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process != process.pid:
            return  # the pin is the parent's
        if is_being_ended():
            self._unpin_unawaited()
            return
        try:
            self._client.store.one((b"ZREM", self._client.store.keyspace.pins, self._pin))
        except PercolatorError:
            if error is None:  # otherwise the block's error is raised; the pin ends with the liveness token
                raise

    def _unpin_unawaited(self) -> None:
        """Unpin without waiting. A lost request delays garbage collection until the client ends."""
        with suppress(PercolatorError):
            self._client.store.defer((b"ZREM", self._client.store.keyspace.pins, self._pin))

    def get(  # noqa: C901 - in line, because most reads take this path
        self, table: str, row: str | bytes, column: str
    ) -> bytes | None:
        """The value of a cell, or None.

        Raises:
            UnknownTable, UnknownColumn: no such table, or a notify-only column.
            LockTimeout: another client has been committing to the cell for too long; try again later.
            SnapshotTooOld: garbage collection has passed this snapshot, or its table or a column was dropped
            since; begin a new one.
            TransactionConflict: the table was changed when the transaction began to read; run it again.
            StoreUnavailable: the store does not answer.
        """
        if self._state != "open" or self._process != process.pid:
            self._must_be_open()
        handle = self._handles[table]
        fields = handle.columns[column]
        if type(row) is not bytes:
            row = row.encode() if type(row) is str else row_bytes(row)
        cache = self._cache
        if cache.prefetch is not None:
            return self._read_cells(((table, row, column),))[0]
        if self._writes:
            own = self._writes.get(table, {}).get(row, {}).get(fields.encoded)
            if own is not None:
                kind, written = own
                return written if kind == PUT else None
        cells = cache[fields]
        known: bytes | None = cells.get(row, UNREAD)
        if known is not UNREAD:
            self._cached += 1
            return known
        if fields.sparse:
            return self._sparse_cell(handle, row, fields)
        # This repeats `_values`, `pack_read`, `is_settled` and `Cache.keep` in line, for a cell that exists.
        # The condition below may send a cell to `_judge` that `is_settled` would accept. But it must never
        # accept a cell that `is_settled` rejects.
        place = handle.place
        key = handle.row_prefixes[crc32(row) % handle.tablets if place is None else place(row)] + row
        command = READ % (len(key), key, fields.packed)
        self._gets += 1
        if self._start_ts is None:
            version, lock = self._first_read((command,), ((handle, row, column),))[0]
        else:
            exchange = self._client.store.exchange((command,))
            version, lock = (exchange.replies or exchange.result())[0]
        if lock is None and version is not None and version < self._limit and not version[KIND]:
            value: bytes | None = version[VALUE]
            room = cache.room - CACHE_CELL - len(row) - len(version)
            if room > 0:
                cache.room = room
                cells[row] = value
            return value
        if version is None:
            fields.note_missing()
        found = self._judge(handle, row, fields.encoded, version, lock)
        value = None if found is None else found.value
        cache.keep(fields, row, value)
        return value

    def get_row(self, table: str, row: str | bytes, columns: Iterable[str] | None = None) -> dict[str, bytes]:
        """The existing cells of a row, by column; only the named columns, if ``columns`` is given.

        Raises as `get`.
        """
        self._must_be_open()
        handle, key = self._handles[table], row_bytes(row)
        if columns is None and handle.is_typed:
            columns = handle.columns
        if columns is None:
            cells = self._whole_row(handle, key)
            if self._cache.room > 0:
                for column, cell in cells.items():
                    self._cache.keep(handle.columns[column], key, cell)
            return with_writes(cells, self._writes.get(table, {}).get(key, {}), None)
        wanted = list(columns)
        values = self._read_cells((table, key, column) for column in wanted)
        if wanted:
            self.start_timestamp  # noqa: B018 - a read fixes the snapshot, even if own writes answer it
        return {column: value for column, value in zip(wanted, values, strict=True) if value is not None}

    def get_many(self, cells: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        """The values of many cells, in the order of ``cells``.

        This takes one round trip if no lock blocks a read, or a few round trips for more than 500 cells.
        Cells of one row that are near each other in the list share a command. Raises as `get`.
        """
        self._must_be_open()
        return self._read_cells(cells)

    def versions(self, table: str, row: bytes, columns: Sequence[bytes]) -> list[Version | None]:
        """Return the visible versions, with their timestamps, of encoded columns of one row.

        The transaction's own writes are not included. A run of an observer begins with this read.
        """
        handle, cache = self._handles[table], self._cache
        extra: Sequence[ColumnFields] = ()
        if cache.prefetch is not None:
            extra = cache.prefetch.extra_of_run(handle, row, columns, cache.room)
        names = [*columns, *(fields.encoded for fields in extra)]
        marked = (mark + name for name in names for mark in (VERSION_MARK, LOCK_MARK))
        cell, standing = (handle, row, handle.decode(columns[0])), handle.standing(row)
        (found,), standings = self._ask([(b"HMGET", handle.row_key(row), *marked)], (cell,), (standing,))
        self._operations += len(columns)
        base = standings[standing]
        versions = [
            self._judge(handle, row, column, found[2 * position], found[2 * position + 1], base)
            for position, column in enumerate(columns)
        ]
        for column, version in zip(columns, versions, strict=True):
            if not is_internal(column):
                cache.keep(handle.fields(column), row, None if version is None else version.value)
        if extra:
            read = RowRead(handle, row, [])
            read.extra, read.brought, read.base = extra, found[2 * len(columns) :], base
            cache.keep_extra(read, self._limit)
        return versions

    def versions_of(
        self, handle: TableHandle, rows: Sequence[bytes], fields: Sequence[ColumnFields]
    ) -> list[list[Version | None]]:
        """Return, for each row, the visible versions of the same columns.

        The transaction's own writes are not included. Each row needs one command, and all commands are sent
        in one round trip. The caller must limit the number of rows.
        """
        self._must_be_open()
        if not rows or not fields:
            return [[] for _ in rows]
        reads = [RowRead(handle, row, list(fields)) for row in rows]
        self._operations += len(rows) * len(fields)
        found = []
        cells, standings = ((handle, row, fields[0].name) for row in rows), map(handle.standing, rows)
        replies, bases = self._ask([read.command() for read in reads], cells, standings)
        for row, flat in zip(rows, replies, strict=True):
            pairs = iter(flat)
            base = bases[handle.standing(row)]
            versions = []
            for one, version, lock in zip(fields, pairs, pairs, strict=False):
                visible = self._judge(handle, row, one.encoded, version, lock, base)
                self._cache.keep(one, row, None if visible is None else visible.value)
                versions.append(visible)
            found.append(versions)
        return found

    # Ranges of rows.

    def scan(  # noqa: PLR0917
        self,
        table: str,
        start: str | bytes | None = None,
        stop: str | bytes | None = None,
        prefix: str | bytes | None = None,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Rows[Row]:
        """The rows of a table with their cells, in row order across tablets.

        ``start`` is inclusive, ``stop`` exclusive; ``prefix`` narrows both. Rows that have none of the
        ``columns`` are left out. At most ``limit`` rows (0 or more) are returned; None means all. Rows are
        fetched in bounded steps while the iterator is consumed. A scan of a transaction includes the writes
        that it made before the call.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, SnapshotTooOld, StoreUnavailable: as `get`; also while
            the iterator is consumed.
            TypeError, ValueError: ``limit`` is no int, or below 0.
        """
        self._must_be_open()
        if limit is not None:
            check_limit(limit, 0)
        wanted = None if columns is None else list(columns)
        handle = self._fixed()[table]
        low, high = scan_bounds(start, stop, prefix)
        if (high is not None and low >= high) or limit == 0:
            return Rows(iter(()))
        writes = self._writes.get(table)
        if not writes:
            return Rows(self._scan_store(handle, low, high, wanted, limit, reverse))
        written = rows_between(writes, handle, low, high, reverse)
        # Each written row may replace or hide a stored row.
        most = None if limit is None else limit + len(written)
        stored = self._scan_store(handle, low, high, wanted, most, reverse)
        return Rows(at_most(limit, merge(stored, written, wanted, reverse)))

    def tablet_scans(  # noqa: PLR0917
        self,
        handle: TableHandle,
        low: bytes,
        high: bytes | None,
        columns: Iterable[str],
        rows: int,
        cut: int | None = None,
        *,
        reverse: bool = False,
    ) -> list[TabletScan]:
        """Scans of all tablets that may have rows of the range, for `take_scans`.

        They return ``columns``; none means all. Each step looks at ``rows`` rows at most. If whole rows are
        scanned, ``cut`` limits the bytes of each value that are fetched.
        """
        fields = [handle.columns[column] for column in columns]
        return scans_of_tablets(handle, low, high, fields, rows, reverse, self._other_reads, cut)

    def take_scans(self, scans: Sequence[TabletScan]) -> None:
        """Fetch the next step of each scan, in one round trip."""
        # A scan must not continue after the commit: a transaction that only wrote may have an old start.
        self._must_be_open()
        at = self.start_timestamp
        asked = [scan for scan in scans if not scan.next_page()]
        if not asked:
            return
        steps = [scan.step(at) for scan in asked]
        self._round_trips += 1
        for scan, found in zip(asked, self._client.store.run_all(steps), strict=True):
            if found is None:
                raise self._too_old()
            self._scans += 1
            self._scanned += scan.take(found)

    def take_batches(self, selects: Sequence[TabletSelect]) -> list[RowBatch]:
        """Fetch the next step of each select, in one round trip, without the transaction's own writes."""
        self._must_be_open()
        steps = [select.step(self.start_timestamp) for select in selects]
        self._round_trips += 1
        batches: list[RowBatch] = []
        for select, found in zip(selects, self._client.store.run_all(steps), strict=True):
            if found is None:
                raise self._too_old()
            batch = self._above_base(select, found.base) if isinstance(found, Based) else select.take(found)
            self._scans += 1
            self._scanned += len(batch) * max(1, len(batch.layout.cells))
            batches.append(batch)
        return batches

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
        page = first_page(limit, 1 if high == low + b"\0" else handle.tablets)
        scans = scans_of_tablets(handle, low, high, fields, page, reverse, self._other_reads)
        yield from merged(scans, self.take_scans, limit, reverse)

    def _whole_row(self, handle: TableHandle, row: bytes) -> dict[str, bytes]:
        """All cells of a row: from its newest versions if they are the visible ones, else from a scan."""
        cells = self._newest_row(handle, row)
        if cells is not None:
            return cells
        scanned = self._scan_store(handle, row, row + b"\0", None, 1, False)
        return next((found for _, found in scanned), {})
