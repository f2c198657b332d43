"""Parses a document and keeps the page's own cells, its links and its pointer.

Woken by ``documents.contents``, ``content_type`` and ``redirect``; whichever it was, the whole document is
read. All that it writes depends on this document alone. It compares with what it wrote last time: what did
not change is not written, so that nobody downstream wakes for nothing.

A load that writes two columns wakes two runs. Each column has an acknowledgement of its own, so these do not
keep the two apart; ``pages.parsed`` does, the snapshot from which the page was last made. Every run that goes
through writes it, changed or not, so two for one document conflict, and the later one sees all that the
earlier one saw. A run whose change is older than that snapshot therefore has nothing to do. To compare the
document itself, instead of the time, would not be safe: it may have changed, and changed back, while another
run is about to commit what was there between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.webindex.definitions import FIRST_RANK, share_of
from observers.webindex.page import Page, is_page, parse
from observers.webindex.rows import pair
from schemas.webindex import Anchors, Outlinks, Pointer, Standing

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Bring the page up to date with its document: new, changed, redirected or deleted."""
    url = cell.row
    if not is_page(url):
        return
    old = t.get_row("pages", url, ["parsed", "pointer", "content", "outlinks", "rank"])
    if int(old.get("parsed", b"0")) >= cell.timestamp:
        return
    document = t.get_row("documents", url, ["contents", "content_type", "redirect"])
    page = _parse(url, document)
    if page is None:
        t.delete("pages", url, "parsed")
    else:
        t.set("pages", url, "parsed", str(t.start_timestamp).encode())
    _write_links(t, url, old, page)
    _write_pointer(t, url, old, page)
    content = page.content.encode() if page is not None else None
    _write(t, url, "content", old.get("content"), content)


def _parse(url: bytes, document: dict[str, bytes]) -> Page | None:
    contents = document.get("contents")
    if contents is None:
        return None
    content_type, redirect = document.get("content_type"), document.get("redirect")
    return parse(
        url.decode(),
        contents,
        content_type.decode("utf-8", "replace") if content_type is not None else None,
        redirect.decode("utf-8", "replace") if redirect is not None else None,
    )


def _write_links(t: ObserverTransaction, url: bytes, old: dict[str, bytes], page: Page | None) -> None:
    """The page's links, one row a target, and the share of its rank that each of them carries."""
    outlinks = page.outlinks.encode() if page is not None else None
    if outlinks == old.get("outlinks"):
        return
    before = Outlinks.decode(old.get("outlinks")).root
    after = page.outlinks.root if page is not None else {}
    for target in before.keys() - after.keys():
        t.delete("links", pair(target.encode(), url), "anchors")
    for target, anchors in after.items():
        if before.get(target) != anchors:
            t.set("links", pair(target.encode(), url), "anchors", Anchors(anchors).encode())
    _write(t, url, "outlinks", old.get("outlinks"), outlinks)

    # Other targets carry another share; announce tells them all. A run of rank that publishes at this moment
    # with the number of targets of before writes the same cell, so one of the two is repeated.
    told = page is not None and ("outlinks" not in old or len(before) != len(after))
    if told:
        rank = Standing.decode(old["rank"]).rank if "rank" in old else FIRST_RANK
        t.set("pages", url, "rank", Standing(rank=rank, share=share_of(rank, len(after))).encode())
    # Whom announce does not tell: pages that are linked to no longer, or, with the share unchanged, anew or
    # with other words. They are told known or not: one may be becoming known in a transaction that does not
    # see this.
    for target in before.keys() | after.keys():
        if target not in after or (not told and before.get(target) != after[target]):
            t.notify("pages", target, "inlinks")
    # A new page's links are to be counted; the rank of a deleted page is to be removed, by rank itself, for
    # it may be publishing at this moment, beside this transaction.
    if page is None or "outlinks" not in old:
        t.notify("pages", url, "inlinks")


def _write_pointer(t: ObserverTransaction, url: bytes, old: dict[str, bytes], page: Page | None) -> None:
    """The cell that wakes cluster, and the reverse row by which cluster finds whom a change concerns."""
    pointer = page.pointer.encode() if page is not None else None
    if pointer == old.get("pointer"):
        return
    before = Pointer.decode(old["pointer"]).next if "pointer" in old else None
    after = page.pointer.next if page is not None else None
    if before != after:
        if before is not None:
            t.delete("pointers", pair(before.encode(), url), "source")
        if after is not None:
            t.set("pointers", pair(after.encode(), url), "source", b"")
    _write(t, url, "pointer", old.get("pointer"), pointer)


def _write(t: ObserverTransaction, url: bytes, column: str, old: bytes | None, new: bytes | None) -> None:
    if new == old:
        return
    if new is None:
        t.delete("pages", url, column)
    else:
        t.set("pages", url, column, new)
