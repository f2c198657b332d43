"""Groups for which runs compete: their deltas go through a queue for some time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

_HOT: Final = 1.0
"""Seconds after a conflict during which a group counts as hot. Each run of a hot group is followed by a run
that empties the queue, but once in this time at most, runs of this process lose against others."""

_MOST: Final = 10_000


class HotGroups:
    """The groups for which a run of this process lost against another transaction a short time ago."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def __contains__(self, group: bytes) -> bool:
        return self._until.get(group, 0.0) > time.monotonic()

    def add(self, groups: Iterable[bytes]) -> None:
        """Count groups as hot from now on."""
        now = time.monotonic()
        if len(self._until) > _MOST:
            self._until = {group: until for group, until in self._until.items() if until > now}
        self._until.update(dict.fromkeys(groups, now + _HOT))
