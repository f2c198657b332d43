"""The history of one row: each cell's value at a time, and its versions before and after.

The cost is bounded: a page has some columns and a few versions of each. If a value is too large, only its
size is read.

A cell that moved to the base has one version there, for which `Version.is_of_base` is true. Garbage
collection has dropped the older versions. The base does not have the start timestamp of this version. In a
typed table ``commit_ts`` is the timestamp of the newest commit to the row before the move; the cell may have
been committed earlier.

>>> from percolator_core.admin.row_history import row_history
>>> found = row_history(db, "documents", "http://a/")
>>> [(cell.column, cell.version.commit_ts) for cell in found.cells]
[('contents', 1795514400000000)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from percolator_core.base.bases import Wanted
from percolator_core.base.row_set import BaseRow
from percolator_core.base.tablet import version_of
from percolator_core.catalog.table_handle import ColumnFields, TableHandle, base_below
from percolator_core.database import Database
from percolator_core.errors import SnapshotTooOld
from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import (
    MAX_TIMESTAMP,
    VERSION_HEADER,
    VERSION_MARK,
    Version,
    row_bytes,
    unpack_version,
)
from percolator_core.scripts import calls
from percolator_core.transaction.late_reads import with_cold

LARGEST: Final = 4 << 20
"""A value is read only if it has at most this many bytes."""

_TOGETHER: Final = 8 << 20
"""The approximate limit for the bytes that are read of one cell. It is also the limit for the sum over all
cells if `_FEWEST` versions of each are counted. Each counts as large as the newest version of its cell."""

_FEWEST: Final = 2
"""If any version of a cell is read, at least this many are read, however large they are."""


@dataclass(frozen=True, slots=True)
class CellHistory:
    """A cell with versions or with a lock.

    ``versions`` has committed versions, newest first; ``more`` is True if older ones are known. ``version``
    is the version that a reader at the requested time sees; it may be older than all of ``versions``. It is
    None if the cell did not exist yet, or if the cell is ``unsettled``: its version depends on a lock.
    ``size`` is the size of the newest value in bytes. If the value is larger than `LARGEST`, or if the row is
    too large, ``unread`` is True and no version is known. ``locked`` is True if a transaction is committing
    to the cell, or its client died during the commit.
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
    """Cells of a row as of ``at`` (µs), one `CellHistory` for each column.

    ``behind`` is the last column of the page if there are more columns, else None. ``marker`` has the
    versions of a typed row's marker: the row exists after a version with a value, and does not exist after a
    version without a value. For a raw table ``marker`` is empty.
    """

    at: int
    cells: tuple[CellHistory, ...]
    behind: str | None
    marker: tuple[Version, ...] = ()

    @property
    def exists(self) -> bool:
        """True if the row exists at ``at``, according to the versions that were read."""
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
        columns: only these columns; None means all.
        after: only columns after this one. Columns of a typed table are in the order of its definition.
        limit: the greatest number of columns.
        versions: the greatest number of versions of each column, 1 or more.

    Raises:
        UnknownTable, UnknownColumn: no such table or column.
        SnapshotTooOld: garbage collection has passed ``at``, or the table was dropped or created after it.
        StoreUnavailable: the store does not answer.
        BaseDamaged: a file of the table's base is missing or damaged.
        ValueError: the row is no key of the table.
    """
    snapshot = db.snapshot(at)
    handle, key, moment = snapshot.handle_of(table), row_bytes(row), snapshot.start_timestamp
    names = _names(db, handle, key, columns, moment)
    if after is not None:
        names = names[names.index(after) + 1 :] if after in names else [one for one in names if one > after]
    # Only the columns of this page are read, because a row may have any number of columns.
    shown, rest = [handle.columns[name] for name in names[:limit]], names[limit:]
    marker: list[Version] = []
    if handle.is_typed:
        packed = db.store.run(calls.history(handle.tag(key), key, handle.marker.encoded, versions))
        marker = list(map(unpack_version, packed))
    cells, below = _cells(db, handle, key, shown, moment, versions)
    if handle.is_typed:
        marker = with_cold(marker, _cold(handle, below, handle.marker), versions)
    return RowHistory(moment, cells, shown[-1].name if rest else None, tuple(marker))


def columns_of(db: Database, table: str, row: str | bytes) -> list[str]:
    """Return the columns of a row that `row_history` returns, in its order.

    Raises:
        UnknownTable, StoreUnavailable: there is no such table, or the store does not answer.
        SnapshotTooOld, BaseDamaged: as for `row_history`.
        ValueError: the row is no key of the table.
    """
    return _names(db, db.catalog.table(table), row_bytes(row), None, MAX_TIMESTAMP)


def seen_at(versions: Sequence[Version], at: int) -> Version | None:
    """Return the version that a reader at ``at`` sees; ``versions`` are newest first."""
    return next((version for version in versions if version.commit_ts <= at), None)


def _names(
    db: Database, handle: TableHandle, row: bytes, columns: Sequence[str] | None, at: int
) -> list[str]:
    """Return the columns to read: ``columns``, or all of a typed table, or all of this row in a raw table."""
    if columns is not None:
        return list(columns)
    if handle.is_typed:
        return list(handle.columns)
    fields = db.store.one((b"HKEYS", handle.row_key(row)))
    below = _below(db, handle, row, at)
    stored = {name[1:] for name in fields if name[:1] == VERSION_MARK and not is_internal(name[1:])}
    return [name.decode() for name in sorted(stored.union(below.cells if below else ()))]


def _below(db: Database, handle: TableHandle, row: bytes, at: int) -> BaseRow | None:
    """Return the row of the base, or None. The caller must have read the row of the store before.

    Raises SnapshotTooOld if the store no longer has all versions that a snapshot at ``at`` sees.
    """
    base = base_below(db.store.one(handle.standing(row)), at)
    if base is None:
        raise SnapshotTooOld(
            f"{handle.name} as of {at} is not known any more: garbage collection has passed that time, or "
            "the table was dropped or created after it"
        )
    return db.client.bases.row(handle, handle.tag(row), base, row) if base else None


def _cold(handle: TableHandle, below: BaseRow | None, column: ColumnFields) -> Version | None:
    return None if below is None else version_of(handle.definition, below, column.encoded)


def _cells(  # noqa: PLR0917
    db: Database, handle: TableHandle, row: bytes, fields: Sequence[ColumnFields], at: int, most: int
) -> tuple[tuple[CellHistory, ...], BaseRow | None]:
    """Return the cells, and the row of the base, if there is one."""
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
    below = _below(db, handle, row, at)
    found: list[CellHistory] = []
    for one, stored, limit, locked in asked:
        versions = list(map(unpack_version, next(replies))) if limit else []
        cold, size, count = _cold(handle, below, one), stored, limit
        if cold is not None and not stored:
            size = VERSION_HEADER + len(cold.value or b"")
            count = most if size <= min(LARGEST, left) else 0
            left -= size if count else 0
        if count:
            versions = with_cold(versions, cold, count + 1)
        if size or locked:
            found.append(
                CellHistory(
                    column=one.name,
                    versions=tuple(versions[:count]),
                    version=seen_at(versions, at),
                    more=len(versions) > count,
                    size=max(0, size - VERSION_HEADER),
                    unread=bool(size) and not count,
                    locked=locked,
                )
            )
    return tuple(_older(db, handle, row, found, at)), below


def _older(
    db: Database, handle: TableHandle, row: bytes, cells: Sequence[CellHistory], at: int
) -> list[CellHistory]:
    """Read the visible version of each cell for which only newer versions were read."""
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
        elif found.base:
            where = Wanted((handle, tag, found.base), row, [handle.columns[cell.column].encoded])
            read[cell.column] = replace(cell, version=db.client.bases.versions([where])[0][0])
    return [read.get(cell.column, cell) for cell in cells]
