"""Makes a page's snapshot from the page and all that it depends on, read at one moment.

Woken weakly: a hundred resources that change at once wake it a hundred times, and it runs as often as it
comes to, mostly once. What the last snapshot was made from is kept, so a run that would make the same ends
early, having read no content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.pagedeps.addresses import address_of
from observers.pagedeps.document import Source, compose
from observers.pagedeps.embedding import digest_of
from observers.pagedeps.reach import reach
from schemas.pagedeps import Facts, Made, Parsed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from percolator_core import Cell, ObserverTransaction
    from percolator_core.transaction.snapshot import Snapshot


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Write the page's snapshot if it is made from something else than before; remove a deleted page's."""
    row = cell.row
    cells = t.get_row("pages", row, ["parsed", "made"])
    if "parsed" not in cells:
        for column in ("snapshot", "made"):
            t.delete("pages", row, column)
        return
    parsed = Parsed.decode(cells["parsed"])
    before = Made.decode(cells["made"]) if "made" in cells else None
    found = reach(t, parsed.references)
    resources = {address: facts.digest if facts else None for address, facts in sorted(found.items())}
    if before is not None and (before.source, before.resources) == (parsed.digest, resources):
        return
    html = t.get("pages", row, "html")
    if html is None or digest_of(html) != parsed.digest:
        return  # Changed a moment ago: parse wakes this observer when it has seen that.
    address = address_of(row)
    assert address is not None, "parse leaves other rows alone"
    t.set("pages", row, "snapshot", compose(address, html, sources(t, found)))
    made = Made(source=parsed.digest, resources=resources, renders=before.renders + 1 if before else 1)
    t.set("pages", row, "made", made.encode())


def sources(t: ObserverTransaction | Snapshot, found: Mapping[str, Facts | None]) -> dict[str, Source]:
    """Those of the resources that are there, as pages hold them."""
    there = [(address, facts.kind) for address, facts in found.items() if facts and facts.kind]
    values = t.get_many([("resources", address, "embedding") for address, _ in there])
    return {
        address: Source(kind, value)
        for (address, kind), value in zip(there, values, strict=True)
        if value is not None
    }
