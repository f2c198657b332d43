"""Requests that arrive at the server some time after their client gave them up."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from percolator_core.errors import PercolatorError
from percolator_core.store.packing import Command
from percolator_torture.faults.plan import HELD


class LateRequests:
    """Holds requests back, and executes them when they are due, in a thread of its own."""

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute
        self._queue: list[tuple[float, int, Sequence[Command]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._delivering = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return len(self._queue) + self._delivering

    def put(self, commands: Sequence[Command], seconds: float) -> None:
        """Execute the commands after ``seconds``; with `HELD`, at the next `deliver`."""
        with self._changed:
            heapq.heappush(self._queue, (time.monotonic() + seconds, next(self._order), commands))
            if self._thread is None and seconds < HELD:
                self._thread = threading.Thread(target=self._deliver_when_due, name="late", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def deliver(self) -> int:
        """Execute all requests now, in the order in which they are due; wait for requests under way."""
        count = 0
        while True:
            with self._changed:
                while not self._queue and self._delivering:
                    self._changed.wait()
                if not self._queue:
                    return count
                commands = self._take()
            self._run(commands)
            count += 1

    def close(self) -> None:
        """Drop all requests that are held back."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _deliver_when_due(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._queue or self._queue[0][0] > time.monotonic()):
                    left = self._queue[0][0] - time.monotonic() if self._queue else HELD
                    self._changed.wait(None if left == HELD else max(0.0, left))
                if self._closed:
                    return
                commands = self._take()
            self._run(commands)

    def _take(self) -> Sequence[Command]:
        self._delivering += 1
        return heapq.heappop(self._queue)[2]

    def _run(self, commands: Sequence[Command]) -> None:
        try:
            self._execute(*commands)
        except PercolatorError:
            pass  # nobody waits for the reply
        finally:
            with self._changed:
                self._delivering -= 1
                self._changed.notify_all()
