"""The process of the latency suite whose worker waits for writes; its argument is the store's URL."""

from __future__ import annotations

import signal
import sys
from importlib.resources import as_file, files

from percolator_core.bench.servers import NAMESPACE
from percolator_core.database import connect
from percolator_core.model import Cell
from percolator_core.observers import Chain, ObserverTransaction
from percolator_core.worker import Worker


def copy(t: ObserverTransaction, cell: Cell) -> None:
    """The least an observer can do: read the observed cell and write another."""
    value = t.get(cell.table, cell.row, cell.column)
    if value is not None:
        t.set(cell.table, cell.row, "copied", value)


def main(url: str) -> None:
    """Run a worker until SIGTERM."""
    with as_file(files("percolator_core.bench").joinpath("chain")) as folder:
        chain = Chain.load(str(folder))
    with connect(url, namespace=NAMESPACE) as db:
        worker = Worker(db, chain)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()


if __name__ == "__main__":
    main(sys.argv[1])
