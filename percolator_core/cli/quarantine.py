"""Cells in quarantine: ``failed``, ``retry`` and ``discard``."""

from __future__ import annotations

import sys
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
from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import count_of
from percolator_core.notation.times import show_time
from percolator_core.notation.typedtext import Rows, row_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from percolator_core.admin.quarantine import FailedCell, Quarantine
    from percolator_core.cli.output import Output
    from percolator_core.observers import Chain

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
"""Cells that are discarded together."""


def failed(
    path: ChainPath,
    *,
    observer: ObserverName = None,
    row: FailedRow = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show each cell's last traceback.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="At most this many cells; 0 is all.")] = 100,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """List the cells in quarantine, with the error that put each there."""
    from percolator_core.admin.quarantine import Quarantine

    output = outputs.current()
    chain = load_chain(path, import_functions=False)
    _check_observer(chain, observer)
    with connect_to_existing(url, namespace, chain) as db:
        quarantine = Quarantine(db, chain)
        rows = Rows(quarantine.tables.values())
        found = quarantine.cells(observer, _keys(quarantine, row))
        head = {"chain": chain.name, "total": sum(quarantine.count().values())}
        listed = islice(found, limit or None)
        count = output.stream(
            head, "failed", ((_data(cell, rows), _human(cell, rows, traceback=traceback)) for cell in listed)
        )
        more = next(found, None) is not None
    if not count and not output.as_json:
        output.result(None, "no cell is in quarantine")
    elif more:
        output.note(f"{count_of(count, 'cell')} shown, there are more: --limit 0 shows all")
    if count:
        output.note(f"fix the cause, then run `percolator retry {path}`")


def retry(
    path: ChainPath,
    observer: ObserverName = None,
    row: FailedRow = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Take cells out of quarantine, so that they are observed again with all their attempts.

    A write to an observed cell of a row does the same for the cells of that observer.
    """
    from percolator_core.admin.quarantine import Quarantine

    chain = load_chain(path, import_functions=False)
    _check_observer(chain, observer)
    with connect_to_existing(url, namespace, chain) as db:
        quarantine = Quarantine(db, chain)
        keys = _keys(quarantine, row)
        if keys is None:
            count = quarantine.retry(observer=observer)
        else:
            # List all cells before the first is put back: a worker may fail on that one again at once.
            count = quarantine.retry(list(quarantine.cells(observer, keys)))
    text = f"{count_of(count, 'cell')} to be observed again" + (
        f": by a worker, or by `percolator drain {path}`" if count else ""
    )
    outputs.current().result({"chain": chain.name, "retried": count}, text)


def discard(
    path: ChainPath,
    *,
    observer: ObserverName = None,
    row: FailedRow = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    namespace: Namespace = None,
) -> None:
    """Discard cells in quarantine; they are observed again when they change.

    A cell that fails while the command runs stays in quarantine.
    """
    from percolator_core.admin.quarantine import Quarantine

    output = outputs.current()
    chain = load_chain(path, import_functions=False)
    _check_observer(chain, observer)
    with connect_to_existing(url, namespace, chain) as db:
        quarantine = Quarantine(db, chain)
        keys = _keys(quarantine, row)
        until = db.timestamp()
        count = _count(quarantine, observer, keys)
        if count and (yes or _is_wanted(output, count, path)):
            # Keep cells that failed after the question was asked.
            failed_before = (cell for cell in quarantine.cells(observer, keys) if cell.time < until)
            count = sum(quarantine.discard(batch) for batch in _batches(failed_before))
        else:
            count = 0
    text = f"{count_of(count, 'cell')} discarded" + ("; the next change is observed" if count else "")
    output.result({"chain": chain.name, "discarded": count}, text)


def _count(quarantine: Quarantine, observer: str | None, keys: Mapping[str, bytes] | None) -> int:
    if keys is not None:
        return sum(1 for _ in quarantine.cells(observer, keys))
    counts = quarantine.count()
    return sum(counts.values()) if observer is None else counts[observer]


def _is_wanted(output: Output, count: int, path: object) -> bool:
    """Ask at the terminal. Raises typer.BadParameter if there is no terminal."""
    what = f"{count_of(count, 'cell')} in quarantine"
    if output.as_json or not _is_a_terminal():
        raise typer.BadParameter(
            f"this discards {what}, which `percolator failed {path}` lists: add --yes to confirm"
        )
    return output.errors.input(f"Discard {what}? [y/N] ").strip().lower() in {"y", "yes"}


def _is_a_terminal() -> bool:
    return sys.stdin.isatty()


def _batches(cells: Iterator[FailedCell]) -> Iterator[list[FailedCell]]:
    while batch := list(islice(cells, _BATCH)):
        yield batch


def _keys(quarantine: Quarantine, row: str | None) -> dict[str, bytes] | None:
    """Return the row key that ``--row`` names, by table; None without ``--row``."""
    return None if row is None else quarantine.keys(row)


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
    where = f"{cell.table} {rows.show(cell.table, cell.row)} {abbreviated(cell.column)}"
    lines = [
        Text.assemble(
            (cell.observer, "bold"), f"  {where}  {cell.attempts} attempts, last {show_time(cell.time)}"
        ),
        Text(f"  {cell.error}" if traceback else f"  {' '.join(cell.error.split())}", style="red"),
    ]
    if traceback:
        lines += [Text(f"  {line}") for line in cell.traceback.rstrip().splitlines()]
    return lines
