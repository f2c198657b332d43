"""The servers of a store, and their slots. A server of its own has all slots.

All connections of a store share one topology. Each attempt to send an exchange first looks up the slot's
server in it. After a failed attempt, `Topology.heal` may ask the servers again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from percolator_core.runtime import process
from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.packing import Command
from percolator_core.store.refusals import LOST, is_read_only
from percolator_core.store.request import Exchange

SLOTS: Final = 16384

_PAUSE: Final = 0.1
"""Seconds between two requests for the current servers."""

_NOBODY_THERE: Final = 5.0
"""If no server answers a request for a confirmation, the next one is made after this many seconds."""


class Endpoint(NamedTuple):
    """Where a server listens: host and port, or the path of a Unix socket and port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


Ask = Callable[[Endpoint, Command], Any]
"""Sends one command to one server over a connection of its own, and returns the reply."""


class Topology:
    """The servers and their slots. In this base class, servers are never replaced by others."""

    clustered = False
    """True if several servers share the slots, so that each command goes to the server of its key."""
    replaceable = False
    """True if sentinels or a cluster can replace a server by another one."""
    generation = 0
    """Counts the changes of servers and slots."""

    def endpoint(self, slot: int) -> Endpoint:
        """Return the server that has the slot; raise a RedisError while there is none."""
        raise NotImplementedError

    def endpoints(self) -> Sequence[Endpoint]:
        """Return all servers that have slots."""
        return (self.endpoint(0),)

    def confirms(self, endpoint: Endpoint, since: float) -> bool:  # noqa: ARG002
        """Return True if the server has its place in the list, as read after ``since``."""
        return True

    def heal(self, exchange: Exchange) -> None:
        """After a failure of the exchange, close the connection to a server that has become a replica.

        A replica answers reads, so over this connection reads would go on without an error. A new connection
        to the same address may reach the new master.
        """
        if is_read_only(exchange.trouble) and exchange.pipeline is not None:
            exchange.pipeline.break_off("the server has become a replica")

    def look_around(self) -> None:
        """Ask for servers and slots again, unless another request was made just before."""

    def after_fork(self) -> None:
        """In a forked child: forget the state that is valid only in the parent."""


class OneServer(Topology):
    """A server at a known address."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def endpoint(self, slot: int) -> Endpoint:  # noqa: ARG002 - it has them all
        """Return the server."""
        return self._endpoint


class EmbeddedOne(OneServer):
    """The private server of a folder, which may be started again on another socket."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__(Endpoint(str(server.socket_path), 0))
        self._server = server

    def heal(self, exchange: Exchange) -> None:
        """Start the server again if the connection was lost and it does not run."""
        if isinstance(exchange.trouble, LOST):
            self.after_fork()

    def after_fork(self) -> None:
        """Join the server, and start it if it does not run."""
        self._server.ensure_running()
        found = Endpoint(str(self._server.socket_path), 0)
        if found != self._endpoint:
            self._endpoint = found
            self.generation += 1


class ReplaceableServers(Topology, ABC):
    """A topology that is learned from sentinels or from a cluster, whose servers others can replace."""

    replaceable = True

    def __init__(self, ask: Ask, url: str) -> None:
        """``url`` is the text that error messages show for the servers."""
        self._ask = ask
        self._url = url
        self._lock = process.Lock()
        self._looked_at = self._answered_at = self._unheard_until = 0.0

    @abstractmethod
    def _ask_around(self, doubtful: Endpoint | None) -> Exception | None:
        """Adopt the first answer and return None; if no server answers, return the last server's error.

        ``doubtful`` is asked last: this server may not know that it was replaced.
        """

    @abstractmethod
    def _has_its_place(self, endpoint: Endpoint) -> bool:
        """Return True if the server is a master with data, according to the newest answer."""

    def confirms(self, endpoint: Endpoint, since: float) -> bool:
        """Return True if the server is a master with data, by an answer that was requested after ``since``.

        If no server answers now, the last answer counts, although it was requested before ``since``.
        """
        with self._lock:
            if self._answered_at < since and time.monotonic() > self._unheard_until:
                self._look(endpoint)
            return self._has_its_place(endpoint)

    def heal(self, exchange: Exchange) -> None:
        """Close the connection to a replica, and ask for the current servers."""
        super().heal(exchange)
        self.look_around()

    def look_around(self) -> None:
        """Ask for the current servers, unless another request was made just before."""
        with self._lock:
            if time.monotonic() - self._looked_at >= _PAUSE:
                self._look()

    def _look(self, doubtful: Endpoint | None = None) -> Exception | None:
        """Ask for the current servers; return the error if no server answers.

        Even if none answers, exchanges are sent again until their time is over. Then they raise
        `StoreUnavailable`.
        """
        began = time.monotonic()
        refused = self._ask_around(doubtful)
        self._looked_at = time.monotonic()
        if refused is None:
            self._answered_at = began
        else:
            self._unheard_until = self._looked_at + _NOBODY_THERE
        return refused


def slot_of(key: bytes) -> int:
    """Return the slot of one of the library's keys, all of which begin with a hash tag that is not empty."""
    return crc_hqx(key[1 : key.index(b"}")], 0) % SLOTS
