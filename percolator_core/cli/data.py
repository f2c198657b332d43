"""Read tables: ``tables``, ``get``, ``scan``, ``history``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.filters import Where, parse_filter, parse_raw_filter
from percolator_core.cli.options import StoreOptions, argument
from percolator_core.cli.output import Failure
from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import count_of
from percolator_core.notation.bytestext import json_bytes, parse_bytes, show_bytes, show_value
from percolator_core.notation.times import parse_time, show_time
from percolator_core.notation.typedtext import (
    json_row,
    json_value,
    parse_key,
    parse_row,
    raw_typed,
    row_text,
    show_key,
    show_row,
    show_typed,
)

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from percolator_core.database import Database
    from percolator_core.schema.definitions import TableDefinition
    from percolator_core.schema.predicates import Predicate
    from percolator_core.transaction.snapshot import Snapshot

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table.")]
AnyRow = Annotated[
    str,
    typer.Argument(
        metavar="ROW",
        parser=argument(row_text),
        help="The row key: text, hex:… or base64:…; for a typed table the value of the key column, or "
        "'column=value column=value' for a key of several columns.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Read as of this time: 2026-11-20T10:00:00Z with a time zone, microseconds since 1970, or 15m "
        "for 15 minutes ago.",
    ),
]
Columns = Annotated[str | None, typer.Option("--columns", metavar="A,B", help="Only these columns.")]

ShownRow: TypeAlias = "tuple[Any, Sequence[RenderableType]]"
"""A row as data for JSON, and as lines of text."""


def tables(*, store: StoreOptions) -> None:
    """List the tables of a namespace."""
    from percolator_core.cli.schema import partition_text, table_data

    with store.existing() as db:
        found = db.tables()
        typed = [">columns", "key", "partition"] if any(one.is_typed for one in found) else []
        shown = outputs.table("table", ">tablets", *typed, "notify-only columns")
        for one in found:
            cells = (
                [str(len(one.columns)), ", ".join(one.key), partition_text(one)] if one.is_typed else [""] * 3
            )
            name = f"{one.name} (index of {one.index_of})" if one.index_of else one.name
            shown.add_row(
                name,
                str(one.tablets),
                *(cells if typed else []),
                ", ".join(map(abbreviated, one.notify_only)),
            )
        data = [table_data(one) for one in found]
        outputs.current().result({"namespace": db.namespace, "tables": data}, shown)


def get(
    table: TableName,
    row: AnyRow,
    columns: Annotated[
        list[str] | None, typer.Argument(metavar="COLUMN", help="The columns. Default: all.")
    ] = None,
    *,
    at: At = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write only the bytes of the one named column.")] = False,
    store: StoreOptions,
) -> None:
    """Read one row, or some of its columns."""
    output = outputs.current()
    if raw and (len(columns or ()) != 1 or output.as_json):
        raise typer.BadParameter("--raw needs exactly one column and excludes --json")
    moment = parse_time(at)
    with store.existing() as db:
        definition = db.catalog.table(table).definition
        snapshot = snapshot_at(db, moment)
        read = _typed_row if definition.is_typed else _raw_row
        found = read(snapshot, definition, row, columns or None)
        if found is None:
            named = " or ".join(map(abbreviated, columns or ())) or "cells"
            what = f"row {row} of {table} has no {named}"
            if definition.is_typed:
                what = f"{table} has no row {row}"
            raise Failure(what if at is None else f"{what} at {at}")
        if raw:
            output.raw(next(iter(found.raw.values())))
            return
        shown = outputs.table("column", "value")
        for column, text in found.texts.items():
            shown.add_row(abbreviated(column), text)
        alone = next(iter(found.texts.values())) if columns and len(columns) == 1 else shown
        output.result({"table": table, "at": snapshot.start_timestamp, **found.data}, alone)


class _Found(NamedTuple):
    """A row that was read: its values as text and as bytes, and the row in JSON."""

    texts: Mapping[str, str]
    raw: Mapping[str, bytes]
    data: Mapping[str, Any]


def _raw_row(
    snapshot: Snapshot, definition: TableDefinition, row: str, columns: Sequence[str] | None
) -> _Found | None:
    key = parse_bytes(row)
    cells = dict(sorted(snapshot.get_row(definition.name, key, columns).items()))
    texts = {column: show_value(value) for column, value in cells.items()}
    return _Found(texts, cells, _row_data(key, cells)) if cells else None


def _typed_row(
    snapshot: Snapshot, definition: TableDefinition, row: str, columns: Sequence[str] | None
) -> _Found | None:
    for name in columns or ():
        if name not in definition.by_name:
            raise typer.BadParameter(
                f"{definition.name} has no column {name!r}: it has {', '.join(definition.by_name)}"
            )
    values = snapshot.find(definition.name, **parse_key(definition, row))
    if values is None:
        return None
    wanted = {name: values[name] for name in (columns or values)}
    return _Found(
        {name: show_typed(definition, name, value) for name, value in wanted.items()},
        {name: raw_typed(definition, name, value) for name, value in wanted.items()},
        {"row": {name: json_value(value) for name, value in wanted.items()}},
    )


def scan(
    table: TableName,
    *,
    where: Where = None,
    prefix: Annotated[
        bytes | None,
        typer.Option(parser=argument(parse_bytes), metavar="ROW", help="Only keys with this prefix."),
    ] = None,
    start: Annotated[
        bytes | None, typer.Option(parser=argument(parse_bytes), metavar="ROW", help="Start at this row.")
    ] = None,
    stop: Annotated[
        bytes | None, typer.Option(parser=argument(parse_bytes), metavar="ROW", help="Stop before this row.")
    ] = None,
    columns: Columns = None,
    limit: Annotated[int, typer.Option(min=0, help="At most this many rows; 0 is all.")] = 100,
    reverse: Annotated[bool, typer.Option("--reverse", help="Read from the last row to the first.")] = False,
    at: At = None,
    store: StoreOptions,
) -> None:
    """Read rows in the order of their keys."""
    output = outputs.current()
    moment = parse_time(at)
    asked = _Asked(where, start, stop, prefix, parse_columns(columns), limit, reverse)
    with store.existing() as db:
        definition = db.catalog.table(table).definition
        snapshot = snapshot_at(db, moment)
        head = {"table": table, "at": snapshot.start_timestamp}
        read = _typed_rows if definition.is_typed else _raw_rows
        rows = read(snapshot, definition, asked, output.console.width)
        cut: list[bytes] = []
        count = output.stream(head, "rows", _shown(rows, limit, cut))
        if cut:
            how = "--limit 0 shows all"
            if not definition.is_typed or _text_key(definition):
                bound = show_bytes(cut[0] + b"\0" if reverse else cut[0])
                how += f", {'--stop' if reverse else '--start'} '{bound}' continues"
            output.note(f"{count_of(count, 'row')} shown, there are more: {how}")


class _Asked(NamedTuple):
    where: Sequence[str] | None
    start: bytes | None
    stop: bytes | None
    prefix: bytes | None
    columns: list[str] | None
    limit: int
    reverse: bool

    @property
    def most(self) -> int | None:
        """The limit plus one: if the additional row exists, there are more rows than the limit."""
        return self.limit + 1 if self.limit else None


def _raw_rows(
    snapshot: Snapshot, definition: TableDefinition, asked: _Asked, width: int
) -> Iterator[tuple[bytes, ShownRow]]:
    where = parse_raw_filter(definition, asked.where)
    wanted = asked.columns
    read = None if wanted is None else list(dict.fromkeys([*wanted, *where.columns]))
    most = None if asked.where else asked.most
    found = snapshot.scan(definition.name, asked.start, asked.stop, asked.prefix, read, most, asked.reverse)
    for row, cells in found:
        if where.holds(row, cells):
            kept = {name: cell for name, cell in cells.items() if wanted is None or name in wanted}
            if kept:
                shown = [
                    (name, show_bytes(value, value_width(name, width)))
                    for column, value in sorted(kept.items())
                    for name in [abbreviated(column)]
                ]
                yield row, (_row_data(row, kept), _lines(show_bytes(row), shown))


def _typed_rows(
    snapshot: Snapshot, definition: TableDefinition, asked: _Asked, width: int
) -> Iterator[tuple[bytes, ShownRow]]:
    from percolator_core.schema.row_keys import KeyCodec

    codec = KeyCodec(definition)
    wanted = None if asked.columns is None else list(dict.fromkeys([*definition.key, *asked.columns]))
    found = snapshot.select(definition.name, _predicate(definition, asked), wanted, asked.most, asked.reverse)
    for values in found:
        row = codec.encode([values[name] for name in definition.key])
        data = {name: json_value(value) for name, value in values.items()}
        shown = [
            (name, show_typed(definition, name, value, value_width(name, width)))
            for name, value in values.items()
            if name not in definition.key
        ]
        yield row, (data, _lines(show_key(definition, values), shown))


def _lines(key: str, values: Sequence[tuple[str, str]]) -> list[RenderableType]:
    return [Text(key, style="bold"), *(Text(f"  {name}  {value}") for name, value in values)]


def _predicate(definition: TableDefinition, asked: _Asked) -> Predicate | None:
    """Return the filter and the bounds of the keys as one predicate."""
    from percolator_core.schema.predicates import Comparison, Joined

    parts = [found] if (found := parse_filter(definition, asked.where)) is not None else []
    for option, op, bound in (
        ("--start", ">=", asked.start),
        ("--stop", "<", asked.stop),
        ("--prefix", "^=", asked.prefix),
    ):
        if bound is None:
            continue
        if not _text_key(definition):
            raise typer.BadParameter(
                f"{option} needs a key of one text column, but the key of {definition.name} is "
                f"({', '.join(f'{one.name} {one.type}' for one in definition.key_columns)}): use --where"
            )
        try:
            parts.append(Comparison(definition.key[0], op, bound.decode()))  # type: ignore[arg-type]
        except UnicodeDecodeError:
            raise typer.BadParameter(f"{option}: {show_bytes(bound)} is not UTF-8 text") from None
    return Joined("and", tuple(parts)) if parts else None


def _text_key(definition: TableDefinition) -> bool:
    return [one.type for one in definition.key_columns] == ["str"]


def _shown(rows: Iterator[tuple[bytes, ShownRow]], limit: int, cut: list[bytes]) -> Iterator[ShownRow]:
    """Yield the rows up to the limit, and put the key of the next row, if any, into ``cut``."""
    for _, shown in islice(rows, limit or None):
        yield shown
    if limit:
        cut.extend(row for row, _ in islice(rows, 1))


def history(
    table: TableName,
    row: AnyRow,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="The column.")],
    *,
    limit: Annotated[int, typer.Option(min=1, help="At most this many versions.")] = 100,
    store: StoreOptions,
) -> None:
    """List the committed versions of a cell, newest first."""
    with store.existing() as db:
        definition = db.catalog.table(table).definition
        key = parse_row(definition, row)
        versions = db.history(table, key, column, limit)
    if not versions:
        raise Failure(
            f"row {show_row(definition, key)} of {table} never had {abbreviated(column)}, or garbage "
            "collection dropped its versions"
        )
    shown = outputs.table("committed", "commit timestamp", "start timestamp", "value")
    data = []
    for version in versions:
        text, kept = _version(definition, column, version.value)
        start_ts = None if version.is_of_base else version.start_ts
        shown.add_row(
            show_time(version.commit_ts),
            str(version.commit_ts),
            "in the base" if start_ts is None else str(start_ts),
            text,
        )
        data.append({"commit_timestamp": version.commit_ts, "start_timestamp": start_ts, "value": kept})
    head = {"table": table, "row": json_row(definition, key), "column": column}
    outputs.current().result({**head, "versions": data}, shown)


def _version(definition: TableDefinition, column: str, value: bytes | None) -> tuple[str, Any]:
    if value is None:
        return "(deleted)", None
    if not definition.is_typed:
        return show_bytes(value, 60), json_value(value)
    from percolator_core.schema.types import column_type

    decoded = column_type(definition.by_name[column].type).decode(value)
    return show_typed(definition, column, decoded, 60), json_value(decoded)


def snapshot_at(db: Database, moment: int | datetime | timedelta | None, option: str = "--at") -> Snapshot:
    """Return a snapshot as of that time, or as long before now.

    Raises typer.BadParameter for a time in the future or before 1970.
    """
    if isinstance(moment, timedelta):
        moment = db.store.now() - moment // timedelta(microseconds=1)
    try:
        return db.snapshot(moment)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def parse_columns(text: str | None) -> list[str] | None:
    """Return the columns that ``--columns`` names."""
    return None if text is None else [name for name in text.split(",") if name]


def value_width(column: str, width: int) -> int:
    """Return the width that is left for a value beside its column's name."""
    return max(20, width - len(column) - 4)


def _row_data(row: bytes, cells: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "row": json_bytes(row),
        "columns": {column: json_bytes(value) for column, value in sorted(cells.items())},
    }
