"""Parse a page: list the resources that it names, and index the page under each of them.

The observer is woken by ``pages.html``. It wakes the observer ``render`` even if nothing has changed, because
a run of ``render`` that finds unparsed HTML does nothing and relies on this wake-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.pagedeps.addresses import address_of
from observers.pagedeps.document import references
from observers.pagedeps.embedding import digest_of
from observers.pagedeps.index import replace
from schemas.pagedeps import Parsed

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Update the page's references after its HTML is new, changed or deleted."""
    address = address_of(cell.row)
    if address is None:
        return
    old = t.get("pages", cell.row, "parsed")
    before = Parsed.decode(old) if old is not None else None
    html = t.get("pages", cell.row, "html")
    if html is None:
        t.delete("pages", cell.row, "parsed")
        replace(t, "page", cell.row, before.references if before else (), ())
    else:
        digest = digest_of(html)
        if before is None or before.digest != digest:
            parsed = Parsed(digest=digest, references=references(address, html))
            t.set("pages", cell.row, "parsed", parsed.encode())
            replace(t, "page", cell.row, before.references if before else (), parsed.references)
    t.notify("pages", cell.row, "stale")
