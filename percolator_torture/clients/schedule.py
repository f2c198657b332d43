"""The faults of a run.

The number of finished transactions, not the time, decides when a fault is due. So a slow machine meets the
same faults. The schedule depends on the seed alone. The interleaving of the processes does not depend on the
seed. So a second run with the same seed repeats the plan and the choices of each client, but not the history.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from percolator_core.errors import ConfigurationError
from percolator_torture.faults.plan import Fault, Kind, Operation, Plan, RandomPlan


class Nemesis(StrEnum):
    """The faults of a run."""

    KILL = "kill"
    """SIGKILL of a client."""
    STOP = "stop"
    """SIGSTOP of a client for longer than its locks live, then SIGCONT."""
    DROP_REQUEST = "drop-request"
    DROP_REPLY = "drop-reply"
    DUPLICATE = "duplicate"
    """A request is executed twice."""
    DELAY = "delay"
    """A request or reply is slow, or a copy of a request arrives late."""
    SCRIPT_FLUSH = "script-flush"
    """The servers forget their scripts."""
    SERVER_KILL = "server-kill"
    """SIGKILL of the server, whose log is on disk."""
    CLOCK_BACK = "clock-back"
    """The server's clock is set back by an hour."""
    OUT_OF_MEMORY = "out-of-memory"
    """The server has no memory left, for a moment."""
    COLLECT = "collect"
    """Garbage collection that keeps only the newest versions."""
    KILL_MAINTAINER = "kill-maintainer"
    """SIGKILL of a process that flushes, compacts or collects, at a step of its work."""
    STOP_MAINTAINER = "stop-maintainer"
    """SIGSTOP of such a process for longer than its lease, then SIGCONT."""
    KILL_WORKER = "kill-worker"
    """SIGKILL of a worker of the chain."""
    DISK_FULL = "disk-full"
    """Maintainers cannot write files, for a moment."""
    LOSE_FILE = "lose-file"
    """A file that a manifest names is moved away, for a moment."""
    TEAR_MANIFEST = "tear-manifest"
    """A manifest is cut, for a moment."""


OF_BASES: Final = frozenset(
    {
        Nemesis.KILL_MAINTAINER,
        Nemesis.STOP_MAINTAINER,
        Nemesis.KILL_WORKER,
        Nemesis.DISK_FULL,
        Nemesis.LOSE_FILE,
        Nemesis.TEAR_MANIFEST,
    }
)
"""Faults of a workload whose tables have a base; other workloads do not have these faults."""

DEFAULT: Final = tuple(nemesis for nemesis in Nemesis if nemesis is not Nemesis.COLLECT)
"""All but garbage collection, which hides old versions from the checker, and so also the outcome of some
undetermined transactions.
"""

HARMLESS: Final = (
    Nemesis.KILL,
    Nemesis.STOP,
    Nemesis.DROP_REQUEST,
    Nemesis.DROP_REPLY,
    Nemesis.DUPLICATE,
    Nemesis.DELAY,
    *(nemesis for nemesis in Nemesis if nemesis in OF_BASES),
)
"""Faults that other users of the server do not notice."""

OWN_SERVER_ONLY: Final = frozenset({Nemesis.SERVER_KILL, Nemesis.OUT_OF_MEMORY})

FAULTS: Final[dict[Nemesis, dict[Kind, float]]] = {
    Nemesis.DROP_REQUEST: {Kind.REQUEST_LOST: 0.7, Kind.REQUEST_LOST_FOR_GOOD: 0.3},
    Nemesis.DROP_REPLY: {Kind.REPLY_LOST: 0.6, Kind.REPLY_LOST_FOR_GOOD: 0.4},
    Nemesis.DUPLICATE: {Kind.TWICE: 0.5, Kind.TWICE_FIRST: 0.5},
    Nemesis.DELAY: {Kind.SLOW_REQUEST: 0.3, Kind.SLOW_REPLY: 0.3, Kind.LATE_COPY: 0.3, Kind.LATE: 0.1},
}
"""The faults of each nemesis of the network, and their relative frequency."""

_CHANCE: Final = 0.004
"""The probability of each nemesis of the network, for one operation."""
_SHORT: Final = (0.0, 0.03)
"""Most faults of the network last so many seconds, at least and at most."""
_LONG_SHARE: Final = 0.05
_RARE: Final = 5
"""Each event that delays all clients happens once for this many kills."""
_FIRST, _LAST = 0.02, 0.85
"""Faults happen between these shares of the run. At its start and end few clients work, and a fault might
have to wait for one.
"""


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """``nemesis`` strikes when ``at`` transactions are finished; ``seat`` is that of the struck process."""

    at: int
    nemesis: Nemesis
    seat: int


def parse_nemeses(names: str) -> tuple[Nemesis, ...]:
    """Parse names joined by commas; ``all`` means all but garbage collection, ``none`` no nemesis.

    Raises:
        ConfigurationError: a name is unknown or missing, or stated together with ``all`` or ``none``.
    """
    named = [name for name in map(str.strip, names.split(",")) if name]
    if not named:
        raise ConfigurationError("no nemesis is named: name some, or say none")
    for alone, meant in (("all", DEFAULT), ("none", ())):
        if named == [alone]:
            return meant
        if alone in named:
            raise ConfigurationError(f"{alone} stands alone: leave out {alone}, or the other names")
    found = []
    for name in named:
        try:
            found.append(Nemesis(name))
        except ValueError:
            known = ", ".join(nemesis.value for nemesis in Nemesis)
            raise ConfigurationError(
                f"there is no nemesis {name!r}: choose from {known}, all, none"
            ) from None
    return tuple(dict.fromkeys(found))


def refuse_impossible(nemeses: Sequence[Nemesis], url: str | None) -> None:
    """Refuse nemeses that are not possible at the server of ``url``; None is a private server.

    Raises:
        ConfigurationError: there are such nemeses.
    """
    if url is None:
        return
    impossible = [nemesis.value for nemesis in nemeses if nemesis in OWN_SERVER_ONLY]
    if url.startswith("redis") and "+" in url.partition(":")[0]:
        # The fake clock is a key that every script reads, so all scripts must run on one server.
        impossible += [nemesis.value for nemesis in nemeses if nemesis is Nemesis.CLOCK_BACK]
    if impossible:
        raise ConfigurationError(
            f"{', '.join(impossible)} cannot be done to the server of --url: name other nemeses, or leave "
            "--url out, so that the run starts a private server"
        )


def make_schedule(
    seed: int, transactions: int, kills: int, seats: int, nemeses: Iterable[Nemesis]
) -> list[Event]:
    """Return the events of a run in their order.

    There are ``kills`` kills of clients, and as many of maintainers. There are half as many of each other
    event, but a fifth as many if the event delays all clients. Each event but these kills happens at least
    once.
    """
    often = max(1, kills // 2)
    rare = max(1, kills // _RARE)
    counts = {
        Nemesis.KILL: kills,
        Nemesis.STOP: often,
        Nemesis.SCRIPT_FLUSH: often,
        Nemesis.SERVER_KILL: rare,
        Nemesis.CLOCK_BACK: rare,
        Nemesis.OUT_OF_MEMORY: rare,
        Nemesis.COLLECT: often,
        Nemesis.KILL_MAINTAINER: kills,
        Nemesis.STOP_MAINTAINER: often,
        Nemesis.KILL_WORKER: often,
        Nemesis.DISK_FULL: rare,
        Nemesis.LOSE_FILE: often,
        Nemesis.TEAR_MANIFEST: often,
    }
    events = []
    for nemesis in dict.fromkeys(nemeses):
        # A generator for each nemesis, so that leaving one out does not change the events of the others.
        dice = random.Random(f"{seed}/schedule/{nemesis}")
        for _ in range(counts.get(nemesis, 0)):
            at = int(transactions * dice.uniform(_FIRST, _LAST))
            events.append(Event(at, nemesis, dice.randrange(seats)))
    return sorted(events)


class NetworkPlan:
    """Faults of the network: most are short, and a few outlast a lock."""

    def __init__(self, seed: str, nemeses: Iterable[Nemesis], lock_ttl: float) -> None:
        chances = {
            kind: _CHANCE * share for nemesis in nemeses for kind, share in FAULTS.get(nemesis, {}).items()
        }
        slow = {kind: chance for kind, chance in chances.items() if kind in _MAY_TAKE_LONG}
        number = random.Random(seed).getrandbits(32)
        self._plans: list[Plan] = [
            RandomPlan(number, chances, seconds=_SHORT),
            RandomPlan(
                number + 1,
                {kind: chance * _LONG_SHARE for kind, chance in slow.items()},
                seconds=(lock_ttl, 2 * lock_ttl),
            ),
        ]

    def choose(self, operation: Operation) -> Fault | None:
        """Choose a fault, as a `Plan` does."""
        for plan in self._plans:
            fault = plan.choose(operation)
            if fault is not None:
                return fault
        return None


_MAY_TAKE_LONG: Final = frozenset({Kind.SLOW_REQUEST, Kind.SLOW_REPLY, Kind.LATE_COPY, Kind.LATE})
