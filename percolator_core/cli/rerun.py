"""``rerun``: run an observer again on processed cells, after a change of its code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from percolator_core.cli import output as outputs
from percolator_core.cli.filters import bad_parameter, parse_filter, parse_raw_filter
from percolator_core.cli.options import ChainPath, StoreOptions, load_chain, observer_of
from percolator_core.cli.output import Output
from percolator_core.cli.signals import stopping
from percolator_core.errors import PercolatorError, abbreviated
from percolator_core.notation.amounts import count_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from percolator_core.admin.rerun import RerunCounts
    from percolator_core.database import Database
    from percolator_core.observers import Observer


ObserverName = Annotated[str, typer.Argument(metavar="OBSERVER", help="The observer.")]
Conditions = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Only cells that meet this: a filter for their rows as in scan, such as \"language = 'en'\"; or "
        "a comparison of the revision that ran last, such as 'revision < 2'. May be repeated.",
    ),
]
Outdated = Annotated[bool, typer.Option("--outdated", help="Only cells that an earlier revision processed.")]
Limit = Annotated[int, typer.Option(min=0, help="At most this many cells; 0 is all.")]
Rate = Annotated[
    float | None, typer.Option(min=0.001, metavar="N", help="At most this many cells per second.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count the cells, and change nothing.")]


def rerun(
    path: ChainPath,
    observer: ObserverName,
    *,
    where: Conditions = None,
    outdated: Outdated = False,
    limit: Limit = 0,
    rate: Rate = None,
    dry_run: DryRun = False,
    store: StoreOptions,
) -> None:
    """Mark processed cells dirty again, so that workers run the observer on them again.

    Use it after a change of the observer's code. Without conditions, all its cells are marked.
    """
    from percolator_core.admin.rerun import rerun as mark_again

    output = outputs.current()
    output.carry_on = "run the same command again; it marks the rest"
    chain = load_chain(path, import_functions=False)
    target = observer_of(chain, observer)
    asked = [*(where or []), *([f"revision < {target.revision}"] if outdated else [])]
    with store.existing(chain) as db:
        columns = _columns(db, target, where or [])
        with _progress(output, db, target) as show:
            counts = mark_again(
                db, chain, observer, asked, limit=limit or None, rate=rate, dry_run=dry_run, progress=show
            )
    data = {
        "chain": chain.name,
        "observer": target.name,
        "revision": target.revision,
        "dry_run": dry_run,
        "looked_at": counts.looked_at,
        "chosen": counts.chosen,
        "marked": counts.marked,
        "unknown": counts.unknown,
        "columns": {column: asdict(one) for column, one in counts.columns.items()},
    }
    output.result(data, *_human(counts, dry_run=dry_run))
    if columns and counts.looked_at and not counts.chosen:
        output.note(
            "no cell meets every condition: all names but row and revision are read as columns of the same "
            f"row, here {', '.join(columns)}"
        )
    if counts.unknown:
        output.note(
            f"{count_of(counts.unknown, 'cell')} of these moved to the base, which does not keep the "
            "revision that ran last: they meet every condition on the revision"
        )
    if counts.chosen and not dry_run:
        output.note(f"workers run the observer on them; without a worker, run `percolator drain {path}`")


def _columns(db: Database, observer: Observer, texts: list[str]) -> list[str]:
    """Return the names that the conditions use as columns of raw tables, even if they are misspelt.

    Raises typer.BadParameter for a condition that does not fit one of the tables.
    """
    from percolator_core.admin.row_filter import is_on_revision, revision_filter

    others = []
    for text in texts:
        with bad_parameter(text):
            revision_filter([text])
            others += [] if is_on_revision(text) else [text]
    found: set[str] = set()
    for table in dict.fromkeys(table for table, _ in observer.observe):
        definition = db.catalog.table(table).definition
        if definition.is_typed:
            parse_filter(definition, others)
        else:
            found.update(parse_raw_filter(definition, others).columns)
    return sorted(found)


def _human(counts: RerunCounts, *, dry_run: bool) -> list[RenderableType]:
    names = [">looked at", ">chosen"] if dry_run else [">looked at", ">chosen", ">marked"]
    made = outputs.table("column", *names)
    for column, one in counts.columns.items():
        numbers = [one.looked_at, one.chosen, one.marked]
        made.add_row(abbreviated(column), *(f"{number:,}" for number in numbers[: len(names)]))
    cells = count_of(counts.chosen, "cell")
    return [made, f"{cells} {'would' if dry_run else 'will'} be observed again"]


@contextmanager
def _progress(output: Output, db: Database, observer: Observer) -> Iterator[Callable[[RerunCounts], None]]:
    """Show a bar, and add a note to an error.

    An interruption takes effect only between two batches. At that time, each cell whose acknowledgement was
    deleted has its mark.
    """
    total = _rows(db, observer) if output.errors.is_terminal else None
    with output.progress() as progress, stopping(lambda: None) as received:
        task = progress.add_task(f"rerunning {observer.name}", total=total)

        def step(counts: RerunCounts) -> None:
            progress.update(task, completed=counts.looked_at)
            if received.number:
                raise KeyboardInterrupt

        try:
            yield step
        except PercolatorError:
            output.note("marked cells stay marked: fix the error and run the same command again")
            raise


def _rows(db: Database, observer: Observer) -> int:
    snapshot = db.snapshot()
    tags = [tag for table, _ in observer.observe for tag in snapshot.handle_of(table).tags]
    return sum(snapshot.count_rows([(tag, b"", None) for tag in tags]))
