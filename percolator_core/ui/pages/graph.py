"""The chain as a live graph: backlog, rate and failures of each observer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from percolator_core.admin.status import status
from percolator_core.errors import ConfigurationError
from percolator_core.ui.access import CurrentViewer, ReadableChain
from percolator_core.ui.declarations import declared
from percolator_core.ui.drawing import View, draw, foldable
from percolator_core.ui.links import Links
from percolator_core.ui.rendering import page
from percolator_core.ui.standing import Standing, rate_samples, standings, worst
from percolator_core.ui.stores import stores

if TYPE_CHECKING:
    from percolator_core.observers import Chain

router = APIRouter()


@router.get("/{name}/")
def show(
    request: Request,
    chain: ReadableChain,
    user: CurrentViewer,
    opened: Annotated[list[str], Query(alias="open", max_length=1000)] = [],  # noqa: B006 - FastAPI copies it
    reads: bool = False,
) -> Response:
    """Show the drawing, the figures, and the workers and drains."""
    # Without the declarations only the drawing is missing; the figures come from the store.
    wrong = None
    try:
        known = declared(chain)
    except ConfigurationError as error:
        known, wrong = None, str(error)
    db = stores.of(chain)
    now = status(db, known)
    rates = rate_samples.rates(chain, db, now)
    found = standings(now, known, rates)
    links = Links(request, chain)
    return page(
        request,
        "graph.html",
        chain=chain,
        tab="",
        now=now,
        standings=found,
        state=worst([one.state for one in found]),
        rate=sum(rate.runs for rate in rates.values()) if rates else None,
        wrong=wrong,
        links=links,
        schedules=user.schedules(chain),
        may_see_logs=user.refusal(chain, "logs") is None,
        **_drawing(known, View(frozenset(opened), reads), found, links),
    )


def _drawing(known: Chain | None, view: View, found: list[Standing], links: Links) -> dict[str, Any]:
    """Return the template's values about the drawing."""
    if known is None:
        return {"drawing": None}
    tables = foldable(known)
    opened = [table for table in tables if table in view.opened]
    every = frozenset(tables)
    return {
        "drawing": draw(known, view, {one.now.name: one for one in found}, links),
        "opened": [(table, view.toggled(table).link(links)) for table in opened],
        "unfold_all": replace(view, opened=every).link(links) if len(opened) < len(tables) else None,
        "fold_all": replace(view, opened=frozenset()).link(links) if opened else None,
        "reads": view.reads,
        "toggle_reads": replace(view, reads=not view.reads).link(links)
        if any(edge["kind"] == "reads" for *_, edge in known.graph.edges(data=True))
        else None,
    }
