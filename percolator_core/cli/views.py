"""``views``: list the views of a chain, fill one, or drop one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import ChainPath, StoreOptions, Timeout, load_chain
from percolator_core.notation.amounts import count_of

if TYPE_CHECKING:
    from percolator_core.database import Database
    from percolator_core.observers import Chain

Fill = Annotated[
    str | None,
    typer.Option(metavar="VIEW", help="Add rows to this view that were there before it. Writes may go on."),
]
Drop = Annotated[
    str | None,
    typer.Option(
        metavar="VIEW", help="Remove a view that the chain does not have any more, with all its data."
    ),
]


def views(
    path: ChainPath,
    *,
    fill: Fill = None,
    drop: Drop = None,
    timeout: Timeout = None,
    store: StoreOptions,
) -> None:
    """List the views of a chain, with their rows and the changes that wait for them."""
    from percolator_core.admin.views import drop as drop_view
    from percolator_core.admin.views import leftover_views, to_fill
    from percolator_core.admin.views import views as views_of

    output = outputs.current()
    chain = load_chain(path)
    with store.existing(chain) as db:
        if fill is not None:
            output.carry_on = "run the same command again; no row counts twice"
            chain.create_tables(db)
            for name in to_fill(db, chain, fill):
                _fill(output, db, chain, name, timeout)
        if drop is not None:
            output.carry_on = "run the same command again"
            drop_view(db, chain, drop)
            output.note(f"{drop} was removed")
        found, left = views_of(db, chain), leftover_views(db, chain)
    for name in left:
        output.note(
            f"the store has the view {name}, and the chain does not: `percolator views {path} --drop {name}`"
        )
    shown = outputs.table("view", "reads", ">rows", ">waiting", "filled", "shown")
    for one in found:
        if one.versions > 1:
            output.note(f"the SQL of {one.name} has changed: `percolator views {path} --fill {one.name}`")
        flags = ("yes" if it else "no" for it in (one.filled, one.shown))
        cells = (f"{one.rows:,}", f"{one.waiting:,}", *flags)
        shown.add_row(one.name, ", ".join(one.reads), *cells)
    output.result({"chain": chain.name, "views": [asdict(one) for one in found], "left": left}, shown)


def _fill(output: outputs.Output, db: Database, chain: Chain, name: str, timeout: float | None) -> None:
    """Fill a view. If readers see the rows of an earlier SQL, wait until the new ones can replace them."""
    from percolator_core.admin.views import fill, swap
    from percolator_core.admin.views import views as views_of

    [now] = [one for one in views_of(db, chain) if one.name == name]
    if not now.filled or now.versions == 1:
        counts = fill(db, chain, name)
        output.note(
            f"{count_of(counts.rows, 'row')} given to {name}, {counts.known} of which it had already; "
            f"{counts.marked} marked for workers"
        )
    with output.status(f"waiting for {name}") as line:
        swap(
            db,
            chain,
            name,
            timeout=timeout,
            progress=lambda left: line.update(f"waiting for {name}: {count_of(left, 'change')} left"),
        )
