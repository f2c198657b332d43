"""What became of one row: every run that its changes caused, with times, from what the store keeps anyway.

Each run of an observer left a version of its acknowledgement beside the cell that woke it: it tells when the
run began and committed and, where the chain has ``trace: true``, what the run wrote. From a change the
run that dealt with it is found, from that run the cells that it wrote, and so on. Nothing is written, and no
row is scanned.

>>> from percolator_core.admin.trace import trace
>>> found = trace(db, chain, "documents", "http://a/")
>>> [(run.observer, run.seconds) for run in found.runs]
[('document_processor', 0.0034), ('rank', 0.0012)]
"""

from __future__ import annotations

from typing import Final, Literal

from percolator_core.admin.trace.following import Following
from percolator_core.admin.trace.found import (
    COLLAPSED,
    WAITING,
    Change,
    Kind,
    Outcome,
    Run,
    State,
    Trace,
    WrittenCell,
)
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError, abbreviated
from percolator_core.layout.records import row_bytes
from percolator_core.observers import Chain

__all__ = [
    "COLLAPSED",
    "DEPTH",
    "LIMIT",
    "WAITING",
    "Change",
    "Kind",
    "Outcome",
    "Run",
    "State",
    "Trace",
    "WrittenCell",
    "trace",
]

DEPTH: Final = 20
"""Runs that follow upon each other, as many as are followed unless told otherwise."""

LIMIT: Final = 1000
"""Changes that are followed unless told otherwise."""


def trace(
    db: Database,
    chain: Chain,
    table: str,
    row: str | bytes,
    column: str | None = None,
    *,
    change: Literal["latest", "all"] | int = "latest",
    depth: int = DEPTH,
    limit: int = LIMIT,
) -> Trace:
    """What the changes of a row caused, as far as the store still knows.

    Args:
        db: where it happened; nothing is written there.
        chain: whose observers are looked for.
        table: the row's table.
        row: the row's key.
        column: an observed one, or None for all that are observed.
        change: ``"latest"`` of each column, ``"all"`` (``limit`` of each at most), or the newest at or before
            this timestamp (µs). A notification from outside leaves no time: here its latest run, all runs,
            or the first run that began after the timestamp.
        depth: how many runs one after the other are followed, 1 or more.
        limit: how many changes are followed, 1 or more; those nearer to the row go first.

    Raises:
        ConfigurationError: no observer of the chain watches such a column.
        UnknownTable: the store has no such table.
        LockTimeout: another client has been committing to the row for too long; try again later.
        StoreUnavailable: the store does not answer.
        ValueError: ``change``, ``depth`` or ``limit`` is below 1.
    """
    numbers = {"depth": depth, "limit": limit} | ({} if isinstance(change, str) else {"change": change})
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} is 1 or more, not {number}")
    columns = [name for observed, name in chain.observed if observed == table and column in {None, name}]
    if not columns:
        watched = ", ".join(abbreviated(".".join(each)) for each in chain.observed)
        wanted = abbreviated(f"{table}.{column}") if column is not None else f"a column of {table}"
        raise ConfigurationError(f"no observer of {chain.name} watches {wanted}: they watch {watched}")
    db.catalog.table(table)
    following = Following(db, chain, limit)
    roots = following.roots(table, row_bytes(row), columns, change)
    following.follow(roots, depth)
    return following.result(table, row_bytes(row), roots)
