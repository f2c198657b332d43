"""Redis's own transactions, WATCH, MULTI and EXEC, through redis-py: optimistic, on one server.

What was watched and has changed until EXEC makes it fail with `redis.WatchError`; the transaction is then run
again as a whole, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import redis

from percolator_bench.peers.rows import VALUE, Rows


class WatchedRedis:
    """The operations of the `micro` suite, on the client they are given; for all threads."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._lock = Lock()
        self.repeats = 0

    def set(self, client: redis.Redis, number: int) -> None:
        """One cell, written only if nobody has written it meanwhile: two round trips."""
        row = self._rows.write(number)
        self._transact(client, watched=(row,), read=(), written=(row,))

    def two_and_two(self, client: redis.Redis, number: int) -> None:
        """Two gets and two sets; what was read still holds at EXEC. Four round trips."""
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
