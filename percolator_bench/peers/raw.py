"""Redis without transactions, through redis-py."""

from __future__ import annotations

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
