"""Write a cluster's entry (``serving.entry``) into the serving index.

The index is outside the store, so its change and the acknowledgement are not one transaction. A run may be
repeated, or a later run may finish first. Neither is harmful: a posting depends only on the cluster's row,
and an older posting never replaces a newer one, because each posting has the timestamp of its snapshot.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from observers.webindex.index import Posting, ServingIndex, open_index
from schemas.webindex import Entry

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction, Snapshot


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Update the cluster's posting from the store."""
    value = t.get("serving", cell.row, "entry")
    if value is None:
        open_index().remove(cell.row.decode(), t.start_timestamp)
        return
    posting = _posting(cell.row, Entry.decode(value))
    if open_index().refresh(posting, t.start_timestamp):
        return
    text = t.get("serving_texts", cell.row, "text") or b""
    open_index().put(replace(posting, text=text.decode()), t.start_timestamp)


def rebuild(snapshot: Snapshot, index: ServingIndex) -> int:
    """Rebuild the index from a snapshot; return the number of entries. Stop the workers first.

    This repairs a lost index, or an index after a power failure, and creates further copies.
    """
    index.clear()
    count = 0
    entries = snapshot.scan("serving", columns=["entry"])
    texts = snapshot.scan("serving_texts", columns=["text"])
    # Entry and text of a key are written in one transaction, and scans are in the order of the keys.
    for (key, entry), (_, text) in zip(entries, texts, strict=True):
        posting = _posting(key, Entry.decode(entry["entry"]))
        index.put(replace(posting, text=text["text"].decode()), snapshot.start_timestamp)
        count += 1
    return count


def _posting(key: bytes, entry: Entry) -> Posting:
    """Return the posting without the text."""
    anchors = "\n".join(entry.anchors)
    return Posting(
        key.decode(), entry.url, entry.title, anchors, "", entry.fingerprint, entry.rank, entry.size
    )
