"""The benchmarks: ``bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from percolator_core.cli import output as outputs


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUITE", help="micro, latency, memory; all when none is named.", show_default=False
        ),
    ] = None,
    *,
    operations: Annotated[
        int, typer.Option(min=1, help="Operations of a round; five times as many under the hub.")
    ] = 2000,
    rounds: Annotated[
        int, typer.Option(min=1, help="Interleaved rounds; figures are medians over them.")
    ] = 7,
    writes: Annotated[int, typer.Option(min=1, help="Writes whose latency is taken.")] = 500,
    cells: Annotated[int, typer.Option(min=1, help="Cells that are weighed.")] = 200_000,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the JSON to this file too.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the figures: .png, .svg or .pdf; needs matplotlib."),
    ] = None,
) -> None:
    """Measure this machine: operations beside the raw store, latency, memory.

    On private servers of its own. A target that is not met is no failure of the command.
    """
    from percolator_core.bench import Scale, run

    output = outputs.current()
    with output.status("starting") as status:
        scale = Scale(operations, rounds, writes, cells)
        report = run(suites or (), scale, tell=lambda name: status.update(f"measuring {name}"))
    if output_file is not None:
        report.write(output_file)
    if plot is not None:
        from percolator_core.bench.plot import draw

        draw(report, plot)
    output.result(report.as_dict(), report.table())
