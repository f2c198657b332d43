"""Cells in quarantine: ``failed``, ``retry`` and ``discard``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from percolator_core.cli import output as outputs
from percolator_core.cli.options import ChainPath, StoreOptions, argument, load_chain, observer_of
from percolator_core.cli.output import Output
from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import count_of
from percolator_core.notation.times import show_time
from percolator_core.notation.typedtext import Rows, row_text
from percolator_core.runtime.batches import batched

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from percolator_core.admin.quarantine import FailedCell, Quarantine
    from percolator_core.database import Database

ObserverName = Annotated[str | None, typer.Option("--observer", metavar="NAME", help="Only this observer.")]
FailedRow = Annotated[
    str | None, typer.Option("--row", metavar="ROW", parser=argument(row_text), help="Only this row key.")
]

_BATCH: Final = 500
"""This many cells are discarded together."""


def failed(
    path: ChainPath,
    *,
    observer: ObserverName = None,
    row: FailedRow = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show each cell's last traceback.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="At most this many cells; 0 is all.")] = 100,
    store: StoreOptions,
) -> None:
    """List the cells in quarantine, each with its last error."""
    output = outputs.current()
    with _opened(store, path, observer, row) as asked:
        rows = Rows(asked.quarantine.tables.values())
        found = asked.cells()
        head = {"chain": asked.chain, "total": sum(asked.quarantine.count().values())}
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
    path: ChainPath, *, observer: ObserverName = None, row: FailedRow = None, store: StoreOptions
) -> None:
    """Take cells out of quarantine, so that they are observed again; their attempts count from 0.

    A write to an observed cell also takes cells of the same row out of quarantine, for the observers of the
    written cell.
    """
    with _opened(store, path, observer, row) as asked:
        if asked.keys is None:
            count = asked.quarantine.retry(observer=observer)
        else:
            # List all cells before the first retry: a worker may put a retried cell into quarantine at once.
            count = asked.quarantine.retry(list(asked.cells()))
    text = f"{count_of(count, 'cell')} to be observed again" + (
        f": by a worker, or by `percolator drain {path}`" if count else ""
    )
    outputs.current().result({"chain": asked.chain, "retried": count}, text)


def discard(
    path: ChainPath,
    *,
    observer: ObserverName = None,
    row: FailedRow = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    store: StoreOptions,
) -> None:
    """Discard cells in quarantine; they are observed again when they change.

    A cell that fails while the command runs stays in quarantine.
    """
    output = outputs.current()
    with _opened(store, path, observer, row) as asked:
        until = asked.db.timestamp()
        count = asked.count()
        if count and (yes or _is_wanted(output, count, path)):
            # Keep cells that failed after the question was asked.
            failed_before = (cell for cell in asked.cells() if cell.time < until)
            count = sum(map(asked.quarantine.discard, batched(failed_before, _BATCH)))
        else:
            count = 0
    text = f"{count_of(count, 'cell')} discarded" + ("; the next change is observed" if count else "")
    output.result({"chain": asked.chain, "discarded": count}, text)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The opened quarantine, and the cells that ``--observer`` and ``--row`` select."""

    db: Database
    chain: str
    quarantine: Quarantine
    observer: str | None
    keys: Mapping[str, bytes] | None
    """The row key that ``--row`` names, by table; None without ``--row``."""

    def cells(self) -> Iterator[FailedCell]:
        return self.quarantine.cells(self.observer, self.keys)

    def count(self) -> int:
        if self.keys is not None:
            return sum(1 for _ in self.cells())
        counts = self.quarantine.count()
        return sum(counts.values()) if self.observer is None else counts[self.observer]


@contextmanager
def _opened(store: StoreOptions, path: Path, observer: str | None, row: str | None) -> Iterator[_Asked]:
    from percolator_core.admin.quarantine import Quarantine

    chain = load_chain(path, import_functions=False)
    if observer is not None:
        observer_of(chain, observer)
    with store.existing(chain) as db:
        quarantine = Quarantine(db, chain)
        keys = None if row is None else quarantine.keys(row)
        yield _Asked(db, chain.name, quarantine, observer, keys)


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


def _data(cell: FailedCell, rows: Rows) -> dict[str, Any]:
    return asdict(cell) | {"row": rows.data(cell.table, cell.row)}


def _human(cell: FailedCell, rows: Rows, *, traceback: bool) -> Sequence[RenderableType]:
    where = f"{cell.table} {rows.show(cell.table, cell.row)} {abbreviated(cell.column)}"
    when = f"{count_of(cell.attempts, 'attempt')}, last {show_time(cell.time)}"
    lines = [
        Text.assemble((cell.observer, "bold"), f"  {where}  {when}"),
        Text(f"  {cell.error}" if traceback else f"  {' '.join(cell.error.split())}", style="red"),
    ]
    if traceback:
        lines += [Text(f"  {line}") for line in cell.traceback.rstrip().splitlines()]
    return lines
