"""Compute a page's anchor texts, and its rank from the shares of the linking pages.

The observer is weak, so a thousand new links to a page cost one run. No page waits for another: a page's rank
is computed from the published shares of its sources. If it differs from the published rank by more than the
tolerance, the run publishes the new rank, and the observer ``announce`` wakes the targets. This loop is
declared (``feedback``). It ends, from any state and in any order of the runs, because the damping makes the
corrections smaller in every round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.webindex.definitions import differs, frequent_anchors, rank_of, share_of
from observers.webindex.rows import prefix, second
from schemas.webindex import Anchors, Outlinks, Standing

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Count the links to a page again, and publish changes."""
    url = cell.row
    page = t.get_row("pages", url, ["pointer", "rank", "anchors", "cluster"])
    if "pointer" not in page:
        # The page was deleted, or was never loaded. Remove its rank and anchors, which a concurrent run may
        # have published during the deletion.
        for column in ("rank", "anchors"):
            if column in page:
                t.delete("pages", url, column)
        return
    key = page.get("cluster")
    if key is None:
        return  # The page was just parsed: cluster runs next, and wakes this observer again.
    inlinks = {
        second(row): cells["anchors"]
        for row, cells in t.scan("links", prefix=prefix(url), columns=["anchors"])
    }
    published = t.get_many([("pages", source, "rank") for source in inlinks])
    rank = rank_of(Standing.decode(value).share for value in published if value is not None)
    anchors = Anchors(frequent_anchors(Anchors.decode(value).root for value in inlinks.values())).encode()

    has_new_rank = differs(Standing.decode(page["rank"]).rank, rank)
    has_new_anchors = anchors != page.get("anchors")
    if has_new_rank:
        targets = Outlinks.decode(t.get("pages", url, "outlinks")).root
        t.set("pages", url, "rank", Standing(rank=rank, share=share_of(rank, len(targets))).encode())
    if has_new_anchors:
        t.set("pages", url, "anchors", anchors)
    if has_new_rank or has_new_anchors:
        # The cell is written although it stays the same, so that this run conflicts with a transaction that
        # moves the page to another cluster. Without the conflict, this run would wake only the old cluster,
        # and the entry of the new cluster could keep the old rank and anchors.
        t.set("pages", url, "cluster", key)
        t.notify("clusters", key, "dirty")
