"""Looking into tables: ``tables``, ``get``, ``scan``, ``history``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.bytestext import json_bytes, parse_bytes, show_bytes, show_value
from percolator_core.cli.options import DEFAULT_URL, Namespace, Url, connect_to_existing
from percolator_core.cli.output import Failure, count_of
from percolator_core.cli.times import show_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from percolator_core.tabletscan import Row

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table.", show_default=False)]
RowKey = Annotated[
    bytes,
    typer.Argument(
        metavar="ROW",
        parser=parse_bytes,
        help="The row key: text, hex:… or base64:…",
        show_default=False,
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Read as of this time: microseconds since 1970, or 2026-11-20T10:00:00Z with a time zone.",
        show_default=False,
    ),
]


def tables(url: Url = DEFAULT_URL, namespace: Namespace = None) -> None:
    """List the tables of a namespace."""
    with connect_to_existing(url, namespace) as db:
        found = db.tables()
        shown = outputs.table("table", "tablets", "notify-only columns", numbers=["tablets"])
        for one in found:
            shown.add_row(one.name, str(one.tablets), ", ".join(one.notify_only))
        data = [
            {"name": one.name, "tablets": one.tablets, "notify_only": list(one.notify_only)} for one in found
        ]
        outputs.current().result({"namespace": db.namespace, "tables": data}, shown)


def get(
    table: TableName,
    row: RowKey,
    columns: Annotated[
        list[str] | None, typer.Argument(metavar="COLUMN", help="Columns; all when none is named.")
    ] = None,
    *,
    at: At = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the bytes of the one column named, and nothing else.")
    ] = False,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Read one row, whole or some of its columns."""
    output = outputs.current()
    if raw and (len(columns or ()) != 1 or output.as_json):
        raise typer.BadParameter("--raw needs exactly one column, and goes without --json")
    moment = parse_time(at)
    with connect_to_existing(url, namespace) as db:
        snapshot = db.snapshot(moment)
        cells = snapshot.get_row(table, row, columns or None)
        if not cells:
            what = f"row {show_bytes(row)} of {table} has no {' or '.join(columns) if columns else 'cells'}"
            raise Failure(what if at is None else f"{what} at {at}")
        if raw:
            output.raw(next(iter(cells.values())))
            return
        shown = outputs.table("column", "value")
        for column, value in sorted(cells.items()):
            shown.add_row(column, show_value(value))
        alone = show_value(cells[columns[0]]) if columns and len(columns) == 1 else shown
        output.result({"table": table, "at": snapshot.start_timestamp, **_row((row, cells))}, alone)


def scan(
    table: TableName,
    *,
    prefix: Annotated[
        bytes | None, typer.Option(parser=parse_bytes, metavar="ROW", help="Rows that start so.")
    ] = None,
    start: Annotated[
        bytes | None, typer.Option(parser=parse_bytes, metavar="ROW", help="The first row.")
    ] = None,
    stop: Annotated[
        bytes | None, typer.Option(parser=parse_bytes, metavar="ROW", help="The row to stop before.")
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many rows; 0 is all.")] = 100,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last row to the first.")] = False,
    at: At = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Read rows in order of their keys."""
    output = outputs.current()
    moment = parse_time(at)
    wanted = [name for name in columns.split(",") if name] if columns is not None else None
    with connect_to_existing(url, namespace) as db:
        snapshot = db.snapshot(moment)
        # One row more than asked for tells whether there are more.
        rows = snapshot.scan(table, start, stop, prefix, wanted, limit + 1 if limit else None, reverse)
        head = {"table": table, "at": snapshot.start_timestamp}
        cut: list[Row] = []
        count = output.stream(head, "rows", _pieces(rows, limit, cut, output.console.width))
        if cut:
            option = "--stop" if reverse else "--start"
            where = show_bytes(cut[0][0] if not reverse else cut[0][0] + b"\0")
            output.note(f"{count_of(count, 'row')} of more: --limit 0 shows all, {option} '{where}' goes on")


def history(
    table: TableName,
    row: RowKey,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="The column.", show_default=False)],
    *,
    limit: Annotated[int, typer.Option(min=1, help="At most so many versions.")] = 100,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """List the committed versions of a cell, newest first."""
    with connect_to_existing(url, namespace) as db:
        versions = db.history(table, row, column, limit)
    if not versions:
        raise Failure(f"row {show_bytes(row)} of {table} never had {column}, or its versions were collected")
    shown = outputs.table("committed", "commit timestamp", "start timestamp", "value")
    data = []
    for commit_ts, start_ts, value in versions:
        text = "(deleted)" if value is None else show_bytes(value, 60)
        shown.add_row(show_time(commit_ts), str(commit_ts), str(start_ts), text)
        kept = None if value is None else json_bytes(value)
        data.append({"commit_timestamp": commit_ts, "start_timestamp": start_ts, "value": kept})
    outputs.current().result(
        {"table": table, "row": json_bytes(row), "column": column, "versions": data}, shown
    )


def parse_time(text: str | None) -> int | datetime | None:
    """What ``--at`` means; raises typer.BadParameter for what is no time, or has no time zone."""
    if text is None or not text.strip():
        return None
    if text.isascii() and text.isdecimal():
        if 0 < int(text) < 2**53:
            return int(text)
        raise typer.BadParameter(f"--at {text}: microseconds since 1970 are 1 to 2**53 - 1")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None:
        raise typer.BadParameter(
            f"--at {text!r} is no time: write 2026-11-20T10:00:00Z, or microseconds since 1970"
        )
    if moment.tzinfo is None:
        raise typer.BadParameter(
            f"--at {text!r} has no time zone: add Z for UTC, or an offset such as +02:00"
        )
    return moment


def _row(found: Row) -> dict[str, Any]:
    row, cells = found
    return {
        "row": json_bytes(row),
        "columns": {column: json_bytes(value) for column, value in sorted(cells.items())},
    }


def _pieces(
    rows: Iterator[Row], limit: int, cut: list[Row], width: int
) -> Iterator[tuple[dict[str, Any], Sequence[RenderableType]]]:
    """Each row as data and as lines; the one behind the limit goes to ``cut``."""
    for count, (row, cells) in enumerate(rows, 1):
        if limit and count > limit:
            cut.append((row, cells))
            return
        lines = [Text(show_bytes(row), style="bold")]
        lines += [
            Text(f"  {column}  {show_bytes(value, max(20, width - len(column) - 4))}")
            for column, value in sorted(cells.items())
        ]
        yield _row((row, cells)), lines
