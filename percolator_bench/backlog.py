"""Millions of waiting notifications: their cost for the server, for a claim, and for the memory of a worker.

The script that sets the notifications is the one for transactions that only notify, but a call sets thousands
instead of a few. This, and a server without a log, are the two shortcuts of the suite. The worker's memory is
the resident memory of the process (RSS); its growth is relative to the memory after a few thousand
notifications.
"""

from __future__ import annotations

import gc
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final
from zlib import crc32

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, place
from percolator_bench.workers import Workers, shipped_chain, workers_of
from percolator_core.layout.records import Cell
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers import Chain, ObserverTransaction
from percolator_core.scripts import calls

GROWTH: Final = Target("at most", 100.0)

_TABLE: Final = "piles"
_COLUMN: Final = "due"
MARKS_PER_CALL: Final = 2000
"""One call of the script sets this many notifications, all in one tablet."""

_ARGUMENTS: Final = 5
"""The script has this many arguments for each notification."""

_A_ROUND: Final = 100_000
"""Progress is reported once for this many notifications."""

_FEWER: Final = 100
_CLAIMS: Final = 60
_CLAIMED: Final = 256
"""Cells of a claim: as many as an idle worker claims."""

_LEASE: Final = 0.2
"""The timed claims lease cells for this many seconds; these leases expire by themselves."""

_WARM: Final = 3000
"""The memory of the worker is first measured after this many runs, or half of all if that is fewer."""

_WORK: Final = 20.0
"""The worker is measured for at most this many seconds."""

_LOOK: Final = 0.1
_LIMIT: Final = 60.0
"""The worker gets at most this many seconds for the runs before the first measurement."""

_MEGABYTE: Final = 1e6


def settle(t: ObserverTransaction, cell: Cell) -> None:
    """Record that the notification of the row arrived (a weak observer)."""
    t.set(cell.table, cell.row, "settled", b"1")


def measure(scale: Scale) -> Iterator[Figure]:
    """Measure server memory, the time of a claim, runs a second and worker memory, for each backlog."""
    for marks in sorted({max(1, scale.marks // _FEWER), scale.marks}):
        with shipped_chain("piles") as chain, place("unix") as here:
            yield from _measured(here, chain, marks)


def _measured(here: Place, chain: Chain, marks: int) -> Iterator[Figure]:
    figure = partial(median_figure, "backlog", here.name, axis="notifications", at=marks)
    here.db.store.one((b"CONFIG", b"SET", b"appendonly", b"no"))
    chain.create_tables(here.db)
    before, began = _used(here), time.perf_counter()
    fill(here, marks)
    seconds = time.perf_counter() - began
    yield figure("server's memory for one", "bytes", samples=[(_used(here) - before) / marks])
    yield figure("set by the script", "/s", samples=[marks / seconds])
    progress.tell(f"{marks:,} notifications", "claims")
    yield figure(f"claim of {_CLAIMED}", "ms", samples=_claims(here, chain))
    with workers_of(here, chain) as workers:
        progress.tell(f"{marks:,} notifications", "at work")
        rate, grown, most = _work(workers, marks)
    yield figure("settled by the worker", "/s", samples=[rate])
    yield figure("growth of the worker's memory", "MB", samples=[grown], target=GROWTH)
    yield figure("worker's memory, at most", "MB", samples=[most])


def fill(here: Place, marks: int) -> None:
    """Set the notifications; their rows spread them over the tablets."""
    handle, store = here.db.catalog.table(_TABLE), here.db.store
    column = _COLUMN.encode()
    waiting: dict[bytes, list[bytes | int]] = {tag: [] for tag in handle.tags}
    tags = list(waiting)
    for first in range(0, marks, _A_ROUND):
        progress.tell(f"{marks:,} notifications", f"{first:,} set")
        for number in range(first, min(first + _A_ROUND, marks)):
            row = b"row:%d" % number
            arguments = waiting[tags[crc32(row) % len(tags)]]
            arguments += (1, row, column, b"n", b"")
            if len(arguments) == MARKS_PER_CALL * _ARGUMENTS:
                store.run(calls.notify([handle.tag(row)], arguments, handle.version))
                arguments.clear()
    for tag, arguments in waiting.items():
        if arguments:
            store.run(calls.notify([tag], arguments, handle.version))


def _used(here: Place) -> int:
    info = here.db.store.server_info()
    return info.used_memory - int(info.raw["mem_clients_normal"])


def _claims(here: Place, chain: Chain) -> list[float]:
    """Time each claim, in milliseconds."""
    dirty = DirtyIndex(here.db.client, chain.observed)
    found = []
    gc.collect()
    for _ in range(_CLAIMS):
        began = time.perf_counter()
        dirty.claim(_CLAIMED, _LEASE)
        found.append((time.perf_counter() - began) * 1000)
    return found


def _work(workers: Workers, marks: int) -> tuple[float, float, float]:
    """Run the worker; return runs a second, the growth of its memory and its peak memory, in MB."""
    [process] = workers.running
    first = min(_WARM, marks // 2)
    until = time.monotonic() + _LIMIT
    while workers.counts().ran < first and time.monotonic() < until:
        workers.listen(_LOOK)
    at_first = most = resident(process.pid)
    began, ran = time.monotonic(), workers.counts().ran
    while time.monotonic() < began + _WORK and workers.backlog():
        workers.listen(_LOOK)
        most = max(most, resident(process.pid))
    seconds = time.monotonic() - began
    return (workers.stop().ran - ran) / seconds, (most - at_first) / _MEGABYTE, most / _MEGABYTE


def resident(pid: int) -> int:
    """Return the current memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        sizes = (line.split() for line in status.read_text().splitlines())
        kilobytes = next(line[1] for line in sizes if line[0] == "VmRSS:")
    else:
        shown = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)],
            capture_output=True,
            text=True,
            check=True,
        )
        kilobytes = shown.stdout.strip()
    return int(kilobytes) * 1024
