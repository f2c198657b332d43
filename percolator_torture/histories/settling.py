"""After a run: what is left once every lock is older than its time to live, and the state for the checker."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from percolator_core.database import Database
from percolator_torture.histories.final_state import FinalState
from percolator_torture.histories.survey import read_final

WAIT: Final = 2.0
"""Times to live that pass before the janitor comes."""
_LIMIT: Final = 60.0
"""Seconds for locks to end."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Locks found when all had outlived their time to live, and left by the janitor's pass after that."""

    stranded: int
    left: int


def settle(db: Database, lock_ttl: float) -> Settled:
    """Wait, have the janitor pass once, and count. No client may be at work.

    What one pass left is then resolved by force, so that a checker can look at the rest.
    """
    time.sleep(WAIT * lock_ttl)
    stranded = sum(1 for _ in db.locks())
    db.resolve_locks(older_than=timedelta(seconds=lock_ttl))
    left = sum(1 for _ in db.locks())
    end_locks(db)
    return Settled(stranded, left)


def end_locks(db: Database) -> bool:
    """Resolve all locks; those of a client that is gone with its server live out their time first.

    Returns whether none is left, after a minute at most.
    """
    until = time.monotonic() + _LIMIT
    while db.resolve_locks(older_than=timedelta(0)).live:
        if time.monotonic() > until:
            return False
        db.store.sleep(db.client.timeouts.lock_ttl / 10)
    return True


def read_state(db: Database, table: str, lock_ttl: float) -> FinalState:
    """All versions, and what should not be there: before garbage collection, and after it."""
    final = read_final(db, [table])
    db.collect_garbage(timedelta(0))
    # What is kept for readers below the old safe point goes with the next collection.
    time.sleep(lock_ttl)
    db.collect_garbage(timedelta(0))
    final.leftovers += read_final(db, [table], collected=True).leftovers
    return final
