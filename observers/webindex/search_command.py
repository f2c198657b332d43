"""The command ``search``: ranked pages of the web index."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.text import Text

from observers.webindex.index import DEFAULT_PATH, open_index
from observers.webindex.program import program
from observers.webindex.search import Result
from observers.webindex.search import search as ranked
from percolator_core.cli import output as outputs
from percolator_core.cli.output import ExitCode, Failure

_MARKED: Final = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)


def search(
    query: Annotated[
        list[str], typer.Argument(metavar="QUERY", help="The words to search for.", show_default=False)
    ],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The number of results.")] = 10,
    index: Annotated[
        Path | None,
        typer.Option(
            envvar="PERCOLATOR_SERVING",
            help="The serving index. Default: .percolator/serving.db, or else the index of the last demo.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Search the web index: pages with all the words, best first."""
    output = outputs.current()
    words = " ".join(query)
    path = _existing(index)
    found = ranked(words, limit, index=open_index(path))
    lines = [result_text(place, result) for place, result in enumerate(found, 1)]
    output.result(
        {"query": words, "index": str(path), "results": [asdict(result) for result in found]},
        *lines,
        *([] if lines else [f"Nothing is found for {words!r}."]),
    )


def result_text(place: int, result: Result, width: int | None = None) -> Text:
    """Format a result in three lines: number and title, URL and duplicates, snippet with found words in bold.

    Lines are cut to ``width``.
    """
    room = None if width is None else width - 4
    snippet = _highlighted(" ".join(result.snippet.split()))
    if room is not None and snippet.spans and snippet.spans[0].end > room:
        # Keep the first found word visible.
        snippet = Text("…").append_text(snippet[snippet.spans[0].start - room // 4 :])
    url = Text(result.url, "green")
    if result.size > 1:
        url.append(f"  and {result.size - 1:,} more like it", "dim")
    title = Text(result.title or result.url, "bold cyan")
    for text in (title, url, snippet):
        if room is not None:
            text.truncate(room, overflow="ellipsis")
    text = Text.assemble((f"{place:>3} ", "dim"), title, "\n    ", url)
    return Text.assemble(text, "\n    ", snippet) if snippet else text


def _existing(index: Path | None) -> Path:
    default = Path(DEFAULT_PATH)
    candidates = [index] if index is not None else [default, default.parent / "demo" / default.name]
    for path in candidates:
        if path.is_file():
            return path
    raise Failure(
        f"There is no index at {candidates[0]}: build one with `{program()} demo`, or name it with --index.",
        ExitCode.UNAVAILABLE,
    )


def _highlighted(snippet: str) -> Text:
    text = Text()
    for position, part in enumerate(_MARKED.split(snippet)):
        text.append(part, "bold yellow" if position % 2 else None)
    return text
