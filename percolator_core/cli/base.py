"""``flush`` and ``compact``: the maintainer of the bases of tables."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import StoreOptions, argument
from percolator_core.notation.amounts import parse_size, show_age, show_size
from percolator_core.runtime.batches import batched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

    from percolator_core.database import Database
    from percolator_core.maintenance.locks import Part

_PARTS: Final = 16
"""A table is processed in at most this many parts, because each part raises the safe points of all tablets.

The bar advances after each part.
"""

_NO_BASE: Final = "no table has a base: give one to a table, under 'tables' of chain.yaml or with db.set_base"

Tables = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]…", help="Default: all tables with a base.")
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="SIZE",
        parser=argument(parse_size),
        help="Write at most this many bytes to files in a second, such as 50MB.",
    ),
]
Share = Annotated[
    float,
    typer.Option(help="The part of the time in which the store works for this command: above 0, up to 1."),
]


def flush(
    tables: Tables = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Move all rows that may move, not only the cold ones.")
    ] = False,
    rate: Rate = None,
    share: Share = 1.0,
    *,
    store: StoreOptions,
) -> None:
    """Move cold rows from the store to the bases of tables, and maintain the bases.

    The declaration of a base says which rows are cold: rows that have not changed for a time, or, if the
    table has too many bytes in the store, the rows that changed longest ago. Interrupt and repeat the command
    at any time.
    """
    with store.existing() as db:
        flush_part = partial(db.flush, everything=everything, rate=rate, share=share)
        done = _of_each(db, "flush", tables, flush_part)
    shown = outputs.table("table", ">rows", ">written", ">time")
    for table, found in done.items():
        shown.add_row(table, f"{found['rows']:,}", show_size(found["bytes"]), show_age(found["seconds"]))
    outputs.current().result({"tables": done}, shown if done else _NO_BASE)


def compact(tables: Tables = None, rate: Rate = None, share: Share = 1.0, *, store: StoreOptions) -> None:
    """Merge the row sets of the bases of tables as far as possible.

    Then a read of one key looks at one row set. Removed rows, and files that no reader needs, are dropped.
    Interrupt and repeat the command at any time.
    """
    with store.existing() as db:
        done = _of_each(db, "compact", tables, partial(db.compact, rate=rate, share=share))
    shown = outputs.table("table", ">written", ">files removed", ">time")
    for table, found in done.items():
        shown.add_row(table, show_size(found["bytes"]), f"{found['files']:,}", show_age(found["seconds"]))
    outputs.current().result({"tables": done}, shown if done else _NO_BASE)


def _of_each(
    db: Database, command: str, tables: list[str] | None, one: Callable[..., Any]
) -> dict[str, dict[str, Any]]:
    """Call ``one`` for each table, some ``tablets`` at a time; return the sums of its results by table."""
    output = outputs.current()
    output.carry_on = f"`percolator {command}` continues"
    done: dict[str, dict[str, Any]] = {}
    with output.progress() as progress:
        for table in tables or db.maintainer().tables():
            for part in _parts(db, table, progress):
                found = asdict(one(table, tablets=part))
                before = done.get(table, dict.fromkeys(found, 0))
                done[table] = {key: before[key] + value for key, value in found.items()}
    return {table: {key: round(value, 3) for key, value in found.items()} for table, found in done.items()}


def _parts(db: Database, table: str, progress: Progress) -> Iterator[Part]:
    """Yield the tablets of a table in at most `_PARTS` parts, and show a bar."""
    tablets = [(table, number) for number in range(db.catalog.table(table).tablets)]
    task = progress.add_task(table, total=len(tablets))
    size = -(-len(tablets) // _PARTS)
    for part in batched(tablets, size):
        yield part
        progress.advance(task, len(part))
