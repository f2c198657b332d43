"""Chains made of plain functions, and workers that run them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from percolator_core import Cell, Chain, Database, TableDefinition, Transaction, Worker
from percolator_core.admin.quarantine import FailedCell, Quarantine
from percolator_core.notifications.activation import active, live_workers
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers import Observer, Retry
from percolator_core.observers.chain import digest_of
from percolator_core.observers.graph import build_graph, observed_columns
from tests.servers.plain import PATIENCE, until

TABLES = (TableDefinition("docs", 4), TableDefinition("sums", 4, ("dirty",)))
QUICK = Retry(attempts=3, backoff=0.005, max_backoff=0.02)


def watch(
    name: str,
    function: Callable[[Any, Any], object],
    *observe: str,
    writes: tuple[str, ...] = (),
    **settings: Any,
) -> Observer:
    """An observer of ``table.column`` …"""

    def columns(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        return tuple((table, column) for table, _, column in (each.partition(".") for each in names))

    settings.setdefault("retry", QUICK)
    return Observer(
        name, Path(f"{name}.yaml"), function, "steps:it", columns(observe), writes=columns(writes), **settings
    )


def chain_of(*observers: Observer, tables: tuple[TableDefinition, ...] = TABLES) -> Chain:
    by_name = {observer.name: observer for observer in observers}
    graph = build_graph("test", tables, by_name)
    return Chain("test", Path(), tables, by_name, graph, observed_columns(observers), digest_of(observers))


def put(db: Database, row: str | bytes, value: bytes, table: str = "docs", column: str = "text") -> int:
    with db.transaction() as t:
        t.set(table, row, column, value)
    assert t.commit_timestamp is not None
    return t.commit_timestamp


def dirty_of(db: Database, chain: Chain) -> DirtyIndex:
    return DirtyIndex(db.client, chain.observed)


def failed_of(db: Database, chain: Chain) -> list[FailedCell]:
    """The cells in quarantine."""
    return list(Quarantine(db, chain).cells())


class Seen:
    """An observer that notes its rows."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def __call__(self, t: Transaction, cell: Cell) -> None:
        self.rows.append(cell.row)


@contextmanager
def running(db: Database, chain: Chain, **settings: Any) -> Iterator[Worker]:
    """A worker in a thread, which must not end by itself."""
    worker = Worker(db, chain, **settings)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            worker.run()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=work, daemon=True)
    before = len(live_workers(db))
    thread.start()
    until(lambda: len(live_workers(db)) > before and active(db.client).digest == chain.digest)
    try:
        yield worker
        assert thread.is_alive()
    finally:
        worker.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert failures == []
