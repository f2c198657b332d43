"""Events are counted while a worker is killed every second: no event may be lost or counted twice.

An observer reads the count and the sum of an event's key, adds the event, and writes both back: a run that
took effect twice, or not at all, would leave a wrong total. The measured time ends when no notification is
left. Locks of a killed worker stay for ten seconds, so the rate depends on that wait more than on the work.
Repeated runs in the last quarter of a second of a killed process are missing in the figure.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, TypeAlias

from percolator_bench import progress
from percolator_bench.figure import Figure, median_figure
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, for_each, place
from percolator_bench.workers import Workers, shipped_chain, workers_of
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.layout.records import Cell
from percolator_core.observers import ObserverTransaction
from percolator_core.worker.attempt import ObserverCounts

PROCESSES: Final = 2

FIRST: Final = 1.0
EVERY: Final = 1.0
"""Seconds until the first kill, and between two kills."""

_EVENTS_A_KEY: Final = 4
_WIDTH: Final = 64
"""Events in flight."""

_A_BATCH: Final = 500
"""Events written between two checks of the clock."""

_AHEAD: Final = 20_000
"""Writing pauses above this many pending notifications, so that events still arrive after the first kill."""

_LOOK: Final = 0.02
_LIMIT: Final = 600.0
"""The workers have to finish within this many seconds."""

_SHOWN: Final = 3
"""An error lists at most this many wrong totals."""

Totals: TypeAlias = dict[str, tuple[int, int]]
"""Count and sum of the events of each key."""


def count(t: ObserverTransaction, cell: Cell) -> None:
    """Add an event to the totals of its key."""
    event = t.get_row("events", cell.row, ["key", "amount"])
    row = event["key"]
    total = t.get_row("counts", row, ["number", "amount"])
    t.set("counts", row, "number", b"%d" % (int(total.get("number", b"0")) + 1))
    t.set("counts", row, "amount", b"%d" % (int(total.get("amount", b"0")) + int(event["amount"])))


class Done(NamedTuple):
    """The duration and the kills of a round, and the counts of the observer's runs."""

    seconds: float
    kills: int
    counts: ObserverCounts


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """Measure the rate of changes, the kills, and the repeated runs.

    Raises:
        PercolatorError: a total is wrong.
        StoreUnavailable: a worker ended by itself, or the workers did not finish.
    """
    with shipped_chain("events") as chain, place("unix") as here:
        with workers_of(here, chain, PROCESSES) as workers:
            done = run_workers(here, workers, scale.events)
        progress.tell("counting anew")
        events, how = recounted(here.db)
        compare(events, totals(here.db))
    figure = partial(median_figure, "kills", here.name)
    yield figure("changes", "/s", samples=[scale.events / done.seconds])
    yield figure("workers killed", "count", samples=[done.kills])
    yield figure("repeated runs", "count", samples=[done.counts.collapsed])
    yield figure("runs that lost against another", "count", samples=[done.counts.conflicts])
    number = sum(number for number, _ in events.values())
    yield Note("kills", f"{number:,} events of {len(events):,} keys, counted anew by {how}: all totals agree")


def run_workers(here: Place, workers: Workers, events: int) -> Done:
    """Write the events and let workers count them, while workers are killed."""
    keys = max(1, events // _EVENTS_A_KEY)
    killer = _Killer(workers)
    began = time.monotonic()
    for first in range(0, events, _A_BATCH):
        killer.look(0.0)
        write_events(here.db, range(first, min(first + _A_BATCH, events)), keys)
        while workers.backlog() > _AHEAD:
            killer.look(_LOOK)
    progress.tell(f"{events:,} events", "all are written")
    while workers.backlog():
        if time.monotonic() > began + _LIMIT:
            raise StoreUnavailable(f"the workers did not get done in {_LIMIT:g} s")
        killer.look(_LOOK)
    seconds = time.monotonic() - began
    return Done(seconds, killer.kills, workers.stop())


def write_events(db: Database, numbers: range, keys: int) -> None:
    """Write events with random keys, each in its own transaction."""

    def write(number: int) -> None:
        with db.transaction() as t:
            row = b"event:%d" % number
            t.set("events", row, "key", b"key:%d" % random.randrange(keys))
            t.set("events", row, "amount", b"%d" % random.randrange(1000))

    for_each(db, _WIDTH, write, numbers)


class _Killer:
    """Kills the oldest worker every `EVERY` seconds."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._next = time.monotonic() + FIRST
        self.kills = 0

    def look(self, seconds: float) -> None:
        """Receive the workers' reports for ``seconds`` seconds; then kill a worker if a kill is due."""
        self._workers.listen(seconds)
        if time.monotonic() < self._next:
            return
        self._next += EVERY
        self._workers.kill(self._workers.running[0])
        self._workers.start()
        self.kills += 1
        progress.tell(f"{self.kills} workers killed")


# Count again.


def totals(db: Database) -> Totals:
    """Read the totals of the observer."""
    return {
        row.decode(): (int(cells["number"]), int(cells["amount"]))
        for row, cells in db.snapshot().scan("counts")
    }


def recounted(db: Database) -> tuple[Totals, str]:
    """Count the events again; return the totals, and what counted them."""
    with TemporaryDirectory(prefix="percolator-bench-") as folder:
        lines = Path(folder) / "events.jsonl"
        with lines.open("w", encoding="utf-8") as file:
            for row, cells in db.snapshot().scan("events"):
                event = {"row": row, "key": cells["key"], "amount": cells["amount"]}
                json.dump({name: value.decode() for name, value in event.items()}, file)
                file.write("\n")
        found = count_in_spark(lines)
        return (count_in_python(lines), "a loop") if found is None else (found, "Spark")


def count_in_spark(lines: Path) -> Totals | None:
    """Count the events with Spark, in a process of its own; None without Spark."""
    # Not at the top: worker processes import this module for its observer, and need no Spark.
    from percolator_core.spark import check_java

    if find_spec("pyspark") is None:
        return None
    try:
        check_java()
    except ConfigurationError:
        return None
    command = [sys.executable, "-m", "percolator_bench.recount", str(lines)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PercolatorError(f"the events could not be counted anew by Spark: {done.stderr[-1000:]}")
    return {key: (number, amount) for key, (number, amount) in json.loads(done.stdout).items()}


def count_in_python(lines: Path) -> Totals:
    """Count the events in a loop."""
    found: Totals = {}
    with lines.open(encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            number, amount = found.get(event["key"], (0, 0))
            found[event["key"]] = (number + 1, amount + int(event["amount"]))
    return found


def compare(events: Mapping[str, tuple[int, int]], counted: Mapping[str, tuple[int, int]]) -> None:
    """Raise PercolatorError if a total of the observer is wrong."""
    wrong = [key for key in sorted(events.keys() | counted.keys()) if events.get(key) != counted.get(key)]
    if wrong:
        shown = "; ".join(
            f"{key}: {counted.get(key, (0, 0))}, of the events {events.get(key, (0, 0))}"
            for key in wrong[:_SHOWN]
        )
        raise PercolatorError(
            f"{len(wrong):,} totals (number, amount) are not those of the events, an update was lost or made "
            f"twice, please report it: {shown}"
        )
