"""``flush`` and ``compact``: the maintainer of the bases of tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import StoreOptions
from percolator_core.errors import ConfigurationError
from percolator_core.layout.keys import tablet_number
from percolator_core.notation.amounts import parse_size, show_age, show_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

    from percolator_core.database import Database

Tables = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]…", help="By default all tables with a base.")
]
Rate = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Most bytes a second written to files, such as 50MB."),
]
Share = Annotated[
    float,
    typer.Option(help="The part of the time, above 0 to 1, in which the store works for this command."),
]


def flush(
    tables: Tables = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Move all rows that may go, not only the cold ones.")
    ] = False,
    rate: Rate = None,
    share: Share = 1.0,
    *,
    store: StoreOptions,
) -> None:
    """Move cold rows from the store to the bases of tables, and maintain the bases.

    Rows are cold as the table's base says: after a time without a change, or above its budget of memory.
    The command may be interrupted and repeated at any time.
    """
    with store.existing() as db:

        def one(table: str, number: int) -> dict[str, Any]:
            found = db.flush(table, everything, tablets=[(table, number)], rate=_rate(rate), share=share)
            return asdict(found)

        done = _of_each(db, "flush", tables, one)
    shown = outputs.table("table", "rows", "written", "time", numbers=["rows", "written", "time"])
    for table, found in done.items():
        shown.add_row(table, f"{found['rows']:,}", show_size(found["bytes"]), show_age(found["seconds"]))
    outputs.current().result({"tables": done}, shown)


def compact(tables: Tables = None, rate: Rate = None, share: Share = 1.0, *, store: StoreOptions) -> None:
    """Merge the row sets of the bases of tables until nothing gains.

    Reads then look at one row set for a key. Removed rows, and files that no reader needs, go. The command
    may be interrupted and repeated at any time.
    """
    with store.existing() as db:

        def one(table: str, number: int) -> dict[str, Any]:
            return asdict(db.compact(table, tablets=[(table, number)], rate=_rate(rate), share=share))

        done = _of_each(db, "compact", tables, one)
    shown = outputs.table(
        "table", "written", "files removed", "time", numbers=["written", "files removed", "time"]
    )
    for table, found in done.items():
        shown.add_row(table, show_size(found["bytes"]), f"{found['files']:,}", show_age(found["seconds"]))
    outputs.current().result({"tables": done}, shown)


def _of_each(
    db: Database, what: str, tables: list[str] | None, one: Callable[[str, int], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Call ``one`` for each tablet of the tables, and return the sums of its figures by table."""
    output = outputs.current()
    output.carry_on = f"`percolator {what}` continues"
    names = tables or db.maintainer().tables()
    if not names:
        raise ConfigurationError(
            "no table has a base: give one to a table, under 'tables' of chain.yaml or with db.set_base"
        )
    done: dict[str, dict[str, Any]] = {}
    with output.progress() as progress:
        for table in names:
            for number in _numbers(db, table, progress):
                found = one(table, number)
                before = done.get(table, dict.fromkeys(found, 0))
                done[table] = {key: before[key] + value for key, value in found.items()}
    return {table: {key: round(value, 3) for key, value in found.items()} for table, found in done.items()}


def _numbers(db: Database, table: str, progress: Progress) -> Iterator[int]:
    """The numbers of a table's tablets, with a bar for them."""
    tags = db.catalog.table(table).tags
    task = progress.add_task(table, total=len(tags))
    for tag in tags:
        yield tablet_number(tag)
        progress.advance(task)


def _rate(text: str | None) -> float | None:
    return None if text is None else parse_size(text)
