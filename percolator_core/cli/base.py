"""``flush`` and ``compact``: the maintainer of the bases of tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import StoreOptions
from percolator_core.errors import ConfigurationError
from percolator_core.notation.amounts import parse_size, show_age, show_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

    from percolator_core.database import Database
    from percolator_core.maintenance.locks import Part

_PARTS: Final = 16
"""The parts of a table at which the progress is shown: each one raises the safe points of all tablets."""

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

        def one(part: Part) -> dict[str, Any]:
            [table] = {name for name, _ in part}
            return asdict(db.flush(table, everything, tablets=part, rate=_rate(rate), share=share))

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

        def one(part: Part) -> dict[str, Any]:
            [table] = {name for name, _ in part}
            return asdict(db.compact(table, tablets=part, rate=_rate(rate), share=share))

        done = _of_each(db, "compact", tables, one)
    shown = outputs.table(
        "table", "written", "files removed", "time", numbers=["written", "files removed", "time"]
    )
    for table, found in done.items():
        shown.add_row(table, show_size(found["bytes"]), f"{found['files']:,}", show_age(found["seconds"]))
    outputs.current().result({"tables": done}, shown)


def _of_each(
    db: Database, what: str, tables: list[str] | None, one: Callable[[Part], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Call ``one`` for some tablets of a table at a time; return the sums of its figures by table."""
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
            for part in _parts(db, table, progress):
                found = one(part)
                before = done.get(table, dict.fromkeys(found, 0))
                done[table] = {key: before[key] + value for key, value in found.items()}
    return {table: {key: round(value, 3) for key, value in found.items()} for table, found in done.items()}


def _parts(db: Database, table: str, progress: Progress) -> Iterator[Part]:
    """The tablets of a table in a few parts, with a bar for them."""
    tablets = [(table, number) for number in range(db.catalog.table(table).tablets)]
    task = progress.add_task(table, total=len(tablets))
    size = -(-len(tablets) // _PARTS)
    for start in range(0, len(tablets), size):
        part = tablets[start : start + size]
        yield part
        progress.advance(task, len(part))


def _rate(text: str | None) -> float | None:
    return None if text is None else parse_size(text)
