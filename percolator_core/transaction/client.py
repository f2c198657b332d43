"""What the parts of one database connection share: the store, the oracle, the catalog, and who we are.

The *liveness token* is a key that this client renews while it lives (paper, section 2.2, where it is a file
in the lock service). A lock whose owner has no token any more is cleaned up at once; one whose owner lives
is given its time to live.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

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
    """All in seconds.

    ``lock_ttl`` is how long a primary lock counts as live after it was written or refreshed; ``lock_wait``
    how long a reader waits for a live lock.
    """

    lock_ttl: float = 10.0
    lock_wait: float = 30.0


class _Life(NamedTuple):
    """That of a client in one process: its name, and what renews its token until told to stop."""

    owner: bytes
    stop: threading.Event
    renewer: threading.Thread


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
        self.finish_schema_change: Callable[[str, bytes], None] = lambda _name, _version: None
        """Finishes or repairs a schema change after a tablet refused a version; `Database` sets it.

        Without it a refused transaction only takes in the catalog again. Raises LockTimeout.
        """
        self._lives: dict[int, _Life] = {}
        """How this client is alive, by process: a forked child is another one, with a name of its own."""

    def owner(self) -> bytes:
        """Our name in locks. The first call makes the liveness token, before any lock can name us."""
        life = self._lives.get(process.pid)
        return (life or self._come_alive()).owner

    def active_observers(self) -> set[str]:
        """The names of the observers that were last activated."""
        raw = self.store.one((b"HGET", self.store.keyspace.chain, b"observers"))
        return set(raw.decode().split(",")) - {""} if raw else set()

    def observed_columns(self) -> dict[str, dict[str, list[str]]]:
        """The observers of each column by table, as the activation recorded them that began last."""
        raw = self.store.one((b"HGET", self.store.keyspace.chain, b"observed"))
        found: dict[str, dict[str, list[str]]] = json.loads(raw) if raw else {}
        return found

    def token_of(self, owner: bytes) -> bytes:
        """The key of an owner's liveness token."""
        return self.store.keyspace.client(owner)

    def liveness(self, owner: bytes) -> Command:
        """The command that asks whether an owner lives: 1 or 0."""
        return (b"EXISTS", self.token_of(owner))

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
        life = self._lives.pop(process.pid, None)
        if life is not None:
            life.stop.set()
            life.renewer.join(1)  # it uses a connection that is about to be closed
            self._forget(life.owner)

    def _come_alive(self) -> _Life:
        """Make a token, and keep renewing it.

        Under no lock: it would be locked for ever in a child that another thread forks meanwhile, and to a
        signal handler. If two callers make a token at once, the first one is kept.
        """
        owner = f"{process.pid:x}.{uuid.uuid4().hex[:12]}".encode()
        self._set_token(owner)
        stop = threading.Event()
        renewer = threading.Thread(
            target=self._keep_alive, args=(owner, stop), name="percolator-liveness", daemon=True
        )
        renewer.start()
        life = self._lives.setdefault(process.pid, _Life(owner, stop, renewer))
        if life.owner != owner:
            stop.set()
            self._forget(owner)
        return life

    def _forget(self, owner: bytes) -> None:
        # If the store is gone there is nothing to wait for; it drops the token by itself.
        self.store.defer((b"DEL", self.token_of(owner)))

    def _renew(self, owner: bytes) -> None:
        """Renew the token, or set a lost one again, and raise the oracle's high-water mark.

        A renewal that comes to the server after the token was taken away makes no new one.
        """
        if self._set_token(owner, b"XX"):
            return
        life = self._lives.get(process.pid)
        if life is not None and life.owner == owner:  # not closed: a failover or a pause lost it
            self._set_token(owner)

    def _set_token(self, owner: bytes, *only: bytes) -> bool:
        """Set the token, with the options ``only`` of SET, and raise the oracle's high-water mark.

        Returns False if the options prevented it.
        """
        # Apart: else each task of this thread that comes here meanwhile would make a token, too.
        apart = self.store.call_apart
        token: Command = (b"SET", self.token_of(owner), b"", b"PX", int(TOKEN_LIFE * 1000), *only)
        if self.store.clustered:
            # The token must not wait for the oracle, whose server may be another one, and away.
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
                self._renew(owner)
            except PercolatorError:
                continue  # without the store nobody can judge us; try again when it is back
