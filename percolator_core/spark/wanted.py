"""How the driver of a load and its tasks communicate: through the store.

Spark may leave Python at work in a task that it has cancelled, and reports nothing. So each attempt at a task
registers in the store. Before each commit it checks that the load is still wanted, by an answer of the store
that is at most `FRESH` seconds old. When a load has ended, successfully or not, its driver says so in the
store and waits for the registered attempts. So they do not overwrite what a later load writes.
"""

from __future__ import annotations

import time
from typing import Final

from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.runtime.log import Log
from percolator_core.store.packing import Command
from percolator_core.transaction.client import TOKEN_LIFE

FRESH: Final = 0.5
"""Seconds for which an answer counts. Less than Spark gives Python to end by itself, which is two seconds."""

_LOOK: Final = 0.02
"""Seconds between two looks whether the attempts have ended."""
_QUIET: Final = 1.0
"""Seconds of waiting after which a line is logged."""

_log: Final = Log("percolator.load")


def _attempts(db: Database, table: str) -> bytes:
    """The key of a hash: client of an attempt at a task of a load into the table -> the load's driver."""
    return db.store.keyspace.tag(table, 0) + b"attempts"


def _over(db: Database, driver: bytes) -> bytes:
    """The key that says that a driver's load is over.

    A missing liveness token proves less: a failover may have lost it.
    """
    return db.client.token_of(driver + b".over")


class Wanted:
    """Whether a load is wanted, for one attempt at one of its tasks."""

    def __init__(self, db: Database, table: str, driver: bytes) -> None:
        self._db = db
        self._questions: tuple[Command, ...] = (
            db.client.liveness(driver),
            (b"EXISTS", _over(db, driver)),
        )
        self._answered = float("-inf")
        """When the last question was sent whose answer was yes."""
        self._asking = False
        # Before the first question: if its answer is yes, the driver finds this entry when the load ends.
        db.store.one((b"HSET", _attempts(db, table), db.client.owner(), driver))

    def check(self) -> None:
        """Raise PercolatorError unless the load was wanted at most `FRESH` seconds ago.

        When half of that time has passed, one transaction asks again, and the others use the last answer.
        """
        if time.monotonic() - self._answered < (FRESH if self._asking else FRESH / 2):
            return
        self._asking = True
        try:
            if not self._is_wanted():
                raise PercolatorError("the load has ended, or its driver is gone: run it again")
        finally:
            self._asking = False

    def _is_wanted(self) -> bool:
        asked = time.monotonic()
        lives, over = self._db.store.call(*self._questions)
        if not lives and not over:
            # A failover may have lost the token; then the driver makes it again.
            self._db.store.sleep(TOKEN_LIFE / 2)
            asked = time.monotonic()
            lives, over = self._db.store.call(*self._questions)
        if lives and not over:
            self._answered = asked
            return True
        return False


class Attempts:
    """All attempts at the tasks of one load, for its driver."""

    def __init__(self, db: Database, table: str) -> None:
        self.driver = db.client.owner()
        self._db = db
        self._key = _attempts(db, table)

    def withdraw(self) -> None:
        """Say that the load is over: `FRESH` seconds later no attempt begins a commit any more."""
        # In this order: an attempt that finds neither key waits, as if a failover had lost the token.
        self._db.store.one((b"SET", _over(self._db, self.driver), b"", b"PX", int(2000 * TOKEN_LIFE)))
        self._db.client.close()

    def end(self) -> None:
        """Withdraw, and wait until no attempt writes any more, for `TOKEN_LIFE` seconds at most.

        A killed attempt counts until its liveness token expires. An attempt that lives longer has no commit
        under way: it waits for a lock or for its input, and will check before it commits.
        """
        try:
            self.withdraw()
            began, told = time.monotonic(), False
            while (left := self._left()) and time.monotonic() - began < TOKEN_LIFE:
                if not told and time.monotonic() - began > _QUIET:
                    _log.info("waiting until tasks of the load have ended", tasks=left, longest=TOKEN_LIFE)
                    told = True
                time.sleep(_LOOK)
        except PercolatorError as error:
            _log.warning("tasks of the load may be at work still", why=str(error), longest=TOKEN_LIFE)

    def _left(self) -> int:
        """Count the live attempts of this load. Delete entries whose attempt and driver are both gone."""
        db = self._db
        flat = db.store.one((b"HGETALL", self._key))
        drivers = dict(zip(flat[0::2], flat[1::2], strict=True))
        asked = [(b"EXISTS", *map(db.client.token_of, pair)) for pair in drivers.items()]
        lives = dict(zip(drivers, db.store.call(*asked) if asked else (), strict=True))
        gone = [attempt for attempt in drivers if not lives[attempt]]
        if gone:
            db.store.one((b"HDEL", self._key, *gone))
        return sum(1 for attempt in drivers if lives[attempt] and drivers[attempt] == self.driver)
