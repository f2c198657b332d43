"""The pages' connections to the stores: one open connection for each chain, with short time-outs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from percolator_core.database import Database, connect
from percolator_core.errors import StoreUnavailable
from percolator_core.ui.host import ShownChain

if TYPE_CHECKING:
    from percolator_core.schema.definitions import TableDefinition

PATIENCE: Final = 1.5
"""Seconds for which a page waits for a store that does not answer."""

TIMEOUT: Final = 1.5
"""Seconds to wait for one reply. If a store hangs, the page fails after about twice this time."""

LOCK_WAIT: Final = 0.05
"""Seconds for which a page waits for a writer that is committing."""

_LOOK: Final = 15.0
"""Seconds after which the address of a store is read again."""

_AGAIN: Final = 5.0
"""Seconds until one page tries a store again, after the store did not answer.

Pages that wait occupy threads, and the server has few threads for all users.
"""

_GRACE: Final = 60.0
"""Seconds for which a replaced connection stays open: longer than any page takes."""


@dataclass(slots=True)
class _Open:
    arguments: dict[str, Any]
    db: Database
    looked_at: float


class Stores:
    """Databases by chain. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[ShownChain, _Open] = {}
        self._retired: list[tuple[float, Database]] = []
        self._silent: dict[ShownChain, tuple[float, str]] = {}

    def of(self, chain: ShownChain) -> Database:
        """Return the chain's database.

        Raises:
            ConfigurationError: the connection does not exist or is invalid.
            StoreUnavailable: the store does not answer, or did not answer a few seconds ago.
        """
        with self._lock:
            until, why = self._silent.get(chain, (0.0, ""))
            if time.monotonic() < until:
                raise StoreUnavailable(why)
            if why:
                self._silent[chain] = (time.monotonic() + _AGAIN, why)
        db = self._of(chain)
        if why:
            db.store.now()
            with self._lock:
                self._silent.pop(chain, None)
        return db

    def table(self, chain: ShownChain, name: str) -> tuple[Database, TableDefinition]:
        """Return the chain's database and the definition of a table.

        Raises:
            UnknownTable: the table does not exist. See also `of`.
        """
        db = self.of(chain)
        return db, db.catalog.table(name).definition

    def note_silent(self, chain: ShownChain, why: str) -> None:
        """Record that the chain's store did not answer: `of` then refuses the chain for some seconds.

        If this method is called again after a refusal by `of`, it does not prolong the time. Otherwise a page
        that is updated every few seconds would never reach the store again.
        """
        now = time.monotonic()
        with self._lock:
            if now >= self._silent.get(chain, (0.0, ""))[0]:
                self._silent[chain] = (now + _AGAIN, why)

    def _of(self, chain: ShownChain) -> Database:
        now = time.monotonic()
        with self._lock:
            known = self._open.get(chain)
            if known is not None and now - known.looked_at < _LOOK:
                return known.db
        arguments = chain.arguments() | {"patience": PATIENCE, "timeout": TIMEOUT, "lock_wait": LOCK_WAIT}
        with self._lock:
            known = self._open.get(chain)
            if known is not None and known.arguments == arguments:
                known.looked_at = now
                return known.db
        db = connect(**arguments)
        with self._lock:
            known = self._open.get(chain)
            mine = known is None or known.arguments != arguments
            if mine:
                self._open[chain] = _Open(arguments, db, now)
            # Other pages may still use the replaced connection.
            if mine and known is not None:
                self._retired.append((now, known.db))
        self._close_retired(now)
        if mine or known is None:
            return db
        # Another thread was faster; its connection is used.
        db.close()
        return known.db

    def _close_retired(self, now: float) -> None:
        with self._lock:
            over = [db for since, db in self._retired if now - since > _GRACE]
            self._retired = [one for one in self._retired if now - one[0] <= _GRACE]
        for db in over:
            db.close()

    def close(self) -> None:
        """Close all databases."""
        with self._lock:
            opened = [*(one.db for one in self._open.values()), *(db for _, db in self._retired)]
            self._open.clear()
            self._retired.clear()
            self._silent.clear()
        for db in opened:
            db.close()


stores: Final = Stores()
"""The databases of this process."""
