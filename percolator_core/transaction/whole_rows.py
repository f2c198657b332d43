"""Reads of whole rows, with which runs for rows begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from percolator_core.base.row_set import BaseRow
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.keys import EVERY_COLUMN, MARKER, is_internal
from percolator_core.layout.records import LOCK_MARK, VERSION_MARK, Version
from percolator_core.transaction.cell_reads import CellReads


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


class WholeRows(CellReads):
    """Reads of whole rows."""

    __slots__ = ()

    def whole_rows(
        self, table: str, rows: Sequence[bytes], acked: bytes
    ) -> tuple[TableHandle, list[WholeRow]]:
        """Return the table, and the visible cells of some rows, each with the acknowledgement ``acked``.

        The transaction's own writes are not included. Runs for whole rows begin with this read. The caller
        must limit the number of rows.
        """
        handle = self._handles[table]
        bases = [handle.standing(row) for row in rows]
        commands = [(b"HGETALL", handle.row_key(row)) for row in rows]
        replies, standings = self._ask(commands, ((handle, row, EVERY_COLUMN) for row in rows), bases)
        found = [
            self._whole(handle, row, flat, standings[base], acked)
            for row, flat, base in zip(rows, replies, bases, strict=True)
        ]
        return handle, found

    def _whole(
        self, handle: TableHandle, row: bytes, flat: Sequence[bytes], reference: bytes | None, acked: bytes
    ) -> WholeRow:
        if reference is None:
            raise self._too_old()
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        names = {field[1:] for field in fields if field[:1] in {VERSION_MARK, LOCK_MARK}}
        versions = {
            name: self._judge(
                handle, row, name, fields.get(VERSION_MARK + name), fields.get(LOCK_MARK + name), b""
            )
            for name in names
            if name in {acked, MARKER} or not is_internal(name)
        }
        self._operations += len(versions)
        ack = versions.pop(acked, None)
        below = self._client.bases.row(handle, handle.tag(row), reference, row) if reference else None
        return WholeRow(versions, below, ack)

    def keep(self, handle: TableHandle, row: bytes, found: WholeRow) -> None:
        """Keep the cells of a row of a typed table in memory: a run often reads columns of its row again."""
        cells = found.cells
        for column in (handle.marker, *handle.columns.values()):
            self._cache.keep(column, row, cells.get(column.encoded))
