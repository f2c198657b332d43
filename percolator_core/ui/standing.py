"""The state of a chain's observers: backlog and rate of each, and a state in one word."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from percolator_core.admin.samples import samples
from percolator_core.admin.status import ObserverStatus, Status
from percolator_core.admin.thresholds import own_thresholds
from percolator_core.database import Database
from percolator_core.notation.amounts import count_of, show_age
from percolator_core.observers import Chain
from percolator_core.observers.observer import Observer
from percolator_core.observers.scheduling import ThresholdsDeclaration
from percolator_core.ui.host import ShownChain

State = Literal["idle", "working", "unattended", "behind", "failing", "inactive"]

STATES: Final[Mapping[State, str]] = {
    "idle": "idle",
    "working": "working",
    "unattended": "unattended",
    "behind": "behind",
    "failing": "failing",
    "inactive": "not active",
}
"""The names of the states on pages."""

_LEAST: Final = 2.0
"""The fewest seconds between the two samples of a rate: workers send counts about every second."""

_FAR: Final = 16.0
"""Seconds after which a sample is dropped if a newer one suffices for a rate."""

_OLD: Final = 180.0
"""Seconds after which a sample is too old for the current rate."""

_CHAINS: Final = 500
"""Samples of at most this many chains are kept."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The runs per second that committed, and the runs per second that raised."""

    runs: float
    failures: float


@dataclass(frozen=True, slots=True)
class Standing:
    """An observer's state. ``why`` explains it; ``rate`` is None until there are two samples.

    ``declared`` is None if the chain's declarations are missing, or do not have the observer.
    """

    now: ObserverStatus
    declared: Observer | None
    state: State
    why: str
    rate: Rate | None

    @property
    def observed(self) -> list[tuple[str, str]]:
        """The observed columns: pairs of the table and ``table.column``."""
        if self.declared is not None:
            return [(table, f"{table}.{column}") for table, column in self.declared.observe]
        return [(column.rpartition(".")[0], column) for column in self.now.columns]

    @property
    def word(self) -> str:
        """The word that pages show for the state."""
        return STATES[self.state]


class RateSamples:
    """The counts of each chain's observers at earlier page views. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[ShownChain, deque[tuple[float, dict[str, tuple[int, int]]]]] = {}

    def rates(self, chain: ShownChain, db: Database, status: Status) -> dict[str, Rate]:
        """Return the rates since an earlier page view or the monitor's last sample; keep the new counts."""
        now = status.time / 1e6
        counts = {one.name: (one.ran, one.failures) for one in status.observers}
        before = self._before(chain, now, counts)
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
        self, key: ShownChain, now: float, counts: dict[str, tuple[int, int]]
    ) -> tuple[float, dict[str, tuple[int, int]]] | None:
        with self._lock:
            seen = self._seen.pop(key, None) or deque()
            # The chain that was viewed last is at the end, so the first chains are dropped.
            self._seen[key] = seen
            for stale in list(islice(self._seen, max(0, len(self._seen) - _CHAINS))):
                del self._seen[stale]
            if seen and now < seen[-1][0] - _LEAST:
                # The store's clock was set back.
                seen.clear()
            while seen and now - seen[0][0] > _OLD:
                seen.popleft()
            while len(seen) > 1 and now - seen[0][0] > _FAR and now - seen[1][0] >= _LEAST:
                seen.popleft()
            before = seen[0] if seen and now - seen[0][0] >= _LEAST else None
            # Several users may view the page at once; more frequent samples add nothing.
            if not seen or now - seen[-1][0] >= _LEAST / 2:
                seen.append((now, counts))
            return before


rate_samples: Final = RateSamples()
"""The samples of this process."""


def _recorded(db: Database, status: Status) -> tuple[float, dict[str, tuple[int, int]]] | None:
    found = samples(db, since=status.time - int(_OLD * 1e6), limit=2)
    if not found or status.time / 1e6 - found[-1].time / 1e6 < _LEAST:
        return None
    newest = found[-1]
    return newest.time / 1e6, {name: (one.ran, one.failures) for name, one in newest.observers.items()}


def standings(status: Status, chain: Chain | None, rates: Mapping[str, Rate]) -> list[Standing]:
    """Return the states of the observers, which depend on the thresholds of the chain's declarations."""
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
    """Return the most urgent state."""
    order: tuple[State, ...] = ("failing", "behind", "unattended", "working", "inactive", "idle")
    return next((state for state in order if state in states), "idle")


def _state(
    now: ObserverStatus, rate: Rate | None, limits: ThresholdsDeclaration, *, attended: bool
) -> tuple[State, str]:
    breach = _breach(now, rate, limits)
    if breach is not None:
        return breach
    if not now.active:
        return "inactive", "no worker has run the chain yet, so writes do not mark cells for it"
    if now.backlog and not attended:
        return "unattended", f"{count_of(now.backlog, 'cell')} to observe, and no worker or drain takes them"
    if now.backlog:
        return "working", f"{count_of(now.backlog, 'cell')} to observe"
    if rate is not None and rate.runs > 0:
        return "working", "keeps up with the writes"
    return "idle", "no cell to observe"


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
    """Format a rate with its significant digits."""
    if rate is None:
        return "-"
    if rate == 0 or rate >= 10:
        return f"{rate:,.0f}"
    return f"{rate:.1f}" if rate >= 0.1 else f"{rate:.2f}" if rate >= 0.01 else "<0.01"
