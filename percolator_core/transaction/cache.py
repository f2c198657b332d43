"""The cells that a transaction has read: the snapshot does not change, so no cell is read twice."""

from __future__ import annotations

from typing import Final

from percolator_core.catalog.table_handle import ColumnFields
from percolator_core.layout.records import is_settled, value_of
from percolator_core.transaction.prefetch import Prefetch
from percolator_core.transaction.row_read import RowRead

CACHE_BYTES: Final = 16 << 20
"""Bound of one transaction's cache. A cell that does not fit is not kept, and is read again when needed."""

CACHE_CELL: Final = 150
"""Estimated bytes of a cached cell, without its row key and value."""

CACHE_COLUMN: Final = 300
"""Estimated bytes of a cached column, without its name."""


class Cache(dict[ColumnFields, dict[bytes, bytes | None]]):
    """The values of cells by column and row. A column belongs to one table. None is a missing cell.

    ``room`` is the number of bytes that may still be added. ``prefetch`` is the policy that adds columns to
    reads, or None. The transaction sets both attributes: a constructor would make each transaction slower.
    """

    __slots__ = ("prefetch", "room")

    prefetch: Prefetch | None
    room: int

    def __missing__(self, column: ColumnFields) -> dict[bytes, bytes | None]:
        """Return an empty dict for a column that was not read before; keep the dict if there is room."""
        cells: dict[bytes, bytes | None] = {}
        # The name takes room, too: the catalog may drop a long name, and then only this cache holds it.
        size = CACHE_COLUMN + column.names_bytes
        if self.room > size:
            self.room -= size
            self[column] = cells
        return cells

    def keep(self, column: ColumnFields, row: bytes, value: bytes | None) -> None:
        """Add a cell if there is room. `Snapshot.get` has the same code inline."""
        cells = self[column]
        room = self.room - CACHE_CELL - len(row) - (0 if value is None else len(value))
        if room > 0:
            self.room = room
            cells[row] = value

    def keep_extra(self, read: RowRead, limit: bytes) -> None:
        """Add the prefetched cells, except one whose version and lock do not show its value."""
        if self.prefetch is not None:
            self.prefetch.brought += len(read.extra)
        pairs = iter(read.brought)
        for column, version, lock in zip(read.extra, pairs, pairs, strict=False):
            if version is None:
                column.note_missing()
            if is_settled(version, lock, limit, read.base == b""):
                self.keep(column, read.row, value_of(version))
