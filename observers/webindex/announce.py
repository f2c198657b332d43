"""Tells the pages that a page links to that the share of rank they get from it has changed: ``pages.rank``.

A step of its own, after the publication has committed, so that it need tell known pages only, and most links
of a crawl lead to pages that were never loaded. A target that is unknown here either stays so, or becomes
known by a later commit, and its first count sees what was published. Within the publishing transaction that
would not hold: the target could become known, and be counted, before that transaction commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.webindex import Outlinks

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Wake the count of every known page that this one links to."""
    targets = list(Outlinks.decode(t.get("pages", cell.row, "outlinks")).root)
    pointers = t.get_many([("pages", target, "pointer") for target in targets])
    for target, pointer in zip(targets, pointers, strict=True):
        if pointer is not None:
            t.notify("pages", target, "inlinks")
