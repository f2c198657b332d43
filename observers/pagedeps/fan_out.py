"""Notify the dependents of a changed resource, one batch in each transaction.

``resources.position`` is the last notified dependent; the cell is absent after the last batch. Every run
writes this cell. The observer ``relay`` writes it, too, to start again from the first dependent. So a run
that continues from an older position conflicts with ``relay``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from observers.pagedeps.rows import edge, prefix

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction

BATCH: Final = 256
"""One run notifies at most this many dependents."""


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Notify the next dependents, and wake this observer again if more may be left."""
    position = t.get("resources", cell.row, "position")
    if position is None:
        return  # All dependents were notified by an earlier run.
    # The smallest key after the last notified one.
    start = position + b"\0" if position else None
    rows = [row for row, _ in t.scan("dependents", start, prefix=prefix(cell.row), limit=BATCH)]
    for row in rows:
        _resource, kind, dependent = edge(row)
        if kind == "page":
            t.notify("pages", dependent, "stale")
        else:
            t.notify("resources", dependent, "touched")
    if len(rows) < BATCH:
        t.delete("resources", cell.row, "position")
    else:
        t.set("resources", cell.row, "position", rows[-1])
        t.notify("resources", cell.row, "more")
