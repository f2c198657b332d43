"""From a write to the commit of the observer that it woke, with an idle worker in another process.

Both moments are commit timestamps, in microseconds of the one server's clock, read from the history
afterwards: the watch costs the measured path nothing. A timestamp is drawn within the script that commits, so
the figure covers all that lies between the two commits (mark, wake-up call, claim, the observer's reads and
its commit), and leaves out the last reply's way back.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from typing import Final

from percolator_core.bench.figure import Figure, Target, median_figure
from percolator_core.bench.peers.rows import VALUE
from percolator_core.bench.scale import Scale
from percolator_core.bench.servers import TRANSPORTS, Place, place, worker_beside
from percolator_core.errors import StoreUnavailable
from percolator_core.model import Cell
from percolator_core.observers import ObserverTransaction

MEDIAN: Final = Target("at most", 5.0)

_TABLE: Final = "bench_latency"
_PAUSE: Final = 0.015
"""Mean seconds between two writes: long against the latency, so that the worker is idle at each."""

_LIMIT: Final = 30.0
"""Seconds for the worker to come to work, and for one write to be observed."""


def copy(t: ObserverTransaction, cell: Cell) -> None:
    """The least an observer can do: read the observed cell and write another."""
    value = t.get(cell.table, cell.row, cell.column)
    if value is not None:
        t.set(cell.table, cell.row, "copied", value)


def measure(scale: Scale) -> Iterator[Figure]:
    """Median and 99th percentile, over a Unix socket and over TCP."""
    for transport in TRANSPORTS:
        with place(transport) as here, worker_beside(here, "chain") as worker:
            _wait_until_at_work(here, worker.process)
            samples = _latencies(here, scale.writes)
        name = "observer's commit"
        slowest = [_percentile(samples, 99)]
        yield median_figure("latency", here.name, f"{name}, median", "ms", samples=samples, target=MEDIAN)
        yield median_figure("latency", here.name, f"{name}, p99", "ms", samples=slowest)


def _wait_until_at_work(here: Place, worker: subprocess.Popen[bytes]) -> None:
    """Write until a write is observed: from the worker's registration on, writes leave marks."""
    until = time.monotonic() + _LIMIT
    while time.monotonic() < until and worker.poll() is None:
        with here.db.transaction() as t:
            t.set(_TABLE, b"warm", "written", VALUE)
        time.sleep(0.05)
        if here.db.snapshot().get(_TABLE, b"warm", "copied") is not None:
            return
    raise StoreUnavailable("the worker process of the latency benchmark did not come to work")


def _latencies(here: Place, writes: int) -> list[float]:
    """In milliseconds, one a write."""
    written = []
    for number in range(writes):
        t = here.db.begin()
        t.set(_TABLE, b"row:%d" % number, "written", VALUE)
        written.append(t.commit())
        time.sleep(_PAUSE * random.uniform(0.5, 1.5))
    return [(_copied_at(here, number) - commit_ts) / 1000 for number, commit_ts in enumerate(written)]


def _copied_at(here: Place, number: int) -> int:
    until = time.monotonic() + _LIMIT
    while not (versions := here.db.history(_TABLE, b"row:%d" % number, "copied")):
        if time.monotonic() > until:
            raise StoreUnavailable(f"the worker did not observe write {number} within {_LIMIT:g} s")
        time.sleep(0.01)
    return versions[-1].commit_ts


def _percentile(samples: list[float], percent: int) -> float:
    if len(samples) == 1:
        return samples[0]
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]
