"""How many runs may be under way at a time: places of an executor, and which observers may have them.

An observer of which many cells are dirty must not take all places from one that has few. So every observer
has *reserved* places which no other one gets. And runs that only get into each other's way waste the work of
all: where an observer's runs conflict, its *window* narrows, and widens again slowly when they do not, as
the senders of a shared line do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from percolator_core.notifications.dirty import DirtyIndex, Lease, LeasedCell

_FEW: Final = 16
"""Places of which a single free one is worth a look at the dirty index."""

_RESERVED: Final = 4
"""The part of all places that is reserved is one in so many."""

_MANY_CONFLICTS: Final = 0.25
_FEW_CONFLICTS: Final = 0.05
"""Conflicts a run, above which a window narrows, and below which it widens."""

_SHORTEST_COUNT: Final = 8
"""Runs after which a window is judged, at least; a wide one after as many as it lets run at a time."""

_RESERVED_LOOK: Final = 0.01
"""Seconds between two looks for the sake of reserved places alone, while the others are taken."""

_LEFT_OVER_LOOK: Final = 0.1
"""Seconds until any free place is worth a look: the runs in the others may take for ever."""


class Window:
    """How many runs of one observer may be under way: narrowed where they conflict."""

    __slots__ = ("_conflicts", "_ended", "_most", "limit")

    def __init__(self, most: int) -> None:
        self.limit = most
        self._most = most
        self._ended = self._conflicts = 0

    def ended(self, conflicts: int) -> None:
        """A run is over, which lost so many times against another transaction."""
        self._ended += 1
        self._conflicts += conflicts
        if self._ended < max(_SHORTEST_COUNT, self.limit):
            return
        share = self._conflicts / self._ended
        if share > _MANY_CONFLICTS:
            self.limit = max(1, self.limit // 2)
        elif share < _FEW_CONFLICTS:
            self.limit = min(self._most, self.limit + max(1, self.limit // 8))
        self._ended = self._conflicts = 0


class Room:
    """The observers of one executor, where their dirty cells are, and the runs that are under way.

    ``dirty`` is the index of those observers alone; ``places`` is how many runs there may be, 1 or more.
    """

    def __init__(self, dirty: DirtyIndex, observers: frozenset[str], places: int) -> None:
        self.dirty = dirty
        self.observers = observers
        self.running: dict[LeasedCell, Lease] = {}
        self._places = places
        self._by_observer: Counter[str] = Counter()
        # With fewer places than observers there is nothing to reserve: the claim's fair shares must do.
        share = places // (_RESERVED * len(observers)) if observers else 0
        self._reserved = (
            min(max(1, share), (places - 1) // max(1, len(observers) - 1)) if len(observers) > 1 else 0
        )
        most = places - self._reserved * (len(observers) - 1) if observers else places
        self._windows = {name: Window(most) for name in observers}
        self._looked_at = 0.0

    def begin(self, lease: Lease) -> None:
        """A run takes a place."""
        self.running[lease.cell] = lease
        self._by_observer[lease.observer] += 1

    def end(self, lease: Lease, conflicts: int) -> None:
        """A run gives its place back."""
        if self.running.pop(lease.cell, None) is not None:
            self._by_observer[lease.observer] -= 1
            self._windows[lease.observer].ended(conflicts)

    @property
    def free(self) -> int:
        """How many more runs may begin."""
        return self._places - len(self.running)

    def limits(self) -> Mapping[str, int]:
        """By observer, how many more of its runs may begin."""
        taken = self._by_observer
        return {name: max(0, window.limit - taken[name]) for name, window in self._windows.items()}

    @property
    def look_at(self) -> float:
        """From when on to look for more, in monotonic seconds; infinity: not before a run has ended.

        At once with half of the places free: a look costs as much for one cell as for many. For fewer it is
        done now and then. Observers in threads are given no more cells than threads: the others may go to
        another worker.
        """
        free = self.free
        if free <= 0 or not self.observers:
            return float("inf")
        if free >= (self._places // 2 if self._places > _FEW else 1):
            return 0.0
        if any(self._by_observer[name] < self._reserved for name in self.observers):
            return self._looked_at + _RESERVED_LOOK
        return self._looked_at + _LEFT_OVER_LOOK

    def wants_more(self, now: float) -> bool:
        """Whether to look for more; ``now`` is in monotonic seconds."""
        return now >= self.look_at

    def looked(self, now: float) -> None:
        """Somebody looks, which is not to be done again at once for the sake of a few places."""
        self._looked_at = now
