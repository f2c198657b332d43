"""The messages between a worker and its child processes: pickled, over a private pipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.runs import EndedRun


@dataclass(frozen=True, slots=True)
class Orders:
    """The first message to a child.

    ``connect`` has the arguments of `percolator_core.connect`, ``path`` is the parent's `sys.path`.
    """

    connect: dict[str, Any] = field(repr=False)
    chain: str
    prefetch: bool
    path: tuple[str, ...]


class Signal(Enum):
    """The messages of a child that have no content."""

    UP = "ready for leases, one at a time"
    BEGAN = (
        "the observer's own code begins, and its timeout starts: again at each repetition after a conflict"
    )
    LEFT = "the observer's own code has ended, and the child waits for a Term before it commits"


@dataclass(frozen=True, slots=True)
class Term:
    """The current deadlines of the lease, which clearing the mark of a weak observer needs."""

    deadline: int
    before: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the log of the worker."""

    level: str
    event: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """The run has ended. ``conflicts`` is the number of conflicts with other transactions."""

    conflicts: int
    counts: ObserverCounts
    ended: list[EndedRun]


@dataclass(frozen=True, slots=True)
class Broken:
    """The start or the run failed. ``away`` is True if the store does not answer."""

    message: str
    traceback: str
    away: bool
