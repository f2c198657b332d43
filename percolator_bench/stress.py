"""Count unique integers with a trie of observers (`percolator_bench.trie`), as Fluo's stress test does.

A lost notification, or a run whose writes are lost or doubled, makes a count wrong. All 8 levels are counted,
up to one root; Fluo's test stops at a level with about 60,000 nodes, and adds their counts up. The measured
transactions are inserts of new integers and runs of observers; a run that finds the sum unchanged still
commits its acknowledgement. Their time is from the first insert until no notification is left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import for_each, place
from percolator_bench.trie import SEEN, TABLE, WAIT, Shape
from percolator_bench.workers import shipped_chain, workers_of
from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.transaction.transaction import Transaction
from percolator_core.worker.attempt import ObserverCounts

RATE: Final = Target("at least", 6000)
"""Twice the rate that Fluo's developers published for 18 machines."""

WORKERS: Final = (1, 2)
"""Worker processes."""

MOST: Final = 10**9
"""Integers are below this limit; Fluo's advice for a small test."""

_BITS: Final = 8
_STOP: Final = 0
_WIDTH: Final = 128
"""Inserts in flight."""

_ATTEMPTS: Final = 1000
BATCHES: Final = 5
_BATCH: Final = 100
"""The first load has this many times as many integers as a batch."""

_KNOWN: Final = 10
"""In a batch, one integer in this many was inserted before."""

_ROUND: Final = 3
"""Other suites run this many rounds for each round here, because one here takes seconds."""

_LIMIT: Final = 120.0
"""The workers have to finish within this many seconds."""

_LOOK: Final = 0.005
"""Seconds between two checks that the workers have finished."""

_SUITE: Final = "stress"


@dataclass(frozen=True, slots=True)
class Load:
    """A load: ``inserts`` that committed, their ``attempts``, and the time until all was counted."""

    inserts: int
    attempts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Round:
    """The first load, the counts of its runs, and the seconds of each small batch."""

    load: Load
    runs: ObserverCounts
    batches: Sequence[float]
    unique: int

    @property
    def transactions(self) -> int:
        """Transactions of the first load that committed a write."""
        return self.load.inserts + self.runs.ran

    @property
    def conflicts(self) -> float:
        """The share of conflicts in all attempts of the first load's inserts and runs."""
        lost = self.load.attempts - self.load.inserts + self.runs.conflicts
        return lost / (self.transactions + lost)


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """Measure transactions a second with each number of workers, and the share of conflicts.

    Raises PercolatorError if a count is wrong.
    """
    rounds = max(1, scale.rounds // _ROUND)
    found: dict[int, list[_Round]] = {workers: [] for workers in WORKERS}
    for number in range(rounds):
        for workers in WORKERS if number % 2 else reversed(WORKERS):
            with progress.step(f"round {number + 1} of {rounds}, worker processes: {workers}"):
                found[workers].append(_round(workers, scale.numbers))
    for workers, done in found.items():
        yield from _figures(workers, done)
    unique = sum(one.unique for done in found.values() for one in done)
    yield Note(
        _SUITE,
        f"every count was exact: {unique:,} distinct integers in {rounds * len(WORKERS)} tries, each "
        f"compared {1 + BATCHES} times at the root, and at the end at every level",
    )


def _round(processes: int, numbers: int) -> _Round:
    """Run a load and its batches in a store of their own."""
    shape = Shape("trie", _BITS, _STOP)
    chance = random.Random()
    known: set[int] = set()
    with shipped_chain("trie") as chain, place("unix") as here:
        with workers_of(here, chain, processes) as workers:
            progress.tell("loading")
            trie = Trie(here.db, shape, partial(workers.wait_until_idle, _LIMIT, _LOOK))
            load = trie.load([chance.randrange(MOST) for _ in range(numbers)], known)
            # These workers stop now, so that their counts are of the load alone. Others process the batches.
            runs = workers.stop()
        with workers_of(here, chain, processes) as workers:
            trie = Trie(here.db, shape, partial(workers.wait_until_idle, _LIMIT, _LOOK))
            batches = []
            for number in range(BATCHES):
                progress.tell(f"batch {number + 1} of {BATCHES}")
                batches.append(trie.load(_batch(chance, known, max(1, numbers // _BATCH)), known).seconds)
        progress.tell("checking")
        trie.check(len(known))
    return _Round(load, runs, batches, len(known))


def _batch(chance: random.Random, known: set[int], count: int) -> list[int]:
    """Return new integers, and some that exist."""
    old = chance.sample(sorted(known), min(len(known), -(-count // _KNOWN)))
    return old + [chance.randrange(MOST) for _ in range(count - len(old))]


class Trie:
    """A trie of a store; ``wait`` returns when its workers have counted all inserts."""

    def __init__(self, db: Database, shape: Shape, wait: Callable[[], None]) -> None:
        self._db = db
        self._shape = shape
        self._wait = wait

    def load(self, numbers: Sequence[int], known: set[int]) -> Load:
        """Insert, wait until all is counted, and compare; add the numbers to ``known``.

        Raises:
            PercolatorError: the count at the roots is not the size of ``known``.
            StoreUnavailable: the workers ended, or did not finish.
        """
        inserts = attempts = 0

        def one(number: int) -> None:
            nonlocal inserts
            row = self._shape.leaf(number).row

            def change(t: Transaction) -> bool:
                nonlocal attempts
                if t.get(TABLE, row, WAIT) is not None:
                    return False
                attempts += 1
                t.set(TABLE, row, WAIT, b"1")
                return True

            # Not `inserts += …run(…)`: it reads `inserts` before the run, and would overwrite what other
            # tasks add.
            if self._db.run(change, _ATTEMPTS):
                inserts += 1

        started = time.perf_counter()
        for_each(self._db, _WIDTH, one, numbers)
        self._wait()
        seconds = time.perf_counter() - started
        known.update(numbers)
        self._compare(self._shape.stop, len(known))
        return Load(inserts, attempts, seconds)

    def check(self, unique: int) -> None:
        """Compare the count of every level.

        Raises PercolatorError if one is wrong.
        """
        for level in range(self._shape.stop, self._shape.levels + 1):
            self._compare(level, unique)

    def _compare(self, level: int, unique: int) -> None:
        rows = self._db.snapshot().scan(TABLE, prefix=self._shape.prefix(level), columns=[SEEN])
        count = sum(int(cells[SEEN]) for _, cells in rows)
        if count != unique:
            raise PercolatorError(
                f"the trie counts {count:,} integers at level {level}, and {unique:,} distinct ones were "
                "inserted: a notification or an update was lost or made twice, please report it"
            )


def _figures(workers: int, done: Sequence[_Round]) -> Iterator[Figure]:
    figure = partial(median_figure, _SUITE, "unix socket", axis="workers", at=workers)
    levels = Shape("trie", _BITS, _STOP).levels - _STOP
    yield figure("transactions", "/s", [one.transactions / one.load.seconds for one in done], RATE)
    yield figure("integers", "/s", [one.load.inserts / one.load.seconds for one in done])
    yield figure("attempts lost to conflicts", "share", [one.conflicts for one in done])
    # Without collapsing, each new integer would cause a run for its leaf and for each level above.
    yield figure(
        "runs saved by collapsing notifications",
        "share",
        [1 - one.runs.ran / (one.load.inserts * (levels + 1)) for one in done],
    )
    yield figure(
        "marks that were dealt with already",
        "share",
        [one.runs.collapsed / (one.runs.ran + one.runs.collapsed) for one in done],
    )
    batches = [seconds * 1e3 for one in done for seconds in one.batches]
    yield figure("a small batch, until it is counted", "ms", batches)
