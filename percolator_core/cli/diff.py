"""The changes of a table between two times: ``diff``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.data import Columns, TableName, parse_columns, snapshot_at, value_width
from percolator_core.cli.filters import Where, parse_filter, parse_raw_filter
from percolator_core.cli.options import StoreOptions
from percolator_core.errors import abbreviated
from percolator_core.notation.bytestext import show_bytes
from percolator_core.notation.times import parse_time
from percolator_core.notation.typedtext import json_row, json_value, show_row, show_typed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from percolator_core.admin.diff import RowChange
    from percolator_core.schema.definitions import TableDefinition

_MARKS: Final = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}
_NOTHING: Final = "(none)"


From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="TIME",
        help="The earlier time: 2026-11-20T10:00:00Z with a time zone, microseconds since 1970, or 15m for "
        "15 minutes ago.",
    ),
]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="The later time. Default: now.")]


def diff(
    table: TableName,
    *,
    begin: From,
    end: To = None,
    where: Where = None,
    columns: Columns = None,
    store: StoreOptions,
) -> None:
    """Show which rows were added, removed and changed between two times.

    With --where, show only rows that match the filter at one of the two times or at both.
    """
    from percolator_core.admin.diff import changes

    output = outputs.current()
    earlier, later = parse_time(begin, "--from"), parse_time(end, "--to")
    if earlier is None:
        raise typer.BadParameter("--from is empty: write 2026-11-20T10:00:00Z, or 15m for 15 minutes ago")
    with store.existing() as db:
        definition = db.catalog.table(table).definition
        # The result has both timestamps, so that the same diff can be made again.
        first = snapshot_at(db, earlier, "--from").start_timestamp
        last = snapshot_at(db, later, "--to").start_timestamp
        if last < first:
            raise typer.BadParameter(
                f"--to {end or 'now'} is before --from {begin}: give the earlier time first"
            )
        if definition.is_typed:
            chosen: Any = parse_filter(definition, where)
        else:
            chosen = parse_raw_filter(definition, where).holds if where else None
        found = changes(db, table, first, last, where=chosen, columns=parse_columns(columns))
        counts: Counter[str] = Counter(added=0, removed=0, changed=0)
        head = {"table": table, "from": first, "to": last}
        output.stream(head, "changes", _counted(definition, found, counts, output.console.width), tail=counts)
    if not output.as_json:
        texts = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        output.result(None, f"{texts}" if counts.total() else "nothing changed")


def _counted(
    definition: TableDefinition, found: Iterable[RowChange], counts: Counter[str], width: int
) -> Iterator[tuple[dict[str, Any], Sequence[RenderableType]]]:
    """Yield each change for JSON and as lines of text; count the changes by kind."""
    for change in found:
        counts[change.kind] += 1
        mark, style = _MARKS[change.kind]
        lines: list[RenderableType] = [
            Text(f"{mark} {show_row(definition, change.row)}", style=f"bold {style}")
        ]
        for name, (old, new) in change.columns.items():
            shown = abbreviated(name)
            text = _arrow(definition, change, name, (old, new), value_width(shown, width - 2))
            lines.append(Text(f"    {shown}  {text}"))
        yield _data(definition, change), lines


def _arrow(
    definition: TableDefinition, change: RowChange, name: str, values: tuple[Any, Any], width: int
) -> str:
    old, new = values
    if change.kind == "added":
        return _text(definition, name, new, width)
    if change.kind == "removed":
        return _text(definition, name, old, width)
    half = (width - 3) // 2
    return f"{_text(definition, name, old, half)} → {_text(definition, name, new, half)}"


def _text(definition: TableDefinition, name: str, value: Any, longest: int) -> str:
    if definition.is_typed:
        return show_typed(definition, name, value, longest)
    return _NOTHING if value is None else show_bytes(value, longest)


def _data(definition: TableDefinition, change: RowChange) -> dict[str, Any]:
    return {
        "change": change.kind,
        "row": json_row(definition, change.row),
        "columns": {
            name: {"old": json_value(old), "new": json_value(new)}
            for name, (old, new) in change.columns.items()
        },
    }
