"""Notify the targets of a page's links that the page's share of rank has changed.

The observer is woken by ``pages.rank``. It is separate from ``rank``, because it has to run after the new
rank has committed. Then it has to notify only known pages. This saves many notifications, because most links
of a crawl lead to pages that were never loaded.

If a target is unknown here, it may become known in a later commit. The links to the target are first counted
after that commit, so this count sees the new share. The transaction that publishes the rank could not skip
unknown targets. A target could become known before that transaction commits, and its links could be counted
with the old share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schemas.webindex import Outlinks

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Wake the observer ``rank`` for every known page to which this page links."""
    targets = list(Outlinks.decode(t.get("pages", cell.row, "outlinks")).root)
    pointers = t.get_many([("pages", target, "pointer") for target in targets])
    for target, pointer in zip(targets, pointers, strict=True):
        if pointer is not None:
            t.notify("pages", target, "inlinks")
