"""What the tables of a namespace are like: changes that were not finished, and indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from percolator_core.cli.findings import Finding, fail, ok, warn
from percolator_core.errors import LockTimeout, SnapshotTooOld, UnknownTable

if TYPE_CHECKING:
    from percolator_core.admin.status import TableStatus
    from percolator_core.catalog.catalog import Entry
    from percolator_core.database import Database

_QUICK: Final = 10_000
"""Rows of a table whose indexes are compared without being asked to: that takes less than a second."""


def check_tables(db: Database, tables: Sequence[TableStatus], *, indexes: bool) -> Iterator[Finding]:
    """All checks of the tables; ``indexes`` compares those of large tables, too, and reads all of both."""
    entries = db.catalog.entries()
    for entry in entries:
        if entry.pending is not None or entry.sweep:
            yield _unfinished(db, entry)
    rows = {one.name: one.rows for one in tables}
    indexed = [one.definition for one in entries if one.is_there and one.definition.indexes]
    late = [one for one in indexed if not indexes and rows.get(one.name, 0) > _QUICK]
    wrong = list(_inconsistent(db, [one.name for one in indexed if one not in late]))
    yield from wrong
    check, agreeing = f"{db.namespace}: indexes", sum(len(one.indexes) for one in indexed if one not in late)
    if agreeing and not wrong:
        yield ok(check, f"{agreeing} compared with their tables: they agree")
    if late:
        names = ", ".join(one.name for one in late)
        yield ok(check, f"not compared: those of {names}, of more than {_QUICK:,} rows; --indexes does it")


def _unfinished(db: Database, entry: Entry) -> Finding:
    pending = entry.pending
    if pending is None:
        found = "cells of a column that was dropped may be left"
    elif pending["kind"] in {"create", "drop"}:
        found = f"its {'making' if pending['kind'] == 'create' else 'drop'} is under way, or was broken off"
    else:
        found = "a change of it is under way, or was broken off"
    check = f"{db.namespace}: {entry.definition.name}"
    return warn(check, found, "where nobody is at it any more, percolator gc finishes it")


def _inconsistent(db: Database, names: Sequence[str]) -> Iterator[Finding]:
    from percolator_core.tables.verify import check_indexes

    for name in names:
        try:
            # Not pinned: that is a write, which whoever only looks may not be allowed.
            found = check_indexes(db.snapshot(), name)
        except (LockTimeout, SnapshotTooOld, UnknownTable) as error:
            yield warn(
                f"{db.namespace}: {name}", f"its indexes were not compared: {error}", "look again later"
            )
            continue
        if not found:
            continue
        missing = sum(one.missing for one in found)
        yield fail(
            f"{db.namespace}: {name}",
            f"{', '.join(sorted({one.index for one in found}))}: rows without their entry: {missing:,}, "
            f"entries without their row: {len(found) - missing:,}",
            f"something else has written to the store: percolator reindex {name}",
        )
