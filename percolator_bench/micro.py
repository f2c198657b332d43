"""Single operations, compared with the raw store (paper, figure 8) and with other transactions.

docs/explanation/performance.md describes the operations and the contestants. The comparison with plain GET
and SET through this library's hub shows the cost of its transactions alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from typing import Final

from percolator_bench import progress
from percolator_bench.contestants import (
    ALONE,
    AXIS,
    CONTESTANTS,
    HUB,
    MIDDLE,
    OPERATIONS,
    OURS,
    PIPELINE,
    RAW,
    SQL,
    SYNC,
    WATCH,
    Entry,
    Operation,
    Ours,
    postgres_server,
    raw_entries,
    redis_threads,
    sql_entries,
    watch_entries,
    widths,
)
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.peers.postgres import PostgresServer
from percolator_bench.peers.redis_py import RawRedis, WatchedRedis
from percolator_bench.peers.rows import SCANNED, Rows
from percolator_bench.peers.sql import SqlRows
from percolator_bench.report import Note
from percolator_bench.rounds import Rates, race
from percolator_bench.scale import Scale
from percolator_bench.servers import TRANSPORTS, Place, Transport, place
from percolator_core.errors import ConfigurationError, StoreUnavailable

READ: Final = Target("at least", 0.97)
HUB_READ: Final = Target("at least", 0.85)
WRITE: Final = Target("at least", 0.50)
HUB_WRITE: Final = Target("at least", 0.40)
TRANSACTIONS: Final = Target("at least", 20_000)
WATCHED: Final = Target("at least", 5.0)
POSTGRES: Final = Target("at least", 3.0)

_SUITE: Final = "micro"
_LOADED: Final = 5000
"""At most this many rows are loaded before the race."""


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """Measure over a Unix socket with all peers, and over TCP without PostgreSQL."""
    for transport in TRANSPORTS:
        yield from _measure(transport, scale)


def _measure(transport: Transport, scale: Scale) -> Iterator[Figure | Note]:
    rows = Rows(max(SCANNED, min(_LOADED, scale.operations)))
    with ExitStack() as stack:
        here = stack.enter_context(place(transport))
        stack.enter_context(progress.step(here.name))
        progress.tell("loading")
        ours, raw, watched = Ours(here.db, rows), RawRedis(rows), WatchedRedis(rows)
        ours.load()
        raw.load(here.raw)
        threads = redis_threads(stack, here, scale)
        entries = (
            ours.entries(scale) | raw_entries(raw, threads, scale) | watch_entries(watched, threads, scale)
        )
        yield Note(_SUITE, _redis_settings(here))
        sql = None
        if transport == "unix":
            progress.tell("starting PostgreSQL")
            try:
                server = stack.enter_context(postgres_server(scale))
            except (ConfigurationError, StoreUnavailable) as missing:
                yield Note(_SUITE, f"PostgreSQL was not measured: {missing}")
            else:
                sql = SqlRows(rows)
                entries |= sql_entries(stack, server, sql, scale)
                yield Note(_SUITE, _postgres_settings(server))
        rates = race(entries, scale.rounds)
    yield from _figures(here.name, rates, widths(scale))
    repeats = f"{watched.repeats} of WATCH/MULTI" + ("" if sql is None else f", {sql.repeats} of PostgreSQL")
    yield Note(_SUITE, f"{here.name}: transactions repeated after a conflict: {repeats}")


def _redis_settings(here: Place) -> str:
    settings = here.raw.config_get("append*")
    return (
        f"{here.name}: Redis {here.raw.info('server')['redis_version']} with appendonly "
        f"{settings['appendonly']}, appendfsync {settings['appendfsync']}, for this library and redis-py "
        f"{version('redis')} alike"
    )


def _postgres_settings(server: PostgresServer) -> str:
    names = ("server_version", "fsync", "full_page_writes", "shared_buffers", "default_transaction_isolation")
    with server.connect(autocommit=True) as connection:
        found = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in names}
    told = ", ".join(f"{name} {row[0]}" for name, row in found.items() if row is not None)
    return f"PostgreSQL on a Unix socket: {told}; psycopg {version('psycopg')}, statements prepared"


# The figures.


def _figures(where: str, rates: Rates[Entry], sizes: tuple[int, ...]) -> Iterator[Figure]:
    figure = partial(median_figure, _SUITE, where)
    for entry in sorted(rates.by_name, key=_rank):
        target = TRANSACTIONS if entry == Entry("2r2w", OURS, max(sizes)) and max(sizes) > MIDDLE else None
        yield figure(entry.name, "/s", rates.of(entry), target, axis=AXIS, at=entry.width)
    for entry, base, target in _comparisons(sizes):
        if base in rates.by_name:
            yield figure(_ratio_name(entry, base), "ratio", rates.ratio(entry, base), target)
    for who in (OURS, RAW, SQL):
        for size in sizes:
            entry = Entry("scan", who, size)
            if entry in rates.by_name:
                samples = [1e6 / (rate * SCANNED) for rate in rates.of(entry)]
                yield figure(f"time a scanned row: {who}", "µs", samples, axis=AXIS, at=size)


def _rank(entry: Entry) -> tuple[int, int, int]:
    """Order figures so that compared ones are together: by operation, then by contestant."""
    return OPERATIONS.index(entry.operation), CONTESTANTS.index(entry.who), entry.width


def _ratio_name(entry: Entry, base: Entry) -> str:
    if entry.who == base.who:
        return f"{entry.operation}, {entry.width} ÷ {base.width} {AXIS}"
    alone = ", one get a transaction" if entry.who == ALONE else ""
    return f"{entry.operation}{alone} ÷ {base.who}, {entry.width} {AXIS}"


def _comparisons(sizes: tuple[int, ...]) -> Iterator[tuple[Entry, Entry, Target | None]]:
    """Yield each entry, the entry it is compared with, and the target of the ratio."""

    def pair(
        operation: Operation, who: str, width: int, target: Target | None = None
    ) -> tuple[Entry, Entry, Target | None]:
        return Entry(operation, OURS, width), Entry(operation, who, width), target

    crowds = [size for size in sizes if size > 1]
    yield pair("get", RAW, 1, READ)
    yield pair("get", HUB, 1)
    yield Entry("get", ALONE, 1), Entry("get", RAW, 1), None
    yield from (pair("get", HUB, size, HUB_READ) for size in crowds)
    yield from (pair("get", PIPELINE, size) for size in crowds)
    yield from (pair("get", SQL, size) for size in sizes)
    yield pair("set", RAW, 1, WRITE)
    yield pair("set", HUB, 1)
    yield from (pair("set", HUB, size, HUB_WRITE) for size in crowds)
    yield from (pair("set", PIPELINE, size) for size in crowds)
    yield from (pair("set", WATCH, size) for size in sizes)
    for who in SYNC.values():
        yield from (pair("set", who, size) for size in sizes)
    yield from (pair("2r2w", WATCH, size, WATCHED if size > 1 else None) for size in sizes)
    for who in SYNC.values():
        yield from (pair("2r2w", who, size, POSTGRES if size > 1 else None) for size in sizes)
    yield from ((Entry("2r2w", OURS, size), Entry("2r2w", OURS, 1), None) for size in crowds)
    for who in (RAW, SQL):
        yield from (pair("scan", who, size) for size in sizes)
