"""Settings of Python's garbage collector while many tasks run.

Each parked task has some dozens of objects. With the usual threshold of 700 new objects the collector would
run all the time, and every hundredth run visits all objects of the process. So the first threshold is raised
to the number of objects that the tasks of all hubs may have. The hub that closes last restores the threshold.

While the collector runs, a finalizer must not switch to another greenlet. The heads of the collector's lists
are on the stack, and a switch moves the stack. Code that then frees a listed object would corrupt memory.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import Any, Final

from percolator_core.runtime import process

OBJECTS_A_TASK: Final = 100


class _Collecting(set[Any]):
    """Has elements while the collector runs: it is called as ``setattr(self, "start" or "stop", info)``.

    This call runs no Python code, on purpose. Python handles a pending signal at the first step of a callback
    and discards the exception of a callback: Ctrl-C would be lost.
    """

    start = property(fset=set.update)
    stop = property(fset=set.difference_update)


collecting = _Collecting()
"""True while the collector runs, which may call a finalizer."""

_lock = process.Lock()
_tasks = 0
_before = 0


def allow_for_tasks(tasks: int) -> None:
    """Allow for ``tasks`` more tasks, or fewer if negative. A disabled collector stays disabled."""
    global _tasks, _before  # noqa: PLW0603 - the collector is one for the process
    with _lock:
        first, *others = gc.get_threshold()
        if not _tasks:
            _before = first
        _tasks += tasks
        if first:
            gc.set_threshold(max(_before, _tasks * OBJECTS_A_TASK), *others)


gc.callbacks.append(partial(setattr, collecting))
