"""Cells on which observers failed for good: ``failed`` and ``retry``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.bytestext import json_bytes, parse_bytes, show_bytes
from percolator_core.cli.options import (
    DEFAULT_URL,
    ChainPath,
    Namespace,
    Url,
    connect_to_existing,
    load_chain,
)
from percolator_core.cli.output import count_of
from percolator_core.cli.times import show_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from percolator_core.database import Database
    from percolator_core.notifications.dirty import DirtyIndex, FailedCell
    from percolator_core.observers import Chain

ObserverName = Annotated[
    str | None, typer.Option("--observer", metavar="NAME", help="Only this observer.", show_default=False)
]
FailedRow = Annotated[
    bytes | None,
    typer.Option("--row", metavar="ROW", parser=parse_bytes, help="Only this row key.", show_default=False),
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
        index = _index(db, chain)
        found = _chosen(index, observer, row)
        head = {"chain": chain.name, "total": sum(index.count_failed().values()) if index else 0}
        listed = islice(found, limit or None)
        count = output.stream(
            head, "failed", ((_data(cell), _human(cell, traceback=traceback)) for cell in listed)
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
        index = _index(db, chain)
        count = _put_back(index, observer, row) if index else 0
    said = f"{count_of(count, 'cell')} to be observed again" + (
        f": `percolator drain {path}` does it" if count else ""
    )
    outputs.current().result({"chain": chain.name, "retried": count}, said)


def _put_back(index: DirtyIndex, observer: str | None, row: bytes | None) -> int:
    if observer is None and row is None:
        return index.retry()
    # All are found before the first is put back: a worker may fail on it again at once.
    cells = list(_chosen(index, observer, row))
    return sum(index.retry(cells[start : start + _BATCH]) for start in range(0, len(cells), _BATCH))


def _index(db: Database, chain: Chain) -> DirtyIndex | None:
    """The dirty index over those of the chain's tables that are there."""
    from percolator_core.notifications.dirty import DirtyIndex

    there = {definition.name for definition in db.tables()}
    observed = {column: names for column, names in chain.observed.items() if column[0] in there}
    return DirtyIndex(db.client, observed) if observed else None


def _chosen(index: DirtyIndex | None, observer: str | None, row: bytes | None) -> Iterator[FailedCell]:
    if index is None:
        return
    for cell in index.failed():
        if observer in (None, cell.observer) and row in (None, cell.row):
            yield cell


def _check_observer(chain: Chain, observer: str | None) -> None:
    if observer is not None and observer not in chain.observers:
        raise typer.BadParameter(
            f"{chain.name} has no observer {observer!r}: it has {', '.join(chain.observers)}"
        )


def _data(cell: FailedCell) -> dict[str, Any]:
    return {
        "observer": cell.observer,
        "table": cell.table,
        "row": json_bytes(cell.row),
        "column": cell.column,
        "error": cell.error,
        "attempts": cell.attempts,
        "time": cell.time,
        "traceback": cell.traceback,
    }


def _human(cell: FailedCell, *, traceback: bool) -> Sequence[RenderableType]:
    where = f"{cell.table} {show_bytes(cell.row)} {cell.column}"
    lines = [
        Text.assemble(
            (cell.observer, "bold"), f"  {where}  {cell.attempts} attempts, last {show_time(cell.time)}"
        ),
        Text(f"  {cell.error}" if traceback else f"  {' '.join(cell.error.split())}", style="red"),
    ]
    if traceback:
        lines += [Text(f"  {line}") for line in cell.traceback.rstrip().splitlines()]
    return lines
