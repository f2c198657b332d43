"""``publish``: versions of tables for other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.data import TableName
from percolator_core.cli.options import StoreOptions
from percolator_core.notation.amounts import show_age
from percolator_core.notation.times import parse_length, show_time

Keep = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Remove files that no version of this time has: 12h, 7d. Default: none."
    ),
]


def publish(
    table: TableName,
    target: Annotated[str, typer.Argument(metavar="URL", help="A folder, or s3://BUCKET/PREFIX.")],
    keep: Keep = None,
    *,
    store: StoreOptions,
) -> None:
    """Write a table, as of now, as a version of a Delta Lake table at a URL, while writes go on.

    After the first version only rows that changed are written, as long as `percolator gc` keeps the versions
    since the last one. The command may be interrupted and repeated at any time.
    """
    output = outputs.current()
    output.carry_on = "the last version is as it was; run the same command again"
    with store.existing() as db, output.status(f"{table}: reading") as status:
        done = db.publish(
            table,
            target,
            keep=None if keep is None else parse_length(keep),
            progress=lambda rows: status.update(f"{table}: {rows:,} rows"),
        )
    numbers = ["version", "rows", "time"]
    shown = outputs.table("table", "as of", *numbers, "written", numbers=numbers)
    written = "changes" if done.mode == "incremental" else f"all rows: {done.reason}"
    cells = (str(done.version), f"{done.rows:,}", show_age(done.seconds), written)
    shown.add_row(table, show_time(done.timestamp), *cells)
    output.result({"table": table, **asdict(done)}, shown)
