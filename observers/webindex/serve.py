"""Choose the entry of a cluster: its best page, with the anchors of links to any member.

For every input, there is an observer that wakes this observer: ``cluster`` for members and their contents,
``rank`` for ranks and anchors. Each of these observers commits before the run that it wakes begins. Runs for
one cluster conflict on their acknowledgement, so the last run that commits has seen everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from observers.webindex.definitions import MAX_DUPLICATES, frequent_anchors, preference
from observers.webindex.rows import prefix, second
from schemas.webindex import Anchors, Content, Entry, Pointer, Standing

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Write the cluster's entry if it has changed, or delete it if no member can be shown."""
    key = cell.row
    old = t.get("serving", key, "entry")
    urls = [second(row) for row, _cells in t.scan("clusters", prefix=prefix(key), columns=["member"])]
    members = _members(t, urls)
    indexable = [member for member in members if member.pointer.indexable]
    if not indexable:
        if old is not None:
            t.delete("serving", key, "entry")
            t.delete("serving_texts", key, "text")
        return
    shown = min(indexable, key=lambda member: preference(member.url, member.rank))
    fingerprint = shown.pointer.fingerprint
    assert fingerprint is not None, "an indexable page has content"
    before = Entry.decode(old) if old is not None else None
    if before is not None and before.fingerprint == fingerprint:
        # The entry already has this content, so the title and the stored text stay the same.
        title = before.title
    else:
        value = t.get("contents", shown.url, "content")
        assert value is not None, "written together with the pointer"
        content = Content.decode(value)
        title = content.title
        t.set("serving_texts", key, "text", content.text.encode())
    entry = Entry(
        url=shown.url,
        title=title,
        fingerprint=fingerprint,
        rank=fsum(member.rank for member in members if member.pointer.fingerprint is not None),
        anchors=frequent_anchors(member.anchors for member in members),
        duplicates=tuple(sorted(url.decode() for url in urls if url.decode() != shown.url)[:MAX_DUPLICATES]),
        size=len(urls),
    ).encode()
    if entry != old:
        t.set("serving", key, "entry", entry)


@dataclass(frozen=True, slots=True)
class _Member:
    url: str
    rank: float
    pointer: Pointer
    anchors: tuple[str, ...]


def _members(t: ObserverTransaction, urls: list[bytes]) -> list[_Member]:
    """Return the members that have a pointer; a member without a pointer was just deleted."""
    cells = t.get_many([("pages", url, column) for url in urls for column in ("rank", "pointer", "anchors")])
    found = []
    for url, rank, pointer, anchors in zip(urls, cells[::3], cells[1::3], cells[2::3], strict=True):
        if rank is not None and pointer is not None:
            found.append(
                _Member(
                    url.decode(),
                    Standing.decode(rank).rank,
                    Pointer.decode(pointer),
                    Anchors.decode(anchors).root,
                )
            )
    return found
