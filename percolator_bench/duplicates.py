"""Wasted work: several worker processes share one chain, and do the same work twice.

In the first workload every change is to a row of its own. In the others the same rows change again and again
while their observers run, so one run may process several changes, and a later run may find nothing left to
do. Work that a worker begins and does not commit is of three kinds:

- *collapsed*: the run's first read found the acknowledgement of an earlier run. The observer's function is
  not called; the cost is that read and the removal of the mark.
- *conflicts*: the function ran, and the commit lost. All conflicts count as duplicates, so that none is
  missed.
- *failed*: the function raised, which happens only after a fault.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import for_each, place
from percolator_bench.workers import shipped_chain, workers_of
from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.layout.records import Cell
from percolator_core.observers import ObserverTransaction
from percolator_core.transaction.transaction import Transaction
from percolator_core.worker.attempt import ObserverCounts

WASTED: Final = Target("at most", 0.01)

WORKERS: Final = 4
"""Worker processes."""

_TABLE: Final = "changes"
_WRITTEN: Final = "written"
_COPIED: Final = "copied"
_NOTED: Final = "noted"
_NOTICED: Final = "noticed"

_WIDTH: Final = 64
"""Writes in flight."""

_ATTEMPTS: Final = 10_000
_ROUND: Final = 3
"""Other suites run this many rounds while this suite runs one, because its rounds take seconds."""

_LIMIT: Final = 120.0
"""Seconds for the workers to finish."""

_LOOK: Final = 0.005
"""Seconds between two checks that they have finished."""

_SUITE: Final = "duplicates"


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows that change, each ``times`` times.

    ``weak`` means that a weak notification reports a change.
    """

    name: str
    times: int
    weak: bool = False

    def change(self, t: Transaction, row: bytes, value: bytes) -> None:
        """Write the cell of the row; for a weak workload also notify, because the write wakes no observer."""
        t.set(_TABLE, row, self.column, value)
        if self.weak:
            t.notify(_TABLE, row, _NOTICED)

    @property
    def column(self) -> str:
        """The column that is written and copied."""
        return _NOTED if self.weak else _WRITTEN


WORKLOADS: Final = (
    Workload("each row once", 1),
    Workload("each row 50 times", 50),
    Workload("each row 50 times, weak notifications", 50, weak=True),
)


@dataclass(frozen=True, slots=True)
class Done:
    """A number of changes, the work for them, and the seconds until no mark was left."""

    changes: int
    counts: ObserverCounts
    seconds: float

    @property
    def executed(self) -> int:
        """Calls of the observer's function."""
        return self.counts.ran + self.counts.conflicts + self.counts.failed

    @property
    def in_vain(self) -> int:
        """Calls without a result."""
        return self.counts.conflicts + self.counts.failed

    @property
    def begun(self) -> int:
        """Marks that a worker claimed and processed."""
        return self.executed + self.counts.collapsed


def copy(t: ObserverTransaction, cell: Cell) -> None:
    """Read the observed cell and write another: the smallest observer."""
    value = t.get(cell.table, cell.row, cell.column)
    if value is not None:
        t.set(cell.table, cell.row, _COPIED, value)


def look(t: ObserverTransaction, cell: Cell) -> None:
    """Do the same as `copy`, for a weak observer."""
    value = t.get(cell.table, cell.row, _NOTED)
    if value is not None:
        t.set(cell.table, cell.row, _COPIED, value)


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """Measure the share of wasted work, by workload.

    Raises PercolatorError if a change was processed twice, or not at all.
    """
    rounds = max(1, scale.rounds // _ROUND)
    found: dict[Workload, list[Done]] = {workload: [] for workload in WORKLOADS}
    for number in range(rounds):
        for workload in WORKLOADS:
            progress.tell(f"round {number + 1} of {rounds}", workload.name)
            found[workload].append(_run(workload, scale.changes))
    for workload, done in found.items():
        yield from figures_of(workload, done)
        counts = ObserverCounts.sum(one.counts for one in done)
        yield Note(
            _SUITE,
            f"{workload.name}: {sum(one.changes for one in done):,} changes, {counts.ran:,} runs that "
            f"committed, {counts.conflicts:,} lost, {counts.failed:,} failed, {counts.collapsed:,} collapsed",
        )


def _run(workload: Workload, changes: int) -> Done:
    """Run the workload in a store of its own."""
    rows = [b"row:%d" % number for number in range(max(1, changes // workload.times))]

    with (
        shipped_chain("changes") as chain,
        place("unix") as here,
        workers_of(here, chain, WORKERS) as workers,
    ):

        def write(number: int) -> None:
            row = rows[number % len(rows)]
            here.db.run(lambda t: workload.change(t, row, b"%d" % number), _ATTEMPTS)

        started = time.perf_counter()
        for_each(here.db, _WIDTH, write, range(changes))
        workers.wait_until_idle(_LIMIT, _LOOK)
        seconds = time.perf_counter() - started
        counts = workers.stop()
        check(here.db, workload, rows, counts.ran)
    return Done(changes, counts, seconds)


def check(db: Database, workload: Workload, rows: Sequence[bytes], ran: int) -> None:
    """Check that every row's last value is copied, no value is copied twice, and there are ``ran`` copies.

    A weak run may find that another one has copied the value for which it was notified.

    Raises PercolatorError otherwise.
    """
    copies = 0
    for row in rows:
        written = db.snapshot().get(_TABLE, row, workload.column)
        copied = [version.value for version in db.history(_TABLE, row, _COPIED)]  # the newest first
        copies += len(copied)
        doubled = len(set(copied)) != len(copied) and not workload.weak
        if not copied or copied[0] != written or doubled:
            raise PercolatorError(
                f"{row.decode()}: {written!r} was written last, and the copies are {copied!r}: a change was "
                "dealt with twice or not at all, please report it"
            )
    if copies != ran:
        raise PercolatorError(
            f"{copies:,} copies were committed in {ran:,} runs: a run was counted wrongly, please report it"
        )


def figures_of(workload: Workload, done: Sequence[Done]) -> Iterator[Figure]:
    """The figures of a workload."""
    figure = partial(median_figure, _SUITE, workload.name)
    wasted = [(one.in_vain + one.counts.collapsed) / one.begun for one in done]
    yield figure("begun in vain", "share", wasted, WASTED)
    yield figure("of it, executed in vain", "share", [one.in_vain / one.executed for one in done])
    yield figure("of it, collapsed", "share", [one.counts.collapsed / one.begun for one in done])
    yield figure("executions a change", "ratio", [one.executed / one.changes for one in done])
    yield figure("changes", "/s", [one.changes / one.seconds for one in done])
