"""``publish``, ``backup`` and ``restore``: tables and namespaces outside the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.data import TableName
from percolator_core.cli.options import StoreOptions
from percolator_core.errors import ConfigurationError
from percolator_core.notation.amounts import show_age, show_size
from percolator_core.notation.times import parse_length, show_time

if TYPE_CHECKING:
    from rich.progress import Progress

Keep = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="First remove the files of versions older than this, such as 7d. Default: none."
    ),
]
Target = Annotated[str, typer.Argument(metavar="URL", help="A folder, or s3://BUCKET/PREFIX.")]


def publish(
    table: TableName,
    target: Target,
    keep: Keep = None,
    *,
    store: StoreOptions,
) -> None:
    """Write a table, as of now, as a version of a Delta Lake table. Clients may write while the command runs.

    After the first version only changed rows are written, if `percolator gc` has kept all versions since the
    last publication. Interrupt and repeat the command at any time.
    """
    output = outputs.current()
    output.carry_on = "the last version is unchanged; run the same command again"
    with store.existing() as db, output.status(f"{table}: reading") as status:
        done = db.publish(
            table,
            target,
            keep=None if keep is None else parse_length(keep),
            progress=lambda rows: status.update(f"{table}: {rows:,} rows"),
        )
    shown = outputs.table("table", "as of", ">version", ">rows", ">time", "written")
    written = "changes" if done.mode == "incremental" else f"all rows: {done.reason}"
    cells = (str(done.version), f"{done.rows:,}", show_age(done.seconds), written)
    shown.add_row(table, show_time(done.timestamp), *cells)
    output.result({"table": table, **asdict(done)}, shown)


def backup(
    target: Target,
    keep: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Afterwards remove all but this many backups.")
    ] = None,
    *,
    store: StoreOptions,
) -> None:
    """Write a backup of the namespace, as of now, while its clients continue to work.

    Tablets that have not changed since the last backup are not written again. Interrupt and repeat the
    command at any time.
    """
    from percolator_core.archive.backup import backup as run

    output = outputs.current()
    output.carry_on = "the earlier backups are unchanged; run the same command again"
    with store.existing() as db, output.progress() as progress:
        done = run(db, target, keep=keep, progress=_bar(progress))
    shown = outputs.table(">backup", "as of", ">tables", ">written", ">shared", ">size", ">time")
    cells = (str(done.tables), f"{done.written:,}", f"{done.shared:,}", show_size(done.bytes))
    shown.add_row(str(done.number), show_time(done.timestamp), *cells, show_age(done.seconds))
    output.result(asdict(done), shown)


def restore(
    target: Target,
    number: Annotated[
        int | None,
        typer.Option("--backup", min=1, metavar="N", help="The number of the backup. Default: the newest."),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE=URL", help="Give this table a base, and move its rows there."),
    ] = None,
    *,
    store: StoreOptions,
) -> None:
    """Restore a backup into an empty namespace, and verify every row.

    Without --namespace the namespace gets its former name. After an interruption run the same command again.
    No worker starts before the restore has ended.
    """
    from percolator_core.archive import files
    from percolator_core.archive.restore import restore as run
    from percolator_core.base.location import Location
    from percolator_core.database import connect

    output = outputs.current()
    output.carry_on = "run the same command again to complete the restore"
    bases = dict(_base(one) for one in base or ())
    namespace = store.namespace
    if namespace is None:
        found = files.newest(Location(target), number)
        namespace = "default" if found is None else found.namespace
    with connect(store.url, namespace) as db, output.progress() as progress:
        done = run(target, db, number=number, bases=bases, progress=_bar(progress))
    numbers = (">tables", ">rows", ">cells", ">dirty", ">quarantined", ">time")
    shown = outputs.table("namespace", ">backup", "as of", *numbers)
    counts = (done.tables, done.rows, done.cells, done.marks - done.quarantined, done.quarantined)
    cells = (*(f"{count:,}" for count in counts), show_age(done.seconds))
    shown.add_row(namespace, str(done.number), show_time(done.timestamp), *cells)
    output.result({"namespace": namespace, **asdict(done)}, shown)


def _base(text: str) -> tuple[str, str]:
    table, separator, url = text.partition("=")
    if not separator or not table or not url:
        raise ConfigurationError(f"--base {text!r}: write TABLE=URL, such as items=file:base")
    return table, url


def _bar(progress: Progress) -> Callable[[str, int, int], None]:
    task: Any = progress.add_task("tablets", total=None)

    def advance(table: str, done: int, total: int) -> None:
        progress.update(task, description=table, completed=done, total=total)

    return advance
