"""The servers of a store, and their slots. The classes here are for a single server, which has all slots.

All connections of a store share one topology. Each attempt to send an exchange first looks up the slot's
server in it. After a failed attempt, `Topology.heal` may ask the servers again.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.packing import Command
from percolator_core.store.refusals import LOST, is_read_only
from percolator_core.store.request import Exchange

SLOTS: Final = 16384


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
        """Return True if the list of servers has this one.

        If the list is older than ``since``, it is read again first.
        """
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


def slot_of(key: bytes) -> int:
    """Return the slot of one of the library's keys, all of which begin with a hash tag that is not empty."""
    return crc_hqx(key[1 : key.index(b"}")], 0) % SLOTS
