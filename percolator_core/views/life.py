"""The life of a view in a store: it is made once, by one plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.tables import rows
from percolator_core.views.groups import GroupSink
from percolator_core.views.plan import ViewPlan

_FILLED: Final = "filled"
_UNFILLED: Final = "unfilled"


def check_made(db: Database, plans: Iterable[ViewPlan]) -> None:
    """Record which plan makes each view, and if the rows that are there have to be added to it.

    Raises ConfigurationError if another plan has made a view's rows.
    """
    for plan in plans:
        made = _made(db, plan)
        if made is None:
            is_empty = not any(
                next(db.snapshot().select(table, columns=[], limit=1), None) is not None
                for table in plan.sources
            )
            state = _FILLED if is_empty else _UNFILLED
            db.store.one((b"HSETNX", db.store.keyspace.views, plan.name, f"{plan.fingerprint} {state}"))
        elif made[0] != plan.fingerprint:
            raise ConfigurationError(
                f"the rows of the view {plan.name} were made by another SQL, or with other types of its "
                "tables: give the changed view another name, and fill it with `percolator views --fill`"
            )


def is_filled(db: Database, plan: ViewPlan) -> bool:
    """Return True if no rows were there before the view, or if they were marked for it."""
    made = _made(db, plan)
    return made is not None and made[1] == _FILLED


def record_filled(db: Database, plan: ViewPlan) -> None:
    """Record that the rows that were there before the view were marked for it."""
    db.store.one((b"HSET", db.store.keyspace.views, plan.name, f"{plan.fingerprint} {_FILLED}"))


def _made(db: Database, plan: ViewPlan) -> tuple[str, str] | None:
    """Return the fingerprint of the plan that made the view's rows, and its state."""
    found = db.store.one((b"HGET", db.store.keyspace.views, plan.name))
    if found is None:
        return None
    fingerprint, _, state = found.decode().partition(" ")
    return fingerprint, state


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
