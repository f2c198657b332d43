"""Plans of faults: for random operations, repeatable by a seed, or for exactly named operations."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple, Protocol

from percolator_core.store.packing import Command


class Operation(NamedTuple):
    """An operation that a store is about to send, or has sent.

    ``number`` counts the operations of one store from 1. ``names`` has the name of each script, or of each
    command in capitals, in the order in which the server runs them. The first or last
    name is ``timestamp`` if the operation also requests a timestamp. ``manner`` is ``call``, or ``deferred``
    (no client waits for the reply), or ``apart`` (see `Store.call_apart`).
    """

    number: int
    names: tuple[str, ...]
    commands: tuple[Command, ...]
    stamp: int
    manner: Literal["call", "deferred", "apart"] = "call"


class Kind(StrEnum):
    """The faults of an operation. Unless the operation is *given up*, the client gets an answer at last."""

    REFUSED = "refused"
    """Not sent, and the client knows that: StoreUnavailable, nothing executed."""
    REQUEST_LOST = "request lost"
    """Sent, never executed, repeated."""
    REQUEST_LOST_FOR_GOOD = "request lost for good"
    """Sent, never executed, given up."""
    REPLY_LOST = "reply lost"
    """Executed, the reply lost; repeated, so executed twice."""
    REPLY_LOST_FOR_GOOD = "reply lost for good"
    """Executed, the reply lost; given up."""
    TWICE_FIRST = "twice, first reply"
    """Executed twice in a row; the client gets the first reply."""
    TWICE = "twice"
    """Executed twice in a row; the client gets the second reply."""
    LATE_COPY = "late copy"
    """Repeated; the first copy is executed after the fault's time."""
    LATE = "late"
    """Given up; executed after the fault's time."""
    SLOW_REQUEST = "slow request"
    """Executed after the fault's time, for which the client waits."""
    SLOW_REPLY = "slow reply"
    """Executed at once; the client gets the reply after the fault's time."""


GIVES_UP: Final = frozenset({Kind.REFUSED, Kind.REQUEST_LOST_FOR_GOOD, Kind.REPLY_LOST_FOR_GOOD, Kind.LATE})
"""The kinds with which the client gives up: `StoreUnavailable`, or `CommitUndetermined` for a commit."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one operation.

    ``seconds``, 0 or more, is the fault's time; if the operation is lost, this time passes before the
    repetition. A late copy with `HELD` waits for `FaultyStore.deliver`.
    """

    kind: Kind
    seconds: float = 0.0


HELD: Final = math.inf
"""The time of a late copy that waits for the test."""

Match = Callable[[Operation], bool]


class Plan(Protocol):
    """Chooses the faults of operations."""

    def choose(self, operation: Operation) -> Fault | None:
        """Return the fault of the operation, or None. Several threads may call it."""


def named(*names: str) -> Match:
    """Matches operations that contain a script or command of one of these names (see `Operation.names`)."""
    wanted = frozenset(names)
    return lambda operation: not wanted.isdisjoint(operation.names)


class RandomPlan:
    """Each operation meets each kind of fault with a probability.

    The fault of the n-th operation of a store depends on the seed and on n alone. So one thread of
    straight-line code meets the same faults again.
    """

    def __init__(
        self,
        seed: int,
        chances: Mapping[Kind, float],
        *,
        where: Match | None = None,
        seconds: tuple[float, float] = (0.0, 0.05),
    ) -> None:
        """``chances`` are probabilities, whose sum is at most 1.

        ``where`` returns False for operations without faults; ``seconds`` are the shortest and the longest
        time of a fault.

        Raises ValueError if the chances are not valid.
        """
        if any(chance < 0 for chance in chances.values()) or sum(chances.values()) > 1:
            raise ValueError(f"chances are 0 or more each and at most 1 together, not {dict(chances)}")
        self.seed = seed
        self._chances = [(Kind(kind), chance) for kind, chance in chances.items()]
        self._where = where
        self._seconds = seconds

    def choose(self, operation: Operation) -> Fault | None:
        """Choose a fault, as a `Plan` does."""
        if self._where is not None and not self._where(operation):
            return None
        dice = random.Random(f"{self.seed}/{operation.number}")
        drawn = dice.random()
        for kind, chance in self._chances:
            drawn -= chance
            if drawn < 0:
                return Fault(kind, dice.uniform(*self._seconds))
        return None


class ExactPlan:
    """Plans each fault for an exact operation: the n-th one that matches."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._lock = threading.Lock()

    def on(self, match: Match | str, fault: Fault | Kind, *, nth: int = 1, times: int = 1) -> ExactPlan:
        """Plan a fault for ``times`` operations that match, beginning with the ``nth`` from now.

        ``match`` is a predicate, or the name of a script or command. If several planned faults match one
        operation, the first of them that is due applies. Returns the plan.
        """
        if nth < 1 or times < 1:
            raise ValueError(f"nth and times are 1 or more, not {nth} and {times}")
        matches = named(match) if isinstance(match, str) else match
        with self._lock:
            self._steps.append(_Step(matches, Fault(fault) if isinstance(fault, Kind) else fault, nth, times))
        return self

    @property
    def finished(self) -> bool:
        """True if all planned faults have happened."""
        return not self._steps

    def choose(self, operation: Operation) -> Fault | None:
        """Choose a fault, as a `Plan` does."""
        with self._lock:
            for step in self._steps:
                if not step.match(operation):
                    continue
                step.skip -= 1
                if step.skip <= 0:
                    step.times -= 1
                    if not step.times:
                        self._steps.remove(step)
                    return step.fault
        return None


class _Step:
    __slots__ = ("fault", "match", "skip", "times")

    def __init__(self, match: Match, fault: Fault, nth: int, times: int) -> None:
        self.match, self.fault, self.skip, self.times = match, fault, nth, times


class Happened(NamedTuple):
    """A fault and its operation."""

    operation: Operation
    fault: Fault
