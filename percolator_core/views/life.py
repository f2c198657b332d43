"""The versions of views in a store, and their states: a view has one version for each SQL that it had.

A version has tables of its own (`ViewRule.table`), and observers of its own, so two versions never mix. The
name of the view stands for the version that is shown. Everything about a version is in the catalog, in the
definition of the table with its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from percolator_core.catalog.catalog import Entry
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.schema.definitions import (
    DROPPED,
    FILLED,
    MISSED,
    NEW,
    UNFILLED,
    TableDefinition,
    ViewRule,
)
from percolator_core.tables import rows
from percolator_core.transaction.transaction import Transaction
from percolator_core.views.groups import GroupSink
from percolator_core.views.plan import ViewPlan
from percolator_core.views.stored import StoredGroup


def versions(db: Database) -> list[ViewRule]:
    """Return the versions of views in a store; of each view, the one that is shown comes last."""
    found: dict[str, ViewRule] = {}
    for entry in db.catalog.entries():
        rule = entry.definition.view
        if rule is not None and (entry.definition.name == rule.table or rule.table not in found):
            found[rule.table] = rule
    return sorted(found.values(), key=lambda rule: (rule.view, rule.shown))


def create(db: Database, tables: Iterable[TableDefinition]) -> None:
    """Create the missing tables of views. If no version of a view is shown, show this one.

    Raises ConfigurationError if there is a table with the name of a view, or if a version is being dropped.
    """
    for table in tables:
        rule, entries = table.view, db.catalog.refresh().entries
        assert rule is not None
        if rule.view in entries:
            raise ConfigurationError(
                f"there is a table {rule.view!r} in {db.namespace!r}, which is no view: give the view "
                "another name, or drop the table"
            )
        if rule.table in entries:
            _refuse_dropped(_rule(entries[rule.table]))
        is_first = table.stored == rule.table and rule.view not in db.catalog.handles
        db.create_defined(table.with_(name=table.stored, view=replace(rule, shown=int(is_first))))


def record_active(db: Database, plans: Iterable[ViewPlan]) -> None:
    """Record that the observers of these plans are active: all later changes are marked for them.

    A new version has to be filled if its tables have rows. A version whose observers are not active any more
    misses changes from now on. A view with aggregates and no GROUP BY gets its row, also over empty tables.
    """
    active = {plan.stored.name: plan for plan in plans}
    for rule in versions(db):
        plan = active.get(rule.table)
        if plan is None:
            if rule.state not in {MISSED, DROPPED}:
                record(db, rule, state=MISSED)
            continue
        _refuse_dropped(rule)
        _write_first_row(db, plan)
        if rule.state == NEW:
            is_empty = not any(_has_rows(db, table) for table in plan.sources)
            record(db, rule, state=FILLED if is_empty else UNFILLED)


def _has_rows(db: Database, table: str) -> bool:
    return next(db.snapshot().select(table, columns=[], limit=1), None) is not None


def version_of(db: Database, plan: ViewPlan) -> ViewRule | None:
    """Return the version of a view that a plan makes, as it is in the store; None if there is none."""
    entry = db.catalog.entry(plan.stored.name)
    return None if entry is None or not entry.is_published else _rule(entry)


def is_shown(db: Database, plan: ViewPlan) -> bool:
    """Return True if the name of a view stands for the version that a plan makes."""
    handle = db.catalog.refresh().get(plan.name)
    return handle is not None and handle.definition.stored == plan.stored.name


def record(db: Database, rule: ViewRule, *, unless: str | None = None, **changes: Any) -> bool:
    """Change the record of a version, ``shown`` or ``state``.

    Return False without a change if the version was dropped, or has the state ``unless``.
    """
    while (entry := db.catalog.entry(rule.table)) is not None and entry.is_there:
        if entry.pending is not None:
            db.schema_changes.finish(entry)
            continue
        if _rule(entry).state == unless:
            return False
        wanted = entry.definition.with_(view=replace(_rule(entry), **changes))
        held = db.catalog.replace(entry, wanted, entry.version, sweep=entry.sweep)
        if held is not None and held.definition == wanted:
            return True
    return False


def _rule(entry: Entry) -> ViewRule:
    rule = entry.definition.view
    assert rule is not None
    return rule


def _refuse_dropped(rule: ViewRule) -> None:
    if rule.state == DROPPED:
        raise ConfigurationError(
            f"the view {rule.view} with this SQL is being dropped: finish that first, by `percolator views "
            f"--drop {rule.view}` with a chain without it, or by `--fill {rule.view}` with the later SQL"
        )


def _write_first_row(db: Database, plan: ViewPlan) -> None:
    first = plan.sink.initial() if isinstance(plan.sink, GroupSink) else None
    if first is None:
        return
    key, cells = first

    def write(t: Transaction) -> None:
        t.writes_view = plan.fingerprint
        handle = t.handle_of(plan.stored.name)
        # With rows in its tables, the view may have no row because of HAVING.
        if StoredGroup(t, handle.name, key).state is None and rows.read(t, handle, key, []) is None:
            rows.upsert(t, handle, key, cells, {})

    db.run(write)
