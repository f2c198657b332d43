"""One observer: its state, its declaration and source, its logs, and its last runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, HTTPException, Request, Response

from percolator_core.admin.recent import recent_runs
from percolator_core.admin.status import status
from percolator_core.errors import ConfigurationError
from percolator_core.ui.access import CurrentViewer, ReadableChain
from percolator_core.ui.declarations import declared
from percolator_core.ui.links import Links
from percolator_core.ui.rendering import page
from percolator_core.ui.source import find_source
from percolator_core.ui.standing import rate_samples, standings
from percolator_core.ui.stores import stores

if TYPE_CHECKING:
    from percolator_core.observers.observer import Observer
    from percolator_core.ui.host import ShownChain, Viewer

router = APIRouter()


@router.get("/{name}/observers/{observer}")
def show(request: Request, chain: ReadableChain, user: CurrentViewer, observer: str) -> Response:
    """Show an observer."""
    known = declared(chain)
    own = known.observers.get(observer)
    if own is None:
        raise HTTPException(404, f"{chain.name} has no observer {observer!r}")
    db = stores.of(chain)
    now = status(db, known)
    rates = rate_samples.rates(chain, db, now)
    standing = next(one for one in standings(now, known, rates) if one.now.name == observer)
    may_see = user.refusal(chain, "data") is None
    schedules = user.schedules(chain)
    drain = next((one for one in schedules or () if one.part == "observe"), None)
    return page(
        request,
        "observer.html",
        chain=chain,
        tab="",
        one=standing,
        own=own,
        links=Links(request, chain, db.tables()),
        found=recent_runs(db, known, [observer]) if may_see else None,
        now=now,
        workers=[one for one in now.workers if one.observers is None or observer in one.observers],
        logs=f"{drain.url}/tasks/{observer}" if drain is not None else None,
        has_schedules=schedules is not None,
        may_see_logs=user.refusal(chain, "logs") is None,
        **_texts(user, chain, own),
    )


def _texts(user: Viewer, chain: ShownChain, own: Observer) -> dict[str, Any]:
    """Return the declaration and the source, or the reason why they are not shown."""
    refused = user.refusal(chain, "code")
    if refused is not None:
        return {"source": None, "declaration": None, "sourceless": refused}
    # A declaration in Python is part of the source.
    is_yaml = own.file.suffix != ".py"
    declaration = own.file.read_text(encoding="utf-8", errors="replace") if is_yaml else None
    try:
        source = find_source(own.function_name, chain.path)
    except ConfigurationError as error:
        return {"source": None, "declaration": declaration, "sourceless": str(error)}
    return {"source": source, "declaration": declaration, "sourceless": ""}
