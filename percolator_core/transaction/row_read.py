"""Cells that are to be read, put together by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.store.packing import Command, pack_read

UNREAD: Final[Any] = object()
"""In place of a value: the cell has to be read. None is a value, too: the cell does not exist."""


def tells(version: bytes | None, lock: bytes | None, limit: bytes, stands: bool) -> bool:
    """Whether a cell's newest version and its lock tell what a snapshot has of it (paper, figure 6).

    ``limit`` is the snapshot's start as versions have theirs. ``stands`` is True if the tablet's standing was
    asked for behind the read, and makes absence an answer. A lock may still commit below the snapshot, and a
    version above it hides an older one: then the store is asked.
    """
    return lock is None and (stands if version is None else version < limit)


def stands(standing: Sequence[bytes | None], at: int) -> bool:
    """Whether a tablet has all that a snapshot may see of it.

    ``standing`` is the reply to one of `TableHandle.standings`. The tablet must have a version, or its table
    was dropped, and no safe point above the snapshot, or what is missing may have been removed.
    """
    version, safe = standing
    return version is not None and at >= int(safe or 0)


class RowRead:
    """Cells of one row that one command brings: those asked for, and ``extra`` ones beside them.

    ``positions`` tells where in the caller's list the value of each of the ``columns`` belongs; ``stands`` is
    True if a missing cell is an answer.
    """

    __slots__ = ("brought", "columns", "extra", "handle", "positions", "row", "stands")

    def __init__(self, handle: TableHandle, row: bytes) -> None:
        self.handle = handle
        self.row = row
        self.columns: list[ColumnFields] = []
        self.positions: list[int] = []
        self.extra: Sequence[ColumnFields] = ()
        self.brought: Sequence[bytes | None] = ()
        """What the store has of the extra ones: version and lock of each."""
        self.stands = False

    @property
    def is_sparse(self) -> bool:
        """Whether a cell is likely to be missing, so that the tablet's standing is worth asking for."""
        return any(one.sparse for one in self.columns) or any(one.sparse for one in self.extra)

    def command(self) -> Command:
        """The command that brings them, version and lock of each."""
        if len(self.columns) == 1 and not self.extra:
            return pack_read(self.handle.row_key(self.row), self.columns[0].packed)
        command = [b"HMGET", self.handle.row_key(self.row)]
        for column in self.columns:
            command += (column.version, column.lock)
        for column in self.extra:
            command += (column.version, column.lock)
        return tuple(command)
