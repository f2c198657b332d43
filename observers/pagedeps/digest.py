"""Detect changes of a resource; an unchanged resource wakes no other observer.

The observer is woken by ``resources.content`` and ``content_type``. Each column has its own acknowledgement,
so runs for the two columns of a resource would not conflict. Therefore every run also writes
``resources.seen``: in this cell the runs conflict, and the later run sees everything that the earlier run
saw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.pagedeps.addresses import address_of
from observers.pagedeps.embedding import Content, content_of
from observers.pagedeps.index import replace
from schemas.pagedeps import Facts

if TYPE_CHECKING:
    from percolator_core import Cell, ObserverTransaction


def process(t: ObserverTransaction, cell: Cell) -> None:
    """Update a resource's facts after its content is new, changed or deleted."""
    address = address_of(cell.row)
    if address is None:
        return
    cells = t.get_row("resources", cell.row, ["content", "content_type", "facts", "seen"])
    if int(cells.get("seen", b"0")) >= cell.timestamp:
        return
    t.set("resources", cell.row, "seen", str(t.start_timestamp).encode())
    before = Facts.decode(cells["facts"]) if "facts" in cells else None
    new = content_of(address, cells["content"], cells.get("content_type")) if "content" in cells else None
    if (before.digest if before else None) != (new.digest if new else None):
        _write(t, cell.row, before, new)


def _write(t: ObserverTransaction, row: bytes, before: Facts | None, new: Content | None) -> None:
    version = t.start_timestamp
    if new is None:
        # The facts outlive the content: without them a deleted resource could not be distinguished from
        # one that was never loaded.
        facts = Facts(version=version)
        t.delete("resources", row, "embedding")
    else:
        facts = Facts(version=version, digest=new.digest, kind=new.kind, references=new.references)
        t.set("resources", row, "embedding", new.embedding)
    t.set("resources", row, "facts", facts.encode())
    replace(t, "style", row, before.references if before else (), facts.references)
    # The observer relay runs after the index has the new imports. From then on, a change of an import
    # notifies this sheet.
    t.notify("resources", row, "touched")
