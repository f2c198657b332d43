"""Ends a process although threads of observers still run, and describes how a process ended.

At its exit the interpreter waits for all threads of a pool, even for a blocked one. A worker releases the
leases of such threads before it ends, so that other workers run the leased cells. If a thread commits
nevertheless, its acknowledgement keeps any other run for the same change from committing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Final

OBSERVER_THREADS: Final = "percolator-observer"
"""The prefix of the names of a worker's threads."""

_MOMENT: Final = 0.3
"""Seconds to wait for threads that have no more work and are about to end."""


def end_process(code: int) -> None:
    """If a thread still runs an observer, flush stdout and stderr and end the process with ``code``.

    Otherwise return, so that the process ends as usual. Call it last.
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
            pass  # the reader has ended, or the stream is closed
    os._exit(code)


def ending_of(code: int) -> str:
    """Return the exit code of a process or, for a negative code, its signal: ``exit code 1``, ``SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _observer_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(OBSERVER_THREADS)]
