"""Looks at the store, for whoever asks: one at a time, and remembered for some seconds."""

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

KEPT: Final = 5.0
"""Seconds for which a look is remembered, one that failed as well."""

SHARE: Final = 20
"""A look that took long is remembered for so many times as long: looking takes 5 % of the time at most."""

PATIENCE: Final = 2.0
"""Seconds for which a look waits for a store that does not answer."""

_LAST_LOOK: Final = 0.2
"""Seconds that a look under way gets when nobody is to look any more."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look saw: the status, or why there is none.

    ``evicts``: there is none because a server evicts keys, or has done so.
    """

    status: Status | None
    error: str = ""
    evicts: bool = False


class Looks:
    """Looks at the store through a connection of its own, so that nobody else waits for it.

    ``connect`` makes it, when the first look needs it. For any number of threads.
    """

    def __init__(self, connect: Callable[[], Database], chain: Chain) -> None:
        self._connect = connect
        self._chain = chain
        self._looking = threading.Lock()
        self._db: Database | None = None
        self._seen = Seen(None)
        self._until = 0.0
        self._closed = False

    def latest(self) -> Seen:
        """What the store says, at most some seconds ago. Raises nothing."""
        with self._looking:
            began = time.monotonic()
            if began >= self._until and not self._closed:
                self._seen = self._look()
                ended = time.monotonic()
                self._until = ended + max(KEPT, SHARE * (ended - began) if self._seen.status else 0.0)
            return self._seen

    def close(self) -> None:
        """Close the connection, if there is one; a look under way breaks off."""
        self._closed = True
        taken = self._looking.acquire(timeout=_LAST_LOOK)
        try:
            if self._db is not None:
                self._db.close()
        finally:
            if taken:
                self._looking.release()

    def _look(self) -> Seen:
        try:
            if self._db is None:
                self._db = self._connect()
                if self._closed:
                    self._db.close()  # nobody else will: who closed us found no connection
            return Seen(status(self._db, self._chain))
        except PercolatorError as error:
            return Seen(None, str(error), is_about_eviction(error))
        except Exception:
            if self._closed:
                return Seen(None, "the worker has ended")
            raise
