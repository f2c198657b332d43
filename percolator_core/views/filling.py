"""Fill a view with the rows that its tables had before it: page by page, each page in one transaction."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from percolator_core.database import Database
from percolator_core.errors import PercolatorError, SnapshotTooOld, TransactionConflict
from percolator_core.layout.keys import MARKER, view_observer
from percolator_core.runtime.batches import batched
from percolator_core.scripts import calls
from percolator_core.tables.lookup import found_rows
from percolator_core.tables.query import Query
from percolator_core.views.runs import ROWS, ViewRuns

_PAGE: Final = 350
"""The number of rows of a page. A transaction of more than a thousand cells needs two phases."""

_ROUNDS: Final = 20
"""The most attempts of a page that conflicts with runs. After them, its rows are marked for workers."""

_LONGEST_PAUSE: Final = 0.1
"""The longest pause between two attempts of a page, in seconds."""


@dataclass(slots=True)
class FillCounts:
    """Counts of the rows that a fill has processed.

    ``rows``: all rows so far. ``known``: rows that the view had already. ``marked``: rows that are marked for
    workers, because they have no result in the view, or because each attempt conflicted with runs.
    """

    rows: int = 0
    known: int = 0
    marked: int = 0


def fill_from_tables(
    db: Database, runs: ViewRuns, progress: Callable[[FillCounts], object] | None
) -> FillCounts:
    """Give all rows of the tables to the view. Rows that it has already do not count twice.

    The view's observers have to be active: they get the rows that are written from now on.
    """
    counts = FillCounts()
    for table in dict.fromkeys(branch.source.table for branch in runs.plan.branches):
        for page in _pages(db, table):
            counts.rows += len(page)
            known, left = _process_page(db, runs, table, page)
            counts.known += known
            if left:
                _mark(db, runs, table, left)
                counts.marked += len(left)
            if progress is not None:
                progress(counts)
    return counts


def _pages(db: Database, table: str) -> Iterator[Sequence[bytes]]:
    with db.snapshot() as snapshot:
        found = found_rows(snapshot, Query(snapshot.handle_of(table), ()), limit=None, reverse=False)
        yield from batched((key for key, _ in found), _PAGE)


def _process_page(db: Database, runs: ViewRuns, table: str, page: Sequence[bytes]) -> tuple[int, list[bytes]]:
    """Process a page. Return the number of rows that the view had already, and the rows to mark."""
    for lost in range(_ROUNDS):
        try:
            with db.transaction() as t:
                known, refused = runs.run_together(t, {table: page}, is_contended=lost > 0)
        except (TransactionConflict, SnapshotTooOld):
            db.store.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.001 * 2**lost)))
            continue
        except PercolatorError:
            raise
        except Exception:  # noqa: BLE001 - such as a group whose key is too long: the run of its row reports it
            break
        return len(known), [row for _, row in refused]
    return 0, list(page)


def _mark(db: Database, runs: ViewRuns, table: str, rows: Sequence[bytes]) -> None:
    handle, name = db.catalog.table(table), view_observer(runs.plan.stored.name, ROWS)
    by_tag: dict[bytes, list[bytes]] = {}
    for row in rows:
        by_tag.setdefault(handle.tag(row), []).append(row)
    db.store.run_all([calls.mark(tag, name, "strong", MARKER, some) for tag, some in by_tag.items()])
