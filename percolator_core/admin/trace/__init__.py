"""The trace of a row: every run that its changes caused, with times.

Each run of an observer writes a version of its acknowledgement beside the cell that woke the observer. The
version has the start and commit times of the run. If the chain has ``trace: true``, the version also has the
cells that the run wrote. A trace goes from a change to the run that observed the change, to the cells that
the run wrote, and so on. It writes nothing and scans no table.

A row in the base has one version of each cell and no acknowledgements. So a trace that begins there shows the
newest change, with the runs that a rerun has caused since. In a typed table the time of the change is that of
the newest commit to the row.

>>> from percolator_core.admin.trace import trace
>>> found = trace(db, chain, "documents", "http://a/")
>>> [(run.observer, run.seconds) for run in found.runs]
[('document_processor', 0.0034), ('rank', 0.0012)]
"""

from __future__ import annotations

from typing import Literal

from percolator_core.admin.trace.following import Following
from percolator_core.admin.trace.found import Change, Outcome, Run, Trace
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError, abbreviated
from percolator_core.layout.keys import EVERY_COLUMN
from percolator_core.layout.records import row_bytes
from percolator_core.observers import Chain

__all__ = ["Change", "Outcome", "Run", "Trace", "trace"]


def trace(
    db: Database,
    chain: Chain,
    table: str,
    row: str | bytes,
    column: str | None = None,
    *,
    change: Literal["latest", "all"] | int = "latest",
    depth: int = 20,
    limit: int = 1000,
) -> Trace:
    """Return the runs that the changes of a row caused, as far as the store has them.

    Args:
        db: the database; nothing is written.
        chain: the chain of the observers.
        table: the row's table.
        row: the row's key.
        column: an observed column, or None for all observed columns; any column if whole rows are observed.
        change: ``"latest"`` means the newest change of each column, ``"all"`` means at most ``limit`` changes
            of each column, and a timestamp (µs) means the newest change of each column at or before that
            time. The store keeps no time of a notification from outside. For a notification, the three forms
            choose the latest run, all runs, or the first run that began after the timestamp.
        depth: the greatest number of runs of which each causes the next, 1 or more.
        limit: the greatest number of changes, 1 or more; changes nearer to the row come first.

    Raises:
        ConfigurationError: no observer of the chain observes such a column.
        UnknownTable: the store has no such table.
        LockTimeout: another client has been committing to the row for too long; try again later.
        StoreUnavailable: the store does not answer.
        BaseDamaged: a file of the table's base is missing or damaged.
        ValueError: ``change``, ``depth`` or ``limit`` is below 1.
    """
    numbers = {"depth": depth, "limit": limit} | ({} if isinstance(change, str) else {"change": change})
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} is 1 or more, not {number}")
    watched = [name for other, name in chain.observed if other == table]
    if not watched or (column is not None and not {column, EVERY_COLUMN} & set(watched)):
        observed = ", ".join(abbreviated(".".join(each)) for each in chain.observed)
        wanted = abbreviated(f"{table}.{column}") if column is not None else f"a column of {table}"
        raise ConfigurationError(f"no observer of {chain.name} watches {wanted}: they watch {observed}")
    following = Following(db, chain, limit)
    if column is not None:
        columns = [column]
    else:
        columns = [name for name in watched if name != EVERY_COLUMN]
        if EVERY_COLUMN in watched:
            columns = sorted({*columns, *following.columns_of(table, row_bytes(row))})
    roots = following.roots(table, row_bytes(row), columns, change)
    following.follow(roots, depth)
    return following.result(table, row_bytes(row), roots)
