"""The tablets in which a worker looks for due cells after it has caught up."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from percolator_core.layout.keys import woken_tablet
from percolator_core.store import Subscription

ALL_EVERY: Final = 1.0
"""Seconds between two claims that examine all tablets: a wake-up message may be lost."""


class Candidates:
    """The tablets that the next claim examines.

    A claim that examines all tablets of a chain costs the store more time than a run. After such a claim has
    leased all due cells, another cell can become due in two ways only:

    - Its mark is in a tablet where the claim leased a cell, or in a tablet for which a wake-up message has
      come after the claim. Such tablets are examined until they have no marks.
    - The claim has seen a mark that is due later. All tablets are examined at the time when it is due.
    """

    def __init__(self, subscription: Subscription) -> None:
        self.all_at = 0.0
        """When a claim has to examine all tablets again, in monotonic seconds."""
        self._subscription = subscription
        self._tags: set[bytes] = set()
        self._are_enough = False

    def hear(self) -> bool:
        """Read the messages that have arrived; return False if there is no news."""
        channels = self._subscription.heard()
        if channels is None:
            self.lose()
            return True
        self._tags.update(map(woken_tablet, channels))
        return bool(channels)

    def add(self, tag: bytes) -> None:
        """Add the tablet of a run that has ended: its mark may remain, and no message reports this."""
        self._tags.add(tag)

    def lose(self) -> None:
        """Record that messages or marks may be missed: the next claim examines all tablets."""
        self._are_enough = False

    def take(self, now: float) -> frozenset[bytes] | None:
        """Return the tablets that a claim has to examine at the time ``now``; None means all."""
        self.hear()
        taken, self._tags = frozenset(self._tags), set()
        is_listening = bool(self._subscription.sockets())
        return taken if is_listening and self._are_enough and now < self.all_at else None

    def examined(
        self,
        tags: frozenset[bytes] | None,
        now: float,
        wait: float | None,
        leased: Collection[bytes] = (),
        *,
        complete: bool,
    ) -> None:
        """Record the result of a claim that examined ``tags``.

        ``wait``: seconds until another cell in these tablets is due, or None. ``leased``: the tablets in
        which cells were leased. ``complete``: no due cell is left.
        """
        if tags is None:
            self._are_enough = complete
            self.all_at = now + (ALL_EVERY if wait is None else min(ALL_EVERY, wait))
            self._tags.update(leased)
        elif leased or wait is not None or not complete:
            self._tags.update(tags)
