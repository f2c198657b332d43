"""Incremental processing with transactions: Percolator (OSDI 2010) on Redis.

>>> import percolator_core as percolator
>>> db = percolator.connect("embedded:./state")
>>> db.create_table("documents")
>>> with db.transaction() as t:
...     t.set("documents", "a", "contents", b"hello")
"""

from typing import TYPE_CHECKING

from percolator_core.runtime.lazy_imports import lazily

if TYPE_CHECKING:
    from percolator_core.archive.backup import backup
    from percolator_core.archive.restore import restore
    from percolator_core.database import Database, connect
    from percolator_core.errors import (
        BaseDamaged,
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
    from percolator_core.layout.records import Cell, Version
    from percolator_core.notifications.row_change import RowChange
    from percolator_core.observers import Chain, ObserverTransaction
    from percolator_core.observers.decorator import observer
    from percolator_core.schema.definitions import TableDefinition
    from percolator_core.schema.predicates import col
    from percolator_core.store.durability import Durability
    from percolator_core.tables.model import Hash, Indexed, PrimaryKey, Range, RenamedFrom, Table, Unique
    from percolator_core.transaction.snapshot import Snapshot
    from percolator_core.transaction.transaction import Transaction
    from percolator_core.views.class_functions import avg, count, max_, min_, sql, sum_
    from percolator_core.views.decorator import view_function
    from percolator_core.views.view import View
    from percolator_core.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "BaseDamaged",
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
    "RenamedFrom",
    "RowChange",
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
    "View",
    "Worker",
    "avg",
    "backup",
    "col",
    "connect",
    "count",
    "max_",
    "min_",
    "observer",
    "restore",
    "sql",
    "sum_",
    "view_function",
]

# A name is imported when it is first used: ``percolator --help`` loads neither Redis nor networkx.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "archive.backup": ("backup",),
        "archive.restore": ("restore",),
        "database": ("Database", "connect"),
        "errors": (
            "BaseDamaged",
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
        "layout.records": ("Cell", "Version"),
        "notifications.row_change": ("RowChange",),
        "observers": ("Chain", "ObserverTransaction"),
        "observers.decorator": ("observer",),
        "schema.definitions": ("TableDefinition",),
        "schema.predicates": ("col",),
        "transaction.snapshot": ("Snapshot",),
        "store.durability": ("Durability",),
        "tables.model": ("Hash", "Indexed", "PrimaryKey", "Range", "RenamedFrom", "Table", "Unique"),
        "transaction.transaction": ("Transaction",),
        "views.decorator": ("view_function",),
        "views.class_functions": ("avg", "count", "max_", "min_", "sql", "sum_"),
        "views.view": ("View",),
        "worker": ("Worker",),
    },
)
