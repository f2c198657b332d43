"""The history of one row: each cell's value at a time, and its versions before and after.

The cost is bounded: a page has some columns and a few versions of each. If a value is too large, only its
size is read.

>>> from percolator_core.admin.row_history import row_history
>>> found = row_history(db, "documents", "http://a/")
>>> [(cell.column, cell.version.commit_ts) for cell in found.cells]
[('contents', 1795514400000000)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from percolator_core.catalog.table_handle import ColumnFields, TableHandle, stands
from percolator_core.database import Database
from percolator_core.errors import SnapshotTooOld
from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import VERSION_HEADER, VERSION_MARK, Version, row_bytes, unpack_version
from percolator_core.scripts import calls

LARGEST: Final = 4 << 20
"""Bytes of the largest value that is read."""

_TOGETHER: Final = 8 << 20
"""Most bytes that are read of a cell's versions, and of a row's cells; estimated from the newest versions."""

_FEWEST: Final = 2
"""At least this many versions of a cell are read, however large they are, if any version is read."""


@dataclass(frozen=True, slots=True)
class CellHistory:
    """A cell with versions or with a lock.

    ``versions`` has committed versions, newest first; ``more`` is True if there are older ones. ``version``
    is the version that a reader at that time sees; it may be older than all of ``versions``. It is None if
    the cell did not exist yet, or if the cell is ``unsettled``: its version depends on a lock. ``size`` is
    the size of the newest value in bytes. If the value is larger than `LARGEST`, or the row too large,
    ``unread`` is True and no version is known. ``locked`` is True if a transaction is committing to the cell,
    or its client died during the commit.
    """

    column: str
    versions: tuple[Version, ...]
    version: Version | None
    more: bool
    size: int
    unread: bool = False
    locked: bool = False
    unsettled: bool = False


@dataclass(frozen=True, slots=True)
class RowHistory:
    """Cells of a row by column, as of ``at`` (µs).

    ``behind`` is the last column of the page if there are more columns, else None. ``marker`` has the
    versions of a typed row's marker: the row exists from a version with a value to the next version without
    one. For a raw table ``marker`` is empty.
    """

    at: int
    cells: tuple[CellHistory, ...]
    behind: str | None
    marker: tuple[Version, ...] = ()

    @property
    def exists(self) -> bool:
        """True if the row exists at that time, according to the versions that were read."""
        if self.marker:
            version = seen_at(self.marker, self.at)
            return version is not None and version.value is not None
        return any(
            cell.unread or (cell.version is not None and cell.version.value is not None)
            for cell in self.cells
        )


def row_history(
    db: Database,
    table: str,
    row: str | bytes,
    *,
    at: int | None = None,
    columns: Sequence[str] | None = None,
    after: str | None = None,
    limit: int = 50,
    versions: int = 10,
) -> RowHistory:
    """Return the cells of a row with their versions, also deleted cells. The call waits for no lock.

    Args:
        db: the database.
        table: the row's table.
        row: the row's key.
        at: a timestamp (µs); None is now.
        columns: only these.
        after: only columns behind this one. Columns of a typed table are in the order of its definition.
        limit: the greatest number of columns.
        versions: the greatest number of versions of each column, 1 or more.

    Raises:
        UnknownTable, UnknownColumn: no such table or column.
        SnapshotTooOld: garbage collection has passed that time, or the table was dropped or created after it.
        StoreUnavailable: the store does not answer.
        ValueError: the row is no key of the table.
    """
    snapshot = db.snapshot(at)
    handle, key, moment = snapshot.handle_of(table), row_bytes(row), snapshot.start_timestamp
    tag = handle.tag(key)
    if not stands(db.store.one(handle.standing(key)), moment):
        raise SnapshotTooOld(
            f"{table} as of {moment} is not known any more: garbage collection has passed that time, or the "
            "table was dropped or created after it"
        )
    names = _names(db, handle, key, columns)
    if after is not None:
        names = names[names.index(after) + 1 :] if after in names else [one for one in names if one > after]
    # Only the columns of this page are read, because a row may have any number of columns.
    shown, rest = [handle.columns[name] for name in names[:limit]], names[limit:]
    cells = _cells(db, handle, key, shown, moment, versions)
    marker: tuple[Version, ...] = ()
    if handle.is_typed:
        packed = db.store.run(calls.history(tag, key, handle.marker.encoded, versions))
        marker = tuple(map(unpack_version, packed))
    return RowHistory(moment, cells, shown[-1].name if rest else None, marker)


def columns_of(db: Database, table: str, row: str | bytes) -> list[str]:
    """Return the columns of a row that `row_history` returns, in its order.

    Raises:
        UnknownTable, StoreUnavailable: there is no such table, or the store does not answer.
        ValueError: the row is no key of the table.
    """
    return _names(db, db.catalog.table(table), row_bytes(row), None)


def seen_at(versions: Sequence[Version], at: int) -> Version | None:
    """Return the version that a reader at that time sees; ``versions`` are newest first."""
    return next((version for version in versions if version.commit_ts <= at), None)


def _names(db: Database, handle: TableHandle, row: bytes, columns: Sequence[str] | None) -> list[str]:
    """Return the columns to read: ``columns``, or all of a typed table, or all of a raw row."""
    if columns is not None:
        return list(columns)
    if handle.is_typed:
        return list(handle.columns)
    names = [name[1:] for name in db.store.one((b"HKEYS", handle.row_key(row))) if name[:1] == VERSION_MARK]
    return [name.decode() for name in sorted(names) if not is_internal(name)]


def _cells(  # noqa: PLR0917
    db: Database, handle: TableHandle, row: bytes, fields: Sequence[ColumnFields], at: int, most: int
) -> tuple[CellHistory, ...]:
    key, tag = handle.row_key(row), handle.tag(row)
    sizes = db.store.call(*[(b"HSTRLEN", key, name) for one in fields for name in (one.version, one.lock)])
    asked: list[tuple[ColumnFields, int, int, bool]] = []
    left = _TOGETHER
    for one, size, lock in zip(fields, sizes[::2], sizes[1::2], strict=True):
        count = 0
        if size and size <= min(LARGEST, left):
            count = min(most, max(_FEWEST, left // size))
            left -= size * min(count, _FEWEST)
        asked.append((one, size, count, bool(lock)))
    # One version more than wanted is read, to find out if there are more.
    newest = [calls.history(tag, row, one.encoded, count + 1) for one, _, count, _ in asked if count]
    replies = iter(db.store.run_all(newest))
    found = [
        cell
        for one, size, count, locked in asked
        if (cell := _cell(one, size, count, locked, next(replies) if count else [], at)) is not None
    ]
    return tuple(_older(db, handle, row, found, at))


def _older(
    db: Database, handle: TableHandle, row: bytes, cells: Sequence[CellHistory], at: int
) -> list[CellHistory]:
    """Read the version that a reader sees, where it is older than the versions read so far."""
    late = [cell for cell in cells if cell.version is None and cell.more]
    tag = handle.tag(row)
    reads = [calls.read(tag, at, row, [handle.columns[cell.column].encoded]) for cell in late]
    read: dict[str, CellHistory] = {}
    for cell, found in zip(late, db.store.run_all(reads), strict=True):
        if found is None:
            raise SnapshotTooOld(f"{handle.name} as of {at} is not known any more: read a newer snapshot")
        packed = found.cells[0]
        if len(packed) == 2:
            read[cell.column] = replace(cell, unsettled=True)
        elif packed:
            read[cell.column] = replace(cell, version=unpack_version(packed[0]))
    return [read.get(cell.column, cell) for cell in cells]


def _cell(  # noqa: PLR0917
    one: ColumnFields, size: int, count: int, locked: bool, packed: Sequence[Any], at: int
) -> CellHistory | None:
    if not size and not locked:
        return None
    found = [unpack_version(version) for version in packed]
    versions = tuple(found[:count])
    return CellHistory(
        column=one.name,
        versions=versions,
        version=seen_at(found, at),
        more=len(found) > count,
        size=max(0, size - VERSION_HEADER),
        unread=bool(size) and not count,
        locked=locked,
    )
