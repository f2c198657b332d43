"""The request to stop a worker."""

from __future__ import annotations

import threading
import time


class Stop:
    """A request to stop, which any thread and any signal handler may set."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.until = float("inf")
        """When the grace period ends, in monotonic seconds; infinity while no stop is requested."""

    def set(self, grace: float) -> None:
        """Request a stop within ``grace`` seconds. Of several requests, the earliest end counts."""
        self.until = min(self.until, time.monotonic() + grace)
        self._requested.set()

    def clear(self) -> None:
        """Forget all requests."""
        self._requested.clear()
        self.until = float("inf")

    def is_set(self) -> bool:
        """Return True if a stop is requested."""
        return self._requested.is_set()

    def left(self, usual: float) -> float:
        """Return the seconds of grace that are left, or ``usual`` if no stop is requested."""
        return max(0.0, self.until - time.monotonic()) if self.is_set() else usual
