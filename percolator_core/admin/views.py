"""The views of a chain in a store: list, compare, fill, swap and drop them.

>>> from percolator_core.admin.views import fill
>>> fill(db, chain, "category_prices").rows
53940
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.rerun import rerun
from percolator_core.admin.status import backlog, call
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import dirty_key, view_observer
from percolator_core.notifications.activation import active
from percolator_core.observers import Chain, Observer
from percolator_core.schema.definitions import FILLED, MISSED, ViewRule
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.views.filling import FillCounts, fill_from_tables
from percolator_core.views.life import is_shown, record, version_of, versions
from percolator_core.views.plan import ViewPlan
from percolator_core.views.recompute import faults
from percolator_core.views.runs import GROUPS, ROWS
from percolator_core.views.swapping import drop_version, show

_PAUSE: Final = 0.02
"""Seconds between two looks for changes that wait."""


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """A view in a store.

    ``reads`` are the tables and views that it reads. ``rows`` is the approximate number of rows of the
    version that the chain declares. ``waiting`` is the number of changed rows and of groups that its
    observers have still to process. ``filled`` is False if the view lacks rows that were there before it:
    call `fill`. ``shown`` is False if readers still see the rows of an earlier SQL: call `swap`.
    ``versions`` is the number of versions in the store, one for each SQL.
    """

    name: str
    reads: tuple[str, ...]
    rows: int
    waiting: int
    filled: bool
    shown: bool
    versions: int


def views(db: Database, chain: Chain) -> list[ViewStatus]:
    """Return the views of a chain, each after those that it reads. Raises StoreUnavailable.

    A view whose table does not exist yet has no rows.
    """
    tables, there = db.catalog.refresh(), Counter(version.view for version in versions(db))
    names = {plan.stored.name: plan.name for plan in chain.views.values()}
    waiting, snapshot = backlog(db, chain), db.snapshot()
    return [
        ViewStatus(
            plan.name,
            tuple(names.get(table, table) for table in plan.sources),
            _rows(snapshot, plan.stored.name) if plan.stored.name in tables else 0,
            _waiting(waiting, plan),
            (version := version_of(db, plan)) is not None and version.state == FILLED,
            is_shown(db, plan),
            there[plan.name],
        )
        for plan in chain.views.values()
    ]


def leftover_views(db: Database, chain: Chain) -> list[str]:
    """Return the names of the views that are in the store and not in a chain."""
    return sorted({version.view for version in versions(db)} - set(chain.views))


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
    waiting = _waiting(backlog(db, chain), plan)
    with db.snapshot() as snapshot:
        found = Counter(one.fault for one in faults(snapshot, plan))
        rows = _rows(snapshot, plan.stored.name)
    return Comparison(name, rows, found["missing"], found["extra"], found["different"], waiting)


def _rows(snapshot: Snapshot, table: str) -> int:
    return sum(snapshot.count_rows([(tag, b"", None) for tag in snapshot.handle_of(table).tags]))


def _waiting(counts: Mapping[str, int], plan: ViewPlan) -> int:
    own = view_observer(plan.stored.name, "")
    return sum(count for observer, count in counts.items() if observer.startswith(own))


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
        ConfigurationError: the chain has no such view, or was not active in the store all the time.
        UnknownTable: a table of the view does not exist.
        BaseDamaged: a file of a base is missing or damaged.
        LockTimeout, CommitUndetermined, StoreUnavailable: call it again.
    """
    plan = _plan(chain, name)
    _refuse_inactive(db, chain, name)
    own, version = view_observer(plan.stored.name, ROWS), version_of(db, plan)
    runs = chain.observers[own].view
    assert version is not None
    assert runs is not None
    if version.state == MISSED:
        # A scan does not find rows that were removed meanwhile; a rerun finds them by their acknowledgements.
        chosen = rerun(db, chain, own).chosen
        if view_observer(plan.stored.name, GROUPS) in chain.observers:
            db.run(runs.wake)
        counts = FillCounts(rows=chosen, marked=chosen)
        if progress is not None:
            progress(counts)
    else:
        counts = fill_from_tables(db, runs, progress)
    # If another chain was active meanwhile, the view may have missed changes of rows that it had already.
    _refuse_inactive(db, chain, name)
    if not record(db, version, state=FILLED, unless=None if version.state == MISSED else MISSED):
        raise _inactive(db, name)
    return counts


def _refuse_inactive(db: Database, chain: Chain, name: str) -> None:
    if not active(db.client).allows(chain.digest):
        raise _inactive(db, name)


def _inactive(db: Database, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"the view {name} is not active in the namespace {db.namespace!r} as the chain declares it, or was "
        "not all the time: start a worker with the chain, or drain it, and then fill"
    )


def to_fill(db: Database, chain: Chain, name: str) -> list[str]:
    """Return the views to fill before a view can be shown, in order; the view itself is the last.

    Raises ConfigurationError if the chain has no such view.
    """
    read = _read_views(chain, _plan(chain, name))
    return [*(one.name for one in read if not is_shown(db, one)), name]


def swap(
    db: Database,
    chain: Chain,
    name: str,
    *,
    timeout: float | None = None,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Wait until a filled view is complete, show its rows in place of the earlier ones, and drop those.

    Workers have to run. Call `fill` first. After an error or a crash, call both again.

    Args:
        db: the database of the view.
        chain: the active chain.
        name: the view.
        timeout: the longest wait, in seconds; None waits for ever.
        progress: called with the number of changes that wait, again and again.

    Raises:
        ConfigurationError: the chain has no such view; the view or a view that it reads was not filled or has
            changes in quarantine; or workers with the earlier SQL are running. The message says what to do.
        TimeoutError: changes were left after ``timeout`` seconds. Readers still see the earlier rows.
        LockTimeout, StoreUnavailable: call both again.
    """
    plan = _plan(chain, name)
    version = version_of(db, plan)
    if version is None or version.state != FILLED:
        raise ConfigurationError(f"the view {name} is not filled: run `percolator views --fill {name}`")
    if not is_shown(db, plan):
        _until_complete(db, chain, plan, timeout, progress)
        show(db, version)
    others = [one for one in versions(db) if one.view == name and one.table != version.table]
    for one in others:
        _refuse_active(db, one)
    for one in others:
        drop_version(db, one)


def _until_complete(
    db: Database,
    chain: Chain,
    plan: ViewPlan,
    timeout: float | None,
    progress: Callable[[int], object] | None,
) -> None:
    read = _read_views(chain, plan)
    later = [one.name for one in read if not is_shown(db, one)]
    if later:
        raise ConfigurationError(f"{plan.name} reads {', '.join(later)}: fill that first")
    deadline = None if timeout is None else time.monotonic() + timeout
    # Changes come to the view through its observers in this order.
    names = [view_observer(one.stored.name, part) for one in [*read, plan] for part in (ROWS, GROUPS)]
    for observer in [chain.observers[name] for name in names if name in chain.observers]:
        for left in _unprocessed(db, observer):
            if progress is not None:
                progress(left)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{left} changes of {plan.name} were left after {timeout:g} seconds")
            db.store.sleep(_PAUSE)
    failed = sum(one.observer in names for one in Quarantine(db, chain).cells())
    if failed:
        raise ConfigurationError(
            f"{failed} changes of {plan.name} are in quarantine, and readers still see the earlier rows: "
            f"look at them by `percolator failed {chain.path}`, retry or discard them, and fill it again"
        )


def _unprocessed(db: Database, observer: Observer) -> Iterator[int]:
    """Yield the number of marks until the observer has processed all that were there at the call.

    The marks of a tablet are processed as soon as the tablet has none once. New marks that come later do not
    count, because writes may set new ones all the time.
    """
    tags = [tag for table, _ in observer.observe for tag in db.catalog.table(table).tags]
    left = [dirty_key(tag, observer.name) for tag in tags]
    while True:
        sizes = call(db, [(b"ZCARD", key) for key in left])
        left = [key for key, size in zip(left, sizes, strict=True) if size]
        if not left:
            return
        yield sum(sizes)


def _read_views(chain: Chain, plan: ViewPlan) -> list[ViewPlan]:
    """Return the views that a view reads, directly or through other views; each after those that it reads."""
    wanted = set(plan.sources)
    found = []
    for one in reversed(list(chain.views.values())):
        if one.stored.name in wanted:
            found.append(one)
            wanted.update(one.sources)
    return found[::-1]


def drop(db: Database, chain: Chain, name: str) -> None:
    """Remove a view that the chain does not have any more, with everything about it in the store.

    After an error or a crash, call this again.

    Raises:
        ConfigurationError: the store has no such view, or the view or a reader of it is in the chain or
            active.
        LockTimeout, StoreUnavailable: call it again.
    """
    found = [version for version in versions(db) if version.view == name]
    if not found:
        known = ", ".join(sorted({version.view for version in versions(db)})) or "none"
        raise ConfigurationError(
            f"there is no view {name!r} in the namespace {db.namespace!r}: it has {known}"
        )
    if name in chain.views:
        raise ConfigurationError(
            f"the chain {chain.name} has the view {name}: remove its file, start a worker with the "
            "chain, and then drop the view"
        )
    readers = _readers(db, chain, {name, *(version.table for version in found)})
    if readers:
        raise ConfigurationError(f"{', '.join(readers)} observes or reads {name}: remove that first")
    for version in found:
        _refuse_active(db, version)
    for version in found:
        drop_version(db, version)


def _readers(db: Database, chain: Chain, tables: set[str]) -> list[str]:
    """Return the observers of a chain, and the active ones, that observe or read one of these tables."""
    found = {
        one.name
        for one in chain.observers.values()
        if tables & {table for table, _ in one.observe + one.reads}
    }
    for table in tables & set(recorded := db.client.observed_columns()):
        found.update(name for names in recorded[table].values() for name in names)
    return sorted(found)


def _refuse_active(db: Database, version: ViewRule) -> None:
    """Raise ConfigurationError if the observers of a version are active."""
    own = view_observer(version.table, "")
    if any(name.startswith(own) for name in db.active_observers()):
        raise ConfigurationError(
            f"the observers of {version.table} are active: start a worker with the changed chain, stop the "
            "workers of the earlier one, and repeat the command"
        )
