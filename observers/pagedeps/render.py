"""Render a page's snapshot from the page and all its dependencies, read at one timestamp.

The observer is weak: a hundred resources that change at once notify it a hundred times, but usually it runs
once. The inputs of the last snapshot are stored, so a run with the same inputs ends early without reading any
content.
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
    """Write the page's snapshot if its inputs have changed; delete the snapshot of a deleted page."""
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
        return  # The HTML has just changed; parse will wake this observer again.
    address = address_of(row)
    assert address is not None, "parse ignores rows without an address"
    t.set("pages", row, "snapshot", compose(address, html, sources(t, found)))
    made = Made(source=parsed.digest, resources=resources, renders=before.renders + 1 if before else 1)
    t.set("pages", row, "made", made.encode())


def sources(t: ObserverTransaction | Snapshot, found: Mapping[str, Facts | None]) -> dict[str, Source]:
    """Return the existing resources in the form in which pages embed them."""
    there = [(address, facts.kind) for address, facts in found.items() if facts and facts.kind]
    values = t.get_many([("resources", address, "embedding") for address, _ in there])
    return {
        address: Source(kind, value)
        for (address, kind), value in zip(there, values, strict=True)
        if value is not None
    }
