"""Reading at a timestamp (paper, figure 6, Get).

The newest version of a cell and its lock stand side by side in the row's hash, so most reads are one
``HMGET`` and no script: no lock, newest version below the snapshot. Everything else takes the slow path: an
older version, or a lock that may still commit below the snapshot and is therefore waited for or resolved.
"""

from __future__ import annotations

import heapq
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, Self

from percolator_core.catalog import ColumnFields, TableHandle
from percolator_core.client import Client
from percolator_core.errors import LockTimeout, SnapshotTooOld
from percolator_core.keys import decode_column
from percolator_core.model import VERSION_HEADER, Version, row_bytes, unpack_version, unpack_version_header
from percolator_core.resolver import Resolver

Row = tuple[bytes, dict[str, bytes]]

FRESH: Final = 300.0
"""Seconds after its begin during which a snapshot may take an absent cell for one that never was.

Garbage collection keeps the mark of a deletion for longer (`TOMBSTONE_GRACE`), so for a young snapshot an
absent cell was absent. An older one asks the store whether the safe point has passed it.
"""

PAGE_ROWS: Final = 512
PAGE_BYTES: Final = 1 << 20
"""Bounds of one step of a scan over one tablet."""

_KIND: Final = 1 << 56
_LONG_AGO: Final = (float("-inf"), float("-inf"))


class Snapshot:
    """The tables as of one timestamp; reads only.

    As a context manager it is pinned: garbage collection leaves what it sees alone until the block ends.
    """

    __slots__ = ("_client", "_known", "_pin", "_resolver", "_start_ts", "_started")

    def __init__(self, client: Client, start_ts: int | None = None, *, fresh: bool = True) -> None:
        """``fresh`` is False for a snapshot of the past, ``start_ts`` None to fix it at the first read."""
        self._client = client
        self._resolver = Resolver(client)
        self._known: dict[tuple[bytes, bytes, bytes], bytes | None] = {}
        """Values that `versions` has brought already."""
        self._start_ts = start_ts
        self._started = _clocks() if fresh else _LONG_AGO
        self._pin = b""

    def __enter__(self) -> Self:
        client = self._client
        # The owner in front ties the pin to our liveness token: that of a dead client does not count.
        self._pin = client.owner() + b":" + uuid.uuid4().bytes
        client.store.one((b"ZADD", client.store.keyspace.pins, self.start_timestamp, self._pin))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.store.one((b"ZREM", self._client.store.keyspace.pins, self._pin))

    @property
    def start_timestamp(self) -> int:
        """The snapshot's timestamp in microseconds; fixes the snapshot if no read has."""
        if self._start_ts is None:
            self._first_read(())
        assert self._start_ts is not None
        return self._start_ts

    def get(self, table: str, row: str | bytes, column: str) -> bytes | None:
        """The value of a cell, or None.

        Raises:
            UnknownTable, UnknownColumn: no such table, or a notify-only column.
            LockTimeout: another client has been committing to the cell for too long; try again later.
            SnapshotTooOld: garbage collection has passed this snapshot; begin a new one.
            StoreUnavailable: the store does not answer.
        """
        handle = self._client.catalog.table(table)
        return self._read(handle, row_bytes(row), handle.data_column(column))

    def get_row(self, table: str, row: str | bytes, columns: Iterable[str] | None = None) -> dict[str, bytes]:
        """The cells of a row that exist, by column; all columns, or those named.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, SnapshotTooOld, StoreUnavailable: as `get`.
        """
        handle = self._client.catalog.table(table)
        key = row_bytes(row)
        if columns is None:
            # A scan of one row: the bounds are the row key and the least key above it.
            for _, cells in self._scan_store(handle, key, key + b"\0", None, 1, False):
                return cells
            return {}
        wanted = list(columns)
        values = self._read_many([(handle, key, handle.data_column(column)) for column in wanted])
        return {column: value for column, value in zip(wanted, values, strict=True) if value is not None}

    def get_many(self, cells: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        """The values of many cells, in order, in one round trip where no lock is in the way.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, SnapshotTooOld, StoreUnavailable: as `get`.
        """
        table = self._client.catalog.table
        wanted = []
        for name, row, column in cells:
            handle = table(name)
            wanted.append((handle, row_bytes(row), handle.data_column(column)))
        return self._read_many(wanted)

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
        handle = self._client.catalog.table(table)
        low, high = scan_bounds(start, stop, prefix)
        if (high is not None and low >= high) or limit == 0:
            return iter(())
        return self._scan_store(handle, low, high, columns, limit, reverse)

    def versions(self, table: str, row: bytes, columns: Sequence[bytes]) -> list[Version | None]:
        """The visible versions of cells of one row, by encoded column: they tell their times, too."""
        tag = self._client.catalog.table(table).tag(row)
        fields = [field for column in columns for field in (b"c" + column, b"l" + column)]
        command = (b"HMGET", tag + b"r:" + row, *fields)
        found = self._first_read([command])[0] if self._start_ts is None else self._client.store.one(command)
        versions = [
            self._judge(tag, row, column, found[2 * position : 2 * position + 2])
            for position, column in enumerate(columns)
        ]
        for column, version in zip(columns, versions, strict=True):
            self._known[tag, row, column] = _value(version)
        return versions

    # Inside.

    def _fix(self, timestamp: int) -> None:
        self._start_ts = timestamp

    def _is_young(self) -> bool:
        # By both clocks: the monotonic one stands still while the machine sleeps, the other may be set back.
        (steady, wall), (steady_then, wall_then) = _clocks(), self._started
        return steady - steady_then < FRESH and abs(wall - wall_then) < FRESH

    def _read(self, handle: TableHandle, row: bytes, column: ColumnFields) -> bytes | None:
        client = self._client
        tag = handle.tag(row)
        if self._known and (tag, row, column.encoded) in self._known:
            return self._known[tag, row, column.encoded]
        command = (b"HMGET", tag + b"r:" + row, column.version, column.lock)
        found = (self._first_read([command]) if self._start_ts is None else client.store.call(command))[0]
        version, lock = found
        if lock is None and version is not None:
            commit_ts, word = unpack_version_header(version)
            if commit_ts < self._start_ts and word < _KIND:
                return version[VERSION_HEADER:]  # type: ignore[no-any-return]
        return _value(self._judge(tag, row, column.encoded, found))

    def _read_many(self, wanted: Sequence[tuple[TableHandle, bytes, ColumnFields]]) -> list[bytes | None]:
        if not wanted:
            return []
        located = [(handle.tag(row), row, column) for handle, row, column in wanted]
        commands = [
            (b"HMGET", tag + b"r:" + row, column.version, column.lock) for tag, row, column in located
        ]
        found = self._first_read(commands) if self._start_ts is None else self._client.store.call(*commands)
        return [
            _value(self._judge(tag, row, column.encoded, reply))
            for (tag, row, column), reply in zip(located, found, strict=True)
        ]

    def _first_read(self, commands: Sequence[Any]) -> list[Any]:
        """The read that fixes the snapshot carries the request for its timestamp in front of it."""
        asked = _clocks()  # before: a snapshot must never seem younger than it is
        timestamp, found = self._client.oracle.timestamp_then(*commands)
        self._fix(timestamp)
        self._started = asked
        return found

    def _judge(self, tag: bytes, row: bytes, column: bytes, found: Sequence[bytes | None]) -> Version | None:
        """The visible version, from the newest one and the lock if they settle it, else from the store."""
        version, lock = found
        if lock is None:
            if version is None:
                if self._is_young():
                    return None
            elif unpack_version_header(version)[0] < self.start_timestamp:
                return unpack_version(version)
        return self._read_slowly(tag, row, column)

    def _read_slowly(self, tag: bytes, row: bytes, column: bytes) -> Version | None:
        store = self._client.store
        patience = _Patience(self._client)
        while True:
            reply = store.one(store.script("read", [tag], self.start_timestamp, row, column))
            if reply[0] != b"cells":
                raise self._too_old()
            cell = reply[1]
            if len(cell) == 2:
                self._wait_or_resolve(patience, tag, row, column, cell[1])
                continue
            return unpack_version(cell[0]) if cell else None

    def _wait_or_resolve(
        self, patience: _Patience, tag: bytes, row: bytes, column: bytes, lock: bytes
    ) -> None:
        if self._resolver.resolve(tag, row, column, lock).state == "live" and not patience.wait():
            raise LockTimeout(
                f"row {row!r}, column {decode_column(column)}: another client has been committing for "
                f"{self._client.timeouts.lock_wait:g} s; try again later"
            )

    def _too_old(self) -> SnapshotTooOld:
        return SnapshotTooOld(
            f"the snapshot at {self._start_ts} lies below the safe point of garbage collection: "
            "begin a newer one"
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
        encoded = None if columns is None else [handle.data_column(column).encoded for column in columns]
        if encoded == []:
            return
        if high == low + b"\0":
            tags: Sequence[bytes] = [handle.tag(low)]
        else:
            tags = handle.tags
        page = PAGE_ROWS if limit is None else max(1, min(limit, PAGE_ROWS))
        cursors = [_TabletScan(self, tag, low, high, encoded, page, reverse) for tag in tags]
        replies = self._client.store.call(*[cursor.command(self.start_timestamp) for cursor in cursors])
        for cursor, reply in zip(cursors, replies, strict=True):
            cursor.take(reply)
        for count, found in enumerate(heapq.merge(*cursors, key=itemgetter(0), reverse=reverse), 1):
            yield found
            if count == limit:
                return


class _TabletScan:
    """The rows of one tablet, fetched a bounded step at a time."""

    __slots__ = ("_columns", "_high", "_low", "_more", "_page", "_reverse", "_rows", "_snapshot", "_tag")

    def __init__(  # noqa: PLR0917
        self,
        snapshot: Snapshot,
        tag: bytes,
        low: bytes,
        high: bytes | None,
        columns: list[bytes] | None,
        page: int,
        reverse: bool,
    ) -> None:
        self._snapshot = snapshot
        self._tag = tag
        self._low = b"[" + low
        self._high = b"+" if high is None else b"(" + high
        self._columns = columns or []
        self._page = page
        self._reverse = reverse
        self._rows: list[Row] = []
        self._more = True

    def command(self, at: int) -> Any:
        """The next step."""
        direction = b"backward" if self._reverse else b"forward"
        return self._snapshot._client.store.script(  # noqa: SLF001
            "scan", [self._tag], at, self._low, self._high, self._page, PAGE_BYTES, direction, *self._columns
        )

    def take(self, reply: list[Any]) -> None:
        """Take in the answer to a step."""
        if reply[0] != b"rows":
            raise self._snapshot._too_old()  # noqa: SLF001
        resume = reply[1]
        self._more = bool(resume)
        if self._reverse:
            self._high = resume
        else:
            self._low = resume
        for position in range(2, len(reply), 2):
            row = reply[position]
            cells = self._cells(row, reply[position + 1])
            if cells:
                self._rows.append((row, cells))

    def _cells(self, row: bytes, flat: list[Any]) -> dict[str, bytes]:
        cells: dict[str, bytes] = {}
        for position in range(0, len(flat), 2):
            column, cell = flat[position], flat[position + 1]
            if len(cell) == 2:
                value = _value(self._snapshot._read_slowly(self._tag, row, column))  # noqa: SLF001
            else:
                value = unpack_version(cell[0]).value
            if value is not None:
                cells[column.decode()] = value
        return cells

    def __iter__(self) -> Iterator[Row]:
        store = self._snapshot._client.store  # noqa: SLF001
        while True:
            rows, self._rows = self._rows, []
            yield from rows
            if not self._more:
                return
            self.take(store.one(self.command(self._snapshot.start_timestamp)))


class _Patience:
    """Waiting for a live lock: short at first, longer later, not for ever."""

    __slots__ = ("_client", "_deadline", "_pause")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._deadline = time.monotonic() + client.timeouts.lock_wait
        self._pause = 0.001

    def wait(self) -> bool:
        """Wait a little; False when it has been long enough."""
        if time.monotonic() >= self._deadline:
            return False
        self._client.store.sleep(self._pause)
        self._pause = min(self._pause * 2, 0.05)
        return True


def _value(version: Version | None) -> bytes | None:
    return None if version is None else version.value


def check_limit(limit: int, least: int) -> None:
    """TypeError for a limit that is no int, ValueError for one below ``least``."""
    if not isinstance(limit, int):
        raise TypeError(f"limit is int, not {type(limit).__name__}")
    if limit < least:
        raise ValueError(f"limit is {least} or more, not {limit}")


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()


def scan_bounds(
    start: str | bytes | None, stop: str | bytes | None, prefix: str | bytes | None
) -> tuple[bytes, bytes | None]:
    """``(low, high)`` of a scan: inclusive, exclusive; None is no upper bound."""
    low = row_bytes(start) if start is not None else b""
    high = row_bytes(stop) if stop is not None else None
    if prefix is not None:
        key = row_bytes(prefix)
        low = max(low, key)
        above = _least_above_prefix(key)
        if above is not None:
            high = above if high is None else min(high, above)
    return low, high


def _least_above_prefix(prefix: bytes) -> bytes | None:
    """The least key greater than every key with the prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
