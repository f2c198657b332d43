"""What a failover loses, by the durability that was asked for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from percolator_core.store import Durability
from percolator_core.torture.pairs import CLIENTS, Found, Pairs, create_tables, open_pairs
from percolator_core.torture.replication import cut_off, follow, furthest, listening, promote
from percolator_core.torture.victim import VictimServer

_TIMEOUT: Final = 0.2
"""Seconds that a commit waits for replicas."""

_UNTIMED: Final = 50
"""Commits at the start that are not timed: connections are opened, scripts loaded."""


class Setting(NamedTuple):
    """A durability, and with how many replicas it is tried."""

    name: str
    durability: Durability
    replicas: int


SETTINGS: Final = (
    Setting("none", Durability(), 1),
    Setting("replicas=1", Durability(replicas=1, timeout=_TIMEOUT), 1),
    Setting("replicas=2", Durability(replicas=2, timeout=_TIMEOUT), 2),
    Setting("fsync", Durability(fsync=True), 1),
)


@dataclass(frozen=True, slots=True)
class FailoverRow:
    """What was found for one durability over its rounds, in transactions.

    ``lagging`` says whether the replicas were cut off before the primary died. ``undetermined`` ended in
    CommitUndetermined. ``lost``, ``torn``, ``doubled`` and ``unexpected`` are as in `Found`. ``per_second``
    is how many were acknowledged while the replicas were in step, ``relative`` that as a part of what the
    first durability had.
    """

    durability: str
    replicas: int
    lagging: bool
    rounds: int
    acknowledged: int
    undetermined: int
    lost: int
    rounds_with_loss: int
    torn: int
    doubled: int
    unexpected: int
    per_second: float
    relative: float


@dataclass(slots=True)
class _Tally:
    found: list[Found] = field(default_factory=list)
    acknowledged: int = 0
    undetermined: int = 0
    timed: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.timed / self.seconds if self.seconds else 0.0


def failover(
    rounds: int, seed: int, tell: Callable[[str], None], settings: Sequence[Setting] = SETTINGS
) -> list[FailoverRow]:
    """Kill a primary in the middle of writing, promote the replica that has most, and look what is left.

    The primary's disk is ignored, as if the machine were gone. Each durability is tried with replicas that
    are in step, and with replicas that are cut off shortly before the end, as a network does it. (One that is
    only stopped would afterwards read what the kernel has taken in for it, and miss nothing.) Half of the
    rounds commit in two phases. This measures; what to make of it is the reader's.

    Args:
        rounds: of each row; 1 or more, of about a second each.
        seed: of all random choices.
        tell: takes a line for each round.
        settings: what to try; the first is what the others are relative to.

    Raises:
        StoreUnavailable: a server does not start, or is not followed.
    """
    choices = random.Random(seed)
    rows = []
    for lagging in (False, True):
        first = 0.0
        for setting in settings:
            tally = _Tally()
            for number in range(rounds):
                left = _round(setting, number, choices, tally, lagging=lagging)
                state = "cut off" if lagging else "in step"
                tell(f"{setting.name}, {state}, round {number + 1} of {rounds}: {left.lost} lost")
            first = first or tally.per_second or 1.0
            rows.append(_row(setting, tally, rounds, first, lagging=lagging))
    return rows


def _round(setting: Setting, number: int, choices: random.Random, tally: _Tally, *, lagging: bool) -> Found:
    # More than the clients have under way when the replicas are cut off.
    enough, more = choices.randint(300, 600), choices.randint(CLIENTS + 4, 3 * CLIENTS)
    disk = {"appendonly": "yes", "appendfsync": "always"} if setting.durability.fsync else {}
    with ExitStack() as stack:
        primary = stack.enter_context(VictimServer(**disk, **listening()))
        replicas = [stack.enter_context(VictimServer(**listening())) for _ in range(setting.replicas)]
        for replica in replicas:
            follow(replica, primary)
        with open_pairs(primary.url) as db:
            create_tables(db)
        # Open until the end: nobody takes the liveness token away from a promoted server.
        db = stack.enter_context(
            open_pairs(primary.url, two_phase=number % 2 == 1, durability=setting.durability)
        )
        pairs = Pairs(db, "p", under_hub=number % 4 < 2)

        def strike() -> None:
            pairs.await_finished(_UNTIMED)
            began, before = time.monotonic(), pairs.acknowledgements
            pairs.await_finished(enough)
            tally.timed += pairs.acknowledgements - before
            tally.seconds += time.monotonic() - began
            if lagging:
                for replica in replicas:
                    cut_off(replica)
                pairs.await_finished(pairs.finished + more)
            primary.kill()

        pairs.write(strike)
        chosen = furthest(replicas)
        promote(chosen)
        with open_pairs(chosen.url) as other:
            left = pairs.find(other)
    tally.found.append(left)
    tally.acknowledged += pairs.acknowledgements
    tally.undetermined += pairs.unknown
    return left


def _row(setting: Setting, tally: _Tally, rounds: int, first: float, *, lagging: bool) -> FailoverRow:
    return FailoverRow(
        setting.name,
        setting.replicas,
        lagging,
        rounds,
        tally.acknowledged,
        tally.undetermined,
        sum(one.lost for one in tally.found),
        sum(one.lost > 0 for one in tally.found),
        sum(one.torn for one in tally.found),
        sum(one.doubled for one in tally.found),
        sum(one.unexpected for one in tally.found),
        tally.per_second,
        tally.per_second / first,
    )
