"""Redis through redis-py, with and without transactions."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

import redis

from percolator_bench.peers.rows import COLUMN, SCANNED, VALUE, Rows

_INDEX: Final = "index"
_BUNCH: Final = 1000
"""Rows that one pipeline loads."""


class RawRedis:
    """The operations as a user of redis-py writes them, each on a given client.

    A cell is a string of its own for get and set. For scans, rows are hashes, and a sorted set of their keys
    is the index that a scan needs.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def load(self, client: redis.Redis) -> None:
        """Write the rows for reads, as strings and as hashes."""
        rows = self._rows.all_loaded()
        for first in range(0, len(rows), _BUNCH):
            pipeline = client.pipeline(transaction=False)
            for row in rows[first : first + _BUNCH]:
                pipeline.set(row, VALUE)
                pipeline.hset(b"hash:" + row, COLUMN, VALUE)
                pipeline.zadd(_INDEX, {row: 0})
            pipeline.execute()

    def get(self, client: redis.Redis, number: int) -> None:
        """One GET."""
        client.get(self._rows.read(number))

    def set(self, client: redis.Redis, number: int) -> None:
        """One SET of a new key."""
        client.set(self._rows.write(number), VALUE)

    def get_many(self, client: redis.Redis, first: int, count: int) -> None:
        """GETs in one pipeline, that is, in one round trip."""
        pipeline = client.pipeline(transaction=False)
        for number in range(first, first + count):
            pipeline.get(self._rows.read(number))
        pipeline.execute()

    def set_many(self, client: redis.Redis, first: int, count: int) -> None:
        """SETs of new keys in one pipeline, that is, in one round trip."""
        pipeline = client.pipeline(transaction=False)
        for number in range(first, first + count):
            pipeline.set(self._rows.write(number), VALUE)
        pipeline.execute()

    def scan(self, client: redis.Redis, number: int) -> None:
        """Read the next keys of the index, and then one column of each row in one pipeline."""
        start = b"[" + self._rows.scan_from(number)
        found: Any = client.zrangebylex(_INDEX, start, b"+", start=0, num=SCANNED)
        pipeline = client.pipeline(transaction=False)
        for row in found:
            pipeline.hget(b"hash:" + row, COLUMN)
        values = pipeline.execute()
        if len(values) != SCANNED:
            raise AssertionError(f"a raw scan found {len(values)} rows, not {SCANNED}")


class WatchedRedis:
    """The operations in transactions with WATCH, MULTI and EXEC: optimistic, on one server. Thread-safe.

    If a watched key changes before EXEC, EXEC fails with `redis.WatchError`; the transaction then runs again
    as a whole, and the repetition is counted.
    """

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
