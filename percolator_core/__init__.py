"""Incremental processing with transactions: Percolator (OSDI 2010) on Redis.

>>> import percolator_core as percolator
>>> db = percolator.connect("embedded:./state")
>>> db.create_table("documents")
>>> with db.transaction() as t:
...     t.set("documents", "a", "contents", b"hello")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from percolator_core.database import Database, connect
    from percolator_core.errors import (
        CommitUndetermined,
        ConfigurationError,
        CyclicChain,
        LockTimeout,
        PercolatorError,
        RowExists,
        RowNotFound,
        SnapshotTooOld,
        StoreUnavailable,
        TransactionAborted,
        TransactionConflict,
        UnknownColumn,
        UnknownTable,
    )
    from percolator_core.model import Cell, Version
    from percolator_core.observers import Chain, ObserverTransaction
    from percolator_core.schema.definition import TableDefinition
    from percolator_core.schema.predicate import col
    from percolator_core.snapshot import Snapshot
    from percolator_core.store.durability import Durability
    from percolator_core.tables.model import Hash, Indexed, PrimaryKey, Range, Table, Unique
    from percolator_core.transaction import Transaction
    from percolator_core.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Cell",
    "Chain",
    "CommitUndetermined",
    "ConfigurationError",
    "CyclicChain",
    "Database",
    "Durability",
    "Hash",
    "Indexed",
    "LockTimeout",
    "ObserverTransaction",
    "PercolatorError",
    "PrimaryKey",
    "Range",
    "RowExists",
    "RowNotFound",
    "Snapshot",
    "SnapshotTooOld",
    "StoreUnavailable",
    "Table",
    "TableDefinition",
    "Transaction",
    "TransactionAborted",
    "TransactionConflict",
    "Unique",
    "UnknownColumn",
    "UnknownTable",
    "Version",
    "Worker",
    "col",
    "connect",
]

_HOMES = {
    "percolator_core.database": (
        "Database",
        "connect",
    ),
    "percolator_core.errors": (
        "CommitUndetermined",
        "ConfigurationError",
        "CyclicChain",
        "LockTimeout",
        "PercolatorError",
        "RowExists",
        "RowNotFound",
        "SnapshotTooOld",
        "StoreUnavailable",
        "TransactionAborted",
        "TransactionConflict",
        "UnknownColumn",
        "UnknownTable",
    ),
    "percolator_core.model": (
        "Cell",
        "Version",
    ),
    "percolator_core.observers": (
        "Chain",
        "ObserverTransaction",
    ),
    "percolator_core.schema.definition": ("TableDefinition",),
    "percolator_core.schema.predicate": ("col",),
    "percolator_core.snapshot": ("Snapshot",),
    "percolator_core.store.durability": ("Durability",),
    "percolator_core.tables.model": (
        "Hash",
        "Indexed",
        "PrimaryKey",
        "Range",
        "Table",
        "Unique",
    ),
    "percolator_core.transaction": ("Transaction",),
    "percolator_core.worker": ("Worker",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``percolator --help`` needs neither Redis nor networkx."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
