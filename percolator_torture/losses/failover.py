"""Measure the losses of a failover, by durability."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from percolator_core.store import Durability
from percolator_torture.losses.pairs import CLIENTS, Found, Pairs, create_tables, open_pairs
from percolator_torture.servers.private_server import PrivateServer
from percolator_torture.servers.replication import cut_off, follow, furthest, promote

_TIMEOUT: Final = 0.2
"""Seconds that a commit waits for replicas."""

_AMPLE: Final = 8.0
"""The same for rounds in which all commits have to be acknowledged: enough replicas stay connected."""

_UNTIMED: Final = 50
"""Commits at the start that are not timed: they open connections and load scripts."""


class Before(StrEnum):
    """The state of the replicas shortly before the primary dies. It decides which of them is promoted."""

    IN_STEP = "replicas in step"
    """All are connected; the one with most data is promoted."""
    CUT_OFF = "replicas cut off"
    """All are cut off; the one with most data is promoted."""
    PASSED_OVER = "one replica cut off, and promoted"
    """A replica is cut off and promoted, although another replica has more data."""


class Setting(NamedTuple):
    """A durability, the number of replicas, and their state."""

    name: str
    durability: Durability
    replicas: int
    befalls: tuple[Before, ...] = (Before.IN_STEP, Before.CUT_OFF)

    def is_safe(self, before: Before) -> bool:
        """True if the promoted replica has all acknowledged writes."""
        counted = self.durability.replicas
        # Except with `PASSED_OVER`, the promoted replica is the one with the most data, so it lacks no data
        # that another replica has.
        return counted >= self.replicas if before is Before.PASSED_OVER else counted > 0


_PASSED_OVER: Final = (Before.PASSED_OVER,)

SETTINGS: Final = (
    Setting("none", Durability(), 1),
    Setting("replicas=1", Durability(replicas=1, timeout=_TIMEOUT), 1),
    Setting("replicas=2", Durability(replicas=2, timeout=_TIMEOUT), 2),
    Setting("fsync", Durability(fsync=True), 1),
    Setting("none", Durability(), 2, _PASSED_OVER),
    Setting("replicas=1", Durability(replicas=1, timeout=_AMPLE), 2, _PASSED_OVER),
    Setting("replicas=2", Durability(replicas=2, timeout=_TIMEOUT), 2, _PASSED_OVER),
)


@dataclass(frozen=True, slots=True)
class FailoverRow:
    """The outcome for one durability over its rounds, in transactions. Outcomes can be added.

    ``before`` is the state of the replicas before the primary died. ``safe`` is True if the promoted replica
    had all acknowledged writes, so that any loss is a fault. While the replicas were connected, ``timed``
    transactions were acknowledged in ``seconds``.
    """

    durability: str
    replicas: int
    before: Before
    safe: bool
    rounds: int = 0
    found: Found = field(default_factory=Found)
    rounds_with_loss: int = 0
    timed: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Acknowledged transactions a second."""
        return self.timed / self.seconds if self.seconds else 0.0

    def __add__(self, other: FailoverRow) -> FailoverRow:
        return replace(
            self,
            rounds=self.rounds + other.rounds,
            found=self.found + other.found,
            rounds_with_loss=self.rounds_with_loss + other.rounds_with_loss,
            timed=self.timed + other.timed,
            seconds=self.seconds + other.seconds,
        )


def failover(
    rounds: int, seed: int, tell: Callable[[str], None], settings: Sequence[Setting] = SETTINGS
) -> list[FailoverRow]:
    """Kill a primary in the middle of writing, promote a replica, and look for losses.

    The primary's disk is ignored, as if the machine were lost. Each durability is tested with connected
    replicas, and with replicas that are cut off from the network shortly before the end. To stop a replica
    would not be enough: it would later read the data that the kernel has received for it. The replica with
    the most data is promoted; with `Before.PASSED_OVER` it is another one. Half of the rounds commit in two
    phases.

    Args:
        rounds: the number of rounds for each setting and state, 1 or more. A round takes about a second.
        seed: of all random choices.
        tell: called with a line for each round.
        settings: the durabilities, and the states of their replicas.

    Raises:
        StoreUnavailable: a server does not start, or its replica does not connect.
    """
    choices = random.Random(seed)
    rows = []
    for before in Before:
        for setting in settings:
            if before not in setting.befalls:
                continue
            total = FailoverRow(setting.name, setting.replicas, before, setting.is_safe(before))
            for number in range(rounds):
                row = _round(setting, before, number, choices)
                total += row
                tell(f"{setting.name}, {before}, round {number + 1} of {rounds}: {row.found.lost} lost")
            rows.append(total)
    return rows


def _round(setting: Setting, before: Before, number: int, choices: random.Random) -> FailoverRow:
    # `more` exceeds the number of commits in flight at the cut, so some commits begin after the cut.
    enough, more = choices.randint(300, 600), choices.randint(CLIENTS + 4, 3 * CLIENTS)
    disk = {"appendonly": "yes", "appendfsync": "always"} if setting.durability.fsync else {}
    with ExitStack() as stack:
        primary = stack.enter_context(PrivateServer(listens=True, **disk))
        replicas = [stack.enter_context(PrivateServer(listens=True)) for _ in range(setting.replicas)]
        for replica in replicas:
            follow(replica, primary)
        lagging = {Before.IN_STEP: [], Before.CUT_OFF: replicas, Before.PASSED_OVER: replicas[:1]}[before]
        with open_pairs(primary.url) as db:
            create_tables(db)
        # Open until the end: closing it earlier is of no use, because this client cannot delete its liveness
        # token on the promoted server.
        db = stack.enter_context(
            open_pairs(primary.url, two_phase=number % 2 == 1, durability=setting.durability)
        )
        pairs = Pairs(db, "p", under_hub=number % 4 < 2)
        timed, seconds = 0, 0.0

        def strike() -> None:
            nonlocal timed, seconds
            pairs.await_finished(_UNTIMED)
            began, so_far = time.monotonic(), pairs.acknowledgements
            pairs.await_finished(enough)
            timed, seconds = pairs.acknowledgements - so_far, time.monotonic() - began
            for replica in lagging:
                cut_off(replica)
            if lagging:
                pairs.await_finished(pairs.finished + more)
            primary.kill()

        pairs.write(strike)
        chosen = replicas[0] if before is Before.PASSED_OVER else furthest(replicas)
        promote(chosen)
        with open_pairs(chosen.url) as other:
            left = pairs.find(other)
    safe, loses = setting.is_safe(before), left.lost > 0
    return FailoverRow(setting.name, setting.replicas, before, safe, 1, left, int(loses), timed, seconds)
