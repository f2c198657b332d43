"""Parse a document, and update the page's own cells, its links and its pointer.

The observer is woken by ``documents.contents``, ``content_type`` and ``redirect``, and reads the whole
document. Its output depends on this document only. It writes only differences from its last output, so that
no other observer is woken without a change.

A load that writes two columns wakes two runs. Each column has an acknowledgement of its own, so the runs do
not conflict on acknowledgements. They conflict on ``pages.parsed``, the timestamp of the snapshot from which
the page was last parsed. Every run writes this column, changed or not, so the later run sees everything that
the earlier run saw. A run whose change is older than that timestamp has nothing to do.

It would be wrong to compare the document instead of the timestamp. The document may have changed and changed
back, while another run is about to commit the state in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.webindex.definitions import FIRST_RANK, share_of
from observers.webindex.page import Page, is_page, parse_document
from observers.webindex.rows import pair
from schemas.webindex import Anchors, Outlinks, Pointer, Standing

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Update the page after its document is new, changed, redirected or deleted."""
    url = cell.row
    if not is_page(url):
        return
    old = t.get_row("pages", url, ["parsed", "pointer", "outlinks", "rank"])
    if int(old.get("parsed", b"0")) >= cell.timestamp:
        return
    document = t.get_row("documents", url, ["contents", "content_type", "redirect"])
    page = parse_document(url, document)
    if page is None:
        t.delete("pages", url, "parsed")
    else:
        t.set("pages", url, "parsed", str(t.start_timestamp).encode())
    _write_links(t, url, old, page)
    _write_pointer(t, url, old, page)
    content = page.content.encode() if page is not None else None
    _write(t, ("contents", url, "content"), t.get("contents", url, "content"), content)


def _write_links(t: ObserverTransaction, url: bytes, old: dict[str, bytes], page: Page | None) -> None:
    """Write the page's links, one row for each target, and the share of its rank for each link."""
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
    _write(t, ("pages", url, "outlinks"), old.get("outlinks"), outlinks)

    # A new number of targets changes the share of each; the observer ``announce`` then notifies all targets.
    # A concurrent run of ``rank`` with the old number of targets writes the same cell, so one of the two
    # transactions is repeated.
    has_new_share = page is not None and ("outlinks" not in old or len(before) != len(after))
    if has_new_share:
        rank = Standing.decode(old["rank"]).rank if "rank" in old else FIRST_RANK
        t.set("pages", url, "rank", Standing(rank=rank, share=share_of(rank, len(after))).encode())
    # Notify the targets that ``announce`` does not notify: former targets and, if the share is the same, new
    # targets and targets with new anchor texts. Unknown targets are notified, too: a concurrent transaction
    # that makes the target known does not see this transaction.
    for target in before.keys() | after.keys():
        if target not in after or (not has_new_share and before.get(target) != after[target]):
            t.notify("pages", target, "inlinks")
    # The observer ``rank`` counts the links to a new page. It removes the rank of a deleted page, also if a
    # concurrent run of ``rank`` publishes it during the deletion.
    if page is None or "outlinks" not in old:
        t.notify("pages", url, "inlinks")


def _write_pointer(t: ObserverTransaction, url: bytes, old: dict[str, bytes], page: Page | None) -> None:
    """Write the cell that wakes ``cluster``, and the reverse row by which ``cluster`` finds the page."""
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
    _write(t, ("pages", url, "pointer"), old.get("pointer"), pointer)


def _write(
    t: ObserverTransaction, cell: tuple[str, bytes, str], old: bytes | None, new: bytes | None
) -> None:
    if new == old:
        return
    if new is None:
        t.delete(*cell)
    else:
        t.set(*cell, new)
