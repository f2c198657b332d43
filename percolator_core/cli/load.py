"""``load``: a Spark load of files into a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.options import (
    DEFAULT_URL,
    Namespace,
    Url,
    argument,
    connect_to_chain,
    connect_to_existing,
    load_chain,
)
from percolator_core.cli.output import Failure
from percolator_core.errors import ConfigurationError
from percolator_core.notation.amounts import count_of
from percolator_core.notation.bytestext import parse_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from percolator_core.cli.output import Output
    from percolator_core.database import Database
    from percolator_core.observers import Chain
    from percolator_core.spark import LoadProgress, LoadReport, Source

_COUNTED: Final = ("read", "new", "changed", "unchanged", "repeated", "deleted", "bad")


class Format(StrEnum):
    """The formats of a load."""

    HTML = "html"
    WARC = "warc"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


Sources = Annotated[
    list[str],
    typer.Argument(metavar="SOURCE", help="Files, folders, or patterns in quotes.", show_default=False),
]
TableOption = Annotated[
    str, typer.Option("--table", metavar="TABLE", help="The table to load into.", show_default=False)
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Default: from the file suffixes.", show_default=False)
]
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
    str | None,
    typer.Option(metavar="FIELD[=COLUMN],…", help="Load only these fields, under these names."),
]
BaseUrl = Annotated[str | None, typer.Option(metavar="URL", help="The prefix of the row keys of html files.")]
Delimiter = Annotated[str | None, typer.Option(help="Of csv files. Default: from the header line.")]
Encoding = Annotated[str | None, typer.Option(help="Of csv files. Default: UTF-8.")]
NullText = Annotated[str, typer.Option(metavar="TEXT", help="The csv field for which no cell is written.")]
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
Master = Annotated[
    str | None,
    typer.Option(help="The Spark master. Default: all cores of this machine.", show_default=False),
]
Width = Annotated[int, typer.Option(min=1, help="Concurrent transactions in each task.")]


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
    master: Master = None,
    width: Width = 256,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Load files into a table with Spark, and write only cells that differ.

    In a typed table, each field is parsed as the type of the column with its name. A load may be repeated at
    any time; unchanged cells are not written and wake no observer.
    """
    output = outputs.current()
    output.carry_on = "run the same load again; it writes only cells that are still missing"
    spark = _spark()
    loaded_chain = None if chain is None else _chain_with(table, chain)
    source = spark.open_source(
        paths,
        format.value if format is not None else None,
        key=key,
        columns=parse_columns(columns),
        base_url=base_url,
        delimiter=delimiter,
        encoding=encoding,
        null_text=null_text,
    )
    report = _run(
        output,
        source,
        table,
        url,
        namespace,
        loaded_chain,
        delete_missing=delete_missing,
        aside=aside,
        max_bad=max_bad,
        master=master,
        width=width,
    )
    output.result(report.to_json(), report_table(report))
    for note in _notes(report):
        output.note(note)


def _notes(report: LoadReport) -> Iterator[str]:
    if report.bad:
        bad = count_of(report.bad, "record")
        yield f"{bad} malformed: {report.aside} lists each with the reason"
    if report.kept_back is not None:
        yield f"nothing was deleted: {report.kept_back}"


def _run(  # noqa: PLR0917
    output: Output,
    source: Source,
    table: str,
    url: str,
    namespace: str | None,
    chain: Chain | None,
    **settings: Any,
) -> LoadReport:
    """Load with a progress bar; ``settings`` are those of `percolator_core.spark.load`."""
    spark = _spark()
    with _store(url, namespace, chain) as db, output.progress() as progress:
        show = _Bar(progress, source).show
        try:
            report: LoadReport = spark.load(
                url, db.namespace, table, source, chain=chain, progress=show, **settings
            )
        except spark.TooManyBadRecords as error:
            raise Failure(str(error), report=error.report.to_json()) from error
    return report


def _store(url: str, namespace: str | None, chain: Chain | None) -> AbstractContextManager[Database]:
    """Connect to the chain's store and create its tables; without a chain, connect to an existing store."""
    if chain is None:
        return connect_to_existing(url, namespace)
    return connect_to_chain(url, namespace, chain)


def _chain_with(table: str, path: Path) -> Chain:
    chain = load_chain(path)
    declared = [one.name for one in chain.tables]
    if table not in declared:
        raise ConfigurationError(
            f"the chain {chain.name!r} declares no table {table!r}: it has {', '.join(declared)}"
        )
    return chain


def parse_columns(text: str | None) -> dict[str, str] | None:
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


def report_table(report: LoadReport) -> Table:
    """Return the counts of a load as a table of one line."""
    shown = outputs.table("table", *_COUNTED, "seconds", numbers=[*_COUNTED, "seconds"])
    seconds = report.load_seconds + report.delete_seconds
    shown.add_row(report.table, *(f"{getattr(report, name):,}" for name in _COUNTED), f"{seconds:.1f}")
    return shown


class _Bar:
    """The progress bar of a load, in Spark tasks."""

    def __init__(self, progress: Progress, source: Source) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task(
            f"starting Spark for {count_of(len(source.files), 'file')}", total=None
        )

    def show(self, now: LoadProgress) -> None:
        """Update the bar with Spark's counters."""
        said = f"{now.read:,} read, {now.new + now.changed:,} written, {now.bad:,} bad"
        self._progress.update(self._task, completed=now.tasks_done, total=now.tasks, description=said)


def _spark() -> ModuleType:
    """Import `percolator_core.spark`. Raises ConfigurationError if pyspark is missing."""
    try:
        from percolator_core import spark
    except ImportError as error:
        raise ConfigurationError(f"a load needs Spark ({error}): install percolator-core[spark]") from error
    return spark
