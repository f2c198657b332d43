"""The last log lines of one worker, if it logs to a file of this machine."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, HTTPException, Request, Response

from percolator_core.notifications.activation import live_workers
from percolator_core.ui.access import ChainWithLogs
from percolator_core.ui.rendering import page
from percolator_core.ui.stores import stores
from percolator_core.ui.values import visible
from percolator_core.ui.worker_log import last_lines

router = APIRouter()

LINES: Final = 200
"""The page shows at most this many lines."""


@router.get("/{name}/workers/{worker}")
def show(request: Request, chain: ChainWithLogs, worker: str) -> Response:
    """Show the last log lines of a live worker."""
    found = next((one for one in live_workers(stores.of(chain)) if one.name == worker), None)
    if found is None:
        raise HTTPException(404, "this worker has ended")
    lines = last_lines(found.where, LINES)
    return page(
        request,
        "worker.html",
        chain=chain,
        tab="",
        worker=found,
        text=None if lines is None else visible(chain.redact("\n".join(lines))),
    )
