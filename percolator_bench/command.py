"""The command ``bench``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from percolator_core.cli import output as outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from percolator_bench import Scale

Suites = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUITE",
        help="micro, latency, memory, oracle, tpce, contention, growth, webindex, stress, finding, "
        "duplicates, backlog, kills, tables, base, views; all if none is named.",
        show_default=False,
    ),
]
Operations = Annotated[
    int,
    typer.Option(
        min=1,
        help="Operations of each contestant in a round of micro; five times as many if they share round "
        "trips.",
    ),
]
Rounds = Annotated[int, typer.Option(min=1, help="Interleaved rounds; figures are medians over them.")]
Width = Annotated[int, typer.Option(min=1, help="Largest number of operations in flight in micro.")]
Writes = Annotated[int, typer.Option(min=1, help="Writes whose latency is measured.")]
Cells = Annotated[int, typer.Option(min=1, help="Cells whose memory is measured.")]
CellsMax = Annotated[int, typer.Option(min=1, help="Cells of the largest store in growth.")]
Customers = Annotated[int, typer.Option(min=1, help="Customers of the brokerage in tpce.")]
Documents = Annotated[int, typer.Option(min=1, help="Largest number of documents in the index of webindex.")]
Pages = Annotated[int, typer.Option(min=1, help="Pages of the generated crawl in webindex.")]
Marks = Annotated[int, typer.Option(min=1, help="Notifications that wait in backlog.")]
Events = Annotated[
    int, typer.Option(min=1, help="Events that are counted in kills, while workers are killed.")
]
Numbers = Annotated[int, typer.Option(min=1, help="Integers of the first load in stress.")]
Observed = Annotated[int, typer.Option(min=1, help="Clean cells of the largest store in finding.")]
Changes = Annotated[int, typer.Option(min=1, help="Changes of each workload in duplicates.")]
Rows = Annotated[int, typer.Option(min=1, help="Rows of the table in tables, base and views.")]
OutputFile = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Write the JSON to this file, too, after each suite."),
]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Draw the figures: .png, .svg or .pdf; needs matplotlib."),
]


def bench(
    suites: Suites = None,
    *,
    operations: Operations = 2000,
    rounds: Rounds = 7,
    width: Width = 256,
    writes: Writes = 500,
    cells: Cells = 200_000,
    cells_max: CellsMax = 5_000_000,
    customers: Customers = 1000,
    documents: Documents = 300,
    pages: Pages = 5000,
    marks: Marks = 10_000_000,
    events: Events = 100_000,
    numbers: Numbers = 20_000,
    observed: Observed = 1_000_000,
    changes: Changes = 4000,
    rows: Rows = 1_000_000,
    output_file: OutputFile = None,
    plot: Plot = None,
) -> None:
    """Measure this machine: operations beside Redis and PostgreSQL, a brokerage, observers, growth, memory.

    All servers are private. The command also succeeds if a figure misses its target.
    """
    from percolator_bench import Scale

    scale = Scale(
        operations=operations,
        rounds=rounds,
        width=width,
        writes=writes,
        cells=cells,
        cells_max=cells_max,
        customers=customers,
        documents=documents,
        pages=pages,
        marks=marks,
        events=events,
        numbers=numbers,
        observed=observed,
        changes=changes,
        rows=rows,
    )
    _measure(suites or (), scale, output_file, plot)


def _measure(suites: Sequence[str], scale: Scale, output_file: Path | None, plot: Path | None) -> None:
    from percolator_bench import run
    from percolator_bench.plot import check, draw
    from percolator_bench.progress import StatusLine
    from percolator_bench.runner import interruptible

    output = outputs.current()
    output.carry_on = "its servers are stopped; run it again to measure anew"
    if plot is not None:
        check(plot)
    line = StatusLine(sys.stderr)
    try:
        keep = None if output_file is None else lambda so_far: so_far.write(output_file)
        with interruptible(line.show) as tell:
            report = run(suites, scale, tell=tell, keep=keep)
    finally:
        line.clear()
    if plot is not None:
        draw(report, plot)
    output.result(report.as_dict(), report.for_terminal())
