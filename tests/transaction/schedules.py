"""Runs programs in every order of their operations that can make a difference.

Stateless search: a schedule is executed from the start on cells of its own, and the next one takes another
turn at the last place where there was one to take. Two operations that touch nothing in common (or only read
it) do and answer the same in either order, so of all schedules that differ by swapping such neighbours one is
enough: *sleep sets* (Godefroid, 1996) leave out the others, and no state that some schedule ends in.

Whoever waits for a lock looks again once something has changed that it looked at: in between it would see the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from percolator_core.store.packing import parts
from percolator_torture.faults.plan import Operation
from percolator_torture.faults.stepper import Stepper

Move = tuple[str, str]
"""What is done and who does it: ``("step", "A")``."""

Footprint = frozenset[tuple[bytes, bool]]
"""What an operation touches: each with whether it may change it."""

CLOCK = b"the clock"
_ORACLE = b"the oracle"
_READS = {
    "HMGET",
    "HGET",
    "HGETALL",
    "EXISTS",
    "ZRANGEBYSCORE",
    "ZSCORE",
    "GET",
    "read",
    "scan",
    "history",
    "now",
}
_BY_THE_CLOCK = {"prewrite", "resolve_primary", "now"}


def footprint(operation: Operation) -> Footprint:
    """What a single command, or a timestamp, touches: whole tablets, the oracle, a token, the clock.

    A timestamp grows with the clock, but no decision rests on by how much.
    """
    if not operation.commands:
        return frozenset({(_ORACLE, True)})
    (command,), (name,) = map(parts, operation.commands), operation.names
    if command[0] == b"EVALSHA":
        keys = [bytes_of(key) for key in command[3 : 3 + int(command[2])]]
    else:
        keys = [bytes_of(command[1])]
    by_the_clock = name in _BY_THE_CLOCK and "both" not in command
    touched = {(_ORACLE if key.endswith(b"}oracle") else tablet(key), name not in _READS) for key in keys}
    return frozenset(touched | ({(CLOCK, False)} if by_the_clock else set()))


def tablet(key: bytes) -> bytes:
    """The tablet that a key belongs to; the key itself if it is in none."""
    tag, brace, _ = key.partition(b"}")
    return tag + brace if b":" in tag else key


def bytes_of(part: bytes | str | int) -> bytes:
    """A part of a command as it is sent."""
    return part if isinstance(part, bytes) else str(part).encode()


def collide(one: Footprint, other: Footprint) -> bool:
    """Whether the order of two operations can make a difference."""
    return any(
        place == there and (writes or writes_there) for place, writes in one for there, writes_there in other
    )


class Stepped:
    """A program that is held before each of its operations."""

    def __init__(self, program: Callable[..., object], *arguments: Any) -> None:
        self.blocked_by: Footprint | None = None
        """The keys whose change it waits for; None while it does not wait."""
        self._looked_at: Footprint = frozenset()
        self.stepper = Stepper(program, *arguments, after=True)
        self._settle()

    @property
    def next(self) -> Operation | None:
        """The operation that it is about to send."""
        point = self.stepper.at
        return None if point is None or point.when == "asleep" else point.operation

    def step(self) -> None:
        """Have one operation executed, and go on to where the next one is about to be sent."""
        operation = self.next
        assert operation is not None
        self._looked_at |= footprint(operation)
        after = self.stepper.step()
        assert after is not None
        assert after.when == "after"
        if after.replies:
            self.note(operation, after.replies[0])
        self._settle()

    def note(self, operation: Operation, reply: Any) -> None:
        """The server has answered an operation of this program."""
        raise NotImplementedError

    def wake(self) -> None:
        """What it waits for has changed."""
        self.blocked_by = None
        self._settle()

    def _settle(self) -> None:
        point = self.stepper.step()
        if point is not None and point.when == "asleep":
            self.blocked_by, self._looked_at = self._looked_at, frozenset()
        elif self.stepper.error is not None:
            raise self.stepper.error


class Run(Protocol):
    """One execution, move by move."""

    def moves(self) -> Mapping[Move, Footprint] | None:
        """What can be done next, in a fixed order; nothing at the end, None to cut the run short here."""

    def take(self, move: Move, touched: Footprint) -> None:
        """Do one of them, which touches so much."""

    def judge(self) -> None:
        """The run is over: look at what it left."""

    def discard(self) -> None:
        """The run is cut short: it would end as an earlier one did."""


@dataclass(slots=True)
class _Node:
    moves: Mapping[Move, Footprint]
    asleep: dict[Move, Footprint]
    """Moves whose schedules have been seen from here, or from further up."""
    chosen: Move

    def awake(self) -> list[Move]:
        return [move for move in self.moves if move not in self.asleep]


@dataclass(slots=True)
class Tally:
    """How many schedules ran to their end, how many were cut short, and how they ended."""

    schedules: int = 0
    cut_short: int = 0
    outcomes: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def count(self, outcomes: tuple[str, ...]) -> None:
        """A schedule has ended so."""
        self.outcomes[outcomes] += 1

    def __iadd__(self, other: Tally) -> Self:
        self.schedules += other.schedules
        self.cut_short += other.cut_short
        self.outcomes += other.outcomes
        return self

    def __str__(self) -> str:
        ends = ", ".join(f"{'/'.join(ends)} {count}" for ends, count in self.outcomes.most_common())
        return f"{self.schedules} schedules ({self.cut_short} cut short): {ends}"


def explore(start: Callable[[], Run], tally: Tally) -> None:
    """Execute one schedule of each kind. A failure names the schedule that led to it."""
    for path, run in _executions(start, tally):
        try:
            run.judge()
        except BaseException as error:
            error.add_note("schedule: " + ", ".join(" ".join(move) for move in path))
            raise


def _executions(start: Callable[[], Run], tally: Tally) -> Iterator[tuple[list[Move], Run]]:
    path: list[_Node] = []
    while True:
        run = start()
        for node in path:
            run.take(node.chosen, node.moves[node.chosen])
        if _go_on(run, path):
            tally.schedules += 1
            yield [node.chosen for node in path], run
        else:
            tally.cut_short += 1
            run.discard()
        while path:
            last = path[-1]
            last.asleep[last.chosen] = last.moves[last.chosen]
            awake = last.awake()
            if awake:
                last.chosen = awake[0]
                break
            path.pop()
        else:
            return


def _go_on(run: Run, path: list[_Node]) -> bool:
    """To the end of the run; False if all that is left to do has been seen, or is not worth it."""
    while moves := run.moves():
        asleep: dict[Move, Footprint] = {}
        if path:
            before = path[-1]
            done = before.moves[before.chosen]
            asleep = {
                move: touched
                for move, touched in before.asleep.items()
                if move[1] != before.chosen[1] and not collide(touched, done)
            }
        node = _Node(moves, asleep, ("", ""))
        awake = node.awake()
        if not awake:
            return False
        node.chosen = awake[0]
        path.append(node)
        run.take(node.chosen, moves[node.chosen])
    return moves is not None
