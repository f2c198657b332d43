"""Clusters duplicates: pages with one content, and those that redirect to it or declare it canonical.

From a page one follows its redirect, or else its declared canonical URL, as long as the next page is known.
Where that ends is the page's *terminal*; the fingerprint of its content, or else its URL, is the key of the
cluster.

Two observers share the work. ``cluster`` runs when a page's own pointer changed: it places the page, and
tells every page from which one comes through this one. ``recluster`` places such a page anew and tells
nobody, so there is no loop, however the pointers run in circles.

Why no page stays in a wrong cluster, although a run sees other pages only as of its snapshot. Take the path
from a page u to its terminal, and on it the page p whose pointer changed last. The run of ``cluster`` at p
sees the whole path, so it tells u, and u is placed with the whole path in view. A run at u with an older view
cannot overwrite that: every run that places u writes ``pages.cluster``, changed or not, so two of them
conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.webindex.definitions import MAX_HOPS
from observers.webindex.rows import cluster_key, pair, prefix, second
from schemas.webindex import Pointer

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Place the page whose pointer changed, and wake those that lead to it."""
    url = cell.row
    key = place(t, url)
    if key is not None:
        # Its content may have changed without moving it, so what is shown of its cluster may have to.
        t.notify("clusters", key, "dirty")
    for page in sorted(_leading_to(t, url)):
        t.notify("pages", page, "terminal")


def follow(t: ObserverTransaction, cell: Cell) -> None:
    """Place a page whose path leads over a page that changed."""
    # A page that is gone has a change of its own pointer pending, and ``cluster`` with it.
    if t.get("pages", cell.row, "pointer") is not None:
        place(t, cell.row)


def place(t: ObserverTransaction, url: bytes) -> bytes | None:
    """Put the page into its cluster, or out of all if it is gone; returns the key.

    The page's own cell and the member row change together, so a page is a member of exactly one cluster. Each
    member has a row of its own: duplicates that arrive at once do not wait for each other.
    """
    terminal = find_terminal(t, url)
    key = cluster_key(*terminal) if terminal is not None else None
    old = t.get("pages", url, "cluster")
    if key is None:
        t.delete("pages", url, "cluster")
    else:
        t.set("pages", url, "cluster", key)
    if key == old:
        return key
    if old is not None:
        t.delete("clusters", pair(old, url), "member")
        t.notify("clusters", old, "dirty")
    if key is not None:
        t.set("clusters", pair(key, url), "member", b"")
        t.notify("clusters", key, "dirty")
        if old is None:
            # Rank leaves a page alone that is in no cluster yet.
            t.notify("pages", url, "inlinks")
    return key


def find_terminal(t: ObserverTransaction, url: bytes) -> tuple[bytes, str | None] | None:
    """The terminal page of ``url`` and its fingerprint; None if ``url`` is not known.

    A path that comes back to itself ends at the page of the circle that has content, and of those at the one
    with the smallest URL, so that all pages on the circle agree. A path longer than MAX_HOPS is cut there.
    """
    pointer = _pointer(t, url)
    if pointer is None:
        return None
    path = {url: pointer}
    while pointer.next is not None and len(path) <= MAX_HOPS:
        target = pointer.next.encode()
        if target in path:
            visited = list(path)
            circle = visited[visited.index(target) :]
            url = min(circle, key=lambda page: (path[page].fingerprint is None, page))
            break
        following = _pointer(t, target)
        if following is None:
            break
        url, pointer = target, following
        path[url] = pointer
    return url, path[url].fingerprint


def _leading_to(t: ObserverTransaction, url: bytes) -> set[bytes]:
    """The pages from which one comes to ``url`` in at most MAX_HOPS hops."""
    found: set[bytes] = set()
    edge = [url]
    for _ in range(MAX_HOPS):
        following = []
        for target in edge:
            for row, _cells in t.scan("pointers", prefix=prefix(target), columns=["source"]):
                page = second(row)
                if page not in found and page != url:
                    found.add(page)
                    following.append(page)
        if not following:
            break
        edge = following
    return found


def _pointer(t: ObserverTransaction, url: bytes) -> Pointer | None:
    value = t.get("pages", url, "pointer")
    return Pointer.decode(value) if value is not None else None
