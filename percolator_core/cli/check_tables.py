"""Check the tables of a namespace: unfinished schema changes, and indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from percolator_core.cli.findings import Finding, fail, ok, warn
from percolator_core.errors import LockTimeout, SnapshotTooOld, UnknownTable

if TYPE_CHECKING:
    from percolator_core.catalog.catalog import Entry
    from percolator_core.database import Database

_QUICK: Final = 10_000
"""Indexes of tables with at most this many rows are always compared, which takes less than a second."""


def check_tables(db: Database, *, indexes: bool) -> Iterator[Finding]:
    """Run all checks of the tables.

    With ``indexes``, also compare large tables with their indexes, which reads both completely.
    """
    entries = db.catalog.entries()
    for entry in entries:
        if entry.pending is not None or entry.sweep:
            yield _unfinished(db, entry)
    indexed = [one.definition for one in entries if one.is_there and one.definition.indexes]
    late = [one for one in indexed if not indexes and _rows(db, one.name) > _QUICK]
    wrong = list(_inconsistent(db, [one.name for one in indexed if one not in late]))
    yield from wrong
    check, agreeing = f"{db.namespace}: indexes", sum(len(one.indexes) for one in indexed if one not in late)
    if agreeing and not wrong:
        yield ok(check, f"{agreeing} compared with their tables, without a difference")
    if late:
        names = ", ".join(one.name for one in late)
        yield ok(check, f"not compared for {names}, with over {_QUICK:,} rows; --indexes compares them")


def _rows(db: Database, table: str) -> int:
    """Return the approximate number of rows of a table, in store and base."""
    snapshot = db.snapshot()
    try:
        tags = snapshot.handle_of(table).tags
    except UnknownTable:
        return 0  # the table was dropped since the catalog was read
    return sum(snapshot.count_rows([(tag, b"", None) for tag in tags]))


def _unfinished(db: Database, entry: Entry) -> Finding:
    pending = entry.pending
    if pending is None:
        found = "cells of a dropped column may remain"
    elif pending["kind"] in {"create", "drop"}:
        step = "creation" if pending["kind"] == "create" else "removal"
        found = f"its {step} is under way or was interrupted"
    else:
        found = "a schema change is under way or was interrupted"
    check = f"{db.namespace}: {entry.definition.name}"
    return warn(check, found, "percolator gc finishes it if no process is working on it")


def _inconsistent(db: Database, names: Sequence[str]) -> Iterator[Finding]:
    from percolator_core.tables.verify import check_indexes

    for name in names:
        try:
            # The snapshot is not pinned: pinning is a write, and this user may have no right to write.
            found = check_indexes(db.snapshot(), name)
        except (LockTimeout, SnapshotTooOld, UnknownTable) as error:
            yield warn(
                f"{db.namespace}: {name}", f"its indexes were not compared: {error}", "check again later"
            )
            continue
        if not found:
            continue
        missing = sum(one.missing for one in found)
        yield fail(
            f"{db.namespace}: {name}",
            f"{', '.join(sorted({one.index for one in found}))}: rows without their entry: {missing:,}, "
            f"entries without their row: {len(found) - missing:,}",
            f"another program changed the store: run percolator reindex {name}",
        )
