"""The locks that stand now: of writers at work, and of those that died."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from percolator_airflow.ui.access import ChainWithData, EditableChain, MayEdit
from percolator_airflow.ui.links import Links
from percolator_airflow.ui.rendering import page
from percolator_airflow.ui.stores import stores
from percolator_core.admin.status import HeldLock
from percolator_core.admin.status import locks as read_locks
from percolator_core.errors import abbreviated
from percolator_core.notation.amounts import count_of
from percolator_core.notation.error import NotationError
from percolator_core.notation.typedtext import parse_row

router = APIRouter()

MOST: Final = 200
"""Locks on the page: the oldest."""

OLD: Final = 30.0
"""Seconds since a lock was touched last, from which it is resolved with all others."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A lock as the page has it."""

    lock: HeldLock
    key: str | None
    row: str
    link: str | None
    primary: str
    primary_link: str | None


class Which(BaseModel):
    """The lock that a request is about, or without a table all that are old.

    ``start`` is the start timestamp of its transaction (µs).
    """

    table: str | None = None
    row: str = ""
    column: str = ""
    start: int = Field(default=0, lt=2**53)


_SAID: Final = {
    "committed": "rolled forward: its transaction had committed",
    "rolled back": "rolled back: its transaction can commit no more",
    "live": "left alone: its owner is alive and may still commit",
    "gone": "gone by now",
}


@router.get("/{name}/locks")
def locks(request: Request, chain: ChainWithData, may_edit: MayEdit) -> Response:
    """The oldest locks."""
    db = stores.of(chain)
    found = read_locks(db, MOST)
    links = Links(request, chain, db.tables())
    return page(
        request,
        "locks.html",
        chain=chain,
        tab="locks",
        may_edit=may_edit,
        locks=[_listed(lock, links) for lock in found],
        is_cut=len(found) == MOST,
        most=MOST,
        old=OLD,
        dead=sum(not lock.owner_alive for lock in found),
    )


@router.post("/{name}/locks/resolve")
def resolve(chain: EditableChain, _data: ChainWithData, which: Which) -> dict[str, Any]:
    """Roll one lock forward or back, or all of dead owners that are old."""
    db = stores.of(chain)
    if which.table is None:
        done = db.resolve_locks(timedelta(seconds=OLD))
        parts = [
            f"{count_of(done.committed, 'lock')} rolled forward",
            f"{done.rolled_back:,} rolled back",
            *([f"{done.live:,} of live owners left alone"] if done.live else []),
        ]
        return {"said": ", ".join(parts)}
    key = parse_row(db.catalog.table(which.table).definition, which.row)
    if which.start <= 0:
        raise NotationError("start is the start timestamp of the lock's transaction")
    try:
        found = db.resolve_lock(which.table, key, which.column, which.start)
    except ValueError as error:
        raise NotationError(str(error)) from None
    return {"said": f"The lock is {_SAID[found]}."}


def _listed(lock: HeldLock, links: Links) -> Listed:
    table, row, column = lock.primary
    return Listed(
        lock,
        links.key(lock.table, lock.row),
        links.shown(lock.table, lock.row),
        links.cell(lock.table, lock.row, lock.column),
        f"{table} {links.shown(table, row, 40)} {abbreviated(column)}",
        links.cell(table, row, column),
    )
