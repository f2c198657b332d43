"""Chains made of plain functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from percolator_core import Chain, Database, TableDefinition
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers import Observer, Retry
from percolator_core.observers.chain import digest_of
from percolator_core.observers.graph import build_graph, observed_columns

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
    return Chain("test", Path(), tables, by_name, graph, observed_columns(observers), digest_of(by_name))


def put(db: Database, row: str | bytes, value: bytes, table: str = "docs", column: str = "text") -> int:
    with db.transaction() as t:
        t.set(table, row, column, value)
    assert t.commit_timestamp is not None
    return t.commit_timestamp


def dirty_of(db: Database, chain: Chain) -> DirtyIndex:
    return DirtyIndex(db.client, chain.observed)
