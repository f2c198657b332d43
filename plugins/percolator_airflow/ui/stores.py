"""Connections of the pages to the stores: one for each chain, kept open, with little patience."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from percolator_airflow.hook import PercolatorHook
from percolator_airflow.ui.chains import KnownChain
from percolator_core.database import Database, connect

PATIENCE: Final = 1.5
"""Seconds for which a page waits for a store that does not answer."""

TIMEOUT: Final = 5.0
"""Seconds that one reply may take."""

LOCK_WAIT: Final = 0.2
"""Seconds for which a page waits for a writer that is committing."""

_LOOK: Final = 15.0
"""Seconds after which Airflow is asked again what the connection says."""


@dataclass(slots=True)
class _Open:
    arguments: dict[str, Any]
    db: Database
    looked_at: float


class Stores:
    """Databases by chain; for any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str, str | None], _Open] = {}

    def of(self, chain: KnownChain) -> Database:
        """The chain's database.

        Raises:
            ConfigurationError: there is no such connection, or it says what cannot be.
            StoreUnavailable: nothing answers there.
        """
        key = (chain.name, chain.conn_id, chain.namespace)
        now = time.monotonic()
        with self._lock:
            known = self._open.get(key)
            if known is not None and now - known.looked_at < _LOOK:
                return known.db
        hook = PercolatorHook(chain.conn_id, chain.namespace, default_namespace=chain.name)
        arguments = hook.arguments() | {"patience": PATIENCE, "timeout": TIMEOUT, "lock_wait": LOCK_WAIT}
        with self._lock:
            known = self._open.get(key)
            if known is not None and known.arguments == arguments:
                known.looked_at = now
                return known.db
        db = connect(**arguments)
        with self._lock:
            replaced = self._open.get(key)
            self._open[key] = _Open(arguments, db, now)
        if replaced is not None:
            replaced.db.close()
        return db

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            opened = list(self._open.values())
            self._open.clear()
        for one in opened:
            one.db.close()


stores: Final = Stores()
"""Those of this process."""
