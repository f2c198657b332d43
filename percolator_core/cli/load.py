"""``load``: load files into a table, in this process or with Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import StoreOptions, argument, load_chain
from percolator_core.cli.output import Failure, Output
from percolator_core.errors import ConfigurationError
from percolator_core.notation.amounts import count_of
from percolator_core.notation.bytestext import parse_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

    from percolator_core.database import Database
    from percolator_core.loading import LoadProgress, LoadReport, Source
    from percolator_core.observers import Chain

_COUNTED: Final = ("read", "new", "changed", "unchanged", "repeated", "deleted", "bad")

Format = Literal["html", "warc", "jsonl", "csv", "parquet"]

Sources = Annotated[
    list[str], typer.Argument(metavar="SOURCE", help="Files, folders, patterns in quotes, object URLs.")
]
TableOption = Annotated[str, typer.Option("--table", metavar="TABLE", help="The table to load into.")]
FormatOption = Annotated[Format | None, typer.Option("--format", help="Default: from the file suffixes.")]
ChainOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="Create this chain's tables and activate its observers before the load."
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD", help="The field that holds the row key (jsonl, csv, parquet into raw tables)."
    ),
]
Fields = Annotated[
    str | None, typer.Option(metavar="FIELD[=COLUMN],…", help="Load only these fields, under these names.")
]
BaseUrl = Annotated[str | None, typer.Option(metavar="URL", help="The prefix of the row keys of html files.")]
Delimiter = Annotated[str | None, typer.Option(help="Of csv files. Default: from the header line.")]
Encoding = Annotated[str | None, typer.Option(help="Of csv files. Default: UTF-8.")]
NullText = Annotated[str, typer.Option(metavar="TEXT", help="A csv field with this text writes no cell.")]
Aside = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder for malformed records.")]
MaxBad = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Fail if more records than this are malformed.")
]
DeleteMissing = Annotated[
    bytes | None,
    typer.Option(
        metavar="PREFIX",
        parser=argument(parse_bytes),
        help="Delete rows with this key prefix that the source no longer has.",
    ),
]
WithSpark = Annotated[bool, typer.Option("--spark", help="Load with Spark, on all cores or in a cluster.")]
Master = Annotated[
    str | None,
    typer.Option(help="The Spark master; implies --spark. Default: all cores of this machine."),
]
Width = Annotated[int, typer.Option(min=1, help="Concurrent transactions; with Spark, in each task.")]


def load(
    paths: Sources,
    *,
    table: TableOption,
    format: FormatOption = None,  # noqa: A002 - the option's name
    chain: ChainOption = None,
    key: Key = None,
    columns: Fields = None,
    base_url: BaseUrl = None,
    delimiter: Delimiter = None,
    encoding: Encoding = None,
    null_text: NullText = "",
    aside: Aside = Path("aside"),
    max_bad: MaxBad = None,
    delete_missing: DeleteMissing = None,
    spark: WithSpark = False,
    master: Master = None,
    width: Width = 256,
    store: StoreOptions,
) -> None:
    """Load files into a table, and write only cells that differ.

    In a typed table, each field is parsed as the type of the column that has the field's name. A load may be
    repeated at any time; unchanged cells are not written and wake no observer.
    """
    from percolator_core import loading

    output = outputs.current()
    output.carry_on = "run the same load again; it writes only cells that are still missing"
    declared = None if chain is None else _chain_with(table, chain)
    csv: dict[str, Any] = {"delimiter": delimiter, "encoding": encoding, "null_text": null_text}
    source = loading.open_source(
        paths, format, key=key, columns=parse_fields(columns), base_url=base_url, **csv
    )
    spark = spark or master is not None
    begin = f"{'starting Spark for ' if spark else ''}{count_of(len(source.files), 'file')}"
    with store.of_chain(declared) if declared else store.existing() as db, output.progress() as progress:
        run: Callable[..., LoadReport] = (
            partial(_load_with_spark, store.url, master) if spark else loading.load
        )
        try:
            report = run(
                db,
                table,
                source,
                chain=declared,
                delete_missing=delete_missing,
                aside=aside,
                max_bad=max_bad,
                width=width,
                progress=_bar(progress, begin),
            )
        except loading.TooManyBadRecords as error:
            raise Failure(f"{error} {_first(error.report)}", report=error.report.to_json()) from error
    _print(output, report)


def _load_with_spark(
    url: str, master: str | None, db: Database, table: str, source: Source, **settings: Any
) -> LoadReport:
    from percolator_core.spark import load

    return load(url, db.namespace, table, source, master=master, **settings)


def _print(output: Output, report: LoadReport) -> None:
    shown = outputs.table("table", *(f">{name}" for name in _COUNTED), ">seconds")
    seconds = report.load_seconds + report.delete_seconds
    shown.add_row(report.table, *(f"{getattr(report, name):,}" for name in _COUNTED), f"{seconds:.1f}")
    output.result(report.to_json(), shown)
    if report.bad:
        output.note(f"{count_of(report.bad, 'record')} malformed: {report.aside} lists each with the reason")
        output.note(_first(report))
    if report.kept_back is not None:
        output.note(f"nothing was deleted: {report.kept_back}")


def _first(report: LoadReport) -> str:
    """Return the place and the reason of the first malformed record: often all have the same."""
    if report.aside is None:
        return ""
    with report.aside.open(encoding="ascii") as file:
        record = json.loads(next(file))
    place = next((f"{unit} {record[unit]} of " for unit in ("line", "row", "byte") if unit in record), "")
    return f"The first: {place}{record['file']}: {record['reason']}"


def _chain_with(table: str, path: Path) -> Chain:
    chain = load_chain(path)
    declared = [one.name for one in chain.tables]
    if table not in declared:
        raise ConfigurationError(
            f"the chain {chain.name!r} declares no table {table!r}: it has {', '.join(declared)}"
        )
    return chain


def parse_fields(text: str | None) -> dict[str, str] | None:
    """Parse ``field,other=column`` into a mapping. Raises typer.BadParameter for an empty name."""
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        field, equals, column = part.strip().partition("=")
        if not field or (equals and not column):
            raise typer.BadParameter(f"--columns {text!r}: write FIELD or FIELD=COLUMN, separated by commas")
        found[field] = column or field
    return found


def _bar(progress: Progress, start: str) -> Callable[[LoadProgress], None]:
    """Return a function that shows a load's progress as a bar of tasks, after the text ``start``."""
    task = progress.add_task(start, total=None)

    def show(now: LoadProgress) -> None:
        said = f"{now.read:,} read, {now.new + now.changed:,} written, {now.bad:,} bad"
        progress.update(task, completed=now.tasks_done, total=now.tasks, description=said)

    return show
