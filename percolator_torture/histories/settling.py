"""Settle a run: wait until every lock is older than its time to live, and read the state for the checker."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from percolator_core.database import Database
from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.survey import read_final

WAIT: Final = 2.0
"""The wait before the locks are resolved, as a multiple of a lock's time to live."""
_LIMIT: Final = 60.0
"""Seconds for which `end_locks` tries."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The numbers of locks whose time to live was over, before and after `resolve_locks`."""

    stranded: int
    left: int


def settle(db: Database, lock_ttl: float) -> Settled:
    """Wait, resolve the locks once, and count. Call it when no client runs any more.

    Locks that are left are then resolved by force, so that a checker can read all other state.
    """
    time.sleep(WAIT * lock_ttl)
    stranded = sum(1 for _ in db.locks())
    db.resolve_locks(older_than=timedelta(seconds=lock_ttl))
    left = sum(1 for _ in db.locks())
    end_locks(db)
    return Settled(stranded, left)


def end_locks(db: Database) -> bool:
    """Resolve all locks; wait until the locks of clients whose server was lost have expired.

    Returns False if locks are left after a minute.
    """
    until = time.monotonic() + _LIMIT
    while db.resolve_locks(older_than=timedelta(0)).live:
        if time.monotonic() > until:
            return False
        db.store.sleep(db.client.timeouts.lock_ttl / 10)
    return True


def read_state(db: Database, table: str, lock_ttl: float) -> FinalState:
    """Read all versions and leftovers; collect garbage, and also return the leftovers after that."""
    final = read_final(db, [table])
    db.collect_garbage(timedelta(0))
    # The first collection may keep versions for readers below the old safe point; the second removes them.
    time.sleep(lock_ttl)
    db.collect_garbage(timedelta(0))
    final.leftovers += read_final(db, [table], collected=True).leftovers
    return final
