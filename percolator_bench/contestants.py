"""The contestants of the `micro` suite: the operations of each, and how many of them are in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypeVar

import redis

from percolator_bench.peers.postgres import PostgresServer
from percolator_bench.peers.redis_py import RawRedis, WatchedRedis
from percolator_bench.peers.rows import COLUMN, SCANNED, VALUE, Rows
from percolator_bench.peers.sql import SqlRows, set_synchronous
from percolator_bench.peers.threads import Threads
from percolator_bench.rounds import Contestant
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, for_each
from percolator_core.database import Database
from percolator_core.transaction.transaction import Transaction

Operation: TypeAlias = Literal["get", "set", "2r2w", "scan"]

OURS: Final = "percolator"
ALONE: Final = "percolator, one get a transaction"
RAW: Final = "redis-py"
PIPELINE: Final = "redis-py pipeline"
HUB: Final = "plain via percolator"
WATCH: Final = "WATCH/MULTI"
SQL: Final = "PostgreSQL"
SYNC: Final = {True: "PostgreSQL, sync on", False: "PostgreSQL, sync off"}
OPERATIONS: Final[tuple[Operation, ...]] = ("get", "set", "2r2w", "scan")
CONTESTANTS: Final = (OURS, ALONE, HUB, PIPELINE, RAW, WATCH, SQL, *SYNC.values())
"""Operations and contestants, each in the order of the report."""

GETS: Final = 20
"""Reads of one transaction, in measurements of reads."""
AXIS: Final = "in flight"
MIDDLE: Final = 16

C = TypeVar("C")

_TABLE: Final = "bench"
_SHARED: Final = 5
"""Operations that share round trips take less time, so this many times as many are measured."""
_SPARE_CONNECTIONS: Final = 10


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the race: one operation of one contestant, with ``width`` such operations in flight."""

    operation: Operation
    who: str
    width: int

    @property
    def name(self) -> str:
        """The name of its curve."""
        return f"{self.operation}: {self.who}"

    def __str__(self) -> str:
        return f"{self.name}, {self.width} {AXIS}"


Entries: TypeAlias = dict[Entry, Contestant]


def widths(scale: Scale) -> tuple[int, ...]:
    """Return the numbers of operations in flight: 1, 16 and 256, or less for a smaller scale."""
    return tuple(sorted({1, min(MIDDLE, scale.width), scale.width}))


class Ours:
    """Operations as a user of this library writes them, and plain commands over its connections."""

    def __init__(self, db: Database, rows: Rows) -> None:
        self._db = db
        self._rows = rows

    def load(self) -> None:
        """Create the table, and the rows for reads."""
        self._db.create_table(_TABLE)

        def load(row: bytes) -> None:
            with self._db.transaction() as t:
                t.set(_TABLE, row, COLUMN, VALUE)

        with self._db.concurrency() as executor:
            for _ in executor.map(load, self._rows.all_loaded()):
                pass

    def entries(self, scale: Scale) -> Entries:
        """Return the entries of this library, and those of the plain commands over its connections."""
        few, many = scale.operations, scale.operations * _SHARED
        found: Entries = {
            Entry("get", OURS, 1): Contestant(self._gets_in_turn, few),
            # Over the library's connection, but without a hub: these figures leave redis-py's own Python out.
            Entry("get", HUB, 1): Contestant(self._plain_gets, few),
            Entry("set", HUB, 1): Contestant(_in_turn(self._plain_set), few),
            Entry("get", ALONE, 1): Contestant(_in_turn(self._get_alone), few),
            Entry("set", OURS, 1): Contestant(_in_turn(self._set), few),
            Entry("2r2w", OURS, 1): Contestant(_in_turn(self._two_and_two), few),
            Entry("scan", OURS, 1): Contestant(_in_turn(self._scan), _scans(scale, 1)),
        }
        for width in widths(scale):
            if width == 1:
                continue
            bunches, singles = self._bunches_under_hub, self._under_hub
            found |= {
                Entry("get", HUB, width): Contestant(bunches(self._plain_gets, width), many),
                Entry("get", OURS, width): Contestant(bunches(self._gets, width), many),
                Entry("set", HUB, width): Contestant(singles(self._plain_set, width), many),
                Entry("set", OURS, width): Contestant(singles(self._set, width), many),
                Entry("2r2w", OURS, width): Contestant(singles(self._two_and_two, width), many),
                Entry("scan", OURS, width): Contestant(singles(self._scan, width), _scans(scale, width)),
            }
        return found

    # One operation each.

    def _get_alone(self, number: int) -> None:
        with self._db.transaction() as t:
            self._get(t, self._rows.read(number))

    def _set(self, number: int) -> None:
        with self._db.transaction() as t:
            t.set(_TABLE, self._rows.write(number), COLUMN, VALUE)

    def _two_and_two(self, number: int) -> None:
        with self._db.transaction() as t:
            for row in self._rows.read_pair(number):
                self._get(t, row)
            for row in self._rows.write_pair(number):
                t.set(_TABLE, row, COLUMN, VALUE)

    def _scan(self, number: int) -> None:
        start = self._rows.scan_from(number)
        with self._db.transaction() as t:
            found = list(t.scan(_TABLE, start, columns=[COLUMN], limit=SCANNED))
        if len(found) != SCANNED:
            raise AssertionError(f"a scan found {len(found)} rows, not {SCANNED}")

    def _plain_set(self, number: int) -> None:
        self._db.store.one((b"SET", self._rows.write(number), VALUE))

    def _get(self, t: Transaction, row: bytes) -> None:
        t.get(_TABLE, row, COLUMN)

    # Batches of reads.

    def _gets(self, first: int, count: int) -> None:
        with self._db.transaction() as t:
            for number in range(first, first + count):
                t.get(_TABLE, self._rows.read(number), COLUMN)

    def _plain_gets(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self._db.store.one((b"GET", self._rows.read(number)))

    def _gets_in_turn(self, first: int, count: int) -> None:
        for start, length in _bunches(first, count, GETS):
            self._gets(start, length)

    # Ways to run operations.

    def _under_hub(self, one: Callable[[int], None], width: int) -> Callable[[int, int], None]:
        return lambda first, count: for_each(self._db, width, one, range(first, first + count))

    def _bunches_under_hub(self, some: Callable[[int, int], None], width: int) -> Callable[[int, int], None]:
        def bunch(bounds: Any) -> None:
            some(*bounds)

        return lambda first, count: for_each(self._db, width, bunch, _bunches(first, count, GETS))


# The peers.


def redis_threads(stack: ExitStack, here: Place, scale: Scale) -> dict[int, Threads[redis.Redis]]:
    """Return that many threads for each of the `widths`. Each thread has its own client."""
    clients = [stack.enter_context(here.client()) for _ in range(scale.width)]
    return _by_width(stack, clients, scale)


def raw_entries(raw: RawRedis, by_width: dict[int, Threads[redis.Redis]], scale: Scale) -> Entries:
    """Plain commands of redis-py: one after another, in threads, and in pipelines."""
    found: Entries = {}
    for width, threads in by_width.items():
        found |= {
            Entry("get", RAW, width): Contestant(partial(threads.run, raw.get), scale.operations),
            Entry("set", RAW, width): Contestant(partial(threads.run, raw.set), scale.operations),
            Entry("scan", RAW, width): Contestant(partial(threads.run, raw.scan), _scans(scale, width)),
        }
        if width > 1:
            client, many = threads.connections[0], scale.operations * _SHARED
            found |= {
                Entry("get", PIPELINE, width): Contestant(_piped(raw.get_many, client, width), many),
                Entry("set", PIPELINE, width): Contestant(_piped(raw.set_many, client, width), many),
            }
    return found


def watch_entries(watched: WatchedRedis, by_width: dict[int, Threads[redis.Redis]], scale: Scale) -> Entries:
    """Redis's transactions: one after another, and in threads."""
    found: Entries = {}
    for width, threads in by_width.items():
        found |= {
            Entry("set", WATCH, width): Contestant(partial(threads.run, watched.set), scale.operations),
            Entry("2r2w", WATCH, width): Contestant(
                partial(threads.run, watched.two_and_two), scale.operations
            ),
        }
    return found


def postgres_server(scale: Scale) -> PostgresServer:
    """A server with the default settings of an installation, but with enough connections."""
    return PostgresServer(max_connections=scale.width + _SPARE_CONNECTIONS)


def sql_entries(stack: ExitStack, server: PostgresServer, sql: SqlRows, scale: Scale) -> Entries:
    """PostgreSQL: one after another and in threads, with commits that wait for the disk and that do not."""
    connections = [stack.enter_context(server.connect(autocommit=True)) for _ in range(scale.width)]
    sql.load(connections[0])
    sql.warm_up(connections)
    found: Entries = {}
    for width, threads in _by_width(stack, connections, scale).items():
        found[Entry("get", SQL, width)] = Contestant(partial(threads.run, sql.get), scale.operations)
        found[Entry("scan", SQL, width)] = Contestant(partial(threads.run, sql.scan), _scans(scale, width))
        for on, who in SYNC.items():
            prepare = partial(set_synchronous, threads.connections, on=on)
            # Commits that wait for the disk one after another are slow: fewer operations are enough.
            count = max(1, scale.operations // (4 if on and width == 1 else 1))
            found |= {
                Entry("set", who, width): Contestant(partial(threads.run, sql.set), count, prepare),
                Entry("2r2w", who, width): Contestant(partial(threads.run, sql.two_and_two), count, prepare),
            }
    return found


def _by_width(stack: ExitStack, connections: Sequence[C], scale: Scale) -> dict[int, Threads[C]]:
    return {width: stack.enter_context(Threads(connections[:width])) for width in widths(scale)}


# Ways to run operations, and how many to run.


def _piped(
    many: Callable[[redis.Redis, int, int], None], client: redis.Redis, width: int
) -> Callable[[int, int], None]:
    def run(first: int, count: int) -> None:
        for start, length in _bunches(first, count, width):
            many(client, start, length)

    return run


def _in_turn(one: Callable[[int], None]) -> Callable[[int, int], None]:
    def run(first: int, count: int) -> None:
        for number in range(first, first + count):
            one(number)

    return run


def _bunches(first: int, count: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(first, first + count, size):
        yield start, min(size, first + count - start)


def _scans(scale: Scale, width: int) -> int:
    """Return how many scan steps a turn has: few, as a step returns many rows, but enough for the width."""
    return max(1, scale.operations // (20 if width <= MIDDLE else 5))
