"""``reindex``: make the indexes of a table agree with its rows."""

from __future__ import annotations

from percolator_core.cli import output as outputs
from percolator_core.cli.data import TableName
from percolator_core.cli.options import DEFAULT_URL, Namespace, Url, connect_to_existing


def reindex(table: TableName, url: Url = DEFAULT_URL, namespace: Namespace = None) -> None:
    """Make the indexes of a typed table agree with its rows, where `percolator doctor` finds a difference.

    Writers may go on meanwhile. It may be stopped and repeated at any time.
    """
    from percolator_core.tables.verify import rebuild_indexes

    output = outputs.current()
    output.carry_on = "the same command again does the rest"
    with connect_to_existing(url, namespace) as db:
        count = len(db.catalog.table(table).definition.indexes)
        mended = rebuild_indexes(db, table)
    shown = outputs.table("indexes", "entries mended", numbers=["indexes", "entries mended"])
    shown.add_row(str(count), f"{mended:,}")
    output.result({"table": table, "indexes": count, "mended": mended}, shown)
