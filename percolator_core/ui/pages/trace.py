"""The trace of a row: every run that its changes caused, with times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from fastapi import APIRouter, Request, Response

from percolator_core.admin.recent import recent_runs
from percolator_core.admin.trace import Change, Outcome, Run, Trace
from percolator_core.admin.trace import trace as read_trace
from percolator_core.admin.trace.text import KIND_VERBS, missing_parts, run_notes, state_text, summary
from percolator_core.errors import ConfigurationError, LockTimeout, UnknownTable, abbreviated
from percolator_core.notation.amounts import count_of, show_age
from percolator_core.notation.error import NotationError
from percolator_core.notation.typedtext import parse_row
from percolator_core.ui.access import ChainWithData
from percolator_core.ui.declarations import declared
from percolator_core.ui.links import Links, column_of, column_token
from percolator_core.ui.rendering import page
from percolator_core.ui.stores import stores
from percolator_core.ui.values import visible

if TYPE_CHECKING:
    from percolator_core.observers import Chain

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
    """The outcome of a change for one observer, drawn below the change.

    ``number`` is the run's number if several outcomes have the run. ``is_above`` is True if the run is drawn
    above. ``start`` and ``width`` are those of the time bar. ``more`` counts the children that are left out.
    """

    change: Change
    outcome: Outcome
    run: Run | None
    is_top: bool
    is_above: bool
    number: int | None = None
    start: int = 0
    width: int = 0
    children: list[Branch] = field(default_factory=list)
    more: int = 0


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
    links = Links(request, chain, db.tables())
    observed: dict[str, list[str]] = {}
    for of, name in known.observed:
        observed.setdefault(of, []).append(name)
    found, problem = None, ""
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
    # A trace is of most use from the beginning of the chain.
    first = [one.name for one in next(iter(known.order()), ())]
    recent = None if table else recent_runs(db, known, first)
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
        recent=recent,
        now=db.store.now() if recent is not None else None,
        **(_drawn(found, known, links) if found is not None else {}),
    )


def _drawn(found: Trace, known: Chain, links: Links) -> dict[str, Any]:
    """Return the template's values about a trace."""
    return {
        "title": links.shown(found.table, found.row),
        "row_link": links.row(found.table, found.row),
        "roots": Drawing(found).roots,
        "summary": summary(found, show_span),
        "total": show_span(found.seconds or 0),
        "scale": SCALE,
        "verbs": KIND_VERBS,
        "badges": _BADGES,
        "span": show_span,
        "notes_of": run_notes,
        "wrote": _wrote,
        "state_of": partial(_state, links),
        "notes": missing_parts(found, known, "the chain's chain.yaml", _DEEPER, limit=CHANGES),
    }


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

    def __init__(self, found: Trace) -> None:
        self._runs = {run.number: run for run in found.runs}
        self._met = Counter(outcome.run for outcome in found.outcomes if outcome.run is not None)
        self._drawn: set[int] = set()
        begins = [one.timestamp for one in found.changes if one.timestamp is not None]
        self._begin = min([*begins, *(run.start_timestamp for run in found.runs)], default=0)
        end = max((run.commit_timestamp for run in found.runs), default=self._begin)
        self._span = max(1, end - self._begin)
        self.roots = [(change, self._branches(change)) for change in found.changes]

    def _branches(self, change: Change) -> list[Branch]:
        branches: list[Branch] = []
        # A stack instead of recursion, as in the command line's tree, so that both draw a run at the same
        # place.
        todo = [(branches, change, outcome, True) for outcome in reversed(change.outcomes)]
        while todo:
            place, cause, outcome, is_top = todo.pop()
            run = self._runs.get(outcome.run or 0)
            is_above = run is not None and run.number in self._drawn
            branch = Branch(cause, outcome, run, is_top, is_above)
            place.append(branch)
            if run is None:
                continue
            branch.number = run.number if self._met[run.number] > 1 else None
            if is_above:
                continue
            self._drawn.add(run.number)
            branch.width = max(4, SCALE * (run.commit_timestamp - run.start_timestamp) // self._span)
            start = SCALE * (run.start_timestamp - self._begin) // self._span
            branch.start = min(start, SCALE - branch.width)
            pairs = [(one, each) for one in run.changes for each in one.outcomes]
            branch.more = len(pairs[BRANCHES:]) + run.unfollowed
            todo += [(branch.children, one, each, False) for one, each in reversed(pairs[:BRANCHES])]
        return branches


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


def _state(links: Links, outcome: Outcome) -> str:
    return state_text(outcome, visible(" ".join(links.redact(outcome.error or "")[:500].split())))
