"""Changes of some keys that workers export, for the tests of the sinks."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from percolator_core import Cell, Chain, Database, TableDefinition, Transaction, Worker
from percolator_core.observers import Retry
from percolator_core.recipes import ExportQueue, Sink
from tests.chains import chain_of, watch
from tests.servers.plain import PATIENCE

TABLES = (TableDefinition("exports", 1),)
WRITES = ("exports.more", "exports.done", "exports.payload")
# The sinks lose answers at random: a few attempts might all be lost, and the cell put in quarantine.
RETRY = Retry(attempts=100, backoff=0.001, max_backoff=0.01)


def shipping(queue: ExportQueue, sink: Sink) -> Chain:
    def ship(t: Transaction, cell: Cell) -> None:
        queue.export(t, cell, sink)

    observed = ("exports.last", "exports.more")
    watched = watch("ship", ship, *observed, writes=WRITES, feedback=True, executor="threads", retry=RETRY)
    return chain_of(watched, tables=TABLES)


def export_all(db: Database, sink: Sink) -> dict[bytes, list[bytes]]:
    """Changes of three keys by four writers, exported meanwhile; by key in the order of their commits."""
    queue = ExportQueue("exports", most=3)
    chain = shipping(queue, sink)
    chain.create_tables(db)
    committed: list[tuple[int, bytes, bytes]] = []

    def write(name: int) -> None:
        for number in range(8):
            key, payload = b"k%d" % (number % 3), b"%d-%d" % (name, number)

            def change(t: Transaction, key: bytes = key, payload: bytes = payload) -> Transaction:
                queue.add(t, key, payload)
                return t

            committed.append((db.run(change, 1000).commit_timestamp or 0, key, payload))

    worker = Worker(db, chain)
    with ThreadPoolExecutor(5) as pool:
        working = pool.submit(worker.run)
        try:
            list(pool.map(write, range(4)))
        finally:
            worker.stop()
        working.result()
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    assert counts.quarantined == 0
    found = defaultdict(list)
    for _, key, payload in sorted(committed):
        found[key].append(payload)
    return dict(found)
