"""Many transactions change one row: throughput and aborts, by the share of transactions on the hot row.

With *weak notifications* each transaction writes a row of its own, and a run of an observer adds all these
rows up. With the *combine queue* an observer adds the items of the queue to the amount.

The observers run in a worker process. The measured time ends when all amounts are right, which is checked.
The share of aborted attempts is that of the writers; repeated runs of observers only add to the time. Each
point and round has half as many transactions as ``operations`` says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from percolator_bench import progress
from percolator_bench.figure import Figure, median_figure
from percolator_bench.scale import Scale
from percolator_bench.servers import for_each, place
from percolator_bench.workers import Workers, shipped_chain, workers_of
from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.layout.records import Cell
from percolator_core.observers import ObserverTransaction
from percolator_core.recipes import CombineQueue
from percolator_core.transaction.transaction import Transaction

SHARES: Final = (0.0, 0.001, 0.01, 0.1, 0.5, 1.0)
WIDTH: Final = 64
"""Transactions in flight."""

_COLD_ROWS: Final = 10_000

_ATTEMPTS: Final = 10_000
"""A transaction is attempted at most this many times: a high number, because each has to commit."""

_AMOUNT: Final = "amount"

_LIMIT: Final = 300.0
"""The worker has to finish within this many seconds."""

_LOOK: Final = 0.002
"""Seconds between two checks if the worker has finished."""


def _add_up(old: bytes | None, items: Sequence[bytes]) -> bytes:
    return b"%d" % (int(old or 0) + sum(map(int, items)))


_QUEUE: Final = CombineQueue("queue", ("sums", _AMOUNT), _add_up)


def recompute(t: ObserverTransaction, cell: Cell) -> None:
    """Write the sum of the notified row's parts into ``totals`` (a weak observer)."""
    parts = t.scan("parts", prefix=cell.row + b"/", columns=[_AMOUNT])
    t.set("totals", cell.row, _AMOUNT, b"%d" % sum(int(cells[_AMOUNT]) for _, cells in parts))


def combine(t: ObserverTransaction, cell: Cell) -> None:
    """Fold the items of the notified row (a weak observer)."""
    _QUEUE.drain(t, cell)


def _read_and_write(t: Transaction, row: bytes, _number: int) -> None:
    t.set("plain", row, _AMOUNT, b"%d" % (int(t.get("plain", row, _AMOUNT) or 0) + 1))


def _write_and_notify(t: Transaction, row: bytes, number: int) -> None:
    t.set("parts", b"%b/%d" % (row, number), _AMOUNT, b"1")
    t.notify("totals", row, "changed")


def _add(t: Transaction, row: bytes, _number: int) -> None:
    _QUEUE.add(t, row, b"1")


@dataclass(frozen=True, slots=True)
class Way:
    """A method that adds 1 to the amount of a row; ``table`` has the amounts."""

    name: str
    table: str
    change: Callable[[Transaction, bytes, int], None]


_PLAIN: Final = Way("read and write", "plain", _read_and_write)
WAYS: Final = (
    _PLAIN,
    Way("weak notifications", "totals", _write_and_notify),
    Way("combine queue", "sums", _add),
)


def measure(scale: Scale) -> Iterator[Figure]:
    """Measure transactions a second and the share of aborted attempts, by method and hot share."""
    with (
        shipped_chain("hot_rows") as chain,
        place("unix") as here,
        workers_of(here, chain) as workers,
    ):
        race = Race(here.db, workers, max(1, scale.operations // 2))
        for way in WAYS:
            race.run(way, 1.0)  # the first ones warm up
        race.forget()
        for number in range(scale.rounds):
            for share in SHARES:
                for way in WAYS if number % 2 else reversed(WAYS):
                    progress.tell(f"round {number + 1} of {scale.rounds}", f"{way.name}, {share:.1%} hot")
                    race.run(way, share)
        yield from _figures(here.name, race)


def _figures(where: str, race: Race) -> Iterator[Figure]:
    for way in WAYS:
        for share in SHARES:
            figure = partial(median_figure, "contention", where, axis="hot share", at=share)
            rates, aborted = race.rates[way.name, share], race.aborted[way.name, share]
            yield figure(way.name, "/s", rates)
            yield figure(f"{way.name}, aborted attempts", "share", aborted)
            if way is not _PLAIN:
                plain = race.rates[_PLAIN.name, share]
                gain = [a / b for a, b in zip(rates, plain, strict=True)]
                yield figure(f"{way.name} ÷ {_PLAIN.name}", "ratio", gain)


class Race:
    """Runs the methods on rows that no other run uses, and collects the results, round by round."""

    def __init__(self, db: Database, workers: Workers, transactions: int) -> None:
        self._db = db
        self._workers = workers
        self._transactions = transactions
        self._runs = 0
        self.rates: dict[tuple[str, float], list[float]] = {}
        self.aborted: dict[tuple[str, float], list[float]] = {}

    def forget(self) -> None:
        """Drop the results so far."""
        self.rates, self.aborted = {}, {}

    def run(self, way: Way, share: float) -> None:
        """Run all transactions, and wait until the amounts are up to date.

        Raises:
            PercolatorError: the amounts are wrong at the end.
            StoreUnavailable: the worker ended, or did not finish.
        """
        self._runs += 1
        prefix = b"run%d:" % self._runs
        count = self._transactions
        hot = round(share * count)
        rows = [prefix + b"hot"] * hot
        rows += [prefix + b"%d" % random.randrange(_COLD_ROWS) for _ in range(count - hot)]
        random.shuffle(rows)
        attempts = 0

        def one(number: int) -> None:
            def change(t: Transaction) -> None:
                nonlocal attempts
                attempts += 1
                way.change(t, rows[number], number)

            self._db.run(change, _ATTEMPTS)

        started = time.perf_counter()
        for_each(self._db, WIDTH, one, range(count))
        self._workers.wait_until_idle(_LIMIT, _LOOK)
        seconds = time.perf_counter() - started
        self._check(way, prefix, count, hot)
        self.rates.setdefault((way.name, share), []).append(count / seconds)
        self.aborted.setdefault((way.name, share), []).append((attempts - count) / attempts)

    def _check(self, way: Way, prefix: bytes, count: int, hot: int) -> None:
        found = {
            row: int(cells[_AMOUNT])
            for row, cells in self._db.snapshot().scan(way.table, prefix=prefix, columns=[_AMOUNT])
        }
        total, on_hot = sum(found.values()), found.get(prefix + b"hot", 0)
        if (total, on_hot) != (count, hot):
            raise PercolatorError(
                f"{way.name}: the amounts come to {total}, {on_hot} of it hot, after {count} transactions, "
                f"{hot} of them hot: an update was lost or made twice, please report it"
            )
