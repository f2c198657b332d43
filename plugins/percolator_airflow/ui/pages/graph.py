"""The chain as a live graph: backlog, rate and failures of each observer."""

from __future__ import annotations

from airflow.api_fastapi.common.db.common import SessionDep
from fastapi import APIRouter, Request, Response

from percolator_airflow.ui.access import ReadableChain
from percolator_airflow.ui.chains import dags_of, declared
from percolator_airflow.ui.drawing import draw
from percolator_airflow.ui.links import Links
from percolator_airflow.ui.rendering import page
from percolator_airflow.ui.standing import looks, standings, worst
from percolator_airflow.ui.stores import stores
from percolator_core.admin.status import status
from percolator_core.errors import ConfigurationError

router = APIRouter()


@router.get("/{name}/")
def show(request: Request, chain: ReadableChain, session: SessionDep) -> Response:
    """Show the drawing, the figures, and the workers and drains."""
    # Without the declarations only the drawing is missing; the figures come from the store.
    wrong = None
    try:
        known = declared(chain)
    except ConfigurationError as error:
        known, wrong = None, str(error)
    db = stores.of(chain)
    now = status(db, known)
    rates = looks.rates(chain, db, now)
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
        drawing=draw(known, {one.now.name: one for one in found}, links) if known is not None else None,
        wrong=wrong,
        links=links,
        dags=dags_of(session, chain),
    )
