"""Which server has what: one server, the master that sentinels name, or the primaries of a cluster.

A topology is shared by all connections of a store. It is asked for the place of a slot before each attempt to
send something, and told of every trouble, after which it may look around again.
"""

from __future__ import annotations

import random
import threading
import time
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.store.embedded import EmbeddedServer
from percolator_core.store.exchange import Command, Exchange
from percolator_core.store.url import Address
from percolator_core.store.wire import LOST, is_read_only

SLOTS: Final = 16384

_PAUSE: Final = 0.1
"""Seconds between two looks around."""

_NOBODY_THERE: Final = 5.0
"""Seconds for which nobody is asked to confirm a place, after nobody answered."""


class Endpoint(NamedTuple):
    """Where a server listens: host and port, or the path of a Unix socket and port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


_NO_NAME: Final = (None, b"", b"?")
"""How a server says in CLUSTER SLOTS that it does not know the address of one, or its own."""

Ask = Callable[[Endpoint, Command], Any]
"""Sends one command to one server over a connection of its own, and returns the reply."""


class Topology(Protocol):
    """Where the slots are."""

    clustered: bool
    """Whether there is more than one place, so that every command goes where its key is."""
    watched: bool
    """Whether a server can be replaced by another one, and there are others who know."""
    generation: int
    """Counts the changes."""

    def endpoint(self, slot: int) -> Endpoint:
        """The server that has the slot; raises a RedisError while there is none."""

    def endpoints(self) -> Sequence[Endpoint]:
        """All servers that have slots."""

    def confirms(self, endpoint: Endpoint, since: float) -> bool:
        """Whether others said after ``since`` that the server has its place; True if nobody answers."""

    def heal(self, exchange: Exchange) -> None:
        """Take in what an exchange failed for."""

    def look_around(self) -> None:
        """Ask again who has what, unless that was done just now."""

    def after_fork(self) -> None:
        """In a forked child: nothing of the parent's may be waited for, or taken for still running."""


class OneServer:
    """A server at a known address."""

    clustered = False
    watched = False
    generation = 0

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def endpoint(self, slot: int) -> Endpoint:  # noqa: ARG002 - it has them all
        """The server."""
        return self._endpoint

    def endpoints(self) -> Sequence[Endpoint]:
        """The server, alone."""
        return (self._endpoint,)

    def confirms(self, endpoint: Endpoint, since: float) -> bool:  # noqa: ARG002
        """Nobody else could say."""
        return True

    def heal(self, exchange: Exchange) -> None:
        """Nothing can be done but to wait."""

    def look_around(self) -> None:
        """It does not change."""

    def after_fork(self) -> None:
        """Nothing is shared."""


class EmbeddedOne(OneServer):
    """The private server of a folder, which may be started again, on another socket."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(Endpoint(str(server.socket_path), 0))
        self._server = server

    def heal(self, exchange: Exchange) -> None:
        """Make sure that it runs."""
        if isinstance(exchange.trouble, LOST):
            self.after_fork()

    def after_fork(self) -> None:
        """Join it, and start it if it does not run."""
        self._server.ensure_running()
        found = Endpoint(str(self._server.socket_path), 0)
        if found != self._endpoint:
            self._endpoint = found
            self.generation += 1


class WatchedMaster:
    """The master of a service that sentinels watch."""

    clustered = False
    watched = True
    generation = 0

    def __init__(self, sentinels: Sequence[Endpoint], service: str, ask: Ask, url: str) -> None:
        """``sentinels`` are asked in turn.

        Raises:
            ConfigurationError: they know no such service.
            StoreUnavailable: none of them answers.
        """
        self._sentinels = list(sentinels)
        self._service = service
        self._ask = ask
        self._url = url
        self._lock = threading.Lock()
        found = self._discover()
        if found is None:
            raise self._unknown()
        self._endpoint = found
        self._looked_at = self._answered_at = time.monotonic()
        self._unheard_until = 0.0

    def endpoint(self, slot: int) -> Endpoint:  # noqa: ARG002 - it has them all
        """The master, as far as is known."""
        return self._endpoint

    def endpoints(self) -> Sequence[Endpoint]:
        """The master, alone."""
        return (self._endpoint,)

    def heal(self, exchange: Exchange) -> None:
        """Ask the sentinels again after a lost connection, or when the server has become a replica."""
        trouble = exchange.trouble
        demoted = isinstance(trouble, RedisError) and is_read_only(trouble)
        if not demoted and not isinstance(trouble, LOST):
            return
        if demoted and exchange.wire is not None:
            # Nothing may be read from it any more, also by those who only read.
            exchange.wire.break_off("the server has become a replica")
        self.look_around()

    def look_around(self) -> None:
        """Ask the sentinels again, unless that was done just now."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _PAUSE:
                self._look()

    def confirms(self, endpoint: Endpoint, since: float) -> bool:
        """Whether a sentinel said after ``since`` that the server is the master; True if none answers."""
        with self._lock:
            if self._answered_at < since and time.monotonic() > self._unheard_until:
                self._look()
            return endpoint == self._endpoint

    def _look(self) -> None:
        began = time.monotonic()
        try:
            found = self._discover()
        except PercolatorError:
            found = None  # an exchange goes on trying, and says in the end that nothing answers
            self._unheard_until = time.monotonic() + _NOBODY_THERE
        else:
            self._answered_at = began
        self._looked_at = time.monotonic()
        if found is not None and found != self._endpoint:
            self._endpoint = found
            self.generation += 1

    def after_fork(self) -> None:
        """A thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def _discover(self) -> Endpoint | None:
        refused: Exception | None = None
        answered = False
        for sentinel in list(self._sentinels):
            try:
                found = self._ask(sentinel, (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._service))
            except (RedisError, OSError) as error:
                refused = error
                continue
            answered = True
            if found is not None:
                # The one that answered comes first the next time.
                self._sentinels.remove(sentinel)
                self._sentinels.insert(0, sentinel)
                return Endpoint(found[0].decode(), int(found[1]))
        if isinstance(refused, AuthenticationError) and not answered:
            raise StoreUnavailable(
                f"the sentinels of {self._url} refuse the login ({refused}): check ?sentinel_password="
            )
        if "unknown command" in str(refused) and not answered:
            raise ConfigurationError(
                f"{self._url} names no sentinels: use a redis:// or redis+cluster:// URL"
            )
        if not answered:
            raise StoreUnavailable(
                f"no sentinel of {self._url} answers ({refused}): check that they run, and the ports"
            )
        return None

    def _unknown(self) -> ConfigurationError:
        names: set[str] = set()
        for sentinel in self._sentinels:
            try:
                for master in self._ask(sentinel, (b"SENTINEL", b"MASTERS")):
                    names.add(dict(zip(master[::2], master[1::2], strict=True))[b"name"].decode())
            except (RedisError, OSError):
                continue
        known = f"they watch {', '.join(sorted(names))}" if names else "they watch none"
        return ConfigurationError(
            f"the sentinels of {self._url} know no service {self._service!r}: {known}; mend the URL"
        )


class Cluster:
    """The primaries of a Redis Cluster, by slot.

    While a slot moves from server to server, its keys move one by one, and a script would find half a tablet.
    So ASK, which names the server they move to, is never followed: it means that the slot is closed until the
    move is over. A script is refused by both servers meanwhile, because the tag that it declares as its key
    is itself no key; a plain read of a key that is still at the old place is answered there.
    """

    clustered = True
    watched = True
    generation = 0

    def __init__(self, seeds: Sequence[Endpoint], ask: Ask, url: str) -> None:
        """``seeds`` are servers to ask at first.

        Raises:
            ConfigurationError: no cluster is there, or one that does not serve all slots.
            StoreUnavailable: none of them answers.
        """
        self._seeds = list(seeds)
        self._ask = ask
        self._url = url
        self._lock = threading.Lock()
        self._looked_at = self._answered_at = self._unheard_until = 0.0
        self._ranges: Sequence[Any] = ()
        self._places: dict[int, Endpoint] = {}
        self._servers: list[Endpoint] = []
        """All that the last answer named, replicas too: any of them can be asked next time."""
        self._silent: set[Endpoint] = set()
        self._primaries: frozenset[Endpoint] = frozenset()
        refused = self._look_around()
        if refused is not None:
            raise self._unusable(refused)
        if len(self._places) < SLOTS:
            raise ConfigurationError(
                f"the cluster {self._url} serves {len(self._places)} of {SLOTS} slots: "
                "assign the others (redis-cli --cluster fix) before it is used"
            )

    def endpoint(self, slot: int) -> Endpoint:
        """The primary that has the slot."""
        found = self._places.get(slot)
        if found is None:
            raise ClusterDownError(f"CLUSTERDOWN no server has slot {slot}")
        return found

    def endpoints(self) -> Sequence[Endpoint]:
        """All primaries that have slots."""
        return sorted(self._primaries)

    def heal(self, exchange: Exchange) -> None:
        """Follow a slot that has moved; look around after any other trouble."""
        trouble = exchange.trouble
        if isinstance(trouble, MovedError):
            with self._lock:
                before = self._places.get(trouble.slot_id)
                host = trouble.host or (before.host if before is not None else self._seeds[0].host)
                self._places[trouble.slot_id] = Endpoint(host, trouble.port)
                self._ranges = ()
                self._primaries = frozenset(self._places.values())
                self.generation += 1
        elif isinstance(trouble, RedisError) and is_read_only(trouble) and exchange.wire is not None:
            exchange.wire.break_off("the server has become a replica")
        self.look_around()

    def confirms(self, endpoint: Endpoint, since: float) -> bool:
        """Whether another server said after ``since`` that this one has slots; True if none answers."""
        with self._lock:
            if self._answered_at < since and time.monotonic() > self._unheard_until:
                self._look_around(last=endpoint)
            return endpoint in self._primaries

    def after_fork(self) -> None:
        """A thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def look_around(self) -> None:
        """Ask for the slots again, unless that was done just now."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _PAUSE:
                self._look_around()

    def _look_around(self, last: Endpoint | None = None) -> Exception | None:
        """Take over what the first server says that answers; why none did, or None.

        Asked ``last`` is one that may be out of date, and those that did not answer the last time.
        """
        candidates = [*self._servers, *(seed for seed in self._seeds if seed not in self._servers)]
        random.shuffle(candidates)
        candidates.sort(key=lambda server: (server == last, server in self._silent))
        refused: Exception | None = None
        began = time.monotonic()
        for server in candidates:
            try:
                ranges = self._ask(server, (b"CLUSTER", b"SLOTS"))
            except (RedisError, OSError) as error:
                refused = refused if isinstance(refused, AuthenticationError) else error
                self._silent.add(server)
                continue
            self._silent.discard(server)
            self._take_over(server, ranges)
            self._answered_at, self._looked_at = began, time.monotonic()
            return None
        self._looked_at = time.monotonic()
        self._unheard_until = self._looked_at + _NOBODY_THERE
        return refused

    def _take_over(self, server: Endpoint, ranges: Sequence[Any]) -> None:
        if ranges == self._ranges:
            return
        places: dict[int, Endpoint] = {}
        servers: list[Endpoint] = []
        for first, last, *nodes in ranges:
            # A server that does not know its own address leaves it empty.
            named = [
                Endpoint(server.host if node[0] in _NO_NAME else node[0].decode(), int(node[1]))
                for node in nodes
            ]
            servers += [one for one in named if one not in servers]
            places.update(dict.fromkeys(range(first, last + 1), named[0]))
        self._servers = servers
        if places != self._places:
            self._places = places
            self._primaries = frozenset(places.values())
            self.generation += 1
        self._ranges = ranges  # last: Ctrl-C may come in between

    def _unusable(self, refused: Exception) -> Exception:
        if isinstance(refused, AuthenticationError):
            return StoreUnavailable(
                f"the cluster {self._url} refuses the login ({refused}): check user and password"
            )
        if isinstance(refused, NoPermissionError):
            return ConfigurationError(
                f"the user of {self._url} may not ask for the slots ({refused}): "
                "allow CLUSTER SLOTS in the servers' access rules (ACL)"
            )
        if "cluster support disabled" in str(refused) or "unknown command" in str(refused):
            return ConfigurationError(f"{self._url} is no cluster: use a redis:// or redis+sentinel:// URL")
        if isinstance(refused, RedisConnectionError | OSError):
            return StoreUnavailable(
                f"no server of {self._url} answers ({refused}): check that they run, and the ports"
            )
        return StoreUnavailable(f"the cluster {self._url} does not say where its slots are: {refused}")


class Asking(Protocol):
    """What a topology needs of whoever opens connections."""

    def ask(self, endpoint: Endpoint, command: Command) -> Any:
        """The reply of a server to one command."""


def discover(address: Address, dialer: Asking, url: str, embedded: EmbeddedServer | None = None) -> Topology:
    """The servers behind an address; ``url`` is what messages call them.

    Raises:
        ConfigurationError: they are others than the address says.
        StoreUnavailable: none that would have to be asked answers.
    """
    hosts = [Endpoint(*host) for host in address.hosts]
    if embedded is not None:
        return EmbeddedOne(embedded)
    if address.kind == "sentinel":
        assert address.service is not None
        return WatchedMaster(hosts, address.service, dialer.ask, url)
    if address.kind == "cluster":
        return Cluster(hosts, dialer.ask, url)
    return OneServer(Endpoint(address.socket_path, 0) if address.socket_path else hosts[0])


def slot_of(key: bytes) -> int:
    """The slot of a key of ours: they all begin with their hash tag, which is never empty."""
    return crc_hqx(key[1 : key.index(b"}")], 0) % SLOTS
