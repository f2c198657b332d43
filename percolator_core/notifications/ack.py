"""Acknowledgements: each run of an observer writes a cell next to the observed cell (section 2.4).

Two runs for one change conflict in this cell, so at most one commits. The value of the cell has the revision
of the observer's code and, if the chain records traces, the cells that the run wrote.
"""

from __future__ import annotations

from percolator_core.layout.acknowledgements import Ack, TracedWrite
from percolator_core.layout.keys import acknowledgement, is_internal
from percolator_core.layout.records import PUT, Cell
from percolator_core.notifications.dirty import Lease
from percolator_core.scripts.calls import Mode
from percolator_core.transaction.transaction import Transaction


def acknowledge(transaction: Transaction, lease: Lease, mode: Mode, value: bytes = b"") -> Cell | None:
    """Begin a run: take the snapshot, and write the acknowledgement first, so that it is the primary.

    Return the observed cell. Return None if an earlier run has acknowledged the change, or if the change
    never committed: then the caller only clears the mark.
    """
    acked = acknowledgement(lease.observer, lease.column)
    if mode == "weak":
        transaction.versions(lease.table, lease.row, [acked])
        timestamp = lease.due
    else:
        observed, done = transaction.versions(lease.table, lease.row, [lease.column, acked])
        if observed is None:
            return None
        # A rerun deletes the acknowledgement: the newest version has no value.
        if done is not None and done.value is not None and observed.commit_ts <= done.start_ts:
            return None
        # A cell moves to the base after it was processed, and its acknowledgement is removed. So if a cell of
        # the base has a mark, the cell did not change: a transaction that was rolled back left the mark.
        if done is None and observed.is_of_base:
            return None
        timestamp = observed.commit_ts
    transaction.write(lease.table, lease.row, acked, (PUT, value))
    return Cell(lease.table, lease.row, transaction.column_name(lease.table, lease.column), timestamp)


def trace(transaction: Transaction, lease: Lease) -> None:
    """Record in the run's acknowledgement which cells the run wrote. Call this right before the commit."""
    acked, *others = transaction.mutations()
    writes = (
        TracedWrite(one.table, one.row, one.column, one.kind) for one in others if not is_internal(one.column)
    )
    value = Ack.unpack(acked.value).traced(writes).pack()
    transaction.write(lease.table, lease.row, acked.column, (PUT, value))
