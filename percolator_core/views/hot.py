"""Hot groups: groups on which runs have conflicted. Their deltas go through a queue for some time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

_HOT: Final = 1.0
"""The seconds for which a group is hot after a conflict. While it is hot, its changes need a second run,
which empties the queue. After that time runs may conflict again: once, and then the group is hot again."""

_MOST: Final = 10_000
"""If there are more groups than this, those that are not hot any more are removed."""


class HotGroups:
    """The groups on which a run of this process conflicted with another transaction a short time ago."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}

    def __contains__(self, group: bytes) -> bool:
        return self._until.get(group, 0.0) > time.monotonic()

    def add(self, groups: Iterable[bytes]) -> None:
        """Record groups as hot from now on."""
        now = time.monotonic()
        if len(self._until) > _MOST:
            self._until = {group: until for group, until in self._until.items() if until > now}
        self._until.update(dict.fromkeys(groups, now + _HOT))
