"""The commands for a worker process, and its answers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from percolator_bench.tpce.workload import Brokerage, Item


@dataclass(frozen=True, slots=True)
class Task:
    """The store, its address, and how many items run at a time, as tasks of one thread or in threads.

    ``store`` is "percolator" or "postgres"; ``address`` is its URL or conninfo. Each thread has a connection.
    """

    store: str
    address: str
    width: int
    customers: int
    synchronous_commit: bool = True


@dataclass(frozen=True, slots=True)
class Share:
    """Every ``workers``-th of the first ``count`` items of a stream, beginning with the item ``worker``."""

    seed: str
    first_trade: int
    count: int
    worker: int
    workers: int

    def items(self, brokerage: Brokerage) -> list[Item]:
        """Yield the items."""
        stream = brokerage.items(self.seed, self.first_trade)
        return list(islice(stream, self.worker, self.count, self.workers))


@dataclass(frozen=True, slots=True)
class Done:
    """The work of a worker: transactions, attempts, and CPU time, in seconds."""

    transactions: int
    attempts: int
    cpu: float
