"""Tells the dependents of a changed resource, a batch in a transaction, however many there are.

``resources.position`` is the last dependent that was told; it is absent when all were. Every run writes it,
and so does relay when it begins anew: a run that is about to go on from an older place conflicts with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from observers.pagedeps.rows import edge, prefix

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction

BATCH: Final = 256
"""Dependents that one run tells."""


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Tell the next dependents; wake this observer again if there may be more of them."""
    position = t.get("resources", cell.row, "position")
    if position is None:
        return  # A second wake-up for what has been told.
    # The least key behind the last one told.
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
