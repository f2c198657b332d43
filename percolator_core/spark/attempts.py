"""Tasks stop writing after the end of their load: driver and tasks communicate through the store.

The Python process of a cancelled task may continue, and Spark does not report this. So each attempt at a task
registers in the store, and commits only with an answer of the store, at most `FRESH` seconds old, that the
load has not ended. At the end of a load, successful or not, the driver records the end in the store and waits
for the registered attempts. So no attempt overwrites the writes of a later load.
"""

from __future__ import annotations

import time
from typing import Final

from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.layout.keys import attempts_key
from percolator_core.runtime.log import Log
from percolator_core.store.packing import Command
from percolator_core.transaction.client import TOKEN_LIFE

FRESH: Final = 0.5
"""Seconds for which an answer is valid."""

_POLL: Final = 0.02
"""Seconds between two queries for attempts that have not ended."""
_QUIET: Final = 1.0
"""Seconds of waiting before a line is logged."""

_log: Final = Log("percolator.load")


def _attempts_key(db: Database, table: str) -> bytes:
    """Return the key of a hash of the attempts at loads into the table: client -> driver of the load."""
    return attempts_key(db.store.keyspace.tag(table, 0))


def _ended_key(db: Database, driver: bytes) -> bytes:
    """Return the key that marks a driver's load as ended.

    A missing liveness token proves nothing, because a failover may have lost the token.
    """
    return db.client.token_of(driver + b".over")


class Attempt:
    """One attempt at a task of a load."""

    def __init__(self, db: Database, table: str, driver: bytes) -> None:
        self._db = db
        self._queries: tuple[Command, ...] = (
            db.client.liveness(driver),
            (b"EXISTS", _ended_key(db, driver)),
        )
        self._confirmed = float("-inf")
        """The send time of the newest query that found that the load had not ended."""
        self._asking = False
        # The entry is written before the first query: if the load ends after a query, the driver finds the
        # entry and waits.
        db.store.one((b"HSET", _attempts_key(db, table), db.client.owner(), driver))

    def check(self) -> None:
        """Raise PercolatorError if the load has ended, according to an answer at most `FRESH` seconds old.

        After half of that time one transaction queries again, and the other transactions use the old answer.
        """
        if time.monotonic() - self._confirmed < (FRESH if self._asking else FRESH / 2):
            return
        self._asking = True
        try:
            if not self._goes_on():
                raise PercolatorError("the load has ended, or its driver has died: run the load again")
        finally:
            self._asking = False

    def _goes_on(self) -> bool:
        asked = time.monotonic()
        lives, ended = self._db.store.call(*self._queries)
        if not lives and not ended:
            # A failover may have lost the token. In this case the driver sets the token again.
            self._db.store.sleep(TOKEN_LIFE / 2)
            asked = time.monotonic()
            lives, ended = self._db.store.call(*self._queries)
        if lives and not ended:
            self._confirmed = asked
            return True
        return False


class Attempts:
    """All attempts at the tasks of one load, for its driver."""

    def __init__(self, db: Database, table: str) -> None:
        self.driver = db.client.owner()
        self._db = db
        self._key = _attempts_key(db, table)

    def withdraw(self) -> None:
        """Record that the load has ended: `FRESH` seconds later no attempt begins a commit."""
        # Set this key before the token is deleted. An attempt that finds neither key nor token waits, because
        # a failover may have lost the token.
        self._db.store.one((b"SET", _ended_key(self._db, self.driver), b"", b"PX", int(2000 * TOKEN_LIFE)))
        self._db.client.close()

    def end(self) -> None:
        """Call `withdraw`, then wait at most `TOKEN_LIFE` seconds until all attempts have stopped writing.

        A killed attempt counts as live until its liveness token expires. An attempt that lives longer is not
        committing: it waits for a lock or for its input, and checks again before its next commit.
        """
        try:
            self.withdraw()
            began, logged = time.monotonic(), False
            while (live := self._count_live()) and time.monotonic() - began < TOKEN_LIFE:
                if not logged and time.monotonic() - began > _QUIET:
                    _log.info("waiting until tasks of the load have ended", tasks=live, longest=TOKEN_LIFE)
                    logged = True
                time.sleep(_POLL)
        except PercolatorError as error:
            _log.warning("tasks of the load may still be running", why=str(error), longest=TOKEN_LIFE)

    def _count_live(self) -> int:
        """Count the live attempts of this load. Delete entries whose attempt and driver have both died."""
        db = self._db
        flat = db.store.one((b"HGETALL", self._key))
        drivers = dict(zip(flat[0::2], flat[1::2], strict=True))
        asked = [(b"EXISTS", *map(db.client.token_of, pair)) for pair in drivers.items()]
        lives = dict(zip(drivers, db.store.call(*asked) if asked else (), strict=True))
        gone = [attempt for attempt in drivers if not lives[attempt]]
        if gone:
            db.store.one((b"HDEL", self._key, *gone))
        return sum(1 for attempt in drivers if lives[attempt] and drivers[attempt] == self.driver)
