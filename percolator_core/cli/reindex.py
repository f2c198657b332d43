"""``reindex``: repair the indexes of a table."""

from __future__ import annotations

from percolator_core.cli import output as outputs
from percolator_core.cli.data import TableName
from percolator_core.cli.options import StoreOptions


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
    shown = outputs.table("indexes", "entries repaired", numbers=["indexes", "entries repaired"])
    shown.add_row(str(count), f"{repaired:,}")
    output.result({"table": table, "indexes": count, "mended": repaired}, shown)
