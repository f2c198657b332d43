"""What a worker and its child processes tell each other, pickled, over a pipe that nobody else reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.runs import EndedRun


@dataclass(frozen=True, slots=True)
class Orders:
    """The first message to a child: what it needs to run observers.

    ``connect`` has the arguments of `percolator_core.connect`, ``path`` is the parent's `sys.path`.
    """

    connect: dict[str, Any] = field(repr=False)
    chain: str
    prefetch: bool
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Up:
    """The child is ready: a `Lease` at a time is sent to it from now on."""


@dataclass(frozen=True, slots=True)
class Began:
    """The observer's own code begins: its time runs from here, at each repetition after a conflict anew."""


@dataclass(frozen=True, slots=True)
class Left:
    """The observer's own code is over. What follows is the store's; the child waits for a `Term` first."""


@dataclass(frozen=True, slots=True)
class Term:
    """The lease's deadlines as they are now: the worker renews it; by them alone is a weak mark cleared."""

    deadline: int
    before: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the worker's log."""

    level: str
    event: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """A run is over: how often it lost against others, what is to be counted, and what there is to tell."""

    conflicts: int
    counts: ObserverCounts
    ended: list[EndedRun]


@dataclass(frozen=True, slots=True)
class Broken:
    """The run, or the start, could not be brought to its end. ``away``: since the store does not answer."""

    message: str
    traceback: str
    away: bool
