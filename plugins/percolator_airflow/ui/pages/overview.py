"""All chains that the user may see, and the redirect from a DAG to its chain."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from percolator_airflow.names import dag_ids
from percolator_airflow.ui.access import ReadableChains, may
from percolator_airflow.ui.chains import KnownChain, declared, known_chain
from percolator_airflow.ui.rendering import page
from percolator_airflow.ui.standing import State, standings, worst
from percolator_airflow.ui.stores import stores
from percolator_core.admin.status import Status, status
from percolator_core.errors import PercolatorError, StoreUnavailable

router = APIRouter()
_log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""At most this many stores are read concurrently."""

_PAGES: Final = {"load": "", "observe": "", "monitor": "plots", "maintain": "locks"}
"""The page to which the tab of each DAG leads."""


@dataclass(frozen=True, slots=True)
class Card:
    """A chain and its state; ``wrong`` is the reason why the state is unknown."""

    chain: KnownChain
    state: State | None = None
    now: Status | None = None
    wrong: str | None = None


_askers: Final = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="percolator-overview")


@router.get("/")
def show(request: Request, chains: ReadableChains) -> Response:
    """Show a card for each chain."""
    cards = list(_askers.map(_look, chains))
    return page(request, "overview.html", cards=cards)


@router.get("/dag/{dag_id}")
def of_dag(request: Request, dag_id: str, user: GetUserDep, session: SessionDep) -> Response:
    """Redirect to the chain of the DAG."""
    for part, target in _PAGES.items():
        name = dag_id.removesuffix(dag_ids("")[part])
        chain = known_chain(session, name) if name != dag_id else None
        if chain is not None and may(user, "GET", chain.dag_id):
            root = request.scope.get("root_path", "")
            return RedirectResponse(f"{root}/{chain.name}/{target}", 302)
    return page(request, "stranger.html", dag_id=dag_id)


def _look(chain: KnownChain) -> Card:
    try:
        known = declared(chain)
        now = status(stores.of(chain), known)
    except PercolatorError as error:
        if isinstance(error, StoreUnavailable):
            stores.note_silent(chain, str(error))
        return Card(chain, wrong=str(error))
    except Exception as error:  # noqa: BLE001 - an error of one chain must not hide the cards of the others
        _log.exception("the overview: %s", chain.name)
        why = f"the page failed with {type(error).__name__}: see the log of Airflow's API server"
        return Card(chain, wrong=why)
    return Card(chain, worst([one.state for one in standings(now, known, {})]), now)
