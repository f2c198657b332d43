"""Redis's own transactions, WATCH, MULTI and EXEC, through redis-py: optimistic, on one server.

If a watched key changes before EXEC, EXEC fails with `redis.WatchError`; the transaction then runs again as a
whole, and the repetition is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import redis

from percolator_bench.peers.rows import VALUE, Rows


class WatchedRedis:
    """The operations of the `micro` suite, on a given client. Thread-safe."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._lock = Lock()
        self.repeats = 0

    def set(self, client: redis.Redis, number: int) -> None:
        """Write one cell, unless another client has written it since the WATCH: two round trips."""
        row = self._rows.write(number)
        self._transact(client, watched=(row,), read=(), written=(row,))

    def two_and_two(self, client: redis.Redis, number: int) -> None:
        """Two gets and two sets; the values read are still valid at EXEC. Four round trips."""
        read = self._rows.read_pair(number)
        self._transact(client, watched=read, read=read, written=self._rows.write_pair(number))

    def _transact(
        self, client: redis.Redis, watched: Sequence[bytes], read: Sequence[bytes], written: Sequence[bytes]
    ) -> None:
        with client.pipeline() as pipe:
            while True:
                try:
                    pipe.watch(*watched)
                    for row in read:
                        pipe.get(row)
                    pipe.multi()
                    for row in written:
                        pipe.set(row, VALUE)
                    pipe.execute()
                except redis.WatchError:
                    with self._lock:
                        self.repeats += 1
                else:
                    return
