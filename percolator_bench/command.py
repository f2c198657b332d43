"""The benchmarks: ``bench``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from percolator_core.cli import output as outputs


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUITE",
            help="micro, latency, memory, oracle, tpce, contention, growth, webindex, stress, finding, "
            "duplicates, backlog, kills, tables; all if none is named.",
            show_default=False,
        ),
    ] = None,
    *,
    operations: Annotated[
        int, typer.Option(min=1, help="Operations of a round of micro; five times as many under the hub.")
    ] = 2000,
    rounds: Annotated[
        int, typer.Option(min=1, help="Interleaved rounds; figures are medians over them.")
    ] = 7,
    width: Annotated[int, typer.Option(min=1, help="Most operations in flight in micro.")] = 256,
    writes: Annotated[int, typer.Option(min=1, help="Writes whose latency is taken.")] = 500,
    cells: Annotated[int, typer.Option(min=1, help="Cells that are weighed.")] = 200_000,
    cells_max: Annotated[int, typer.Option(min=1, help="Cells of the largest store in growth.")] = 5_000_000,
    customers: Annotated[int, typer.Option(min=1, help="Customers of the brokerage in tpce.")] = 1000,
    documents: Annotated[int, typer.Option(min=1, help="Most documents indexed in webindex.")] = 300,
    pages: Annotated[int, typer.Option(min=1, help="Pages of the made crawl in webindex.")] = 5000,
    marks: Annotated[int, typer.Option(min=1, help="Notifications that wait in backlog.")] = 10_000_000,
    events: Annotated[
        int, typer.Option(min=1, help="Events that are counted in kills, while workers are killed.")
    ] = 100_000,
    numbers: Annotated[int, typer.Option(min=1, help="Integers of the first load in stress.")] = 20_000,
    observed: Annotated[
        int, typer.Option(min=1, help="Clean cells of the largest store in finding.")
    ] = 1_000_000,
    changes: Annotated[int, typer.Option(min=1, help="Changes of each workload in duplicates.")] = 4000,
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table in tables.")] = 1_000_000,
    output_file: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write the JSON to this file too, after each suite."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the figures: .png, .svg or .pdf; needs matplotlib."),
    ] = None,
) -> None:
    """Measure this machine: operations beside Redis and PostgreSQL, a brokerage, observers, growth, memory.

    On private servers of its own. A target that is not met is no failure of the command.
    """
    from percolator_bench import Scale, run
    from percolator_bench.plot import check, draw
    from percolator_bench.progress import StatusLine
    from percolator_bench.runner import interruptible

    output = outputs.current()
    output.carry_on = "its servers are stopped; run it again to measure anew"
    if plot is not None:
        check(plot)
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
    line = StatusLine(sys.stderr)
    try:
        keep = None if output_file is None else lambda so_far: so_far.write(output_file)
        with interruptible():
            report = run(suites or (), scale, tell=line.show, keep=keep)
    finally:
        line.clear()
    if plot is not None:
        draw(report, plot)
    output.result(report.as_dict(), report.for_terminal())
