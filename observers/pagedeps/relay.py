"""Passes changes on along the imports of style sheets, which may be a cycle.

Woken when a resource has changed, or anything that it names. The stamp of all that can be reached from it
says whether its dependents have anything to learn. Around a cycle the stamps of all sheets are soon those of
one state, and then nothing is written: that ends the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.pagedeps.reach import reach, stamp

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Begin to tell the dependents, if what they are made with is not what it was."""
    new = stamp(reach(t, [cell.row.decode()]))
    if new == t.get("resources", cell.row, "reach"):
        return
    t.set("resources", cell.row, "reach", new)
    # From the first dependent on, also where an earlier change is still being told.
    t.set("resources", cell.row, "position", b"")
    t.notify("resources", cell.row, "more")
