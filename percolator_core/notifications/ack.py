"""Acknowledgements: the cell beside an observed one that its observer's own transaction writes (section 2.4).

Two runs for one change collide in it, and at most one commits. Its value tells which revision of the
observer's code ran and, where the chain records traces, what the run wrote.
"""

from __future__ import annotations

from percolator_core.layout.acknowledgements import Ack, TracedWrite
from percolator_core.layout.keys import acknowledgement, is_internal
from percolator_core.layout.records import PUT, Cell, Write
from percolator_core.notifications.dirty import Lease
from percolator_core.scripts.calls import Mode
from percolator_core.transaction.transaction import Transaction


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
