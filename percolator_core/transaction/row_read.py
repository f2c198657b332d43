"""The cells of one row that one command reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.store.packing import Command, pack_read

CELLS_AT_ONCE: Final = 1000
BYTES_AT_ONCE: Final = 8 << 20
"""Bounds of each step of a read of many cells. The size of a step is estimated from the previous one."""

UNREAD: Final[Any] = object()
"""Stands for a value that has to be read. None stands for a cell that was read and does not exist."""


class RowRead:
    """Cells of one row that one command reads: the requested ``columns``, and ``extra`` ones for prefetch.

    ``positions`` has, for each of the ``columns``, the index of its value in the caller's list. ``brought``
    has the version and the lock of each extra column. ``base`` is the result of `base_below`.
    """

    __slots__ = ("base", "brought", "columns", "extra", "handle", "positions", "row")

    def __init__(self, handle: TableHandle, row: bytes, columns: list[ColumnFields]) -> None:
        self.handle = handle
        self.row = row
        self.columns = columns
        self.positions: list[int] = []
        self.extra: Sequence[ColumnFields] = ()
        self.brought: Sequence[bytes | None] = ()
        self.base: bytes | None = None

    @property
    def is_sparse(self) -> bool:
        """True if a cell may well be missing: then also read the tablet's version, safe point and base."""
        return any(one.sparse for one in self.columns) or any(one.sparse for one in self.extra)

    def command(self) -> Command:
        """The command that reads version and lock of each column."""
        if len(self.columns) == 1 and not self.extra:
            return pack_read(self.handle.row_key(self.row), self.columns[0].packed)
        command = [b"HMGET", self.handle.row_key(self.row)]
        for column in self.columns:
            command += (column.version, column.lock)
        for column in self.extra:
            command += (column.version, column.lock)
        return tuple(command)
