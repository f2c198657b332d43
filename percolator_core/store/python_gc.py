"""Python's garbage collector, while many tasks are under way.

Each task holds some dozens of objects while it is parked. With the usual threshold of 700 new objects the
collector takes them for a leak: it runs again and again, goes over all objects of the process every hundred
runs, and finds nothing. So the first threshold is raised to what the tasks of all hubs may hold, and put
back with the last hub.

While the collector runs, a finalizer must not switch to another greenlet. The collector's lists of objects
begin on the stack, which a switch puts away: whatever drops one of those objects meanwhile would write there.
"""

from __future__ import annotations

import gc
from typing import Final

from percolator_core.runtime import process

OBJECTS_A_TASK: Final = 100

collecting = False
"""Whether the collector runs, and with it perhaps a finalizer."""

_lock = process.Lock()
_tasks = 0
_before = 0


def allow_for_tasks(tasks: int) -> None:
    """Allow for so many more tasks; fewer, if negative. A collector that is switched off is left alone."""
    global _tasks, _before  # noqa: PLW0603 - the collector is one for the process
    with _lock:
        first, *others = gc.get_threshold()
        if not _tasks:
            _before = first
        _tasks += tasks
        if first:
            gc.set_threshold(max(_before, _tasks * OBJECTS_A_TASK), *others)


def _note(phase: str, _: object) -> None:
    global collecting  # noqa: PLW0603 - the collector is one for the process
    collecting = phase == "start"


gc.callbacks.append(_note)
