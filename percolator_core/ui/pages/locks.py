"""The current locks, of live and of dead writers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from percolator_core.admin.locks import locks as read_locks
from percolator_core.notation.amounts import count_of
from percolator_core.notation.error import NotationError
from percolator_core.notation.typedtext import parse_row
from percolator_core.ui.access import ChainWithData, EditableChain, MayEdit
from percolator_core.ui.links import Links
from percolator_core.ui.rendering import page
from percolator_core.ui.stores import stores

router = APIRouter()

MOST: Final = 200
"""The page shows at most this many locks, the oldest ones."""

OLD: Final = 30.0
"""The button for all locks resolves locks that are at least this old, in seconds."""


class Which(BaseModel):
    """The lock that a request names. A request without a table means all old locks.

    ``start`` is the start timestamp of the lock's transaction (µs).
    """

    table: str | None = None
    row: str = ""
    column: str = ""
    start: int = Field(default=0, lt=2**53)


_OUTCOMES: Final = {
    "committed": "The lock was rolled forward: its transaction had committed.",
    "rolled back": "The lock was rolled back: its transaction can no longer commit.",
    "live": "The lock was left unresolved: its owner is alive and may still commit.",
    "gone": "The lock no longer exists.",
}


@router.get("/{name}/locks")
def locks(request: Request, chain: ChainWithData, may_edit: MayEdit) -> Response:
    """Show the oldest locks."""
    db = stores.of(chain)
    found = read_locks(db, MOST)
    return page(
        request,
        "locks.html",
        chain=chain,
        tab="locks",
        may_edit=may_edit,
        links=Links(request, chain, db.tables()),
        locks=found,
        is_cut=len(found) == MOST,
        most=MOST,
        old=OLD,
        dead=sum(not lock.owner_alive for lock in found),
    )


@router.post("/{name}/locks/resolve")
def resolve(chain: EditableChain, _data: ChainWithData, which: Which) -> dict[str, Any]:
    """Roll forward or back one lock, or all old locks of dead owners."""
    db = stores.of(chain)
    if which.table is None:
        done = db.resolve_locks(timedelta(seconds=OLD))
        parts = [
            f"{count_of(done.committed, 'lock')} rolled forward",
            f"{done.rolled_back:,} rolled back",
            *([f"{done.live:,} of live owners left"] if done.live else []),
        ]
        return {"said": ", ".join(parts)}
    key = parse_row(db.catalog.table(which.table).definition, which.row)
    if which.start <= 0:
        raise NotationError("start must be the start timestamp of the lock's transaction")
    try:
        found = db.resolve_lock(which.table, key, which.column, which.start)
    except ValueError as error:
        raise NotationError(str(error)) from None
    return {"said": _OUTCOMES[found]}
