"""Whether a worker lives, and whether it is ready: each with its reason, for people who are woken by it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from percolator_core.monitoring.look import Seen
from percolator_core.monitoring.subject import Subject
from percolator_core.observers import Chain

SLACK: Final = 30.0
"""Seconds that a loop may stand still beyond the longest run that may hold it up.

That covers a store that does not answer, for which a loop waits while it repeats a request.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``well`` or not, and why; ``facts`` are what it was decided by."""

    well: bool
    why: str
    facts: dict[str, Any] = field(default_factory=dict)


def still_limit(chain: Chain) -> float:
    """Seconds for which the loop of a worker of this chain may stand still.

    An observer that runs in the loop itself holds it up while it computes, for as long as its ``timeout``.
    """
    held_up = [one.timeout for one in chain.observers.values() if one.executor == "hub"]
    return SLACK + max(held_up, default=0.0)


def liveness(subject: Subject) -> Verdict:
    """Whether the worker should be left alone; if not, only a new start helps."""
    stalled, limit = subject.stalled(), still_limit(subject.chain)
    facts = {"stalled_seconds": round(stalled, 3), "limit_seconds": limit, "processes": subject.processes()}
    if stalled <= limit:
        return Verdict(True, "the worker's loop turns" if subject.begun() else "the worker starts", facts)
    return Verdict(
        False, f"the worker's loop has not turned for {stalled:.0f} s, and may take {limit:g} s", facts
    )


def readiness(subject: Subject, seen: Seen) -> Verdict:
    """Whether the worker does its work: the store answers, and writers leave marks for its observers."""
    inactive = [one.name for one in seen.status.observers if not one.active] if seen.status else []
    facts = {
        "begun": subject.begun(),
        "stopping": subject.stopping(),
        "store": seen.status is not None,
        "inactive_observers": inactive,
    }
    if subject.stopping():
        return Verdict(False, "the worker is stopping", facts)
    if seen.status is None:
        return Verdict(False, f"the store cannot be asked: {seen.error}", facts)
    if not subject.begun():
        return Verdict(False, "the worker starts", facts)
    if inactive:
        return Verdict(False, f"the chain is not active yet: {', '.join(inactive)}", facts)
    return Verdict(True, "the store answers and the chain is active", facts)
