"""Which faults happen to which operations: at random, but the same again for the same seed; or exactly."""

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
    """What is about to be sent, or was.

    ``number`` counts the operations of one store from 1. ``names`` has one name a command, in the order in
    which the server runs them: that of the script, or of the command in capitals; ``timestamp`` stands first
    or last if one is asked for too. ``manner`` is ``call``, or ``deferred`` (nobody waits for the reply), or
    ``apart``.
    """

    number: int
    names: tuple[str, ...]
    commands: tuple[Command, ...]
    stamp: int
    manner: Literal["call", "deferred", "apart"] = "call"


class Kind(StrEnum):
    """What can happen to an operation. Where it is not *given up*, the client is answered in the end."""

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
    """Repeated; the first copy is executed when the fault's time has passed."""
    LATE = "late"
    """Given up; executed when the fault's time has passed."""
    SLOW_REQUEST = "slow request"
    """Executed after the fault's time, which the client waits."""
    SLOW_REPLY = "slow reply"
    """Executed at once; the client gets the reply after the fault's time."""


GIVES_UP: Final = frozenset({Kind.REFUSED, Kind.REQUEST_LOST_FOR_GOOD, Kind.REPLY_LOST_FOR_GOOD, Kind.LATE})
"""The kinds with which the client gives up: `StoreUnavailable`, or `CommitUndetermined` where it matters."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one operation.

    ``seconds``, 0 or more, is the fault's time; for what is lost it passes before the repetition. A late copy
    with `HELD` waits for `FaultyStore.deliver`.
    """

    kind: Kind
    seconds: float = 0.0


HELD: Final = math.inf
"""The time of a late copy that comes when the test says so."""

Match = Callable[[Operation], bool]


class Plan(Protocol):
    """Decides what happens to operations."""

    def choose(self, operation: Operation) -> Fault | None:
        """The fault that befalls the operation, or None. May be called by several threads."""


def named(*names: str) -> Match:
    """Matches operations that contain a script or command of one of these names (see `Operation.names`)."""
    wanted = frozenset(names)
    return lambda operation: not wanted.isdisjoint(operation.names)


class RandomPlan:
    """Each operation meets each kind of fault with a chance.

    What happens to the n-th operation of a store depends on the seed and on n alone, so one thread of
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

        ``where`` spares the operations of which it does not hold; ``seconds`` are the least and the longest
        time of a fault.

        Raises ValueError for chances that cannot be.
        """
        if any(chance < 0 for chance in chances.values()) or sum(chances.values()) > 1:
            raise ValueError(f"chances are 0 or more each and at most 1 together, not {dict(chances)}")
        self.seed = seed
        self._chances = [(Kind(kind), chance) for kind, chance in chances.items()]
        self._where = where
        self._seconds = seconds

    def choose(self, operation: Operation) -> Fault | None:
        """As `Plan`."""
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
    """Says which operation meets which fault: the n-th one that matches."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._lock = threading.Lock()

    def on(self, match: Match | str, fault: Fault | Kind, *, nth: int = 1, times: int = 1) -> ExactPlan:
        """Plan a fault for ``times`` operations that match, from the ``nth`` one on counted from now.

        ``match`` is a predicate, or the name of a script or command. Where several steps match one operation,
        the first of them that is due befalls it. Returns the plan.
        """
        if nth < 1 or times < 1:
            raise ValueError(f"nth and times are 1 or more, not {nth} and {times}")
        matches = named(match) if isinstance(match, str) else match
        with self._lock:
            self._steps.append(_Step(matches, Fault(fault) if isinstance(fault, Kind) else fault, nth, times))
        return self

    @property
    def finished(self) -> bool:
        """Whether all that was planned has happened."""
        return not self._steps

    def choose(self, operation: Operation) -> Fault | None:
        """As `Plan`."""
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
    """A fault and the operation that it befell."""

    operation: Operation
    fault: Fault
