"""The trace of a row: every run that its changes caused, with times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from airflow.sdk.log import redact
from fastapi import APIRouter, Request, Response

from percolator_airflow.ui.access import ChainWithData
from percolator_airflow.ui.chains import declared
from percolator_airflow.ui.links import Links, column_of, column_token
from percolator_airflow.ui.rendering import page
from percolator_airflow.ui.stores import stores
from percolator_airflow.ui.values import visible
from percolator_core.admin.trace import Change, Outcome, Run, Trace
from percolator_core.admin.trace import trace as read_trace
from percolator_core.admin.trace.text import KIND_VERBS, missing_parts, run_notes, state_text, summary
from percolator_core.errors import ConfigurationError, LockTimeout, UnknownTable, abbreviated
from percolator_core.notation.amounts import count_of, show_age
from percolator_core.notation.error import NotationError
from percolator_core.notation.times import show_time
from percolator_core.notation.typedtext import parse_row

router = APIRouter()

DEPTH: Final = 20
"""A sequence of runs, each caused by the one before, is followed for at most this many runs."""

CHANGES: Final = 300
"""At most this many changes are followed."""

BRANCHES: Final = 20
"""At most this many branches of a run are drawn."""

_WROTE: Final = 12
"""The line of a run names at most this many columns."""

SCALE: Final = 1000
"""The width of a time bar in the units of its SVG."""

_DEEPER: Final = "`percolator trace --depth` goes further"
_BADGES: Final = {"quarantined": "bad", "retrying": "warn", "pending": "warn", "leased": "warn"}


@dataclass(slots=True)
class Branch:
    """The outcome of a change for one observer, drawn below the change."""

    observer: str
    cell: str
    cell_link: str | None
    state: str = ""
    badge: str = ""
    link: str | None = None
    number: int | None = None
    again: bool = False
    above: bool = False
    began: str = ""
    took: str = ""
    seen: str = ""
    wrote: list[str] = field(default_factory=list)
    start: int = 0
    width: int = 0
    children: list[Branch] = field(default_factory=list)
    more: int = 0


@dataclass(frozen=True, slots=True)
class Root:
    """A change of the row itself."""

    cell: str
    link: str | None
    said: str
    time: str
    branches: list[Branch]


@router.get("/{name}/trace")
def trace(  # noqa: PLR0917 - what the form sends
    request: Request,
    chain: ChainWithData,
    table: str = "",
    row: str = "",
    column: str = "",
    change: str = "latest",
) -> Response:
    """Show the form, and the trace of the row that it names."""
    db, known = stores.of(chain), declared(chain)
    definitions = {one.name: one for one in db.tables()}
    links = Links(request, chain, definitions.values())
    observed: dict[str, list[str]] = {}
    for of, name in known.observed:
        observed.setdefault(of, []).append(name)
    found, problem, key = None, "", b""
    if table:
        try:
            wanted = parse_change(change)
            column = column_of(column, lambda: observed.get(table, []))
            key = parse_row(db.catalog.table(table).definition, row)
            found = read_trace(
                db, known, table, key, column or None, change=wanted, depth=DEPTH, limit=CHANGES
            )
        except (NotationError, ConfigurationError, UnknownTable, LockTimeout, ValueError) as error:
            problem = str(error)
    drawing = Drawing(found, links) if found is not None else None
    return page(
        request,
        "trace.html",
        chain=chain,
        tab="trace",
        status=400 if problem else 200,
        links=links,
        asked={"table": table, "row": row, "column": column_token(column), "change": change},
        observed=observed,
        problem=problem,
        found=found,
        title=links.shown(table, key) if found is not None else "",
        row_link=links.row(table, key) if found is not None else None,
        roots=drawing.roots if drawing is not None else [],
        summary=summary(found, show_span) if found is not None else "",
        total=show_span(found.seconds or 0) if found is not None else "",
        scale=SCALE,
        notes=missing_parts(found, known, "the chain's chain.yaml", _DEEPER, limit=CHANGES) if found else [],
    )


def parse_change(text: str) -> Literal["latest", "all"] | int:
    """Parse the form's choice of changes. Raises NotationError for an unknown one."""
    if text in {"", "latest"}:
        return "latest"
    if text == "all":
        return "all"
    if text.isascii() and text.isdecimal() and 0 < int(text[:17]) < 2**53:
        return int(text)
    raise NotationError(
        f"{text[:80]!r} is not a change: write latest, all, or the timestamp of a change from the row's page"
    )


def show_span(seconds: float) -> str:
    """Format a length of time, exactly if it is short."""
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 120 else show_age(seconds)


class Drawing:
    """The trace as nested lists: a run is drawn at its first occurrence; later occurrences refer to it."""

    def __init__(self, found: Trace, links: Links) -> None:
        self._links = links
        self._runs = {run.number: run for run in found.runs}
        self._met = Counter(outcome.run for outcome in found.outcomes if outcome.run is not None)
        self._drawn: set[int] = set()
        begins = [one.timestamp for one in found.changes if one.timestamp is not None]
        self._begin = min([*begins, *(run.start_timestamp for run in found.runs)], default=0)
        end = max((run.commit_timestamp for run in found.runs), default=self._begin)
        self._span = max(1, end - self._begin)
        self.roots = [self._root(change) for change in found.changes]

    def _root(self, change: Change) -> Root:
        branches: list[Branch] = []
        # A stack instead of recursion, as in the command line's tree, so that both draw a run at the same
        # place.
        todo = [(branches, change, outcome, True) for outcome in reversed(change.outcomes)]
        while todo:
            place, cause, outcome, top = todo.pop()
            run = self._runs.get(outcome.run or 0)
            branch = self._branch(cause, outcome, run, top=top)
            place.append(branch)
            if run is None or branch.above:
                continue
            self._drawn.add(run.number)
            pairs = [(one, each) for one in run.changes for each in one.outcomes]
            branch.more = len(pairs[BRANCHES:]) + run.unfollowed
            todo += [(branch.children, one, each, False) for one, each in reversed(pairs[:BRANCHES])]
        when = "" if change.timestamp is None else show_time(change.timestamp, to="microseconds")
        cell, link = self._cell(change)
        return Root(cell, link, KIND_VERBS[change.kind], when, branches)

    def _branch(self, change: Change, outcome: Outcome, run: Run | None, *, top: bool) -> Branch:
        cell, link = self._cell(change) if not top else ("", None)
        made = Branch(outcome.observer, cell, link)
        if run is None:
            made.state, made.badge = _state(outcome), _BADGES.get(outcome.state, "")
            if outcome.state == "quarantined":
                key = self._links.key(change.table, change.row)
                made.link = self._links.to("quarantine", observer=outcome.observer, row=key)
            return made
        made.number = run.number if self._met[run.number] > 1 else None
        made.again, made.above = outcome.again, run.number in self._drawn
        made.began = (
            show_time(run.start_timestamp, to="microseconds")
            if outcome.lag is None
            else f"+{show_span(outcome.lag)}"
        )
        made.took = show_span(run.seconds)
        made.seen = ", ".join(run_notes(run))
        made.wrote = _wrote(run)
        made.start = SCALE * (run.start_timestamp - self._begin) // self._span
        made.width = max(4, SCALE * (run.commit_timestamp - run.start_timestamp) // self._span)
        made.start = min(made.start, SCALE - made.width)
        return made

    def _cell(self, change: Change) -> tuple[str, str | None]:
        shown = (
            f"{change.table} {self._links.shown(change.table, change.row, 60)} {abbreviated(change.column)}"
        )
        return shown, self._links.cell(change.table, change.row, change.column)


def _wrote(run: Run) -> list[str]:
    if not run.recorded:
        return ["unknown cells"]
    counts = Counter((f"{cell.table}.{abbreviated(cell.column)}", cell.kind) for cell in run.cells)
    wrote = [
        (f"{count:,} " if count > 1 else "") + name + ("" if kind == "put" else f" ({KIND_VERBS[kind]})")
        for (name, kind), count in counts.most_common(_WROTE)
    ]
    rest = run.written - sum(count for _, count in counts.most_common(_WROTE))
    if rest > 0:
        wrote.append(f"{count_of(rest, 'cell')} more")
    return wrote or ["nothing"]


def _state(outcome: Outcome) -> str:
    return state_text(outcome, visible(" ".join(redact(outcome.error or "")[:500].split())))
