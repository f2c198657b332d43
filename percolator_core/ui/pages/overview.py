"""All chains that the user may see."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from fastapi import APIRouter, Request, Response

from percolator_core.admin.status import Status, status
from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.ui.access import CurrentViewer
from percolator_core.ui.declarations import declared
from percolator_core.ui.host import Host, ShownChain
from percolator_core.ui.rendering import page
from percolator_core.ui.standing import State, standings, worst
from percolator_core.ui.stores import stores

router = APIRouter()
_log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
"""At most this many stores are read concurrently."""


@dataclass(frozen=True, slots=True)
class Card:
    """A chain and its state; ``wrong`` is the reason why the state is unknown."""

    chain: ShownChain
    state: State | None = None
    now: Status | None = None
    wrong: str | None = None


_askers: Final = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="percolator-overview")


@router.get("/")
def show(request: Request, user: CurrentViewer) -> Response:
    """Show a card for each chain."""
    host: Host = request.app.state.host
    cards = list(_askers.map(partial(_look, host), user.chains()))
    return page(request, "overview.html", cards=cards, empty=host.empty)


def _look(host: Host, chain: ShownChain) -> Card:
    try:
        known = declared(chain)
        now = status(stores.of(chain), known)
    except PercolatorError as error:
        if isinstance(error, StoreUnavailable):
            stores.note_silent(chain, str(error))
        return Card(chain, wrong=str(error))
    except Exception as error:  # noqa: BLE001 - an error of one chain must not hide the cards of the others
        _log.exception("the overview: %s", chain.name)
        why = f"the page failed with {type(error).__name__}: see {host.log}"
        return Card(chain, wrong=why)
    return Card(chain, worst([one.state for one in standings(now, known, {})]), now)
