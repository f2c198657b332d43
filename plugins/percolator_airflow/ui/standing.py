"""How a chain's observers stand: what each has to do, how fast it is at it, and one word for all of that."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from percolator_airflow.thresholds import own_thresholds
from percolator_airflow.ui.chains import KnownChain
from percolator_core.admin.samples import samples
from percolator_core.admin.status import ObserverStatus, Status
from percolator_core.database import Database
from percolator_core.notation.amounts import count_of, show_age
from percolator_core.observers import Chain
from percolator_core.observers.observer import Observer
from percolator_core.observers.scheduling import ThresholdsDeclaration

State = Literal["idle", "working", "unattended", "behind", "failing", "inactive"]

STATES: Final[Mapping[State, str]] = {
    "idle": "idle",
    "working": "working",
    "unattended": "unattended",
    "behind": "behind",
    "failing": "failing",
    "inactive": "not active",
}
"""The words for people."""

_LEAST: Final = 2.0
"""Seconds between two looks that tell a rate: workers send their counts about every second."""

_FAR: Final = 16.0
"""Seconds for which a look is remembered, while there are newer ones that tell a rate."""

_OLD: Final = 180.0
"""Seconds after which an earlier look tells nothing of what is going on now."""

_CHAINS: Final = 500
"""Chains of which looks are remembered."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Runs that committed and runs that raised, both a second."""

    runs: float
    failures: float


@dataclass(frozen=True, slots=True)
class Standing:
    """An observer. ``why`` is a sentence about its state; ``rate`` is None until there were two looks.

    ``declared`` is None where the chain's declarations are not at hand, or know no such observer.
    """

    now: ObserverStatus
    declared: Observer | None
    state: State
    why: str
    rate: Rate | None

    @property
    def watched(self) -> list[tuple[str, str]]:
        """What wakes it: the table of each column, and the column with its table's name before it."""
        if self.declared is not None:
            return [(table, f"{table}.{column}") for table, column in self.declared.observe]
        return [(column.rpartition(".")[0], column) for column in self.now.columns]

    @property
    def word(self) -> str:
        """The state in the words of people."""
        return STATES[self.state]


class Looks:
    """What each chain's observers had done when a page looked at them; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str, str | None], deque[tuple[float, dict[str, tuple[int, int]]]]] = {}

    def rates(self, chain: KnownChain, db: Database, status: Status) -> dict[str, Rate]:
        """The rates since a look some seconds ago, or else since the monitor's; remembers this look."""
        now = status.time / 1e6
        counts = {one.name: (one.ran, one.failures) for one in status.observers}
        before = self._before((chain.name, chain.conn_id, chain.namespace), now, counts)
        if before is None:
            before = _recorded(db, status)
        if before is None:
            return {}
        seconds = now - before[0]
        return {
            name: Rate(*(max(0, new - old) / seconds for new, old in zip(both, before[1][name], strict=True)))
            for name, both in counts.items()
            if name in before[1]
        }

    def _before(
        self, key: tuple[str, str, str | None], now: float, counts: dict[str, tuple[int, int]]
    ) -> tuple[float, dict[str, tuple[int, int]]] | None:
        with self._lock:
            seen = self._seen.pop(key, None) or deque()
            # The chain that was looked at last stands at the end: the first is the one to forget.
            self._seen[key] = seen
            for stale in list(islice(self._seen, max(0, len(self._seen) - _CHAINS))):
                del self._seen[stale]
            if seen and now < seen[-1][0] - _LEAST:
                # The server's clock was set back.
                seen.clear()
            while seen and now - seen[0][0] > _OLD:
                seen.popleft()
            while len(seen) > 1 and now - seen[0][0] > _FAR and now - seen[1][0] >= _LEAST:
                seen.popleft()
            before = seen[0] if seen and now - seen[0][0] >= _LEAST else None
            # Several people may look at once; more often than this tells nothing new.
            if not seen or now - seen[-1][0] >= _LEAST / 2:
                seen.append((now, counts))
            return before


looks: Final = Looks()
"""Those of this process."""


def _recorded(db: Database, status: Status) -> tuple[float, dict[str, tuple[int, int]]] | None:
    found = samples(db, since=status.time - int(_OLD * 1e6), limit=2)
    if not found or status.time / 1e6 - found[-1].time / 1e6 < _LEAST:
        return None
    newest = found[-1]
    return newest.time / 1e6, {name: (one.ran, one.failures) for name, one in newest.observers.items()}


def standings(status: Status, chain: Chain | None, rates: Mapping[str, Rate]) -> list[Standing]:
    """The observers, in the chain's order; what counts as too much is in the chain's declarations."""
    limits = chain.scheduling.monitor.thresholds if chain is not None else ThresholdsDeclaration()
    found = []
    for now in status.observers:
        rate = rates.get(now.name)
        attended = any(one.observers is None or now.name in one.observers for one in status.workers)
        state, why = _state(now, rate, limits, attended=attended)
        declared = chain.observers.get(now.name) if chain is not None else None
        found.append(Standing(now, declared, state, why, rate))
    return found


def worst(states: list[State]) -> State:
    """One state for all."""
    order: tuple[State, ...] = ("failing", "behind", "unattended", "working", "inactive", "idle")
    return next((state for state in order if state in states), "idle")


def _state(
    now: ObserverStatus, rate: Rate | None, limits: ThresholdsDeclaration, *, attended: bool
) -> tuple[State, str]:
    breach = _breach(now, rate, limits)
    if breach is not None:
        return breach
    if not now.active:
        return "inactive", "no worker has run the chain yet, so writers leave no marks for it"
    if now.backlog and not attended:
        return "unattended", f"{count_of(now.backlog, 'cell')} to observe, and no worker or drain is at it"
    if now.backlog:
        return "working", f"{count_of(now.backlog, 'cell')} to observe"
    if rate is not None and rate.runs > 0:
        return "working", "keeps up with what is written"
    return "idle", "nothing to observe"


def _breach(
    now: ObserverStatus, rate: Rate | None, limits: ThresholdsDeclaration
) -> tuple[State, str] | None:
    own = own_thresholds(now.name, limits)
    if rate is not None and rate.failures > 0:
        return "failing", f"{show_rate(rate.failures)} runs a second fail"
    if own.quarantine is not None and now.failed > own.quarantine:
        return "failing", f"{count_of(now.failed, 'cell')} in quarantine"
    if own.oldest is not None and now.oldest is not None and now.oldest > own.oldest:
        return "behind", f"the oldest cell has been waiting for {show_age(now.oldest)}"
    if own.backlog is not None and now.backlog > own.backlog:
        return "behind", f"{count_of(now.backlog, 'cell')} to observe"
    return None


def show_rate(rate: float | None) -> str:
    """Times a second, with as many digits as mean something."""
    if rate is None:
        return "-"
    if rate == 0 or rate >= 10:
        return f"{rate:,.0f}"
    return f"{rate:.1f}" if rate >= 0.1 else f"{rate:.2f}" if rate >= 0.01 else "<0.01"
