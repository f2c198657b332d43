"""Cluster duplicates: pages with the same content, pages that redirect, and pages that name a canonical URL.

The path of a page follows its redirect, or else its declared canonical URL, as long as the next page is
known. The last page of the path is the *terminal*. The key of the cluster is the fingerprint of the
terminal's content, or the URL of the terminal if it has no content.

Two observers share the work. ``cluster`` runs when a page's own pointer changes: it places the page, and
notifies every page whose path leads through it. ``recluster`` places such a page again and notifies no other
page, so there is no loop, even if pointers form a cycle.

No page stays in a wrong cluster, although a run sees other pages only at its snapshot. Take the path from a
page u to its terminal, and let p be the page on that path whose pointer changed last. The run of ``cluster``
at p sees the whole path, so it notifies u, and the run at u sees the whole path, too. A run at u with an
older snapshot cannot overwrite that result: every run that places u writes ``pages.cluster``, changed or not,
so two such runs conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.webindex.definitions import MAX_HOPS
from observers.webindex.rows import cluster_key, pair, prefix, second
from schemas.webindex import Pointer

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Place the page whose pointer changed, and notify the pages whose paths lead to it."""
    url = cell.row
    key = place(t, url)
    if key is not None:
        # Even if the page stays in its cluster, its content and so the cluster's entry may have changed.
        t.notify("clusters", key, "dirty")
    for page in sorted(_leading_to(t, url)):
        t.notify("pages", page, "terminal")


def follow(t: ObserverTransaction, cell: Cell) -> None:
    """Place a page whose path leads through a changed page."""
    # A deleted page has a pending change of its own pointer, for which ``cluster`` runs.
    if t.get("pages", cell.row, "pointer") is not None:
        place(t, cell.row)


def place(t: ObserverTransaction, url: bytes) -> bytes | None:
    """Put the page into its cluster, or remove a deleted page from its cluster; return the key.

    The page's own cell and the member row change together, so a page is a member of exactly one cluster. Each
    member has a row of its own, so duplicates that are loaded at the same time do not conflict.
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
            # The observer ``rank`` ignores a page that is not in a cluster yet.
            t.notify("pages", url, "inlinks")
    return key


def find_terminal(t: ObserverTransaction, url: bytes) -> tuple[bytes, str | None] | None:
    """Return the terminal page of ``url`` and its fingerprint; None if ``url`` is unknown.

    If the path has a cycle, the terminal is one of the pages of the cycle that have content, or one of all
    its pages if none has content. It is the page with the smallest URL, so that all pages of the cycle agree.
    A path ends after MAX_HOPS hops.
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
    """Return the pages whose paths lead to ``url`` in at most MAX_HOPS hops."""
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
