"""The pace of a maintainer: how much it uses of the store's time, and of the disk or the network."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from percolator_core.scripts.calls import Call
from percolator_core.store import Store

T = TypeVar("T")

ALL: Final = 1.0
"""The share of a maintainer that makes no pauses."""

_SHORTER: Final = 4
"""If other clients have a share of the time, steps are shorter by this factor.

The commits of other clients wait for the end of a step.
"""


class Pace:
    """Makes pauses between the steps of a maintainer, so that other clients and readers are served.

    ``rate`` is the maximum number of bytes per second that are written to files; None is no limit. ``share``
    is the part of the time, above 0 and at most 1, in which the store works for this maintainer. ``between``
    is called after each step, and during pauses; it may raise an exception to end the work.
    """

    def __init__(
        self,
        store: Store,
        rate: float | None = None,
        share: float = ALL,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._rate = rate
        self._share = share
        self._between = between

    def rows(self, most: int) -> int:
        """Return how many rows a step has: ``most``, or fewer if other clients have a share of the time."""
        return most if self._share == ALL else max(1, most // _SHORTER)

    def run(self, call: Call[T]) -> T:
        """Call a script in the store, then pause."""
        begun = time.monotonic()
        found = self._store.run(call)
        self._pause((time.monotonic() - begun) * (1 / self._share - 1))
        return found

    def wrote(self, size: int) -> None:
        """Pause after ``size`` bytes were written to a file."""
        self._pause(size / self._rate if self._rate else 0.0)

    def _pause(self, seconds: float) -> None:
        # In short parts, because a lease has to be renewed during a pause.
        self._between()
        while seconds > 0:
            self._store.sleep(min(seconds, 1.0))
            seconds -= 1.0
            self._between()
