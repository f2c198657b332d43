"""The newest runs of observers, found among a bounded number of rows.

>>> from percolator_core.admin.recent import recent_runs
>>> [(run.observer, run.row) for run in recent_runs(db, chain, limit=2).runs]
[('total', b'storm'), ('split', b'storm')]

The store has no index of runs by time: a run is known by its acknowledgement, beside the cell that woke the
observer. So the acknowledgements of some rows of each tablet are read, and the newest ones are returned.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from percolator_core.admin.status import call
from percolator_core.database import Database
from percolator_core.layout.keys import acknowledgement, rows_key
from percolator_core.layout.records import VERSION_HEADER, unpack_version
from percolator_core.observers import Chain
from percolator_core.scripts import calls
from percolator_core.store.packing import Command

MOST: Final = 1_500
"""The default of acknowledgements that are read; this takes some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class RecentRun:
    """A run of an observer: the cell that woke it, and the run's commit time (µs)."""

    observer: str
    table: str
    row: bytes
    column: str
    time: int


@dataclass(frozen=True, slots=True)
class RecentRuns:
    """The newest runs, newest first. ``is_whole`` is False if not all rows were looked at."""

    runs: tuple[RecentRun, ...]
    is_whole: bool


def recent_runs(
    db: Database,
    chain: Chain,
    observers: Collection[str] | None = None,
    limit: int = 10,
    most: int = MOST,
) -> RecentRuns:
    """Return the newest runs of some observers, or of all.

    Args:
        db: the database; nothing is written.
        chain: the chain of the observers.
        observers: only runs of these observers; None means all.
        limit: the greatest number of runs. A cell has at most one run of each observer, the last one.
        most: about the greatest number of acknowledgements to read. The rows of a larger table are read only
            in part, the first ones of each tablet.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    catalog = db.catalog
    existing = {definition.name for definition in db.catalog.tables()}
    observed = {
        (table, column): [name for name in names if observers is None or name in observers]
        for (table, column), names in chain.observed.items()
        if table in existing
    }
    tags = [
        (table, tag)
        for table in sorted({table for table, _ in observed})
        for tag in catalog.table(table).tags
    ]
    asked = sum(len(names) * len(catalog.table(table).tags) for (table, _), names in observed.items())
    each = max(1, most // max(1, asked))
    rows = call(db, [(b"ZRANGE", rows_key(tag), 0, each) for _, tag in tags])
    found = [
        (name, table, tag, row, column)
        for (table, tag), some in zip(tags, rows, strict=True)
        for row in some[:each]
        for (of, column), names in observed.items()
        if of == table
        for name in names
    ]

    def last_run(name: str, table: str, tag: bytes, row: bytes, column: str) -> Command:
        acked = acknowledgement(name, catalog.table(table).encode(column))
        return db.store.command(calls.history(tag, row, acked, 1, VERSION_HEADER))

    acks = call(db, [last_run(*one) for one in found])
    runs = [
        RecentRun(name, table, row, column, unpack_version(packed[0]).commit_ts)
        for (name, table, _, row, column), packed in zip(found, acks, strict=True)
        if packed
    ]
    runs.sort(key=lambda run: -run.time)
    return RecentRuns(tuple(runs[:limit]), all(len(some) <= each for some in rows))
