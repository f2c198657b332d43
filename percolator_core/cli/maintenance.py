"""The commands of maintenance: ``locks``, ``resolve``, ``gc`` and ``reindex``."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.data import TableName
from percolator_core.cli.options import StoreOptions
from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import show_age
from percolator_core.notation.times import parse_length, show_time
from percolator_core.notation.typedtext import Rows

if TYPE_CHECKING:
    from percolator_core.admin.locks import HeldLock

_LONGEST_COLUMN: Final = 60
"""The list shows at most this many characters of a column's name. JSON has the whole name."""


def locks(
    limit: Annotated[int, typer.Option(min=1, help="At most this many locks.")] = 100, *, store: StoreOptions
) -> None:
    """List the current locks, oldest first. Running writers hold some of them for a short time."""
    from percolator_core.admin.locks import locks as read_locks

    output = outputs.current()
    with store.existing() as db:
        found = read_locks(db, limit)
        rows = Rows(db.tables())
    shown = outputs.table("table", "row", "column", ">age", "begun at", "primary", "owner")
    for lock in found:
        table, row, column = lock.primary
        primary = f"{table} {rows.show(table, row, 40)} {abbreviated(column, _LONGEST_COLUMN)}"
        owner = Text(lock.owner) if lock.owner_alive else Text(f"{lock.owner} (dead)", style="red")
        shown.add_row(
            lock.table,
            rows.show(lock.table, lock.row, 40),
            abbreviated(lock.column, _LONGEST_COLUMN),
            show_age(lock.age),
            str(lock.start_timestamp),
            "this" if lock.is_primary else primary,
            owner,
        )
    output.result({"locks": [_data(lock, rows) for lock in found]}, shown if found else "no locks")
    if any(not lock.owner_alive for lock in found):
        output.note(
            "`percolator resolve` resolves the locks of dead clients; so do reads and writes of these cells"
        )


def resolve(
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than",
            min=0,
            metavar="SECONDS",
            help="Skip locks that were set or refreshed less than this long ago.",
        ),
    ] = 30.0,
    *,
    store: StoreOptions,
) -> None:
    """Resolve the locks of dead clients: roll their transactions forward or back."""
    with store.existing() as db:
        done = db.resolve_locks(timedelta(seconds=older_than))
    shown = outputs.table(">rolled forward", ">rolled back", ">live")
    shown.add_row(str(done.committed), str(done.rolled_back), str(done.live))
    outputs.current().result(asdict(done), shown)


def gc(
    keep: Annotated[
        str,
        typer.Option(metavar="TIME", help="Keep versions that snapshots of this age read: 90s, 15m, 1h, 7d."),
    ] = "1h",
    *,
    store: StoreOptions,
) -> None:
    """Collect garbage: resolve old locks, then drop versions that no snapshot can read.

    Afterwards, reads of older snapshots fail; versions that a pinned snapshot reads are kept. The command may
    be interrupted and repeated at any time.
    """
    length = parse_length(keep)
    output = outputs.current()
    output.carry_on = "`percolator gc` continues"
    with store.existing() as db:
        done = db.collect_garbage(length)
    shown = outputs.table(">versions dropped", ">rows dropped", ">locks resolved", "safe point")
    settled = done.locks.committed + done.locks.rolled_back
    shown.add_row(str(done.versions), str(done.rows), str(settled), show_time(done.safe_point))
    output.result(asdict(done), shown)


def reindex(table: TableName, *, store: StoreOptions) -> None:
    """Repair the indexes of a typed table after `percolator doctor` found a difference.

    Writers need not stop. The command may be interrupted and repeated at any time.
    """
    from percolator_core.tables.verify import rebuild_indexes

    output = outputs.current()
    output.carry_on = "run the same command again for the rest"
    with store.existing() as db:
        count = len(db.catalog.table(table).definition.indexes)
        repaired = rebuild_indexes(db, table)
    shown = outputs.table(">indexes", ">entries repaired")
    shown.add_row(str(count), f"{repaired:,}")
    output.result({"table": table, "indexes": count, "mended": repaired}, shown)


def _data(lock: HeldLock, rows: Rows) -> dict[str, Any]:
    table, row, column = lock.primary
    primary = {"table": table, "row": rows.data(table, row), "column": column}
    return asdict(lock) | {"row": rows.data(lock.table, lock.row), "primary": primary}
