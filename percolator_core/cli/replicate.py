"""``replicate``: keep tables up to date with tables of PostgreSQL."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import ChainFirst, SourcePatience, StoreOptions, argument, load_chain
from percolator_core.cli.signals import stopping
from percolator_core.notation.amounts import count_of, parse_size, show_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.status import Status

    from percolator_core.replication import ReplicationProgress, ReplicationReport

_COUNTED: Final = ("copied", "transactions", "changes", "new", "changed", "deleted")

Conninfo = Annotated[
    str,
    typer.Argument(
        metavar="DSN",
        envvar="PERCOLATOR_POSTGRES",
        help="The database: postgresql://USER@HOST/DATABASE, or 'host=… dbname=…'. Put a password "
        "into ~/.pgpass or the variable: everybody on this machine can read command lines.",
    ),
]
SlotName = Annotated[
    str, typer.Option("--slot", metavar="NAME", help="The replication slot, which the first run makes.")
]
Publication = Annotated[
    str, typer.Option("--publication", metavar="NAME", help="The publication, which has to exist.")
]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="PGTABLE[=TABLE]",
        help="A table of PostgreSQL, and the table for it. Repeat the option for several. Default: each "
        "table of the publication, into the table of its name.",
        show_default=False,
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="End when everything is applied that was committed before the start.")
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Copy into tables that have rows, and copy again if the slot is lost. Removes rows that "
        "PostgreSQL lacks.",
    ),
]
MaxTransaction = Annotated[
    int,
    typer.Option(
        parser=argument(parse_size),
        metavar="SIZE",
        help="Stop at a transaction of PostgreSQL with more bytes of changes, such as 256MiB.",
    ),
]


def replicate(
    conninfo: Conninfo,
    *,
    slot: SlotName,
    publication: Publication,
    table: Tables = None,
    chain: ChainFirst = None,
    once: Once = False,
    overwrite: Overwrite = False,
    patience: SourcePatience = 300.0,
    max_transaction: MaxTransaction = "256MiB",  # type: ignore[assignment]  # typer parses the text
    store: StoreOptions,
) -> None:
    """Copy tables of PostgreSQL, then apply each transaction of PostgreSQL exactly once.

    Runs until SIGINT or SIGTERM, or with --once until it has caught up. The next run continues. PostgreSQL
    keeps its log until the slot's changes are applied: drop a slot that nobody needs any more.
    """
    from percolator_core.replication import replicate as replicate_tables
    from percolator_core.replication.targets import parse_tables

    output = outputs.current()
    declared = None if chain is None else load_chain(chain)
    stopped = threading.Event()
    with (
        store.of_chain(declared) if declared else store.existing() as db,
        output.status("connecting to PostgreSQL") as status,
        stopping(stopped.set) as received,
    ):
        report = replicate_tables(
            db,
            conninfo,
            slot=slot,
            publication=publication,
            tables=parse_tables(table) if table else None,
            chain=declared,
            once=once,
            overwrite=overwrite,
            patience=patience,
            max_transaction=max_transaction,
            stop=stopped.is_set,
            progress=_shown(status),
        )
    _print(report)
    if received.number == signal.SIGINT:
        raise KeyboardInterrupt


def _shown(status: Status) -> Callable[[ReplicationProgress], None]:
    def show(now: ReplicationProgress) -> None:
        written = f"{now.new + now.changed + now.deleted:,} rows written"
        if now.phase == "copying":
            status.update(f"copying: {count_of(now.copied, 'row')} read, {written}")
            return
        lag = "" if now.lag_bytes is None else f", {show_size(now.lag_bytes)} behind"
        status.update(
            f"following: {count_of(now.transactions, 'transaction')}, {written}, {now.waiting} waiting{lag}"
        )

    return show


def _print(report: ReplicationReport) -> None:
    shown = outputs.table("slot", *(f">{name}" for name in _COUNTED), "position", ">behind")
    behind = "-" if report.lag_bytes is None else show_size(report.lag_bytes)
    counts = (f"{getattr(report, name):,}" for name in _COUNTED)
    shown.add_row(report.slot, *counts, report.position, behind)
    outputs.current().result(report.to_json(), shown)
