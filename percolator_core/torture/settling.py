"""After a run: what is left once every lock is older than its time to live, and the state for the checker."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Final as Constant

from percolator_core.database import Database
from percolator_core.torture.final import Final
from percolator_core.torture.survey import read_final

WAIT: Constant = 2.0
"""Times to live that pass before the janitor comes."""
_SETTLE_LIMIT: Constant = 60.0


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
    until = time.monotonic() + _SETTLE_LIMIT
    while db.resolve_locks(older_than=timedelta(0)).live and time.monotonic() < until:
        time.sleep(lock_ttl)
    return Settled(stranded, left)


def read_state(db: Database, table: str, lock_ttl: float) -> Final:
    """All versions, and what should not be there: before garbage collection, and after it."""
    final = read_final(db, [table])
    db.collect_garbage(timedelta(0))
    # What is kept for readers below the old safe point goes with the next collection.
    time.sleep(lock_ttl)
    db.collect_garbage(timedelta(0))
    final.leftovers += read_final(db, [table], collected=True).leftovers
    return final
