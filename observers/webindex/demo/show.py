"""The demo's output on a terminal, in 80 to 100 columns."""

from __future__ import annotations

from contextlib import contextmanager
from os.path import commonprefix
from typing import TYPE_CHECKING, Final

from rich.align import Align
from rich.console import Group
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from observers.webindex.program import program
from observers.webindex.search_command import result_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, RenderableType

    from observers.webindex.demo.report import Found, Proof, Report
    from percolator_core import Chain
    from percolator_core.spark import LoadProgress

_TITLES: Final = {
    "store": "The store",
    "load": "Loading the documents with Spark",
    "chain": "Running the observers until the chain is idle",
    "search": "Searching",
    "update": "Changing a few documents while a worker runs",
    "check": "Recomputing everything from the documents, to compare",
}
_HAPPENED: Final = {
    "paragraph": "new paragraph",
    "heading": "new heading",
    "link": "new link",
    "deleted": "deleted",
    "duplicated": "copied to a 2nd URL",
}


class Show:
    """Print the scenes on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = console.width
        self._scene = 0

    def begin(self, scene: str, report: Report) -> None:
        """Print the heading of a scene."""
        if not self._scene:
            what = f"run {report.run}" if report.run > 1 else "first run"
            self._print(
                Text.assemble(("percolator", "bold"), f"  a web index that keeps itself up to date, {what}")
            )
        self._scene += 1
        self._console.print()
        self._console.print(
            Rule(Text(f"{self._scene}  {_TITLES[scene]}", "bold"), align="left", style="dim", characters="─")
        )

    def end(self, scene: str, report: Report) -> None:
        """Print the results of a scene, and its time."""
        for renderable in {
            "load": _loaded,
            "chain": _processed,
            "update": _updated,
            "check": _checked,
        }.get(scene, lambda _report, _width: [])(report, self._width - 2):
            self._print(renderable)
        self._console.print(Align.right(Text(_duration(report.scenes[scene]), "dim")))

    def store(self, version: str, chain: Chain, folder: str, runs: int) -> None:
        """Print the store, its folder and the chain."""
        kept = f"kept from {runs} earlier run{'s' if runs > 1 else ''}" if runs else "new"
        self._print(f"A redis-server {version} of its own, state {kept}:")
        self._print(Text(folder, "green", overflow="fold"))
        order = " → ".join(", ".join(observer.name for observer in group) for group in chain.order())
        self._print(f"{len(chain.tables)} tables; observers: {order}")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show a spinner, on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(Text(text, "dim")):
            yield

    @contextmanager
    def loading(self, files: int) -> Iterator[Callable[[LoadProgress], object]]:
        """Show a progress bar of loaded documents."""
        with self._progress() as progress:
            task = progress.add_task("starting Spark", total=files, said="")

            def advance(done: LoadProgress) -> None:
                rate = f"{done.read / done.seconds:,.0f} docs/s" if done.read and done.seconds else ""
                progress.update(task, description="loading", completed=done.read, said=rate)

            yield advance

    @contextmanager
    def processing(self, documents: int) -> Iterator[Callable[[dict[str, int], int], object]]:
        """Show a progress bar of runs; the total includes the known pending runs."""
        with self._progress() as progress:
            task = progress.add_task("observing", total=None, said="")

            def advance(ran: dict[str, int], waiting: int) -> None:
                done = sum(ran.values())
                elapsed = progress.tasks[0].elapsed or 0.0
                parsed = min(ran.get("document_processor", 0), documents)
                rate = f"{parsed / elapsed:,.0f} docs/s" if elapsed and parsed < documents else ""
                said = f"{parsed:,} of {documents:,} docs, {done:,} runs {rate}"
                progress.update(task, completed=done, total=done + waiting, said=said)

            yield advance

    def searches(self, searches: list[Found]) -> None:
        """Print queries and results."""
        for position, found in enumerate(searches):
            if position:
                self._console.print()
            self._print(
                Text.assemble("search ", (found.query, "bold"), (f"   {found.milliseconds:.1f} ms", "dim"))
            )
            for place, result in enumerate(found.results, 1):
                self._print(result_text(place, result, self._width - 2))

    def close(self, report: Report, again: str) -> None:
        """Print the figures, and ``again``, the command that repeats the demo."""
        assert report.updated is not None
        seconds = sum(report.scenes.values())
        first = sum(report.first_run.values())
        grid = Table.grid(padding=(0, 2))
        grid.add_column(justify="right", style="bold", no_wrap=True)
        grid.add_column()
        grid.add_row(f"{report.documents:,}", "documents in the index")
        if first:
            grid.add_row(f"{first:,}", f"runs of observers to build it, in {report.first_seconds:.1f} s")
        share = f", {report.updated.ran / first:.1%} of that" if first else ""
        grid.add_row(f"{report.updated.ran:,}", f"runs for {len(report.changes)} changed documents{share}")
        grid.add_row(f"{report.median:.0f} ms", "from the write of a document until it is found (median)")
        verdict = "nothing" if not report.violations else f"{len(report.violations)} things"
        grid.add_row(verdict, "wrong in the index, after a full recomputation")
        for fault in report.faults:
            grid.add_row("✗", fault, style="red")
        grid.add_row(f"{seconds:.0f} s", "in all")
        next_steps = Text.assemble(
            "Again, with other changes: ",
            (again, "bold"),
            "\nSearch it: ",
            (f"{program()} search --index {report.index} WORDS", "bold"),
        )
        self._console.print()
        border = "green" if report.good else "red"
        self._console.print(
            Panel(Group(grid, Text(), next_steps), border_style=border, width=min(self._width, 84))
        )

    def _print(self, renderable: RenderableType) -> None:
        self._console.print(Padding(renderable, (0, 0, 0, 2), expand=False))

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("  {task.description}"),
            BarColumn(24),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )


def _loaded(report: Report, _width: int) -> Iterator[RenderableType]:
    done = report.loaded
    assert done is not None
    rate = done.read / max(done.seconds - done.start_seconds, 0.001)
    yield (
        f"{done.read:,} documents read, {done.start_seconds:.1f} s to start Spark, "
        f"{done.seconds - done.start_seconds:.1f} s to load ({rate:,.0f} docs/s, {done.tasks} tasks)"
    )
    kinds = {
        "new": done.new,
        "changed": done.changed,
        "unchanged": done.unchanged,
        "deleted": done.deleted,
        "bad": done.bad,
    }
    yield Text(", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count), "bold")


def _processed(report: Report, _width: int) -> Iterator[RenderableType]:
    done = report.processed
    assert done is not None
    if not done.ran:
        yield Text("nothing changed: 0 observers ran", "bold")
        return
    loaded = report.loaded
    changed = loaded.new + loaded.changed + loaded.deleted if loaded is not None else 0
    rates = f"{changed / done.seconds:,.0f} docs/s, {done.ran / done.seconds:,.0f} runs/s"
    yield f"{changed:,} documents in {done.seconds:.1f} s: {rates}"
    table = _table("observer", "runs")
    for name, ran in done.observers.items():
        table.add_row(name, f"{ran:,}")
    table.add_row("all", f"{done.ran:,}", style="bold")
    yield table
    yield f"{done.shown:,} pages in the search index, duplicates collapsed"


def _updated(report: Report, width: int) -> Iterator[RenderableType]:
    done = report.updated
    assert done is not None
    base = _common_base([one.change.url for one in report.changes if one.change.kind != "duplicated"])
    room = width - 36
    document = f"document  ({base}…)" if 0 < len(base) < room - 14 else "document"
    table = _table("what happened", document, "until found")
    for one in report.changes:
        table.add_row(
            _HAPPENED[one.change.kind],
            _tail(one.change.url.removeprefix(base), room),
            f"{one.milliseconds:.1f} ms",
        )
    table.add_row("median", "", f"{report.median:.1f} ms", style="bold")
    yield table
    yield Text(" ")
    table = _table("observer", "first run", "this update", "share")
    for name, ran in done.observers.items():
        first = report.first_run.get(name, 0)
        table.add_row(name, f"{first:,}", f"{ran:,}", f"{ran / first:.1%}" if first else "")
    first = sum(report.first_run.values())
    table.add_row(
        "all", f"{first:,}", f"{done.ran:,}", f"{done.ran / first:.1%}" if first else "", style="bold"
    )
    yield table
    yield Text(" ")
    yield _proofs(report.proofs, base, width)


def _proofs(proofs: list[Proof], base: str, width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    claims = max((len(proof.claim) for proof in proofs), default=0)
    for proof in proofs:
        mark = Text("✓ ", "green") if proof.holds else Text("✗ ", "bold red")
        shown = ", ".join(_tail(url.removeprefix(base), width // 3) for url in proof.urls)
        said = Text.assemble((proof.query, "bold"), f" → {shown or 'not found'}")
        said.truncate(width - claims - 4, overflow="ellipsis")
        table.add_row(Text.assemble(mark, proof.claim), said)
    return table


def _checked(report: Report, _width: int) -> Iterator[RenderableType]:
    if report.violations:
        yield Text(f"✗ {len(report.violations)} cells or postings are wrong; the first ones:", "bold red")
        yield from (Text(violation, overflow="fold") for violation in report.violations[:5])
    else:
        yield Text.assemble(
            ("✓ ", "green"),
            f"{report.documents:,} documents: every page, link, rank, cluster and posting is right",
        )
    if report.quarantined:
        yield Text(f"✗ {report.quarantined} cells are in quarantine: see percolator failed", "bold red")


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(first, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="left" if column.startswith("document") else "right", no_wrap=True)
    return table


def _common_base(urls: list[str]) -> str:
    """Return the common folder of the URLs."""
    start = commonprefix(urls)  # noqa: RUF071 - commonpath would turn two slashes into one
    return start[: start.rfind("/") + 1]


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"


def _tail(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[1 - width :]
