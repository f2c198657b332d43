"""The latency from a write to the commit of the last observer of a chain, idle and under load.

A schedule fixes the time of each write, independently of earlier writes, and a latency begins at that time.
So if the store or the writer falls behind, the load does not slow down, and the figures show it. A latency
ends with the commit timestamp of the last observer, which is read from the history at the end, so that the
measurement adds no cost to the measured path.

Trials search for the highest rate. Other processes of the machine can make a trial fail, so a rate that fails
has a second trial. Then half and nine tenths of the highest rate are offered for twice as long.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.peers.rows import VALUE
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, Transport, place
from percolator_bench.workers import Workers, workers_of
from percolator_core.layout.records import Cell
from percolator_core.observers import Chain, ObserverTransaction

IDLE: Final = Target("at most", 5.0)
HALF: Final = Target("at most", 50.0)
"""Targets of the median latency in ms with one observer: idle, and at half of the highest rate."""

LENGTHS: Final = (1, 3, 10)
"""Lengths of the chains."""

SUSTAINED: Final = 0.95

LOADS: Final = {
    "half of the highest rate": (0.5, HALF),
    "nine tenths of the highest rate": (0.9, None),
}

_TABLE: Final = "bench_latency"
_WIDTH: Final = 256
"""At most this many writes are in flight."""

_FIRST_RATE: Final = 2000.0
"""The search begins at this many writes a second, divided by the number of observers."""

_STEP: Final = 1.6
CLOSE: Final = 1.1
"""The search halves the gap between a sustained and a failed rate, until their ratio is below this."""

TRIALS: Final = 14
_WRITES_A_SECOND: Final = 400
"""``writes`` divided by this number is the duration of a trial in seconds."""

_PAUSE: Final = 0.015
"""Mean seconds between two writes to an idle worker with up to three observers: longer than the latency."""

_LEAD: Final = 0.02
"""Seconds until the first write of a schedule is due."""

_LIMIT: Final = 60.0
"""The worker has to finish within this many seconds."""


def step(t: ObserverTransaction, cell: Cell) -> None:
    """Read the observed cell and write another: the smallest observer."""
    value = t.get(cell.table, cell.row, cell.column)
    if value is not None:
        t.set(cell.table, cell.row, _column(int(cell.column[1:]) + 1), value)


def measure(scale: Scale) -> Iterator[Figure]:
    """Measure an idle worker over each transport, then all lengths and loads over a Unix socket."""
    with chain_of_observers("tcp", 1) as line:
        yield from _idle(line, scale.writes)
    for length in LENGTHS:
        with chain_of_observers("unix", length) as line:
            yield from _idle(line, scale.writes if length == 1 else max(1, scale.writes // 2))
            yield from _loaded(line, scale.writes / _WRITES_A_SECOND)


def _idle(line: _Line, writes: int) -> Iterator[Figure]:
    progress.tell(line.here.name, f"{line.length} observers", "idle")
    pause = _PAUSE * math.ceil(line.length / 3)
    moments = [0.0]
    while len(moments) < writes:
        # Random, so that the writes are not in step with a timer of the worker.
        moments.append(moments[-1] + pause * random.uniform(0.5, 1.5))
    yield from line.latencies("idle", line.offer(moments).latencies, IDLE if line.length == 1 else None)


def _loaded(line: _Line, seconds: float) -> Iterator[Figure]:
    highest = highest_rate(
        lambda rate: line.offer_rate(rate, seconds).share >= SUSTAINED, _FIRST_RATE / line.length
    )
    yield line.figure("highest rate", "/s", [highest])
    for name, (part, target) in LOADS.items():
        progress.tell(line.here.name, f"{line.length} observers", name)
        offered = line.offer_rate(part * highest, 2 * seconds)
        yield from line.latencies(name, offered.latencies, target if line.length == 1 else None)


def highest_rate(sustained: Callable[[float], bool], rate: float) -> float:
    """Return the highest sustained rate, to within 10 %; if none is sustained, the lowest rate tried."""
    good, bad = 0.0, math.inf
    lowest = rate
    for _ in range(TRIALS):
        lowest = min(lowest, rate)
        if sustained(rate) or sustained(rate):
            good = rate
        else:
            bad = rate
        if bad < good * CLOSE:
            break
        rate = good * _STEP if math.isinf(bad) else math.sqrt(good * bad) if good else bad / _STEP
    return good or lowest


class _Offered(NamedTuple):
    """The outcome of a schedule: the latencies in ms, and the share of writes that was done at its end."""

    latencies: list[float]
    share: float


class _Line:
    """A chain of ``length`` observers, and its worker."""

    def __init__(self, here: Place, workers: Workers, length: int) -> None:
        self.here = here
        self.length = length
        self.figure = partial(median_figure, "latency", here.name, axis="observers", at=length)
        self._workers = workers
        self._schedules = 0

    def offer_rate(self, rate: float, seconds: float) -> _Offered:
        """Write ``rate`` rows a second, evenly."""
        progress.tell(self.here.name, f"{self.length} observers", f"{rate:,.0f} a second")
        return self.offer([number / rate for number in range(max(1, round(rate * seconds)))])

    def offer(self, moments: Sequence[float]) -> _Offered:
        """Write a row at each of these moments, in seconds from now; wait until all have passed the chain."""
        self._schedules += 1
        db, prefix = self.here.db, b"%d:" % self._schedules
        rows = [prefix + b"%d" % number for number in range(len(moments))]
        numbers = iter(range(len(moments)))
        # The server's clock, which is also that of the timestamps: all processes are on this machine.
        begun = time.time() + _LEAD

        def write() -> None:
            for number in numbers:
                wait = begun + moments[number] - time.time()
                if wait > 0:
                    db.store.sleep(wait)
                with db.transaction() as t:
                    t.set(_TABLE, rows[number], _column(0), VALUE)

        with db.concurrency(min(_WIDTH, len(moments))) as executor:
            writers = [executor.submit(write) for _ in range(min(_WIDTH, len(moments)))]
            for writer in writers:
                writer.result()
        self._workers.wait_until_idle(_LIMIT)
        ends = self._ends(rows)
        over = begun + moments[-1] + (moments[-1] / len(moments))
        return _Offered(
            [(end - begun - moment) * 1000 for end, moment in zip(ends, moments, strict=True)],
            sum(end <= over for end in ends) / len(ends),
        )

    def _ends(self, rows: Sequence[bytes]) -> list[float]:
        """Return when the last observer of each row committed, in seconds of the server's clock."""
        last = _column(self.length)
        with self.here.db.concurrency(64) as executor:
            found = executor.map(lambda row: self.here.db.history(_TABLE, row, last), rows)
            return [versions[-1].commit_ts / 1e6 for versions in found]

    def latencies(self, load: str, samples: list[float], target: Target | None) -> Iterator[Figure]:
        """Yield the median and the 99th percentile."""
        yield self.figure(f"{load}, median", "ms", samples, target)
        yield self.figure(f"{load}, p99", "ms", [_percentile(samples, 99)])


@contextmanager
def chain_of_observers(transport: Transport, length: int) -> Iterator[_Line]:
    """Run a worker for a chain of ``length`` observers, until the block ends."""
    with tempfile.TemporaryDirectory(prefix="percolator-bench-") as name, place(transport) as here:
        folder = Path(name)
        _write_chain(folder, length)
        with workers_of(here, Chain.load(folder)) as workers:
            line = _Line(here, workers, length)
            line.offer([0.0])  # the first one warms up
            # Collect only once, not before each schedule: a Ctrl-C during a collection would be lost.
            gc.collect()
            yield line


def _write_chain(folder: Path, length: int) -> None:
    """Write the files of a chain; each observer observes the cell that the one before writes."""
    (folder / "chain.yaml").write_text(f"version: 1\nchain: bench_latency\ntables:\n  {_TABLE}: {{}}\n")
    for number in range(length):
        watched, written = (f"{_TABLE}.{_column(one)}" for one in (number, number + 1))
        (folder / f"step{number}.yaml").write_text(
            f"version: 1\nobserver: step{number}\nobserve: {watched}\n"
            f"function: {__name__}:step\nreads: [{watched}]\nwrites: [{written}]\n"
        )


def _column(number: int) -> str:
    return f"c{number}"


def _percentile(samples: list[float], percent: int) -> float:
    if len(samples) == 1:
        return samples[0]
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]
