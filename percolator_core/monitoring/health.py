"""The monitored worker or crew, and checks if it is alive and ready. Each answer has a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from percolator_core.monitoring.probe import ProbeResult
from percolator_core.observers import Chain
from percolator_core.runtime.histogram import Histogram
from percolator_core.worker import Counts

SLACK: Final = 30.0
"""Seconds that a turn of the loop may take, in addition to the longest run that blocks the loop.

A turn can take this long while the loop repeats a request to a store that does not answer.
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A worker or a crew. Other threads call the functions, which must not block.

    Attributes:
        chain: the observers that it runs.
        namespace: the namespace of its tables.
        counts: its runs so far; the numbers never decrease.
        begun: True after the start.
        stalled: seconds since the last iteration of the worker's loop, normally near 0; for a crew, the
        longest such time among its processes.
        stopping: True after a request to stop.
        processes: number of running processes.
        replaced: number of processes that ended and were replaced.
        times: durations of the runs, by observer; empty if they are not measured.
    """

    chain: Chain
    namespace: str
    counts: Callable[[], Counts]
    begun: Callable[[], bool]
    stalled: Callable[[], float]
    stopping: Callable[[], bool]
    processes: Callable[[], int] = field(default=lambda: 1)
    replaced: Callable[[], int] = field(default=lambda: 0)
    times: Callable[[], Mapping[str, Histogram]] = field(default=dict)


@dataclass(frozen=True, slots=True)
class Health:
    """An answer, its reason, and the values that it depends on."""

    ok: bool
    reason: str
    details: dict[str, Any] = field(default_factory=dict)


def stall_limit(chain: Chain) -> float:
    """Return the longest time (s) between two turns of the loop of a healthy worker of this chain.

    An observer that runs in the loop itself blocks the loop while it computes, for its ``timeout`` at most.
    """
    blocking = [one.timeout for one in chain.observers.values() if one.executor == "hub"]
    return SLACK + max(blocking, default=0.0)


def liveness(subject: Subject) -> Health:
    """Report if the worker is alive. If it is not alive, only a restart helps."""
    stalled, limit = subject.stalled(), stall_limit(subject.chain)
    details = {"stalled_seconds": round(stalled, 3), "limit_seconds": limit, "processes": subject.processes()}
    if stalled <= limit:
        return Health(True, "the worker's loop runs" if subject.begun() else "the worker starts", details)
    return Health(
        False, f"the worker's loop has been blocked for {stalled:.0f} s; the limit is {limit:g} s", details
    )


def readiness(subject: Subject, result: ProbeResult) -> Health:
    """Report if the worker can work: the store answers, and writers leave marks for its observers."""
    inactive = [one.name for one in result.status.observers if not one.active] if result.status else []
    details = {
        "begun": subject.begun(),
        "stopping": subject.stopping(),
        "store": result.status is not None,
        "inactive_observers": inactive,
    }
    if subject.stopping():
        return Health(False, "the worker is stopping", details)
    if result.status is None:
        return Health(False, f"the store cannot be read: {result.error}", details)
    if not subject.begun():
        return Health(False, "the worker starts", details)
    if inactive:
        return Health(False, f"the chain is not active yet: {', '.join(inactive)}", details)
    return Health(True, "the store answers and the chain is active", details)
