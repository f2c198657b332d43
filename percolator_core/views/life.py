"""The life of a view in a store: it is made once, by one plan."""

from __future__ import annotations

from collections.abc import Iterable

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.tables import rows
from percolator_core.views.groups import GroupSink
from percolator_core.views.plan import ViewPlan


def check_made(db: Database, plans: Iterable[ViewPlan]) -> None:
    """Record which plan makes each view. Raises ConfigurationError if another plan has made a view's rows."""
    for plan in plans:
        made, fingerprint = db.store.call(
            (b"HSETNX", db.store.keyspace.views, plan.name, plan.fingerprint),
            (b"HGET", db.store.keyspace.views, plan.name),
        )
        if not made and fingerprint.decode() != plan.fingerprint:
            raise ConfigurationError(
                f"the rows of the view {plan.name} were made by another SQL, or with other types of its "
                "tables: give the changed view another name, and fill it with `percolator views --fill`"
            )


def write_first_rows(db: Database, plans: Iterable[ViewPlan]) -> None:
    """Write the row of each view without GROUP BY, which has one over empty tables, too."""
    for plan in plans:
        first = plan.sink.initial() if isinstance(plan.sink, GroupSink) else None
        if first is None:
            continue
        key, cells = first
        with db.transaction() as t:
            handle = t.handle_of(plan.name)
            if rows.read(t, handle, key, []) is None:
                rows.upsert(t, handle, key, cells, {})
