"""Counts what links to a page: its anchor texts, and its rank from the shares of the linking pages.

Woken weakly, so that a thousand new links to a page cost one run. Nobody waits for anybody: a page's rank is
computed from whatever its sources have published, and when it has moved by more than a tolerance the page
publishes it, and announce wakes its targets. That loop is declared (``feedback``) and comes to rest from any
state, in any order, for the damping shrinks every round of corrections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.webindex.definitions import differs, frequent_anchors, rank_of, share_of
from observers.webindex.rows import prefix, second
from schemas.webindex import Anchors, Outlinks, Standing

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Count the links to a page again, and publish what changed."""
    url = cell.row
    page = t.get_row("pages", url, ["pointer", "rank", "anchors", "cluster"])
    if "pointer" not in page:
        # Deleted, or never loaded. What an earlier run published beside the deletion goes now.
        for column in ("rank", "anchors"):
            if column in page:
                t.delete("pages", url, column)
        return
    key = page.get("cluster")
    if key is None:
        return  # Just parsed: cluster runs now, and wakes this observer again.
    inlinks = {
        second(row): cells["anchors"]
        for row, cells in t.scan("links", prefix=prefix(url), columns=["anchors"])
    }
    published = t.get_many([("pages", source, "rank") for source in inlinks])
    rank = rank_of(Standing.decode(value).share for value in published if value is not None)
    anchors = Anchors(frequent_anchors(Anchors.decode(value).root for value in inlinks.values())).encode()

    moved = differs(Standing.decode(page["rank"]).rank, rank)
    said = anchors != page.get("anchors")
    if moved:
        targets = Outlinks.decode(t.get("pages", url, "outlinks")).root
        t.set("pages", url, "rank", Standing(rank=rank, share=share_of(rank, len(targets))).encode())
    if said:
        t.set("pages", url, "anchors", anchors)
    if moved or said:
        # Written although it stays the same. If the page moves to another cluster at this moment, the two
        # transactions conflict; without it, this one would wake the old cluster only, and the new one might
        # have been served with the old rank and anchors already.
        t.set("pages", url, "cluster", key)
        t.notify("clusters", key, "dirty")
