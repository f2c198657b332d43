"""Reads for which a cell's newest version and lock do not suffice. They run a script, or read the base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from percolator_core.base.bases import Wanted
from percolator_core.base.row_set import Delta
from percolator_core.base.tablet import TabletBase
from percolator_core.catalog.table_handle import ColumnFields, TableHandle, base_below
from percolator_core.errors import LockTimeout, SnapshotTooOld
from percolator_core.layout.key_ranges import KeyRange
from percolator_core.layout.keys import BASE, decode_column, meta_key, rows_key
from percolator_core.layout.records import Version, unpack_version
from percolator_core.schema.definitions import Column
from percolator_core.scripts import calls
from percolator_core.scripts.replies import read_cells
from percolator_core.store.packing import Command
from percolator_core.tables.operations import TypedReads
from percolator_core.tables.select import ArrowBatch, TabletSelect
from percolator_core.transaction.client import Client
from percolator_core.transaction.lock_resolver import Patience, Resolver
from percolator_core.transaction.row_read import RowRead
from percolator_core.transaction.scan import PAGE_ROWS, OtherReads, TabletScan

_AT_ONCE: Final = 16
"""At most this many steps of scans are sent together: the store runs one while the client decodes another."""

Unsettled: TypeAlias = tuple[RowRead, ColumnFields, int]
"""A cell whose newest version and lock did not suffice for the read, and its position among the values."""

Cold: TypeAlias = tuple[Wanted, Sequence[int]]
"""Cells of a row that the store does not have, and their positions among the values."""


class _Found(NamedTuple):
    version: Version | None
    lock: bytes | None
    """The lock that blocks the read."""
    base: bytes
    """The reference of the tablet's base."""


def with_cold(versions: list[Version], cold: Version | None, most: int) -> list[Version]:
    """Add the base's version of a cell to the store's versions, newest first, up to ``most`` versions.

    The base has one version of a cell: garbage collection has removed the older ones before the flush.
    """
    if cold is None or len(versions) >= most or any(cold.commit_ts >= one.commit_ts for one in versions):
        return versions
    return [*versions, cold]


class LateReads(TypedReads):
    """The part of `CellReads` that most reads do not need."""

    __slots__ = ("_resolver", "_round_trips", "_scanned")

    _client: Client
    _limit: bytes
    _resolver: Resolver | None
    _round_trips: int
    _scanned: int
    _start_ts: int | None

    def _ask(self, commands: Sequence[Command]) -> tuple[list[Any], Any]:
        """Return the replies to reads of cells."""
        raise NotImplementedError

    def _read_cells(self, wanted: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        """Return the values of cells."""
        raise NotImplementedError

    def _above_base(self, select: TabletSelect, base: bytes) -> ArrowBatch:
        """Return the rows of the next step of a select in a tablet with a base."""
        from percolator_core.transaction.base_select import merged_step  # pyarrow is optional

        found = merged_step(select, base, self._other_reads, lambda scan: self._fetch_deltas([scan])[0])
        return ArrowBatch(select.layout, found)

    def _fetch_deltas(self, scans: Sequence[TabletScan]) -> list[bytes]:
        """Fetch the next step of each scan; return the reference of each tablet's base at that time."""
        steps = [scan.step(self.start_timestamp) for scan in scans]
        bases = []
        for scan, found in zip(scans, self._client.store.run_all(steps, together=_AT_ONCE), strict=True):
            if found is None:
                raise self._too_old()
            self._scanned += scan.take_deltas(found)
            bases.append(found[1])
        self._round_trips += -(-len(steps) // _AT_ONCE)
        return bases

    @property
    def _other_reads(self) -> OtherReads:
        return OtherReads(self._read_slowly, self._client.bases)

    def deltas(
        self, handle: TableHandle, columns: Iterable[Column]
    ) -> Iterator[tuple[TabletBase, dict[bytes, Delta]]]:
        """Yield the base of each tablet of a typed table, and the deltas of the tablet's rows in the store.

        The caller must limit the number of rows. Raises the errors of a select.
        """
        fields = [handle.marker, *(handle.columns[one.name] for one in columns)]
        if len(fields) > len(handle.definition.value_columns):
            fields = []  # read whole rows: most rows in the store have few cells
        left: Sequence[bytes] = handle.tags
        while left:
            scans = [
                TabletScan(handle, tag, b"", None, fields, PAGE_ROWS, False, self._other_reads)
                for tag in left
            ]
            deltas: list[dict[bytes, Delta]] = [{} for _ in left]
            bases: list[list[bytes]] = [[] for _ in left]
            while some := [number for number, scan in enumerate(scans) if scan.more]:
                fetched = self._fetch_deltas([scans[number] for number in some])
                for number, base in zip(some, fetched, strict=True):
                    deltas[number].update((row, delta) for row, delta in scans[number].deltas if delta)
                    bases[number].append(base)
            again = []
            for tag, found, seen in zip(left, deltas, bases, strict=True):
                if seen[-1] or not any(seen):
                    yield self._client.bases.tablet(handle, tag, seen[-1]), found
                else:
                    # The base was removed, and its rows came into the store, perhaps at keys that the scan
                    # has passed. So scan again.
                    again.append(tag)
            left = again

    def stored_rows(self, handle: TableHandle) -> int:
        """Return the number of a table's rows that are in the store, at least in part."""
        return sum(self._client.store.call(*((b"ZCARD", rows_key(tag)) for tag in handle.tags)))

    def count_rows(self, ranges: Sequence[KeyRange]) -> list[int]:
        """Return the approximate number of rows in each key range; removed rows may be included."""
        tags = list(dict.fromkeys(tag for tag, _, _ in ranges))
        commands: list[Command] = [
            (b"ZLEXCOUNT", rows_key(tag), b"[" + low, b"+" if high is None else b"(" + high)
            for tag, low, high in ranges
        ]
        commands += [(b"HGET", meta_key(tag), BASE) for tag in tags]
        found = self._client.store.exchange(commands).result()
        counts, references = found[: len(ranges)], found[len(ranges) :]
        bases = dict(zip(tags, references, strict=True))
        return [
            count + (self._client.bases.about(bases[tag], low, high) if bases[tag] else 0)
            for count, (tag, low, high) in zip(counts, ranges, strict=True)
        ]

    def _read_late(
        self, unsettled: Sequence[Unsettled], cold: list[Cold], values: list[bytes | None]
    ) -> None:
        """Read the cells of both lists, and write each value to its position in ``values``."""
        if unsettled:
            self._settle(unsettled, cold, values)
        found = self._client.bases.values([wanted for wanted, _ in cold]) if cold else []
        for (_, positions), cells in zip(cold, found, strict=True):
            for position, value in zip(positions, cells, strict=True):
                values[position] = value

    def _settle(self, unsettled: Sequence[Unsettled], cold: list[Cold], values: list[bytes | None]) -> None:
        """Read the unsettled cells by script; add to ``cold`` those that the base may have."""
        located = [(read.handle, read.row, column.encoded) for read, column, _ in unsettled]
        replies, _ = self._ask([self._read_command(*where) for where in located])
        for (handle, row, column), (_, _, position), reply in zip(located, unsettled, replies, strict=True):
            found = self._found(reply)
            version = found.version if found.lock is None else self._read_slowly(handle, row, column)
            values[position] = None if version is None else version.value
            if version is None and found.base:
                cold.append((Wanted((handle, handle.tag(row), found.base), row, [column]), [position]))

    def _of_base(self, handle: TableHandle, row: bytes, column: bytes, base: bytes) -> Version | None:
        return self._client.bases.versions([Wanted((handle, handle.tag(row), base), row, [column])])[0][0]

    def _read_command(self, handle: TableHandle, row: bytes, column: bytes) -> Command:
        return self._client.store.command(calls.read(handle.tag(row), self.start_timestamp, row, (column,)))

    def _found(self, reply: list[Any]) -> _Found:
        found = read_cells(reply)
        if found is None:
            raise self._too_old()
        cell = found.cells[0]
        if len(cell) == 2:
            return _Found(None, cell[1], found.base)
        return _Found(unpack_version(cell[0]) if cell else None, None, found.base)

    def _read_slowly(self, handle: TableHandle, row: bytes, column: bytes) -> Version | None:
        """Return the visible version of a cell. Wait for a live lock; resolve the lock of a dead client."""
        patience = Patience(self._client)
        while True:
            (reply,), _ = self._ask([self._read_command(handle, row, column)])
            found = self._found(reply)
            if found.version is not None:
                return found.version
            if found.lock is None:
                return self._of_base(handle, row, column, found.base) if found.base else None
            if self._resolver is None:
                self._resolver = Resolver(self._client)
            fate = self._resolver.resolve(handle.tag(row), row, column, found.lock)
            if fate.state == "live" and not patience.wait():
                raise LockTimeout.of_cell(row, decode_column(column), self._client.timeouts.lock_wait)

    def history(self, table: str, row: bytes, column: str, limit: int) -> list[Version]:
        """The committed versions of a cell, newest first. Raises as `Database.history`."""
        handle = self._fixed()[table]
        # This read resolves the lock of a dead client: the lock may hide a committed version.
        self._read_cells(((table, row, column),))
        command = self._store.command(
            calls.history(handle.tag(row), row, handle.columns[column].encoded, limit)
        )
        packed, standing = self._store.call(command, handle.standing(row))
        base = base_below(standing, self.start_timestamp)
        if not packed and base is None:
            raise SnapshotTooOld(f"the table {table!r} was dropped or created again: read the history again")
        versions = [unpack_version(version) for version in packed]
        if base and len(versions) < limit:
            cold = self._of_base(handle, row, handle.columns[column].encoded, base)
            return with_cold(versions, cold, limit)
        return versions

    def _too_old(self) -> SnapshotTooOld:
        return SnapshotTooOld(
            f"the snapshot at {self._start_ts} lies below the safe point: garbage collection has passed it, "
            "or the table was created later, or the table or one of its columns was dropped; begin a newer "
            "one"
        )
