"""Plots of the chain's history: backlog, runs, failures and more.

The monitor's DAG or ``percolator ui`` records it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response

from percolator_core.admin.samples import ObserverSample, Sample, samples
from percolator_core.errors import ConfigurationError
from percolator_core.ui.access import CurrentViewer, ReadableChain
from percolator_core.ui.declarations import declared
from percolator_core.ui.host import ShownChain
from percolator_core.ui.plotting import HEIGHT, WIDTH, Curve, Plot, Span, added, busiest, peak, rates
from percolator_core.ui.rendering import page
from percolator_core.ui.stores import stores

router = APIRouter()

SPANS: Final = {"1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600, "all": None}
"""The periods that a user can choose, in seconds; None means the whole history."""

MOST: Final = 12
"""A plot has at most this many observers, because more than 12 styles of curves are hard to distinguish."""

_POINTS: Final = 360
"""A plot has at most this many samples."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of an observer in the shown period."""

    name: str
    backlog: int | None
    most: float | None
    oldest: float | None
    ran: int
    failures: int
    failed: int | None


@router.get("/{name}/plots")
def show(
    request: Request,
    chain: ReadableChain,
    user: CurrentViewer,
    span: Annotated[Literal["1h", "6h", "24h", "all"], Query()] = "6h",
    observer: Annotated[list[str], Query(max_length=1000)] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Show the plots of a period, for the chosen observers or else for the busiest."""
    db = stores.of(chain)
    now, length = db.store.now(), SPANS[span]
    since = None if length is None else now - length * 1_000_000
    found = samples(db, since=since, limit=_POINTS)
    columns = _columns(found, _order(chain, found))
    chosen = [name for name in columns if name in observer]
    styles = {name: style for style, name in enumerate(chosen[:MOST] or _busiest(columns))}
    # The plots begin with the first sample, also if the period is longer.
    begin = found[0].time if found else now
    times = [sample.time / 1e6 for sample in found]
    shown = Span(begin / 1e6, (found[-1].time if since is None and found else now) / 1e6, times)
    return page(
        request,
        "plots.html",
        chain=chain,
        tab="plots",
        span=span,
        spans=SPANS,
        looks=len(found),
        plots=_plots(found, columns, styles, shown) if found else [],
        times=json.dumps([round(time) for time in times]),
        ticks=shown.ticks() if found else [],
        shares=json.dumps([round(shown.share(time), 4) for time in times]),
        styles=styles,
        chosen=chosen,
        figures=[_figures(name, column) for name, column in columns.items()],
        most=MOST,
        width=WIDTH,
        height=HEIGHT,
        schedules=user.schedules(chain),
        as_json=lambda curves: json.dumps([[_short(value) for value in one.values] for one in curves]),
    )


Column = Sequence[ObserverSample | None]


def _order(chain: ShownChain, found: Sequence[Sample]) -> list[str]:
    """Return the observers of the samples, in the chain's order if it is known."""
    there = dict.fromkeys(name for sample in found for name in sample.observers)
    try:
        known = [one.name for generation in declared(chain).order() for one in generation]
    except ConfigurationError:
        known = []
    return [*(name for name in known if name in there), *(name for name in there if name not in set(known))]


def _columns(found: Sequence[Sample], names: Sequence[str]) -> dict[str, Column]:
    return {name: [sample.observers.get(name) for sample in found] for name in names}


def _busiest(columns: Mapping[str, Column]) -> list[str]:
    """Return the busiest observers: those with the highest sum of quarantine, backlog and runs.

    Before the addition, each of the three numbers is divided by its maximum over all observers.
    """

    def parts(take: Callable[[ObserverSample], float]) -> list[float]:
        each = [peak([take(one) for one in column if one is not None]) or 0.0 for column in columns.values()]
        most = max(each, default=0.0)
        return [one / most if most else 0.0 for one in each]

    failed, backlog = parts(lambda one: one.failed), parts(lambda one: one.peak)
    ran = [float(added([one and one.ran for one in column])) for column in columns.values()]
    most = max(ran, default=0.0) or 1.0
    score = [a + b + c / most for a, b, c in zip(failed, backlog, ran, strict=True)]
    return busiest(list(columns), score, MOST)


def _plots(
    found: Sequence[Sample], columns: Mapping[str, Column], styles: Mapping[str, int], span: Span
) -> list[Plot]:
    def each(take: Callable[[ObserverSample], float | None]) -> list[Curve]:
        return [
            Curve(name, style, [None if one is None else take(one) for one in columns[name]])
            for name, style in styles.items()
        ]

    def speeds(take: Callable[[ObserverSample], int]) -> list[Curve]:
        return [replace(curve, values=rates(span.times, curve.values)) for curve in each(take)]

    def total(name: str, style: int, take: Callable[[Sample], float | None]) -> Curve:
        return Curve(name, style, [take(one) for one in found])

    crew = [total("workers", 0, lambda one: one.workers), total("drains", 7, lambda one: one.drains)]
    return [
        Plot("backlog", "Backlog", "cells", "count", each(lambda one: one.peak), span),
        Plot("oldest", "Oldest", "waiting", "age", each(lambda one: one.oldest or 0.0), span),
        Plot("runs", "Runs", "a second", "rate", speeds(lambda one: one.ran), span),
        Plot("failures", "Failures", "a second", "rate", speeds(lambda one: one.failures), span),
        Plot("quarantine", "Quarantine", "cells", "count", each(lambda one: one.failed), span),
        Plot("locks", "Locks", "held", "count", [total("locks", 0, lambda one: one.locks)], span),
        Plot("memory", "Memory", "of the store", "size", [total("memory", 0, lambda one: one.memory)], span),
        Plot("crew", "Workers and drains", "alive", "count", crew, span),
    ]


def _figures(name: str, column: Column) -> Figures:
    known = [one for one in column if one is not None]
    last = column[-1] if column else None
    return Figures(
        name,
        None if last is None else last.backlog,
        peak([one.peak for one in known]),
        peak([one.oldest for one in known]),
        added([one.ran for one in known]),
        added([one.failures for one in known]),
        None if last is None else last.failed,
    )


def _short(value: float | None) -> float | None:
    """Round to four digits, which keeps the page small."""
    return None if value is None else int(value) if value == int(value) else float(f"{value:.4g}")
