"""One row, cell by cell: what each holds at a time, since when, and its versions before and after.

For a look at a row. What it costs is bounded: columns come some at a time, of each a few versions, and a
value that is too large is named by its size and left where it is.

>>> from percolator_core.admin.row_history import row_history
>>> found = row_history(db, "documents", "http://a/")
>>> [(cell.column, cell.version.commit_ts) for cell in found.cells]
[('contents', 1795514400000000)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.database import Database
from percolator_core.errors import SnapshotTooOld
from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import VERSION_HEADER, VERSION_MARK, Version, row_bytes, unpack_version
from percolator_core.scripts import calls
from percolator_core.transaction.row_read import stands

LARGEST: Final = 4 << 20
"""Bytes of a value that is still read."""

_TOGETHER: Final = 8 << 20
"""Bytes of one cell's versions that are read, by the size of the newest; and of all cells of a row."""

_FEWEST: Final = 2
"""Versions of a cell that are read however large they are, as long as they are read at all."""


@dataclass(frozen=True, slots=True)
class CellHistory:
    """A cell that holds, or held, something.

    ``versions`` are committed, newest first; ``more`` tells that there are older ones. ``version`` is the one
    that is seen, which may be older than those, or None where the cell did not exist yet. It is None, too,
    where ``unsettled`` tells that a lock stands before it.
    ``size`` is that of the newest value in bytes; where it is beyond `LARGEST`, or the row has too much of
    them, ``unread`` is true and no version is known. ``locked`` tells of a transaction that is committing to
    the cell, or died over it.
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

    ``behind`` is the last column shown where there are further ones, else None. ``marker`` are the versions
    of a typed row itself, which is there from a version with a value to one without; empty for a raw table.
    """

    at: int
    cells: tuple[CellHistory, ...]
    behind: str | None
    marker: tuple[Version, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether the row is there at that time, as far as its versions tell."""
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
    """The cells of a row, deleted ones included, with their versions; no lock is waited for.

    Args:
        db: where it is.
        table: the row's table.
        row: its key.
        at: a timestamp (µs); None is now.
        columns: only these.
        after: only columns that sort behind this one; a typed table's are in the order of its definition.
        limit: at most so many columns.
        versions: at most so many versions of each, 1 or more.

    Raises:
        UnknownTable, UnknownColumn: no such table or column.
        SnapshotTooOld: garbage collection has passed that time, or the table was dropped or made since.
        StoreUnavailable: the store does not answer.
        ValueError: the row is no key of the table.
    """
    snapshot = db.snapshot(at)
    handle, key, moment = snapshot.handle_of(table), row_bytes(row), snapshot.start_timestamp
    tag = handle.tag(key)
    if not stands(db.store.one(handle.standing(key)), moment):
        raise SnapshotTooOld(
            f"{table} as of {moment} is not known any more: garbage collection has passed that time, or the "
            "table was dropped or made since"
        )
    names = _names(db, handle, key, columns)
    if after is not None:
        names = names[names.index(after) + 1 :] if after in names else [one for one in names if one > after]
    # Only of those that are shown, as a row may have any number of columns.
    shown, rest = [handle.columns[name] for name in names[:limit]], names[limit:]
    cells = _cells(db, handle, key, shown, moment, versions)
    marker: tuple[Version, ...] = ()
    if handle.is_typed:
        packed = db.store.run(calls.history(tag, key, handle.marker.encoded, versions))
        marker = tuple(map(unpack_version, packed))
    return RowHistory(moment, cells, shown[-1].name if rest else None, marker)


def columns_of(db: Database, table: str, row: str | bytes) -> list[str]:
    """The columns of a row that `row_history` has cells of, in its order.

    Raises:
        UnknownTable, StoreUnavailable: there is no such table, or the store does not answer.
        ValueError: the row is no key of the table.
    """
    return _names(db, db.catalog.table(table), row_bytes(row), None)


def seen_at(versions: Sequence[Version], at: int) -> Version | None:
    """The newest of the versions that a reader sees at that time."""
    return next((version for version in versions if version.commit_ts <= at), None)


def _names(db: Database, handle: TableHandle, row: bytes, columns: Sequence[str] | None) -> list[str]:
    """The columns to look at: those named, a typed table's, or those of which a raw row knows something."""
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
    # The newest first and the others behind it: one more than wanted tells that there are more.
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
    """The cells, with the seen version of those that have it behind the versions that were read."""
    late = [cell for cell in cells if cell.version is None and cell.more]
    tag = handle.tag(row)
    reads = [calls.read(tag, at, row, [handle.columns[cell.column].encoded]) for cell in late]
    read: dict[str, CellHistory] = {}
    for cell, found in zip(late, db.store.run_all(reads), strict=True):
        if found is None:
            raise SnapshotTooOld(f"{handle.name} as of {at} is not known any more: read a newer snapshot")
        packed = found[0]
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
