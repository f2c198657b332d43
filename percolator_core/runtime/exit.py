"""How a process ends although threads of observers are still at work.

The interpreter waits at its end for every thread of a pool, however long the code in it blocks. What such a
thread works on has been given back by then, so that nothing is lost with it: its run does not commit, or if
it still does, the acknowledgement keeps another run from committing the same.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

OBSERVER_THREADS: Final = "percolator-observer"
"""What the names of a worker's threads begin with."""

_MOMENT: Final = 0.3
"""Seconds that threads get which are only about to end, since nobody has work for them any more."""


def end_process(code: int) -> None:
    """End the process at once, with exit code ``code``, if threads of observers are still at work.

    Otherwise return: the process may end as any other. Call it last, when everything has been said; what
    stdout and stderr hold back is written.
    """
    until = time.monotonic() + _MOMENT
    for thread in _observer_threads():
        thread.join(max(0.0, until - time.monotonic()))
    if not _observer_threads():
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads it any more, or it is closed
    os._exit(code)


def _observer_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(OBSERVER_THREADS)]
