"""Settings of Python's garbage collector while many tasks run.

Each parked task has some dozens of objects. With the usual threshold of 700 new objects the collector would
run all the time, and every hundredth run visits all objects of the process. So the first threshold is raised
to the number of objects that the tasks of all hubs may have. The hub that closes last restores the threshold.

While the collector runs, a finalizer must not switch to another greenlet. The heads of the collector's lists
are on the stack, and a switch moves the stack. Code that then frees a listed object would corrupt memory.
"""

from __future__ import annotations

import gc
import threading
from functools import partial
from itertools import starmap
from typing import Final

from percolator_core.runtime import process

OBJECTS_A_TASK: Final = 100


collecting: Final[set[object]] = set()
"""Not empty while the collector runs: the set then has the number of the thread in which it runs."""


class _Callback:
    """The collector's callback: the collector calls ``setattr(self, phase, info)``.

    ``phase`` is "start" or "stop". "start" adds the elements of ``self`` and of the dict ``info`` to
    `collecting`, and "stop" removes them. ``self`` has one element, the number of the calling thread; the
    keys of ``info`` do not matter. No Python code runs here, on purpose. Python code would handle a pending
    signal at its first step, and the collector discards the exceptions of callbacks, so Ctrl-C would be lost.
    """

    __iter__ = staticmethod(partial(starmap, threading.get_ident, ((),)))

    start = property(fset=partial(set.update, collecting))
    stop = property(fset=partial(set.difference_update, collecting))


def is_collecting() -> bool:
    """Return True if the collector runs in this thread: then a finalizer has called this function.

    The collector may run in another thread at the same time, for example while a finalizer waits there.
    """
    return threading.get_ident() in collecting


_lock = process.Lock()
_tasks = 0
_before = 0


def allow_for_tasks(tasks: int) -> None:
    """Raise the threshold for ``tasks`` more tasks; a negative number lowers it.

    A disabled collector stays disabled.
    """
    global _tasks, _before  # noqa: PLW0603 - the collector is one for the process
    with _lock:
        first, *others = gc.get_threshold()
        if not _tasks:
            _before = first
        _tasks += tasks
        if first:
            gc.set_threshold(max(_before, _tasks * OBJECTS_A_TASK), *others)


gc.callbacks.append(partial(setattr, _Callback()))
