"""Attempts that are repeated after failures which may pass by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds between a failure and the next attempt; each pause is twice as long as the last."""


@dataclass(slots=True)
class Patience:
    """Counts how long attempts have failed, and waits before the next one.

    ``seconds`` is the time after which no further attempt is worthwhile. ``stop`` ends a pause early.
    """

    seconds: float
    stop: Callable[[], bool]
    _failing_since: float | None = None
    _pause: float = _FIRST_PAUSE

    def succeeded(self) -> None:
        """Note a success: the time and the pauses begin anew."""
        self._failing_since, self._pause = None, _FIRST_PAUSE

    def is_over(self) -> bool:
        """Note a failure; return True if attempts have failed for too long."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        return now - self._failing_since > self.seconds

    def wait(self) -> None:
        """Pause before the next attempt."""
        until = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        while time.monotonic() < until and not self.stop():
            time.sleep(min(_FIRST_PAUSE, self._pause))
