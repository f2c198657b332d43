"""Propagate changes along the imports of style sheets, which may form a cycle.

The observer is woken when a resource, or anything that the resource names, changes. It notifies the
dependents only if the digest of all reachable resources has changed. In a cycle of imports, all digests soon
belong to the same state. Then no run writes, and the loop ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.pagedeps.reach import reach, stamp

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Start to notify the dependents if a reachable resource has changed."""
    new = stamp(reach(t, [cell.row.decode()]))
    if new == t.get("resources", cell.row, "reach"):
        return
    t.set("resources", cell.row, "reach", new)
    # Start at the first dependent, even if the notifications of an earlier change are not finished.
    t.set("resources", cell.row, "position", b"")
    t.notify("resources", cell.row, "more")
