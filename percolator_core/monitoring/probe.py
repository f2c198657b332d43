"""Read the status of the store, one read at a time; keep the result for some seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from percolator_core.admin.status import Status, status
from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.observers import Chain
from percolator_core.store.eviction import is_about_eviction

FRESH: Final = 5.0
"""Seconds for which a result is kept, also if it is an error."""

FRESH_PER_SECOND: Final = 20
"""A result is kept for this multiple of the duration of its read, so reads take at most 5 % of the time."""

PATIENCE: Final = 2.0
"""Seconds for which a read waits for a store that does not answer."""

_CLOSE_WAIT: Final = 0.2
"""Seconds for which `Probe.close` waits for the current read."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The status of the store, or the error of the read.

    ``evicts`` is True if the error says that a server evicts keys, or has evicted some.
    """

    status: Status | None
    error: str = ""
    evicts: bool = False


class Probe:
    """Reads the status through its own connection, so that no other user of the store waits for the read.

    ``connect`` opens the connection when the first read needs it. Thread-safe.
    """

    def __init__(self, connect: Callable[[], Database], chain: Chain) -> None:
        self._connect = connect
        self._chain = chain
        self._lock = threading.Lock()
        self._db: Database | None = None
        self._result = ProbeResult(None)
        self.fresh_until = 0.0
        self._closed = False

    def latest(self) -> ProbeResult:
        """Return the kept result, or read the status again if that result is too old. Raises nothing."""
        with self._lock:
            began = time.monotonic()
            if began >= self.fresh_until and not self._closed:
                self._result = self._read()
                ended = time.monotonic()
                seconds = FRESH_PER_SECOND * (ended - began) if self._result.status else 0.0
                self.fresh_until = ended + max(FRESH, seconds)
            return self._result

    def close(self) -> None:
        """Close the connection, if there is one. A read in progress then fails."""
        self._closed = True
        locked = self._lock.acquire(timeout=_CLOSE_WAIT)
        try:
            if self._db is not None:
                self._db.close()
        finally:
            if locked:
                self._lock.release()

    def _read(self) -> ProbeResult:
        try:
            if self._db is None:
                self._db = self._connect()
                if self._closed:
                    self._db.close()  # close() ran before the connection existed
            return ProbeResult(status(self._db, self._chain))
        except PercolatorError as error:
            return ProbeResult(None, str(error), is_about_eviction(error))
        except Exception:
            if self._closed:
                return ProbeResult(None, "the worker has ended")
            raise
