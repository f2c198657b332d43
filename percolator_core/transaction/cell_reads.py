"""Reading cells at a timestamp (paper, figure 6, Get).

The newest version of a cell and its lock are two fields of the row's hash. Most reads find no lock, and a
newest version below the snapshot, so they are one ``HMGET`` and no script. Any other read runs a script. The
script finds an older version, or a lock whose transaction may still commit below the snapshot. The read waits
for such a lock, or resolves it.

A missing cell proves nothing by itself: garbage collection removes deletions, tables are dropped, and cold
rows move to the base. The cell does not exist if the tablet has a version, no safe point above the snapshot,
and no base. With a base, the value is that of the base. Version, safe point and base of the tablet are read
after the cell. If rows often lack the column, a single request reads the cell and these three.

A snapshot of the present uses the definitions of tables as of its timestamp; the oracle returns the catalog's
epoch with the timestamp. A snapshot of the past uses the definitions as of the moment when it was made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from percolator_core.base.bases import Wanted
from percolator_core.catalog.catalog import CHANGED, Tables
from percolator_core.catalog.table_handle import ColumnFields, TableHandle, base_below
from percolator_core.errors import (
    ConfigurationError,
    PercolatorError,
    TransactionConflict,
    of_another_process,
)
from percolator_core.layout.records import (
    KIND,
    LOCK_MARK,
    PUT,
    VALUE,
    VERSION_MARK,
    Version,
    is_settled,
    pack_timestamp,
    row_bytes,
    unpack_version,
)
from percolator_core.runtime import process
from percolator_core.store import Store
from percolator_core.store.packing import Command, pack_read
from percolator_core.transaction.cache import Cache
from percolator_core.transaction.late_reads import Cold, LateReads, Unsettled
from percolator_core.transaction.row_read import BYTES_AT_ONCE, CELLS_AT_ONCE, UNREAD, RowRead
from percolator_core.transaction.scan import delta_of, merged_cells, settled_row
from percolator_core.transaction.write_set import TableWrites

_FIRST_STEP: Final = 500
"""The number of cells in the first step, in which the size of the values is not known yet."""

_Cell: TypeAlias = tuple[TableHandle, bytes, str]
"""A cell that is read: its table, row and column."""


class CellReads(LateReads):
    """Reads of cells: from the transaction's own writes, else from the cache, else from the store.

    A plain snapshot has no writes and keeps nothing in its cache. The constructors of `Snapshot` and
    `Transaction` set all attributes. ``_limit`` is the timestamp packed as in a version, so that a visible
    version compares as less. ``_gets`` counts reads that were one operation, one command and one round trip;
    the other counters are as in `Cost`.
    """

    __slots__ = (
        "_after",
        "_cache",
        "_cached",
        "_client",
        "_gets",
        "_handles",
        "_limit",
        "_operations",
        "_process",
        "_requests",
        "_scans",
        "_sent",
        "_start_ts",
        "_state",
        "_writes",
    )

    _after: int | None
    _cache: Cache
    _cached: int
    _gets: int
    _operations: int
    _process: int
    _requests: int
    _scans: int
    _sent: int
    _state: Literal["open", "committed", "discarded"]
    _writes: dict[str, TableWrites]

    @property
    def start_timestamp(self) -> int:
        """The snapshot's timestamp in microseconds.

        The first use fixes the snapshot, unless a read has done so.
        """
        if self._start_ts is None:
            self._round_trips += 1
            self._first_read(())
        assert self._start_ts is not None
        return self._start_ts

    def own_rows(self, table: str) -> Collection[bytes]:
        """The rows of a table that have buffered writes."""
        return self._writes.get(table, {}).keys()

    def values_of(
        self, wanted: Iterable[tuple[TableHandle, bytes, Sequence[ColumnFields]]]
    ) -> list[list[bytes | None]]:
        """Return the values of some cells of many rows, row by row. Each row needs one command."""
        self._must_be_open()
        wanted = list(wanted)
        values = iter(self._values(wanted))
        return [[next(values) for _ in columns] for _, _, columns in wanted]

    @property
    def _store(self) -> Store:
        return self._client.store

    def _fixed(self) -> Tables:
        self.start_timestamp  # noqa: B018 - its first use fixes the snapshot
        return self._handles

    def _must_be_open(self) -> None:
        self._must_be_of_this_process()
        if self._state != "open":
            raise PercolatorError(f"the transaction is {self._state}: begin a new one")

    def _must_be_of_this_process(self) -> None:
        """Raise in a forked child: two processes must not use one transaction with one start."""
        if self._process != process.pid:
            raise of_another_process("transaction or snapshot")

    # The snapshot's timestamp.

    def _first_read(self, commands: Sequence[Any], cells: Iterable[_Cell] = ()) -> list[Any]:
        """Request the timestamp and, after it in the same batch, run the commands that read ``cells``."""
        self._must_be_of_this_process()
        # This repeats `Oracle.timestamp_then` in line, because most transactions take this path.
        oracle = self._client.oracle
        seen = oracle.seen
        timestamp, epoch, found = self._client.store.timestamp_then(*commands)
        if timestamp <= seen:
            oracle.accept(timestamp, seen)  # raises
        if timestamp > oracle.seen:  # noqa: PLR1730 - `max` takes much longer
            oracle.seen = timestamp
        if epoch != self._handles.epoch:
            timestamp = self._follow(timestamp, epoch, tuple(cells))
        if self._after is not None and timestamp <= self._after:
            raise ConfigurationError(
                f"the timestamp after={self._after} comes from another store, or from the future"
            )
        self._start_ts = timestamp
        self._limit = pack_timestamp(timestamp)
        return found

    def _follow(self, timestamp: int, epoch: bytes | None, cells: Sequence[_Cell]) -> int:
        """Load the tables as of the snapshot's timestamp, after a change of the catalog.

        Return the timestamp, or a newer one if no cell was read yet. Raises TransactionConflict if the cells
        were read with another definition of their table.
        """
        while True:
            tables = self._handles = self._client.catalog.refresh()
            for handle, row, column in cells:
                if tables.get(handle.name) is not handle or tables.epoch != epoch:
                    raise TransactionConflict(handle.name, row, column, CHANGED)
            if tables.epoch == epoch:
                return timestamp
            timestamp, epoch, _ = self._client.oracle.timestamp_then()

    # From a cell to its value.

    def _read_cells(self, wanted: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        return self._values(self._located(wanted))

    def _located(
        self, wanted: Iterable[tuple[str, str | bytes, str]]
    ) -> Iterable[tuple[TableHandle, bytes, Sequence[ColumnFields]]]:
        for table, row, column in wanted:
            handle = self._handles[table]  # looked up for each cell: the first step may load changed tables
            yield handle, row if type(row) is bytes else row_bytes(row), (handle.columns[column],)

    def _sparse_cell(self, handle: TableHandle, row: bytes, column: ColumnFields) -> bytes | None:
        """Read a cell that is likely to be missing, and the tablet's version, safe point and base with it."""
        self._gets += 1
        tablet = handle.tablet(row)
        commands = pack_read(handle.row_prefixes[tablet] + row, column.packed), handle.standings[tablet]
        if self._start_ts is None:
            (version, lock), standing = self._first_read(commands, ((handle, row, column.name),))
        else:
            (version, lock), standing = self._client.store.exchange(commands).result()
        if version is None:
            column.note_missing()
        elif column.sparse:  # other tasks may have lowered it to 0 during the read
            column.sparse -= 1
        base = base_below(standing, self.start_timestamp)
        if base and version is None and lock is None:
            wanted = Wanted((handle, handle.tags[tablet], base), row, (column.encoded,))
            [[value]] = self._client.bases.values((wanted,))
        else:
            found = self._judge(handle, row, column.encoded, version, lock, base)
            value = None if found is None else found.value
        self._cache.keep(column, row, value)
        return value

    def _values(
        self, wanted: Iterable[tuple[TableHandle, bytes, Sequence[ColumnFields]]]
    ) -> list[bytes | None]:
        """The values of any number of cells, in steps whose size is bounded for the client and the store."""
        known = self._known
        values: list[bytes | None] = []
        reads: dict[tuple[TableHandle, bytes], RowRead] = {}
        missing, size, names = 0, _FIRST_STEP, 0
        for handle, row, columns in wanted:
            for column in columns:
                value = known(handle, row, column)
                if value is UNREAD:
                    read = reads.get((handle, row))
                    if read is None:
                        read = reads[handle, row] = RowRead(handle, row, [])
                    read.columns.append(column)
                    read.positions.append(len(values))
                    missing += 1
                    names += column.names_bytes
                    value = None
                values.append(value)
            if missing >= size or names > BYTES_AT_ONCE:
                self._fetch(list(reads.values()), values)
                brought = sum([len(values[one] or b"") for read in reads.values() for one in read.positions])
                size = max(1, min(CELLS_AT_ONCE, BYTES_AT_ONCE * missing // (brought + 1)))
                reads, missing, names = {}, 0, 0
        if reads:
            self._fetch(list(reads.values()), values)
        return values

    def _known(self, handle: TableHandle, row: bytes, column: ColumnFields) -> Any:
        """The value of a cell in the transaction's own writes or in its cache, else `UNREAD`."""
        if self._writes:
            own = self._writes.get(handle.name, {}).get(row, {}).get(column.encoded)
            if own is not None:
                kind, written = own
                return written if kind == PUT else None
        cache = self._cache
        cells = cache.get(column)
        if cells is None:
            return UNREAD
        value = cells.get(row, UNREAD)
        if value is not UNREAD and (
            cache.prefetch is None or not cache.prefetch.serves(handle, row, column, value)
        ):
            self._cached += 1
        return value

    def _fetch(self, reads: Sequence[RowRead], values: list[bytes | None]) -> None:
        """Read the cells of ``reads``, write each value to its position in ``values``, and fill the cache."""
        cache = self._cache
        if cache.prefetch is not None:
            cache.prefetch.extend(reads, cache.room)
        sparse = {read: read.handle.standing(read.row) for read in reads if read.is_sparse}
        cells = ((read.handle, read.row, read.columns[0].name) for read in reads)
        replies, standings = self._ask([read.command() for read in reads], cells, sparse.values())
        unsettled: list[Unsettled] = []
        cold: list[Cold] = []
        for read, found in zip(reads, replies, strict=True):
            self._operations += len(read.columns)
            if read in sparse:
                read.base = standings[sparse[read]]
            self._take(read, found, values, unsettled, cold)
        if unsettled or cold:
            self._read_late(unsettled, cold, values)
        if cache.room > 0:
            for read in reads:
                for column, position in zip(read.columns, read.positions, strict=True):
                    cache.keep(column, read.row, values[position])
        if cache.prefetch is not None:
            cache.prefetch.record(reads, values)
            for read in reads:
                cache.keep_extra(read, self._limit)

    def _take(
        self,
        read: RowRead,
        found: Iterable[bytes | None],
        values: list[bytes | None],
        unsettled: list[Unsettled],
        cold: list[Cold],
    ) -> None:
        """Take the reply to one command; add cells that need another read to ``unsettled`` or ``cold``."""
        limit, pairs, base = self._limit, iter(found), read.base
        missing: list[tuple[bytes, int]] = []
        for column, position, version, lock in zip(read.columns, read.positions, pairs, pairs, strict=False):
            if version is None:
                column.note_missing()
            elif column.sparse:
                column.sparse -= 1
            if not is_settled(version, lock, limit, base is not None):
                unsettled.append((read, column, position))
            elif version is None:
                missing.append((column.encoded, position))
            elif not version[KIND]:
                values[position] = version[VALUE]
        if base and missing:
            columns, positions = zip(*missing, strict=True)
            wanted = Wanted((read.handle, read.handle.tag(read.row), base), read.row, columns)
            cold.append((wanted, positions))
        read.brought = list(pairs) if read.extra else ()

    def _ask(
        self, commands: Sequence[Command], cells: Iterable[_Cell] = (), standings: Iterable[bytes] = ()
    ) -> tuple[list[Any], dict[bytes, bytes | None]]:
        """Return the replies to ``commands``, and the result of `base_below` by command of ``standings``."""
        self._must_be_of_this_process()
        self._sent += len(commands)
        self._requests += 1
        # These commands run after the reads, so a tablet that is complete now was so during the reads.
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
            one: base_below(reply, at) for one, reply in zip(asked, replies[count:], strict=True)
        }

    def _judge(  # noqa: PLR0917
        self,
        handle: TableHandle,
        row: bytes,
        column: bytes,
        version: bytes | None,
        lock: bytes | None,
        base: bytes | None = None,
    ) -> Version | None:
        """Return the visible version.

        It is the newest version or the version of the base; if neither is certain, a script finds it.
        """
        if not is_settled(version, lock, self._limit, base is not None):
            return self._read_slowly(handle, row, column)
        if version is not None:
            return unpack_version(version)
        return self._of_base(handle, row, column, base) if base else None

    def _newest_row(self, handle: TableHandle, row: bytes) -> dict[str, bytes] | None:
        """The cells of a row from its newest versions.

        None if other versions may be the visible ones: a cell has a lock or a version above the snapshot, or
        `base_below` returns None for the tablet.
        """
        self._must_be_of_this_process()
        self._round_trips += 1
        self._scans += 1
        commands = (b"HGETALL", handle.row_key(row)), handle.standing(row)
        if self._start_ts is None:
            flat, standing = self._first_read(commands, ((handle, row, "*"),))
        else:
            flat, standing = self._client.store.call(*commands)
        base = base_below(standing, self.start_timestamp)
        if base is None:
            return None
        limit = self._limit
        fields = iter(flat)
        for field, version in zip(fields, fields, strict=True):
            mark = field[:1]
            if mark == LOCK_MARK or (mark == VERSION_MARK and version >= limit):
                return None
        cells = settled_row(flat)
        self._scanned += len(cells)
        if not base:
            return cells
        below = self._client.bases.row(handle, handle.tag(row), base, row)
        return merged_cells(handle, delta_of(flat), below)
