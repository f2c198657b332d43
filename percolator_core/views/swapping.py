"""Show a version of a view, and drop one. A dropped version leaves nothing in the store.

All steps may be repeated after a crash. The table with the rows is dropped last, because the state of the
version is in its definition.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from percolator_core.catalog.catalog import raise_safe_points
from percolator_core.database import Database
from percolator_core.errors import UnknownTable
from percolator_core.layout.keys import (
    MARKER,
    acknowledgement,
    dirty_key,
    failed_key,
    tries_key,
    view_observer,
)
from percolator_core.notifications.counts import forget_counts
from percolator_core.schema.definitions import ViewRule
from percolator_core.views.life import record, versions
from percolator_core.views.runs import GROUPS, ROWS


def tables_of(db: Database, version: ViewRule) -> list[str]:
    """Return the tables of a version; the one with its rows comes last."""
    found = [one.definition for one in db.catalog.entries()]
    names = [one.name for one in found if one.view is not None and one.view.table == version.table]
    return sorted(names, key=lambda name: name == version.table)


def show(db: Database, version: ViewRule) -> None:
    """Let the name of a view stand for a version, from one moment on. The version has to be complete."""
    # The version refuses snapshots of earlier times, because it did not have all rows then. A run that began
    # earlier is repeated.
    raise_safe_points(db.store, db.catalog.table(version.table).tags, db.timestamp(), durably=True)
    number = max(one.shown for one in versions(db) if one.view == version.view)
    record(db, version, shown=number + 1)


def drop_version(db: Database, version: ViewRule) -> None:
    """Remove a version whose observers are not active.

    Raises LockTimeout if a transaction is still committing to its tables, or StoreUnavailable: call it again.
    """
    for _ in dropping(db, version):
        pass


def dropping(db: Database, version: ViewRule) -> Iterator[str]:
    """Remove a version; yield the name of each step when the step is done."""
    tables = tables_of(db, version)
    # A suspended worker may go on in the middle of a run. So the tables of the version refuse all writes
    # before the acknowledgements are removed: otherwise the run could write an acknowledgement and a row.
    for table in tables:
        with suppress(UnknownTable):  # its own drop has begun
            db.schema_changes.close(table)
    yield "close"
    acked = acknowledgement(view_observer(version.table, ROWS), MARKER)
    for table in version.sources:
        db.schema_changes.remove_acknowledgements(table, acked)
        yield f"acknowledgements in {table}"
    observers = [view_observer(version.table, part) for part in (ROWS, GROUPS)]
    for tag in [tag for table, tag in db.catalog.tablets() if table in {*version.sources, *tables}]:
        keys = [key(tag, name) for name in observers for key in (dirty_key, tries_key, failed_key)]
        db.store.one((b"UNLINK", *keys))
    forget_counts(db, observers)
    yield "marks"
    for table in tables:
        with suppress(UnknownTable):
            db.schema_changes.drop(table, of_view=True)
        yield f"table {table}"
