"""Which process this is, and on how many cores.

Kept here, since a look is needed with each exchange, and to ask the system takes a call of its own each time.
"""

from __future__ import annotations

import os

pid = os.getpid()
"""This process's id, right also in a forked child."""


def _note_fork() -> None:
    global pid  # noqa: PLW0603 - what a module knows of its process
    pid = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


def usable_cores() -> int:
    """The cores that this process may use; 1 or more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
