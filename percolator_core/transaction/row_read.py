"""The cells of one row: those that one command reads, and the whole row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from percolator_core.base.row_set import BaseRow
from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import Version
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


class WholeRow(NamedTuple):
    """A row as a snapshot sees it.

    ``versions`` has the versions of its cells in the store, by stored column name, deletions included.
    ``below`` is the row of the base. ``ack`` is the acknowledgement that was asked for.
    """

    versions: dict[bytes, Version | None]
    below: BaseRow | None
    ack: Version | None

    @property
    def of_base(self) -> dict[bytes, bytes | None]:
        """The cells that the base has."""
        return {} if self.below is None else {MARKER: b"", **self.below.cells}

    @property
    def cells(self) -> dict[bytes, bytes | None]:
        """The cells of the row; None is a cell that was deleted."""
        stored = ((name, one.value) for name, one in self.versions.items() if one is not None)
        return {**self.of_base, **dict(stored)}

    @property
    def timestamp(self) -> int:
        """The newest commit timestamp of the cells, in microseconds; 0 without cells."""
        times = [one.commit_ts for one in self.versions.values() if one is not None]
        return max([*times, 0 if self.below is None else self.below.time])
