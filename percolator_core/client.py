"""What the parts of one database connection share: the store, the oracle, the catalog, and who we are.

The *liveness token* is a key that this client renews while it lives (paper, section 2.2, where it is a file
in the lock service). A lock whose owner has no token any more is cleaned up at once; one whose owner lives
is given its time to live.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from percolator_core import process
from percolator_core.catalog import Catalog
from percolator_core.errors import PercolatorError
from percolator_core.metrics import Tally
from percolator_core.oracle import Oracle
from percolator_core.store import Store

TOKEN_LIFE: Final = 15.0
"""Seconds that a liveness token outlives its last renewal."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All in seconds.

    ``lock_ttl`` is how long a primary lock counts as live after it was written or refreshed; ``lock_wait``
    how long a reader waits for a live lock.
    """

    lock_ttl: float = 10.0
    lock_wait: float = 30.0


class Client:
    """The collaborators behind a `Database`."""

    def __init__(self, store: Store, timeouts: Timeouts) -> None:
        self.store = store
        self.oracle = Oracle(store)
        self.catalog = Catalog(store)
        self.timeouts = timeouts
        self.tally = Tally()
        self.one_call_a_tablet = store.clustered
        """Whether a script may touch one tablet only, as on a cluster; on one server it may touch all.

        Then no script can reach a tablet and the oracle, so that every commit has two phases.
        """
        self._liveness = threading.Lock()
        self._owner = b""
        self._owner_pid = 0
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None

    def owner(self) -> bytes:
        """Our name in locks. The first call makes the liveness token, before any lock can name us."""
        if self._owner_pid != process.pid:
            with self._liveness:
                if self._owner_pid != process.pid:
                    self._come_alive()
        return self._owner

    def active_observers(self) -> set[str]:
        """The names of the observers that were last activated."""
        raw = self.store.one((b"HGET", self.store.keyspace.chain, b"observers"))
        return set(raw.decode().split(",")) - {""} if raw else set()

    def token_of(self, owner: bytes) -> bytes:
        """The key of an owner's liveness token."""
        return self.store.keyspace.client(owner)

    def declare_dead(self, owners: Iterable[str]) -> None:
        """Take away the liveness tokens of clients whose processes are known to have ended.

        What they have locked is then resolved by whoever meets it, and not when the token runs out. Only for
        who has seen the process end: of a client that lives, transactions under way would be aborted.
        """
        keys = [self.token_of(owner.encode()) for owner in owners]
        if keys:
            self.store.call(*[(b"DEL", key) for key in keys])

    def close(self) -> None:
        """Stop renewing the token and take it away."""
        if self._owner_pid != process.pid:
            return
        self._owner_pid = 0
        self._stop.set()
        if self._renewer is not None:
            self._renewer.join(1)  # it uses a connection that is about to be closed
        # If the store is gone there is nothing to wait for; it drops the token by itself.
        self.store.defer((b"DEL", self.token_of(self._owner)))

    def _come_alive(self) -> None:
        self._owner = f"{process.pid:x}.{uuid.uuid4().hex[:12]}".encode()
        self._stop = threading.Event()
        self._renew()
        self._renewer = threading.Thread(
            target=self._keep_alive, args=(self._stop,), name="percolator-liveness", daemon=True
        )
        self._renewer.start()
        self._owner_pid = process.pid

    def _renew(self) -> None:
        """Renew the token, and move the oracle's mark along."""
        # Apart: a task that parked while it holds the lock above would lock out all others of its thread.
        apart = self.store.call_apart
        token = (b"SET", self.token_of(self._owner), b"", b"PX", int(TOKEN_LIFE * 1000))
        if self.store.clustered:
            # The token must not wait for the oracle, whose server may be another one, and away.
            apart(token)
            (newest,) = apart(self.oracle.keep_ahead())
        else:
            _, newest = apart(token, self.oracle.keep_ahead())
        self.oracle.seen = max(self.oracle.seen, newest)

    def _keep_alive(self, stop: threading.Event) -> None:
        due = time.monotonic()
        while not stop.wait(max(0.0, due + TOKEN_LIFE / 3 - time.monotonic())):
            due = time.monotonic()
            try:
                self._renew()
            except PercolatorError:
                continue  # without the store nobody can judge us; try again when it is back
