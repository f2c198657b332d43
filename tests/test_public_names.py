"""The public face: which names `import percolator_core` gives, and that each is there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import percolator_core

NAMES = [
    *(
        "BaseDamaged",
        "Cell",
        "Chain",
        "CommitUndetermined",
        "ConfigurationError",
        "CyclicChain",
        "Database",
        "Durability",
    ),
    *("Hash", "LockTimeout", "Range", "RenamedFrom", "Table"),
    *("ObserverTransaction", "PercolatorError", "RowExists", "RowNotFound", "Snapshot", "SnapshotTooOld"),
    *("RowChange", "observer"),
    *(
        "StoreUnavailable",
        "TableDefinition",
        "Transaction",
        "TransactionAborted",
        "TransactionConflict",
        "UnknownColumn",
    ),
    *("UnknownTable", "Version", "Worker", "backup", "col", "connect", "restore", "view_function"),
    *("View", "avg", "count", "max_", "min_", "sql", "sum_"),
]
ANNOTATIONS = ["Indexed", "PrimaryKey", "Unique"]
"""Names that stand in annotations only; they have no name of their own."""


def test_the_names_are_pinned() -> None:
    assert sorted(percolator_core.__all__) == sorted([*NAMES, *ANNOTATIONS])


def test_each_name_is_there_and_listed() -> None:
    for name in NAMES:
        assert getattr(percolator_core, name).__name__ == name
        assert name in dir(percolator_core)
    for name in ANNOTATIONS:
        assert getattr(percolator_core, name)[int].__metadata__
        assert name in dir(percolator_core)


def test_what_type_checkers_see_is_what_there_is() -> None:
    tree = ast.parse(Path(percolator_core.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {*NAMES, *ANNOTATIONS}


def test_importing_it_imports_little() -> None:
    program = "import sys, percolator_core; print({'redis', 'networkx', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
