"""The values of acknowledgements: the revision that ran and, if the run was traced, the cells that it wrote.

::

    acknowledgement   >I1 format   >I4 revision   >I4 written   cells …
    cell              >I1 kind   >I2 len table   >I4 len row   >I4 len column   table … row … column …
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final

FIRST_REVISION: Final = 1

MOST_TRACED: Final = 1000
TRACED_BYTES: Final = 1 << 20
"""An acknowledgement names at most this many cells of a run, with this many bytes of names. It only counts
the other cells."""

_HEAD: Final = struct.Struct(">BII")
_CELL: Final = struct.Struct(">BHII")
_UNTRACED: Final = 0xFFFFFFFF
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class TracedWrite:
    """A cell that a run wrote. ``kind`` is PUT, DELETE or NOTIFY of `percolator_core.layout.records`."""

    table: str
    row: bytes
    column: bytes
    kind: int


@dataclass(frozen=True, slots=True)
class Ack:
    """The value of an acknowledgement.

    ``writes`` is None if the run was not traced. Otherwise ``written`` is the number of cells that it wrote,
    and ``writes`` has the first of them, as limited by `MOST_TRACED` and `TRACED_BYTES`.
    """

    revision: int = FIRST_REVISION
    writes: tuple[TracedWrite, ...] | None = None
    written: int = 0

    @classmethod
    def of(cls, revision: int, writes: Iterable[TracedWrite]) -> Ack:
        """Return the acknowledgement of a traced run."""
        every = tuple(writes)
        sizes = accumulate(_CELL.size + len(one.table) + len(one.row) + len(one.column) for one in every)
        most = sum(1 for _ in takewhile(lambda size: size <= TRACED_BYTES, sizes))
        return cls(revision, every[: min(most, MOST_TRACED)], len(every))

    def pack(self) -> bytes:
        """Return the value of the cell, empty in the usual case: the first revision, without a trace."""
        if self.writes is None:
            if self.revision == FIRST_REVISION:
                return b""
            return _HEAD.pack(_FORMAT, self.revision, _UNTRACED)
        parts = [_HEAD.pack(_FORMAT, self.revision, self.written)]
        for one in self.writes:
            table = one.table.encode()
            parts.append(_CELL.pack(one.kind, len(table), len(one.row), len(one.column)))
            parts += (table, one.row, one.column)
        return b"".join(parts)

    @classmethod
    def unpack(cls, value: bytes) -> Ack:
        """Invert `pack`."""
        if not value:
            return cls()
        _, revision, written = _HEAD.unpack_from(value)
        if written == _UNTRACED:
            return cls(revision)
        writes, at = [], _HEAD.size
        while at < len(value):
            kind, table_length, row_length, column_length = _CELL.unpack_from(value, at)
            row_at = at + _CELL.size + table_length
            column_at = row_at + row_length
            table = value[at + _CELL.size : row_at].decode()
            at = column_at + column_length
            writes.append(TracedWrite(table, value[row_at:column_at], value[column_at:at], kind))
        return cls(revision, tuple(writes), written)
