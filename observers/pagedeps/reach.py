"""What can be reached from some resources, by the references of style sheets, which may be a cycle."""

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
    """Every resource that is named by the roots or by what they name; None for one that never came.

    All at the snapshot of ``t``, with as many round trips as the references are deep. Each resource is looked
    at once, so it ends whatever imports what.
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
    """A digest of which states of which resources these are.

    Of versions, not of contents: a resource may change, and change back, while somebody has seen what was
    between. Then the stamp differs, and he is told.
    """
    versions = sorted((address, facts.version if facts else 0) for address, facts in found.items())
    return blake2b(json.dumps(versions).encode(), digest_size=16).hexdigest().encode()
