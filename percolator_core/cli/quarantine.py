"""Cells on which observers failed for good: ``failed`` and ``retry``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.options import (
    DEFAULT_URL,
    ChainPath,
    Namespace,
    Url,
    argument,
    connect_to_existing,
    load_chain,
)
from percolator_core.notation.amounts import count_of
from percolator_core.notation.error import NotationError
from percolator_core.notation.times import show_time
from percolator_core.notation.typedtext import Rows, parse_row, row_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from percolator_core.database import Database
    from percolator_core.notifications.dirty import DirtyIndex, FailedCell
    from percolator_core.observers import Chain
    from percolator_core.schema.definition import TableDefinition

ObserverName = Annotated[
    str | None, typer.Option("--observer", metavar="NAME", help="Only this observer.", show_default=False)
]
FailedRow = Annotated[
    str | None,
    typer.Option(
        "--row", metavar="ROW", parser=argument(row_text), help="Only this row key.", show_default=False
    ),
]

_BATCH: Final = 500
"""Cells that are put back together."""


def failed(
    path: ChainPath,
    *,
    observer: ObserverName = None,
    row: FailedRow = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show each cell's last traceback.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="At most so many cells; 0 is all.")] = 100,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """List the cells in quarantine, with the error that put each there."""
    output = outputs.current()
    chain = load_chain(path, import_functions=False)
    _check_observer(chain, observer)
    with connect_to_existing(url, namespace, chain) as db:
        tables = _tables(db, chain)
        rows, index = Rows(tables.values()), _index(db, chain, tables)
        found = _chosen(index, observer, _keys(tables, row))
        head = {"chain": chain.name, "total": sum(index.count_failed().values()) if index else 0}
        listed = islice(found, limit or None)
        count = output.stream(
            head, "failed", ((_data(cell, rows), _human(cell, rows, traceback=traceback)) for cell in listed)
        )
        more = next(found, None) is not None
    if not count and not output.as_json:
        output.result(None, "nothing is in quarantine")
    elif more:
        output.note(f"{count_of(count, 'cell')} of more: --limit 0 shows all")
    if count:
        output.note(f"`percolator retry {path}` puts them back once the cause is gone")


def retry(
    path: ChainPath,
    observer: ObserverName = None,
    row: FailedRow = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Put cells in quarantine back, to be observed again with all their attempts."""
    chain = load_chain(path, import_functions=False)
    _check_observer(chain, observer)
    with connect_to_existing(url, namespace, chain) as db:
        tables = _tables(db, chain)
        index = _index(db, chain, tables)
        count = _put_back(index, observer, _keys(tables, row)) if index else 0
    said = f"{count_of(count, 'cell')} to be observed again" + (
        f": `percolator drain {path}` does it" if count else ""
    )
    outputs.current().result({"chain": chain.name, "retried": count}, said)


def _put_back(index: DirtyIndex, observer: str | None, keys: Mapping[str, bytes] | None) -> int:
    if observer is None and keys is None:
        return index.retry()
    # All are found before the first is put back: a worker may fail on it again at once.
    cells = list(_chosen(index, observer, keys))
    return sum(index.retry(cells[start : start + _BATCH]) for start in range(0, len(cells), _BATCH))


def _tables(db: Database, chain: Chain) -> dict[str, TableDefinition]:
    """Those of the observed tables that are there."""
    observed = {table for table, _ in chain.observed}
    return {definition.name: definition for definition in db.tables() if definition.name in observed}


def _index(db: Database, chain: Chain, tables: Mapping[str, TableDefinition]) -> DirtyIndex | None:
    """The dirty index over those of the chain's tables that are there."""
    from percolator_core.notifications.dirty import DirtyIndex

    observed = {column: names for column, names in chain.observed.items() if column[0] in tables}
    return DirtyIndex(db.client, observed) if observed else None


def _keys(tables: Mapping[str, TableDefinition], row: str | None) -> dict[str, bytes] | None:
    """The row key that an argument is in each table where it is one; None if there is no argument.

    Raises NotationError where it is one in no table.
    """
    if row is None:
        return None
    found: dict[str, bytes] = {}
    refused: NotationError | None = None
    for name, definition in tables.items():
        try:
            found[name] = parse_row(definition, row)
        except NotationError as error:
            refused = error
    if refused is not None and not found:
        raise refused
    return found


def _chosen(
    index: DirtyIndex | None, observer: str | None, keys: Mapping[str, bytes] | None
) -> Iterator[FailedCell]:
    if index is None:
        return
    for cell in index.failed():
        if observer in (None, cell.observer) and (keys is None or keys.get(cell.table) == cell.row):
            yield cell


def _check_observer(chain: Chain, observer: str | None) -> None:
    if observer is not None and observer not in chain.observers:
        raise typer.BadParameter(
            f"{chain.name} has no observer {observer!r}: it has {', '.join(chain.observers)}"
        )


def _data(cell: FailedCell, rows: Rows) -> dict[str, Any]:
    return {
        "observer": cell.observer,
        "table": cell.table,
        "row": rows.data(cell.table, cell.row),
        "column": cell.column,
        "error": cell.error,
        "attempts": cell.attempts,
        "time": cell.time,
        "traceback": cell.traceback,
    }


def _human(cell: FailedCell, rows: Rows, *, traceback: bool) -> Sequence[RenderableType]:
    where = f"{cell.table} {rows.show(cell.table, cell.row)} {cell.column}"
    lines = [
        Text.assemble(
            (cell.observer, "bold"), f"  {where}  {cell.attempts} attempts, last {show_time(cell.time)}"
        ),
        Text(f"  {cell.error}" if traceback else f"  {' '.join(cell.error.split())}", style="red"),
    ]
    if traceback:
        lines += [Text(f"  {line}") for line in cell.traceback.rstrip().splitlines()]
    return lines
