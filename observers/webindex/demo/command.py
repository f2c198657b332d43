"""The command ``demo``: build, search and update a web index of real documents."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from observers.webindex.program import program
from percolator_core.cli import output as outputs
from percolator_core.cli.output import ExitCode

_WIDEST: Final = 100
_FETCHED_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


Docs = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="A folder of HTML, text or Markdown files, which are only read. "
        "Default: the documentation of the Python distributions installed here.",
        show_default=False,
    ),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Load at most this many documents.", show_default=False)
]
Fresh = Annotated[bool, typer.Option("--fresh/--keep", help="Start over, or keep the state of earlier runs.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        help="The folder for documents, store and index. Default: .percolator/demo; with --docs, another "
        "folder beside it.",
        show_default=False,
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also save the output as a picture.", show_default=False),
]


def demo(
    docs: Docs = None,
    limit: Limit = None,
    fresh: Fresh = False,
    folder: Folder = None,
    svg: Picture = None,
) -> None:
    """Build a web index of real documents, change some, and watch the updates.

    The folder keeps everything: a second run loads only changes, and then changes other documents.
    """
    output = outputs.current()
    chosen = [("--docs", docs), ("--limit", limit), ("--folder", folder)]
    options = [str(part) for one in chosen if one[1] is not None for part in one]
    again = f"{program()} {shlex.join(['demo', *options])}"
    output.carry_on = f"`{again}` carries on"
    from observers.webindex import demo as application

    _stop_in_order()
    console = _console(shown=not output.as_json, record=svg is not None)
    show = application.Show(console)
    report = application.run(application.Settings(docs=docs, limit=limit, folder=folder, fresh=fresh), show)
    show.close(report, again)
    if svg is not None:
        _draw(console, svg)
    if output.as_json:
        output.result(report.to_json())
    if not report.good:
        output.note("the demo found faults: " + "; ".join(report.faults))
        raise typer.Exit(ExitCode.FAILURE)


def _stop_in_order() -> None:
    """Handle a kill and a closed terminal like Ctrl-C, so that worker, Spark and store are shut down.

    A signal that the caller ignores (nohup) stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _draw(console: Console, svg: Path) -> None:
    # Without the font's URL the picture uses the reader's own monospaced font, and fetches nothing.
    picture = _FETCHED_FONT.sub("", console.export_svg(title="make demo"))
    svg.write_text(picture, encoding="utf-8")


def _console(*, shown: bool, record: bool) -> Console:
    file = sys.stdout if shown else io.StringIO()
    console = Console(file=file, record=record, highlight=False, markup=False, emoji=False)
    known = console.is_terminal or "COLUMNS" in os.environ
    console.width = min(console.width, _WIDEST) if known else _WIDEST
    return console
