"""The request to stop a worker, and the exceptions that end one."""

from __future__ import annotations

import signal
import threading
import time
import traceback


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


def ends_the_worker(error: BaseException) -> bool:
    """Return True for Ctrl-C, and for the exit of a signal handler, in an observer of the main thread.

    If an observer itself calls ``sys.exit``, only its run has failed. Otherwise the cell would end every
    worker that claims it.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    if not isinstance(error, SystemExit):
        return False
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
