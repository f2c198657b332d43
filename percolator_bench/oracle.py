"""Timestamps a second from the one oracle (paper, section 2.3: two million, from one machine).

- *callers*: tasks under a hub, or in several processes, request one timestamp at a time. The bottleneck is
  the Python code of the clients, not the oracle.
- *capacity*: the timestamps of the oracle itself if each request is for many. The clients do not hand out
  single timestamps: the batches are only counted and checked for overlaps.

Timestamps are microseconds, so an oracle that issues more than a million a second for a long time runs ahead
of the clock. That is safe, but ages and times in "as of" are wrong by the same amount.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from typing import Final

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.scale import Scale
from percolator_bench.servers import NAMESPACE, Place, place
from percolator_core.database import Database, connect
from percolator_core.errors import PercolatorError
from percolator_core.scripts import calls

CAPACITY: Final = Target("at least", 2_000_000)

CALLERS: Final = (1, 16, 256, 1024)
PROCESSES: Final = (1, 2, 4)
BATCHES: Final = (256, 1024)

_WIDTH: Final = 256
_PIPELINED: Final = 32
"""Requests under way at a time, as a hub sends them."""

_HEAD_START: Final = 0.1
"""All processes begin their work this many seconds after they are asked, at the same moment."""

_START: Final = 1.5
"""This many seconds for the first work, because the processes are still starting."""

Span = tuple[float, float, list[int]]
"""Begin and end of a process (`time.monotonic`, one clock for the machine), and its replies."""


def measure(scale: Scale) -> Iterator[Figure]:
    """Measure the rate for each number of callers and of processes, the capacity, and a request's cost."""
    with place("unix") as here, _processes(max(PROCESSES)) as pool:
        _together(pool, max(PROCESSES), partial(_call, here.url, 1, 1), _START)
        yield from _under_one_hub(here, scale)
        yield from _from_processes(here, scale, pool)
        for batch in BATCHES:
            yield from _capacity(here, scale, pool, batch)


def _processes(count: int) -> ProcessPoolExecutor:
    # Spawned, not forked: a fork would copy a client in use.
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"))


def _under_one_hub(here: Place, scale: Scale) -> Iterator[Figure]:
    rates: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    coalesced: dict[int, list[float]] = {callers: [] for callers in CALLERS}
    for number in range(scale.rounds):
        for callers in CALLERS:
            progress.tell(f"round {number + 1} of {scale.rounds}", f"{callers} callers")
            each = max(1, scale.operations * (1 if callers == 1 else 5) // callers)
            here.raw.config_resetstat()
            began, ended, seen = _callers(here.db, callers, each)
            check_increasing(seen, 1)
            rates[callers].append(len(seen) / (ended - began))
            coalesced[callers].append(len(seen) / _requests(here)[0])
    for callers in CALLERS:
        figure = partial(median_figure, "oracle", here.name, axis="callers", at=callers)
        yield figure("callers under one hub", "/s", rates[callers])
        yield figure("callers under one hub, timestamps a request", "ratio", coalesced[callers])


def _from_processes(here: Place, scale: Scale, pool: ProcessPoolExecutor) -> Iterator[Figure]:
    each = max(1, scale.operations * 5 // _WIDTH)
    for count in PROCESSES:
        rates = []
        progress.tell(f"callers in {count} processes")
        for _ in range(scale.rounds):
            spans = _together(pool, count, partial(_call, here.url, _WIDTH, each))
            check_increasing(sorted(stamp for _, _, seen in spans for stamp in seen), 1)
            rates.append(_rate(spans, 1))
        name = f"callers in processes, {_WIDTH} each"
        yield median_figure("oracle", here.name, name, "/s", rates, axis="processes", at=count)


def _capacity(here: Place, scale: Scale, pool: ProcessPoolExecutor, batch: int) -> Iterator[Figure]:
    bunches = max(1, scale.operations * 5 // _PIPELINED)
    for count in PROCESSES:
        progress.tell(f"capacity, {batch} a request", f"{count} processes")
        rates, cost = [], []
        for _ in range(scale.rounds):
            here.raw.config_resetstat()
            spans = _together(pool, count, partial(_request, here.url, batch, bunches))
            for _, _, replies in spans:
                check_increasing(replies, batch)
            check_increasing(sorted(reply for _, _, replies in spans for reply in replies), batch)
            rates.append(_rate(spans, batch))
            cost.append(_requests(here)[1])
        figure = partial(median_figure, "oracle", here.name, axis="processes", at=count)
        name = f"capacity, {batch} a request"
        yield figure(name, "/s", rates, CAPACITY)
        yield figure(f"{name}, server's time for one", "µs", cost)


def _requests(here: Place) -> tuple[int, float]:
    """Return the number of scripts since the statistics were reset, and the server's µs for each."""
    found = here.raw.info("commandstats")["cmdstat_evalsha"]
    return found["calls"], found["usec_per_call"]


def _rate(spans: Sequence[Span], batch: int) -> float:
    """Compute timestamps a second, over the time in which any process worked."""
    seconds = max(ended for _, ended, _ in spans) - min(began for began, _, _ in spans)
    return sum(len(replies) for _, _, replies in spans) * batch / seconds


def check_increasing(replies: Sequence[int], batch: int) -> None:
    """Check replies: each is the last of ``batch`` timestamps, so the next is ``batch`` or more higher."""
    for before, reply in pairwise(replies):
        if reply - before < batch:
            raise PercolatorError(
                f"the oracle handed out {reply} for {batch} timestamps after {before}: the batches overlap, "
                "please report it"
            )


# In the client processes.


def _together(
    pool: ProcessPoolExecutor, count: int, work: Callable[[float], Span], head_start: float = _HEAD_START
) -> list[Span]:
    """Let ``count`` processes do the work at the same moment."""
    at = time.monotonic() + head_start
    return [future.result() for future in [pool.submit(work, at) for _ in range(count)]]


_databases: dict[str, Database] = {}
"""The connections of a client process, by URL: they stay open between rounds."""


def _connected(url: str, at: float) -> Database:
    if url not in _databases:
        _databases[url] = connect(url, namespace=NAMESPACE)
    _databases[url].timestamp()
    time.sleep(max(0.0, at - time.monotonic()))
    return _databases[url]


def _call(url: str, callers: int, each: int, at: float) -> Span:
    return _callers(_connected(url, at), callers, each)


def _callers(db: Database, callers: int, each: int) -> Span:
    """Run tasks that request timestamps in a loop; return the timestamps, sorted."""
    seen: list[int] = []

    def ask(_: int) -> None:
        mine = [db.timestamp() for _ in range(each)]
        check_increasing(mine, 1)
        seen.extend(mine)

    with db.concurrency(callers) as executor:
        began = time.monotonic()
        for _ in executor.map(ask, range(callers)):
            pass
        ended = time.monotonic()
    return began, ended, sorted(seen)


def _request(url: str, batch: int, bunches: int, at: float) -> Span:
    """Send requests for ``batch`` timestamps each; return the replies in their order."""
    db = _connected(url, at)
    store = db.store
    command = store.command(calls.timestamp(store.keyspace.oracle, store.keyspace.catalog, batch))
    commands = [command] * _PIPELINED
    replies: list[int] = []
    began = time.monotonic()
    for _ in range(bunches):
        replies += [last for last, _ in store.call(*commands)]
    return began, time.monotonic(), replies
