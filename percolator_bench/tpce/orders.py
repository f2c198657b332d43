"""What a worker process is told, and what it answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import islice

from percolator_bench.tpce.workload import Brokerage, Item


@dataclass(frozen=True, slots=True)
class Task:
    """Which store, where, and how many items at a time: tasks of one thread, or threads with a connection.

    ``store`` is "percolator" or "postgres"; ``address`` its URL or conninfo.
    """

    store: str
    address: str
    width: int
    customers: int
    synchronous_commit: bool = True

    def line(self) -> str:
        """For a worker's input."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Share:
    """Every ``workers``-th of the first ``count`` items of a stream, from the one at ``worker`` on."""

    seed: str
    first_trade: int
    count: int
    worker: int
    workers: int

    def line(self) -> str:
        """For a worker's input."""
        return json.dumps(asdict(self))

    def items(self, brokerage: Brokerage) -> list[Item]:
        """The items."""
        stream = brokerage.items(self.seed, self.first_trade)
        return list(islice(stream, self.worker, self.count, self.workers))


@dataclass(frozen=True, slots=True)
class Done:
    """What a worker did: its transactions, what they took to begin, and the CPU time it used, in seconds."""

    transactions: int
    attempts: int
    cpu: float
