"""Run the mix on each store with 1, 2 and 4 workers, interleaved, and compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, Unit, median_figure
from percolator_bench.peers.cpu import tree_cpu_seconds
from percolator_bench.peers.postgres import PostgresServer, why_missing
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import place
from percolator_bench.tpce import percolator, postgres
from percolator_bench.tpce.fleet import Fleet, Run, fleet
from percolator_bench.tpce.orders import Task
from percolator_bench.tpce.state import State, check, expected
from percolator_bench.tpce.workload import Brokerage, Item, transactions_of

WORKERS: Final = (1, 2, 4)
WIDTH: Final = 32
"""Tasks of a worker of this library: 16 to 64 need about the same CPU time, from 128 on conflicts increase.

"""
THREADS: Final = 8
"""Threads of a worker of PostgreSQL: with 4, fewer commits share a disk sync; 16 need more CPU time."""
CPU: Final = Target("at most", 1.0)

OURS: Final = "this library"
PEER: Final = "PostgreSQL"
RELAXED: Final = "PostgreSQL, synchronous_commit off"

_DURABILITY: Final = (
    "a commit of PostgreSQL waits for the disk; Redis writes its file once a second, which is nearest to "
    "synchronous_commit off"
)
_ITEMS: Final = 3
"""A run has this many items for each of the scale's operations."""
_MICROSECONDS: Final = 1e6


@dataclass(slots=True)
class Side:
    """A store with its workers, and their runs by number of workers.

    ``clean_up`` removes versions that no snapshot can see. It runs once, after all runs; ``upkeep`` is its
    cost, in CPU seconds a transaction.
    """

    name: str
    fleet: Fleet
    clean_up: Callable[[], None]
    state: Callable[[], State]
    runs: dict[int, list[Run]] = field(default_factory=lambda: {count: [] for count in WORKERS})
    upkeep: float = 0.0

    def cpu(self, run: Run) -> float:
        """CPU seconds of a transaction, of all processes."""
        return run.clients + run.server + self.upkeep


@dataclass(frozen=True, slots=True)
class Stream:
    """The seed of a stream, the number of the stream's first trade, and the number of items."""

    seed: str
    first_trade: int
    count: int


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """The figures; of this library alone if PostgreSQL is missing."""
    brokerage = Brokerage(scale.customers)
    missing = why_missing()
    if missing is not None:
        yield Note("tpce", f"{missing}; only this library was measured")
    else:
        yield Note("tpce", _DURABILITY)
    with ExitStack() as stack:
        with progress.step("loading"):
            sides = [_ours(stack, brokerage)]
            if missing is None:
                sides.append(_peer(stack, brokerage, synchronous_commit=True))
                sides.append(_peer(stack, brokerage, synchronous_commit=False))
        streams = _race(sides, brokerage, scale)
        with progress.step("cleaning up"):
            _clean_up(sides, brokerage, streams)
            _check_all(sides, brokerage, streams)
    for side in sides:
        yield from _figures_of(side)
    for peer in sides[1:]:
        yield from _comparison(sides[0], peer)


def _ours(stack: ExitStack, brokerage: Brokerage) -> Side:
    here = stack.enter_context(place("unix"))
    percolator.load(here.db, brokerage)
    pid = int(here.raw.info("server")["process_id"])
    task = Task("percolator", here.url, WIDTH, brokerage.customers)
    crew = stack.enter_context(fleet(task, max(WORKERS), lambda: tree_cpu_seconds(pid)))

    def clean_up() -> None:
        here.db.collect_garbage(keep=timedelta(0))

    return Side(OURS, crew, clean_up, lambda: percolator.read_state(here.db, brokerage))


def _peer(stack: ExitStack, brokerage: Brokerage, *, synchronous_commit: bool) -> Side:
    """Run a server for each way to commit, so that background work of one is not charged to the other."""
    connections = max(WORKERS) * THREADS + 10
    server = stack.enter_context(PostgresServer(max_connections=connections))
    with server.connect() as connection:
        postgres.load(connection, brokerage)
    task = Task("postgres", server.conninfo, THREADS, brokerage.customers, synchronous_commit)
    crew = stack.enter_context(fleet(task, max(WORKERS), server.cpu_seconds))

    def clean_up() -> None:
        with server.connect(autocommit=True) as connection:
            connection.execute("VACUUM")

    def state() -> State:
        with server.connect() as connection:
            return postgres.read_state(connection, brokerage)

    return Side(PEER if synchronous_commit else RELAXED, crew, clean_up, state)


def _race(sides: Sequence[Side], brokerage: Brokerage, scale: Scale) -> list[Stream]:
    """Run every side with every number of workers in each round, after a shorter round to warm up.

    In each round, each number of workers has a stream of its own, which all sides process; the sides are in
    reverse order in every other round.
    """
    streams: list[Stream] = []
    first_trade = brokerage.first_trade
    for number in range(scale.rounds + 1):
        order = list(sides) if number % 2 else list(reversed(sides))
        for workers in WORKERS:
            count = scale.operations * _ITEMS if number else scale.operations
            stream = Stream(f"round {number}, {workers} workers", first_trade, count)
            streams.append(stream)
            first_trade += count
            for side in order:
                progress.tell(f"round {number} of {scale.rounds}", f"{workers} workers", side.name)
                run = side.fleet.run(workers, stream.seed, stream.first_trade, stream.count)
                if number:
                    side.runs[workers].append(run)
    return streams


def _clean_up(sides: Sequence[Side], brokerage: Brokerage, streams: Sequence[Stream]) -> None:
    transactions = sum(map(transactions_of, _items(brokerage, streams)))
    for side in sides:
        before = side.fleet.server_cpu() + time.process_time()
        side.clean_up()
        after = side.fleet.server_cpu() + time.process_time()
        side.upkeep = (after - before) / transactions


def _items(brokerage: Brokerage, streams: Sequence[Stream]) -> Iterator[Item]:
    for stream in streams:
        yield from islice(brokerage.items(stream.seed, stream.first_trade), stream.count)


def _check_all(sides: Sequence[Side], brokerage: Brokerage, streams: Sequence[Stream]) -> None:
    wanted = expected(brokerage, _items(brokerage, streams))
    for side in sides:
        check(side.name, side.state(), wanted)


def _figures_of(side: Side) -> Iterator[Figure]:
    measures: dict[tuple[str, Unit], Callable[[Run], float]] = {
        ("transactions", "/s"): lambda run: run.rate,
        ("CPU a transaction", "µs"): lambda run: side.cpu(run) * _MICROSECONDS,
        ("of it, clients", "µs"): lambda run: run.clients * _MICROSECONDS,
        ("of it, server", "µs"): lambda run: run.server * _MICROSECONDS,
        ("attempts run again", "share"): lambda run: 1 - run.transactions / run.attempts,
    }
    for (name, unit), value in measures.items():
        for workers, runs in side.runs.items():
            samples = [value(run) for run in runs]
            yield median_figure("tpce", side.name, name, unit, samples, axis="workers", at=workers)
    upkeep = side.upkeep * _MICROSECONDS
    yield median_figure("tpce", side.name, "of it, cleaning up", "µs", samples=[upkeep])


def _comparison(ours: Side, peer: Side) -> Iterator[Figure]:
    figure = partial(median_figure, "tpce", f"{ours.name} ÷ {peer.name}", axis="workers")
    pairs = {workers: list(zip(ours.runs[workers], peer.runs[workers], strict=True)) for workers in WORKERS}
    for workers, runs in pairs.items():
        cpu = [ours.cpu(mine) / peer.cpu(other) for mine, other in runs]
        yield figure("CPU a transaction", "ratio", cpu, CPU, at=workers)
    for workers, runs in pairs.items():
        rate = [mine.rate / other.rate for mine, other in runs]
        yield figure("transactions", "ratio", rate, at=workers)
