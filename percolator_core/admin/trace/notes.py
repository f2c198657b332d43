"""What may be missing in a trace, in sentences."""

from __future__ import annotations

from percolator_core.admin.trace.found import Trace
from percolator_core.notation.amounts import count_of
from percolator_core.observers import Chain


def notes(found: Trace, chain: Chain, declared: str, further: str, limit: int = 1000) -> list[str]:
    """What may be missing in the trace, and what to do about it, a sentence each.

    Args:
        found: the trace.
        chain: whose it is.
        declared: where people find its ``chain.yaml``.
        further: how they have more runs followed that come one after the other.
        limit: how many changes were to be followed at most.
    """
    said = []
    if found.unrecorded:
        said.append(
            f"what {count_of(found.unrecorded, 'run')} wrote is not known: "
            + (
                "the workers did not have 'trace: true' in chain.yaml yet"
                if chain.trace
                else f"put 'trace: true' into {declared} and start the workers again, to have later runs "
                "followed"
            )
        )
    if found.unfollowed:
        followed = len(found.changes) + sum(len(run.changes) for run in found.runs)
        why = further if followed < limit else f"a trace follows {limit:,} at most"
        said.append(f"{count_of(found.unfollowed, 'change')} more not followed: {why}")
    if found.uncertain:
        said.append(
            f"{count_of(found.uncertain, 'change')} from before the safe point of garbage collection: runs "
            "may be missing, or a later one stand for an earlier one; gc --keep keeps more"
        )
    return said
