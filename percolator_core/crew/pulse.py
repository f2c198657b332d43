"""Whether the loop of a worker turns: it notes when it does, and somebody looks how long ago that was."""

from __future__ import annotations

import time

from percolator_core.worker import Worker


class Pulse:
    """The pulse of one worker. For any thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._made = time.monotonic()

    @property
    def begun(self) -> bool:
        """Whether the loop is there: from the start of the worker until its end."""
        return self._worker.turned_at > 0

    def stalled(self) -> float:
        """For how many seconds the loop has not turned; before it is there, since this was made.

        A loop with nothing to do turns every second or two all the same.
        """
        return time.monotonic() - (self._worker.turned_at or self._made)
