"""``gc``: drop versions that no snapshot reads any more."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import StoreOptions
from percolator_core.notation.times import parse_length, show_time


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
    numbers = ["versions dropped", "rows dropped", "locks resolved"]
    shown = outputs.table(*numbers, "safe point", numbers=numbers)
    settled = done.locks.committed + done.locks.rolled_back
    shown.add_row(str(done.versions), str(done.rows), str(settled), show_time(done.safe_point))
    output.result(asdict(done), shown)
