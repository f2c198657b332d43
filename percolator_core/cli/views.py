"""``views``: the views of a chain, and the filling of a new one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import ChainPath, StoreOptions, load_chain
from percolator_core.notation.amounts import count_of

Fill = Annotated[
    str | None,
    typer.Option(metavar="VIEW", help="Add rows to this view that were there before it. Writes may go on."),
]


def views(path: ChainPath, *, fill: Fill = None, store: StoreOptions) -> None:
    """List the views of a chain, with their rows and the changes that wait for them."""
    from percolator_core.admin.views import fill as fill_view
    from percolator_core.admin.views import views as views_of

    output = outputs.current()
    chain = load_chain(path)
    with store.existing(chain) as db:
        if fill is not None:
            output.carry_on = "run the same command again; no row counts twice"
            chain.create_tables(db)
            counts = fill_view(db, chain, fill)
            output.note(
                f"{count_of(counts.rows, 'row')} given to {fill}, {counts.known} of which it had already; "
                f"{counts.marked} marked for workers"
            )
        found = views_of(db, chain)
    shown = outputs.table("view", "reads", ">rows", ">waiting", "filled")
    for one in found:
        cells = (f"{one.rows:,}", f"{one.waiting:,}", "yes" if one.filled else "no")
        shown.add_row(one.name, ", ".join(one.reads), *cells)
    output.result({"chain": chain.name, "views": [asdict(one) for one in found]}, shown)
