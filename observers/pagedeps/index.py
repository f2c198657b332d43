"""The secondary index: from each resource to the pages and style sheets that name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from observers.pagedeps.rows import Dependent, Edge, row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from percolator_core import ObserverTransaction


def replace(
    t: ObserverTransaction, kind: Dependent, dependent: bytes, old: Iterable[str], new: Iterable[str]
) -> None:
    """Update the index in the transaction that changes a dependent's references."""
    before, after = set(old), set(new)
    for resource in before - after:
        t.delete("dependents", row(Edge(resource.encode(), kind, dependent)), "reference")
    for resource in after - before:
        t.set("dependents", row(Edge(resource.encode(), kind, dependent)), "reference", b"")
