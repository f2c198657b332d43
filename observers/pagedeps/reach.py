"""The resources that are reachable through the references of style sheets, which may form a cycle."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from schemas.pagedeps import Facts

if TYPE_CHECKING:
    from percolator_core import ObserverTransaction
    from percolator_core.transaction.snapshot import Snapshot


def reach(t: ObserverTransaction | Snapshot, roots: Iterable[str]) -> dict[str, Facts | None]:
    """Return the facts of the roots and of all resources that they name; None for one that was never loaded.

    All are read at the snapshot of ``t``, with one round trip for each level of references. Each resource is
    read once, so cycles end.
    """
    found: dict[str, Facts | None] = {}
    level = sorted(set(roots))
    while level:
        values = t.get_many([("resources", address, "facts") for address in level])
        for address, value in zip(level, values, strict=True):
            found[address] = Facts.decode(value) if value is not None else None
        named = {name for address in level if (facts := found[address]) for name in facts.references}
        level = sorted(named - found.keys())
    return found


def stamp(found: Mapping[str, Facts | None]) -> bytes:
    """Return a digest of the resources and their versions.

    A resource may change and change back, and a render may have seen the state in between. The digest depends
    on versions, not on contents, so it differs in this case, too, and the page is rendered again.
    """
    versions = sorted((address, facts.version if facts else 0) for address, facts in found.items())
    return blake2b(json.dumps(versions).encode(), digest_size=16).hexdigest().encode()
