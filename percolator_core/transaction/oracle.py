"""The timestamp oracle: strictly increasing timestamps (paper, section 2.3).

The oracle is a hash in the store and a script; this is its client. A timestamp is microseconds since the
epoch, pushed forward where the clock lags behind what was handed out before. Tasks whose exchanges go out in
one batch share one request; several batches, each with its own, may be under way at a time. The timestamp of
a commit, or of a snapshot that is read, is never fetched ahead: the one must be asked for after the last
prewrite, the other must see all that was committed before. Only a transaction that reads nothing may start at
a spare one.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

from percolator_core.errors import StoreUnavailable
from percolator_core.runtime import process
from percolator_core.store import Store
from percolator_core.store.packing import Command

SPARE_LIFE: Final = 1.0
"""Seconds for which a spare timestamp may still start a transaction."""


class Oracle:
    """Asks for timestamps; refuses one that does not lie above all that this client saw before."""

    __slots__ = ("_process", "_spares", "_store", "seen")

    def __init__(self, store: Store) -> None:
        self._store = store
        store.tell_newest(lambda: self.seen)
        self.seen = 0
        """The newest timestamp this client has seen."""
        self._spares: deque[tuple[int, float]] = deque(maxlen=1024)
        self._process = process.pid

    def accept(self, timestamp: int, seen_before: int) -> int:
        """Take in a timestamp; ``seen_before`` is what `seen` was when it was asked for.

        Raises:
            StoreUnavailable: time went backwards, so the store has lost data or is another one than before.
        """
        if timestamp <= seen_before:
            raise StoreUnavailable(
                f"the oracle handed out {timestamp} after {seen_before}: the store went back in time, "
                "check whether an old backup was restored or another server answers"
            )
        self.seen = max(self.seen, timestamp)
        return timestamp

    def put_aside(self, timestamp: int) -> None:
        """Keep a timestamp that came with a commit's reply, to start a transaction which reads nothing.

        Such a transaction is ordered at its commit. A start from a while ago only makes it meet a newer
        commit more often, and then it takes a fresh one. No commit and no reading snapshot may use it.
        """
        self._of_this_process().append((timestamp, time.monotonic()))

    def spare(self, after: int | None) -> int | None:
        """A start timestamp put aside lately, above ``after``, or None. Each is given out once."""
        try:
            timestamp, since = self._of_this_process().pop()
        except IndexError:
            return None
        if time.monotonic() - since > SPARE_LIFE or (after is not None and timestamp <= after):
            return None
        return timestamp

    def _of_this_process(self) -> deque[tuple[int, float]]:
        # A forked child has a copy of its parent's spares: both would start transactions with the same one.
        if self._process != process.pid:
            self._spares.clear()
            self._process = process.pid
        return self._spares

    def keep_ahead(self) -> Command:
        """The command that moves the durable mark along with the clock. It gives out no timestamp."""
        keys = self._store.keyspace
        return self._store.script("timestamp", [keys.oracle, keys.catalog], 0)

    def timestamp(self) -> int:
        """A fresh timestamp, in one round trip."""
        return self.timestamp_then()[0]

    def timestamp_then(self, *commands: Command) -> tuple[int, bytes | None, list[Any]]:
        """A fresh timestamp, the catalog's epoch at it, and the replies to commands that run after it.

        One round trip. The epoch counts the changes of the catalog, None if there was none.
        """
        seen = self.seen
        timestamp, epoch, replies = self._store.timestamp_then(*commands)
        return self.accept(timestamp, seen), epoch, replies

    def then_timestamp(self, *commands: Command) -> tuple[list[Any], int]:
        """The replies to commands and a timestamp given out after them, in one round trip."""
        seen = self.seen
        replies, timestamp = self._store.then_timestamp(*commands)
        return replies, self.accept(timestamp, seen)
