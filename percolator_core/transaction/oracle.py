"""The timestamp oracle: strictly increasing timestamps (paper, section 2.3).

The oracle is a hash in the store and a script; this module is its client. A timestamp is a number of
microseconds since 1970. If the clock is behind the newest timestamp, the next timestamp is still higher.
Tasks whose requests are sent in one batch share one request to the oracle; several batches may be under way
at a time. The timestamp of a commit or of a read snapshot is never fetched in advance: a commit's timestamp
is requested after the last prewrite, and a snapshot must see all earlier commits. Only a transaction that
reads nothing may start at a spare timestamp.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from percolator_core.errors import StoreUnavailable
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call
from percolator_core.store import Store
from percolator_core.store.packing import Command

T = TypeVar("T")

MOST_SPARES: Final = 1024
"""A client keeps at most this many spare timestamps."""


class Oracle:
    """Requests timestamps. It refuses a timestamp that is not above all that this client saw before.

    ``seen`` is the newest timestamp that this client has seen.
    """

    __slots__ = ("_store", "seen", "spares")

    def __init__(self, store: Store) -> None:
        self._store = store
        store.set_newest(lambda: self.seen)
        self.seen = 0
        self.spares: deque[tuple[int, float, int]] = deque(maxlen=MOST_SPARES)
        """Spare timestamps, which came with the replies to commits.

        Each has the time when it came (`time.monotonic`), and the id of the process that received it. A
        transaction that reads nothing may start at a spare timestamp, because its commit timestamp alone
        decides its place in the order. An older start only makes a conflict more likely, and after a conflict
        the transaction takes a fresh timestamp. Never use a spare for a commit or a read.
        """

    def note(self, timestamp: int) -> None:
        """Remember a timestamp that the oracle gave to this client or to another client."""
        self.seen = max(self.seen, timestamp)

    def accept(self, timestamp: int, seen_before: int) -> int:
        """Check and return a new timestamp; ``seen_before`` is the value of `seen` when it was requested.

        Raises StoreUnavailable if time went back: the store has lost data, or another store answers.
        """
        if timestamp <= seen_before:
            raise StoreUnavailable(
                f"the oracle handed out {timestamp} after {seen_before}: the store went back in time, "
                "check whether an old backup was restored or another server answers"
            )
        self.note(timestamp)
        return timestamp

    def keep_ahead(self) -> Command:
        """The command that raises the oracle's durable high-water mark, and gives out no timestamp."""
        keys = self._store.keyspace
        return self._store.command(calls.timestamp(keys.oracle, keys.catalog, 0))

    def history(self) -> str:
        """The random name of the namespace's history: timestamps of another history mean nothing here."""
        store, key = self._store, self._store.keyspace.oracle
        if store.one((b"HGET", key, b"id")) is None:
            # If two clients do this at the same time, the name of the second one remains.
            store.one((b"HSET", key, b"id", uuid.uuid4().hex))
        name: bytes = store.one((b"HGET", key, b"id"))
        return name.decode()

    def last_failover(self) -> int:
        """The timestamp of the last failover, which may have lost earlier commits; 0 without a failover."""
        return int(self._store.one((b"HGET", self._store.keyspace.oracle, b"floor")) or 0)

    def timestamp(self) -> int:
        """A fresh timestamp, in one round trip."""
        return self.timestamp_then()[0]

    def timestamp_then(self, *commands: Command) -> tuple[int, bytes | None, list[Any]]:
        """Return a fresh timestamp, the catalog's epoch at that time, and the replies to ``commands``.

        The commands run after the timestamp is given out, in the same round trip.
        """
        seen = self.seen
        timestamp, epoch, replies = self._store.timestamp_then(*commands)
        return self.accept(timestamp, seen), epoch, replies

    def then_timestamp(self, several: Sequence[Call[T]]) -> tuple[list[T], int]:
        """Return the replies to calls, and a timestamp that is given out after them, in one round trip."""
        seen = self.seen
        replies, timestamp = self._store.then_timestamp(several)
        return replies, self.accept(timestamp, seen)
