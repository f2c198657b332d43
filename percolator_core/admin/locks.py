"""The locks of a namespace, with the owners that hold them."""

from __future__ import annotations

from dataclasses import dataclass

from percolator_core.admin.status import call
from percolator_core.database import Database
from percolator_core.layout.keys import CellAddress, decode_primary
from percolator_core.layout.records import unpack_lock
from percolator_core.maintenance.locks import Locks


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock in the lock index. ``age`` is the time in seconds since the lock was written or refreshed.

    ``start_timestamp`` identifies the transaction. ``primary`` is its primary cell, as ``(table, row,
    column)``. ``owner_alive`` is True if the client that wrote the lock lives.
    """

    table: str
    row: bytes
    column: str
    start_timestamp: int
    age: float
    time_to_live: float
    primary: tuple[str, bytes, str]
    is_primary: bool
    owner: str
    owner_alive: bool


def locks(db: Database, limit: int = 1000) -> list[HeldLock]:
    """Return the oldest ``limit`` locks (1 or more) of a namespace, oldest first.

    Raises:
        StoreUnavailable: the store does not answer.
        ValueError: ``limit`` is below 1.
    """
    if limit < 1:
        raise ValueError(f"limit is 1 or more, not {limit}")
    found = Locks(db.client).oldest(limit)
    now = db.store.now()
    unpacked = [unpack_lock(lock.packed) for lock in found]
    owners = sorted({lock.owner for lock in unpacked})
    alive = call(db, [db.client.liveness(owner) for owner in owners])
    living = {owner for owner, lives in zip(owners, alive, strict=True) if lives}
    name = db.catalog.column_name
    held = []
    for place, lock in zip(found, unpacked, strict=True):
        primary = decode_primary(lock.primary)
        held.append(
            HeldLock(
                table=place.table,
                row=place.row,
                column=name(place.table, place.column),
                start_timestamp=place.start_ts,
                age=max(0.0, (now - place.wall) / 1e6),
                time_to_live=lock.ttl_ms / 1000,
                primary=(primary.table, primary.row, name(primary.table, primary.column)),
                is_primary=primary == CellAddress(place.tag, place.row, place.column),
                owner=lock.owner.decode(errors="replace"),
                owner_alive=lock.owner in living,
            )
        )
    return held
