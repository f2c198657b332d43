"""Acknowledgements: the cell beside an observed one that its observer's own transaction writes (section 2.4).

Two runs for one change collide in it, and at most one commits. Its value tells which revision of the
observer's code ran and, where the chain records traces, what the run wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final

from percolator_core.layout.keys import acknowledgement, is_internal
from percolator_core.layout.records import PUT, Cell, Write
from percolator_core.notifications.dirty import Lease
from percolator_core.scripts.calls import Mode
from percolator_core.transaction.transaction import Transaction

FIRST_REVISION: Final = 1

MOST_TRACED: Final = 1000
TRACED_BYTES: Final = 1 << 20
"""Cells of one run that an acknowledgement names, and bytes that their names take, at most; of those beyond
only the number is kept."""

_HEAD: Final = struct.Struct(">BII")
_CELL: Final = struct.Struct(">BHII")
_UNTRACED: Final = 0xFFFFFFFF
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class TracedWrite:
    """A cell that a run wrote: ``kind`` is that of `percolator_core.layout.records` (put, delete, notify)."""

    table: str
    row: bytes
    column: bytes
    kind: int


@dataclass(frozen=True, slots=True)
class Ack:
    """What an acknowledgement says of its run.

    ``writes`` is None where the run was not traced; ``written`` is how many cells it wrote, of which
    ``writes`` has the first: `MOST_TRACED`, or as many as take `TRACED_BYTES`.
    """

    revision: int = FIRST_REVISION
    writes: tuple[TracedWrite, ...] | None = None
    written: int = 0

    @classmethod
    def of(cls, revision: int, writes: Iterable[TracedWrite]) -> Ack:
        """The acknowledgement of a traced run."""
        every = tuple(writes)
        sizes = accumulate(_CELL.size + len(one.table) + len(one.row) + len(one.column) for one in every)
        most = sum(1 for _ in takewhile(lambda size: size <= TRACED_BYTES, sizes))
        return cls(revision, every[: min(most, MOST_TRACED)], len(every))

    def pack(self) -> bytes:
        """As a cell's value. The first revision, untraced, is the empty one: most cells have that."""
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
        """The inverse of `pack`."""
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


def acknowledge(transaction: Transaction, lease: Lease, mode: Mode, value: bytes = b"") -> Cell | None:
    """Begin a run: fix the snapshot, and write the acknowledgement, the transaction's first cell and primary.

    Returns the cell to observe, or None when the change was acknowledged by an earlier run (or never
    committed): then only the mark has to go.
    """
    acked = acknowledgement(lease.observer, lease.column)
    if mode == "weak":
        transaction.versions(lease.table, lease.row, [acked])
        timestamp = lease.due
    else:
        observed, done = transaction.versions(lease.table, lease.row, [lease.column, acked])
        if observed is None:
            return None
        # One that was deleted, by a rerun, acknowledges nothing.
        if done is not None and done.value is not None and observed.commit_ts <= done.start_ts:
            return None
        timestamp = observed.commit_ts
    transaction.write(lease.table, lease.row, acked, Write(PUT, value))
    return Cell(lease.table, lease.row, transaction.column_name(lease.table, lease.column), timestamp)


def trace(transaction: Transaction, lease: Lease, revision: int) -> None:
    """Have the acknowledgement name what the run has written: for the end of a run, before its commit."""
    acked = acknowledgement(lease.observer, lease.column)
    writes = (
        TracedWrite(one.table, one.row, one.column, one.kind)
        for one in transaction.mutations()
        if not is_internal(one.column)
    )
    transaction.write(lease.table, lease.row, acked, Write(PUT, Ack.of(revision, writes).pack()))
