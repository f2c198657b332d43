"""The life of a view in a store: it is made once, by one plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.tables import rows
from percolator_core.transaction.transaction import Transaction
from percolator_core.views.groups import GroupSink
from percolator_core.views.plan import ViewPlan
from percolator_core.views.stored import StoredGroup

_NEW: Final = "new"
_FILLED: Final = "filled"
_UNFILLED: Final = "unfilled"


def check_made(db: Database, plans: Iterable[ViewPlan]) -> None:
    """Record which plan makes each view, before its tables are created.

    Raises ConfigurationError if another plan has made a view's rows, or if the view's table was dropped: then
    the rows of its tables count as added, and nothing would add them again.
    """
    existing = {definition.name for definition in db.tables()}
    for plan in plans:
        first = f"{plan.fingerprint} {_NEW}"
        db.store.one((b"HSETNX", db.store.keyspace.views, plan.name, first))
        made = _made(db, plan)
        assert made is not None
        if made[0] != plan.fingerprint:
            raise ConfigurationError(
                f"the rows of the view {plan.name} were made by another SQL, or with other types of its "
                "tables: give the changed view another name, and fill it with `percolator views --fill`"
            )
        if made[1] != _NEW and plan.name not in existing:
            raise ConfigurationError(
                f"the table of the view {plan.name} was dropped: give the view another name, and fill it by "
                "`percolator views --fill`"
            )


def begin(db: Database, plans: Iterable[ViewPlan]) -> None:
    """Begin with the views whose observers are active now: all later changes will be marked for them.

    A view without GROUP BY has a row also over empty tables. If its tables have rows, it has to be filled.
    """
    for plan in plans:
        _write_first_row(db, plan)
        made = _made(db, plan)
        if made is not None and made[1] == _NEW:
            is_empty = not any(_has_rows(db, table) for table in plan.sources)
            _record(db, plan, _FILLED if is_empty else _UNFILLED)


def _has_rows(db: Database, table: str) -> bool:
    return next(db.snapshot().select(table, columns=[], limit=1), None) is not None


def is_filled(db: Database, plan: ViewPlan) -> bool:
    """Return True if no rows were there before the view, or if they were marked for it."""
    made = _made(db, plan)
    return made is not None and made[1] == _FILLED


def record_filled(db: Database, plan: ViewPlan) -> None:
    """Record that the rows that were there before the view were marked for it."""
    _record(db, plan, _FILLED)


def _record(db: Database, plan: ViewPlan, state: str) -> None:
    db.store.one((b"HSET", db.store.keyspace.views, plan.name, f"{plan.fingerprint} {state}"))


def _made(db: Database, plan: ViewPlan) -> tuple[str, str] | None:
    """Return the fingerprint of the plan that made the view's rows, and its state."""
    found = db.store.one((b"HGET", db.store.keyspace.views, plan.name))
    if found is None:
        return None
    fingerprint, _, state = found.decode().partition(" ")
    return fingerprint, state


def _write_first_row(db: Database, plan: ViewPlan) -> None:
    first = plan.sink.initial() if isinstance(plan.sink, GroupSink) else None
    if first is None:
        return
    key, cells = first

    def write(t: Transaction) -> None:
        handle = t.handle_of(plan.name)
        # With rows in its tables, the view may have no row because of HAVING.
        if StoredGroup(t, plan.name, key).state is None and rows.read(t, handle, key, []) is None:
            rows.upsert(t, handle, key, cells, {})

    db.run(write)
