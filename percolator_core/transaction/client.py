"""The parts that all transactions of one database connection share: store, oracle, catalog, liveness token.

The *liveness token* is a key that this client renews while it lives (paper, section 2.2, where it is a file
in the lock service). A lock whose owner has no token is resolved immediately, and any other lock is resolved
after its time to live.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from percolator_core.base.bases import Bases
from percolator_core.catalog.catalog import Catalog
from percolator_core.errors import PercolatorError
from percolator_core.runtime import process
from percolator_core.store import Store
from percolator_core.store.packing import Command
from percolator_core.transaction.metrics import Tally
from percolator_core.transaction.oracle import Oracle

TOKEN_LIFE: Final = 15.0
"""Seconds that a liveness token outlives its last renewal."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits in seconds.

    A primary lock counts as live for ``lock_ttl`` after it was written or refreshed. A reader waits up to
    ``lock_wait`` for a live lock.
    """

    lock_ttl: float = 10.0
    lock_wait: float = 30.0


class Life(NamedTuple):
    """A client's life in one process: its name, and the thread that renews its token (``stop`` ends it)."""

    owner: bytes
    stop: threading.Event
    renewer: threading.Thread


class Client:
    """The shared parts of one database connection."""

    def __init__(self, store: Store, timeouts: Timeouts, bases: Bases | None = None) -> None:
        self.store = store
        self.oracle = Oracle(store)
        self.catalog = Catalog(store)
        self.timeouts = timeouts
        self.bases = bases or Bases()
        self.tally = Tally()
        self.one_call_a_tablet = store.clustered
        """True if a script may touch only one tablet, as on a cluster; then every commit has two phases."""
        self.finish_schema_change: Callable[[str, bytes], None] = lambda _name, _version: None
        """Finishes or repairs a schema change after a tablet refused a version; may raise LockTimeout.

        `Database` sets it. Without it a refused transaction only loads the catalog again.
        """
        self.lives: dict[int, Life] = {}
        """The life in each process, by its id: a forked child is another client with another name."""

    def owner(self) -> bytes:
        """Return this client's name in locks. The first call sets the token, so no lock is older than it."""
        return (self.lives.get(process.pid) or self._come_alive()).owner

    def active_observers(self) -> set[str]:
        """The names of the observers of the newest activation."""
        raw = self.store.one((b"HGET", self.store.keyspace.chain, b"observers"))
        return set(raw.decode().split(",")) - {""} if raw else set()

    def observed_columns(self) -> dict[str, dict[str, list[str]]]:
        """For each table, the observers of its columns, as the activation that began last recorded them."""
        raw = self.store.one((b"HGET", self.store.keyspace.chain, b"observed"))
        found: dict[str, dict[str, list[str]]] = json.loads(raw) if raw else {}
        return found

    def token_of(self, owner: bytes) -> bytes:
        """The key of an owner's liveness token."""
        return self.store.keyspace.client(owner)

    def liveness(self, owner: bytes) -> Command:
        """The command that returns 1 if an owner lives, else 0."""
        return (b"EXISTS", self.token_of(owner))

    def declare_dead(self, owners: Iterable[str]) -> None:
        """Delete the tokens of clients, so that their locks can be resolved before the tokens expire.

        The caller must have seen each process end: running transactions of a live client would be aborted.
        """
        keys = [self.token_of(owner.encode()) for owner in owners]
        if keys:
            self.store.call(*[(b"DEL", key) for key in keys])

    def close(self) -> None:
        """Stop renewing the token, and delete it."""
        life = self.lives.pop(process.pid, None)
        if life is not None:
            life.stop.set()
            life.renewer.join(1)  # the thread uses a connection that is about to be closed
            self._forget(life.owner)

    def _come_alive(self) -> Life:
        """Set a token, and start a thread that renews it.

        This takes no lock. Otherwise a signal handler, or a child process that is forked while the lock is
        held, would wait for the lock for ever. If two callers set a token at the same time, the first token
        is kept.
        """
        owner = f"{process.pid:x}.{uuid.uuid4().hex[:12]}".encode()
        self._set_token(owner)
        stop = threading.Event()
        renewer = threading.Thread(
            target=self._keep_alive, args=(owner, stop), name="percolator-liveness", daemon=True
        )
        renewer.start()
        life = self.lives.setdefault(process.pid, Life(owner, stop, renewer))
        if life.owner != owner:
            stop.set()
            self._forget(owner)
        return life

    def _forget(self, owner: bytes) -> None:
        # Nobody waits for the reply: if the store is gone, the token expires.
        self.store.defer((b"DEL", self.token_of(owner)))

    def renew(self, owner: bytes) -> None:
        """Renew the token, or set a lost one again, and raise the oracle's high-water mark.

        A renewal that arrives after `close` has deleted the token creates no new one.
        """
        if self._set_token(owner, b"XX"):
            return
        life = self.lives.get(process.pid)
        if life is not None and life.owner == owner:  # not closed: a failover or a pause lost the token
            self._set_token(owner)

    def _set_token(self, owner: bytes, *only: bytes) -> bool:
        """Set the token, and raise the high-water mark; return False if an option ``only`` of SET refused."""
        # `call_apart` uses a connection of its own: a hub would run other tasks before the reply arrives.
        apart = self.store.call_apart
        token: Command = (b"SET", self.token_of(owner), b"", b"PX", int(TOKEN_LIFE * 1000), *only)
        if self.store.clustered:
            # The token must not wait for the oracle, which may be on another server that cannot be reached.
            (stands,) = apart(token)
            ((newest, _),) = apart(self.oracle.keep_ahead())
        else:
            stands, (newest, _) = apart(token, self.oracle.keep_ahead())
        self.oracle.note(newest)
        return stands is not None

    def _keep_alive(self, owner: bytes, stop: threading.Event) -> None:
        due = time.monotonic()
        while not stop.wait(max(0.0, due + TOKEN_LIFE / 3 - time.monotonic())):
            due = time.monotonic()
            try:
                self.renew(owner)
            except PercolatorError:
                continue  # while the store does not answer, no client can resolve our locks
