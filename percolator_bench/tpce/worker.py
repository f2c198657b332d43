"""A worker process: customers and a market that do their items on one store, on command.

Each line of its input is JSON: first a `Task`, then any number of times a `Share` of a stream of items. The
worker generates the items, answers "ready", and does the items after the next line. It answers each line with
one line.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from percolator_bench.peers import postgres
from percolator_bench.peers.threads import Threads
from percolator_bench.servers import NAMESPACE, for_each
from percolator_bench.tpce.orders import Done, Share, Task
from percolator_bench.tpce.percolator import PercolatorClient
from percolator_bench.tpce.postgres import PostgresClient
from percolator_bench.tpce.workload import Brokerage, Item, transactions_of
from percolator_core.database import connect

Runner = Callable[[Sequence[Item]], int]
"""Does items, and returns the number of begun transactions."""


def percolator_runner(stack: ExitStack, task: Task) -> Runner:
    """Do all items as tasks of this thread."""
    db = stack.enter_context(connect(task.address, namespace=NAMESPACE))

    def run(items: Sequence[Item]) -> int:
        client = PercolatorClient(db)
        for_each(db, task.width, client.do, items)
        return client.attempts

    return run


def postgres_runner(stack: ExitStack, task: Task) -> Runner:
    """Do the items in threads, each with a connection."""
    clients = [
        PostgresClient(
            stack.enter_context(
                postgres.connect(task.address, synchronous_commit=task.synchronous_commit, autocommit=True)
            )
        )
        for _ in range(task.width)
    ]

    threads = stack.enter_context(Threads(clients))

    def run(items: Sequence[Item]) -> int:
        def do(client: PostgresClient, number: int) -> None:
            client.do(items[number])

        before = sum(client.attempts for client in clients)
        threads.run(do, 0, len(items))
        return sum(client.attempts for client in clients) - before

    return run


def main() -> None:
    """Follow the commands of the input until it ends."""
    task = Task(**json.loads(sys.stdin.readline()))
    brokerage = Brokerage(task.customers)
    with ExitStack() as stack:
        run = (percolator_runner if task.store == "percolator" else postgres_runner)(stack, task)
        _say("connected")
        while line := sys.stdin.readline():
            items = Share(**json.loads(line)).items(brokerage)
            gc.collect()
            _say("ready")
            sys.stdin.readline()
            started = time.process_time()
            attempts = run(items)
            cpu = time.process_time() - started
            _say(asdict(Done(sum(map(transactions_of, items)), attempts, cpu)))


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
