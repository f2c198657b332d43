"""The views of a chain in a store: how they stand, and how they are filled.

>>> from percolator_core.admin.views import fill
>>> fill(db, chain, "category_prices").rows
53940
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import view_observer
from percolator_core.notifications.activation import active
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers import Chain
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.views.filling import FillCounts, fill_rows
from percolator_core.views.life import is_filled, record_filled
from percolator_core.views.plan import ViewPlan
from percolator_core.views.recompute import faults
from percolator_core.views.runs import ROWS


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """A view in a store.

    ``reads`` are the tables and views that it reads. ``rows`` is the approximate number of its rows.
    ``waiting`` is the number of changed rows and of groups that its observers have still to process.
    ``filled`` is False if rows that were there before the view have not been marked for it.
    """

    name: str
    reads: tuple[str, ...]
    rows: int
    waiting: int
    filled: bool


def views(db: Database, chain: Chain) -> list[ViewStatus]:
    """Return the views of a chain, each after those that it reads. Raises StoreUnavailable.

    A view whose table does not exist yet has no rows.
    """
    existing = {definition.name for definition in db.tables()}
    backlog, snapshot = DirtyIndex(db.client, chain.observed).backlog(), db.snapshot()
    return [
        ViewStatus(
            plan.name,
            plan.sources,
            _rows(snapshot, plan.name) if plan.name in existing else 0,
            _waiting(backlog, plan.name),
            is_filled(db, plan),
        )
        for plan in chain.views.values()
    ]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A view compared with its query in one snapshot: the number of its rows, and of those that differ.

    ``waiting`` is as in `ViewStatus`, before the comparison: changes that wait are differences, too.
    """

    name: str
    rows: int
    missing: int
    extra: int
    different: int
    waiting: int


def compare(db: Database, chain: Chain, name: str) -> Comparison:
    """Compute a view anew, and compare it with its rows in the store.

    The time is that of a scan of its tables; the memory is that of the view and the tables that it joins.

    Raises:
        ConfigurationError: the chain has no such view.
        UnknownTable: the view is not in the store.
        Others: as `percolator_core.views.recompute.recompute`.
    """
    plan = _plan(chain, name)
    waiting = _waiting(DirtyIndex(db.client, chain.observed).backlog(), name)
    with db.snapshot() as snapshot:
        found = Counter(one.fault for one in faults(snapshot, plan))
        rows = _rows(snapshot, name)
    return Comparison(name, rows, found["missing"], found["extra"], found["different"], waiting)


def _rows(snapshot: Snapshot, table: str) -> int:
    return sum(snapshot.count_rows([(tag, b"", None) for tag in snapshot.handle_of(table).tags]))


def _waiting(backlog: Mapping[str, int], name: str) -> int:
    return sum(count for observer, count in backlog.items() if observer.startswith(view_observer(name, "")))


def _plan(chain: Chain, name: str) -> ViewPlan:
    plan = chain.views.get(name)
    if plan is None:
        known = ", ".join(chain.views) or "none"
        raise ConfigurationError(f"the chain {chain.name} has no view {name!r}: it has {known}")
    return plan


def fill(
    db: Database, chain: Chain, name: str, progress: Callable[[FillCounts], object] | None = None
) -> FillCounts:
    """Give all rows of the tables that a view reads to the view.

    Writes and workers may go on. Rows that the view has already do not count twice, so this may be repeated,
    also after an error. Rows that have no result in the view are marked, so that workers report them.

    Raises:
        ConfigurationError: the chain has no such view, or is not active in the store.
        UnknownTable: a table of the view does not exist.
        BaseDamaged: a file of a base is missing or damaged.
        LockTimeout, CommitUndetermined, StoreUnavailable: call it again.
    """
    plan = _plan(chain, name)
    if not active(db.client).allows(chain.digest):
        raise ConfigurationError(
            f"the view {name} is not active in the namespace {db.namespace!r} as the chain declares it: "
            "start a worker with the chain, or drain it, and then fill"
        )
    runs = chain.observers[view_observer(name, ROWS)].view
    assert runs is not None
    counts = fill_rows(db, runs, progress)
    record_filled(db, plan)
    return counts
