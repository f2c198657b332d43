"""Which server has what; here of a single server, which has everything.

A topology is shared by all connections of a store. It is asked for the place of a slot before each attempt to
send something, and told of every trouble, after which it may look around again.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

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
        """Hang up on a replica: behind this address another server may be the master by now. Else wait."""
        if is_read_only(exchange.trouble) and exchange.pipeline is not None:
            exchange.pipeline.break_off("the server has become a replica")

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


def slot_of(key: bytes) -> int:
    """The slot of a key of ours: they all begin with their hash tag, which is never empty."""
    return crc_hqx(key[1 : key.index(b"}")], 0) % SLOTS
