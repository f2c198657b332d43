"""The primaries of a Redis Cluster, and operations on several of its slots."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.store.packing import Command, first_key
from percolator_core.store.request import AFTER, BEFORE, Exchange
from percolator_core.store.topology import SLOTS, Ask, Endpoint, ReplaceableServers, slot_of

Send: TypeAlias = Callable[[Sequence[Exchange]], None]
"""Sends exchanges and returns when they are answered or given up."""

_NO_NAME: Final = (None, b"", b"?")
"""In the reply to CLUSTER SLOTS, the host of a server whose address is not known."""

_ORDER: Final = random.SystemRandom()
"""Without a state: a thread of the library changes nothing for a program that has seeded `random`."""


class Cluster(ReplaceableServers):
    """The primaries of a Redis Cluster, by slot.

    While a slot moves to another server, its keys move one by one, so a script would find half a tablet.
    Therefore an ASK redirection is never followed: requests to the slot are repeated until the move is over.
    Until then both servers refuse a script, because a script declares a tag as its key, and no key has the
    name of a tag. The old server answers a plain read of a key that has not moved yet.
    """

    clustered = True

    def __init__(self, seeds: Sequence[Endpoint], ask: Ask, url: str) -> None:
        """``seeds`` are the servers that are asked first. Raises as `discover`."""
        super().__init__(ask, url)
        self._seeds = list(seeds)
        self._ranges: Sequence[Any] = ()
        self._places: dict[int, Endpoint] = {}
        self._servers: list[Endpoint] = []
        """All servers in the newest answer, replicas too: each of them can be asked next time."""
        self._silent: set[Endpoint] = set()
        self._primaries: frozenset[Endpoint] = frozenset()
        refused = self._look()
        if refused is not None:
            raise self._unusable(refused)
        if len(self._places) < SLOTS:
            raise ConfigurationError(
                f"the cluster {self._url} serves {len(self._places)} of {SLOTS} slots: "
                "assign the others (redis-cli --cluster fix) before it is used"
            )

    def endpoint(self, slot: int) -> Endpoint:
        """Return the slot's primary; raise ClusterDownError while there is none."""
        found = self._places.get(slot)
        if found is None:
            raise ClusterDownError(f"CLUSTERDOWN no server has slot {slot}")
        return found

    def endpoints(self) -> Sequence[Endpoint]:
        """Return all primaries."""
        return sorted(self._primaries)

    def heal(self, exchange: Exchange) -> None:
        """After a failure, ask for all slots again. If a slot has moved, adopt its new server first."""
        trouble = exchange.trouble
        if isinstance(trouble, MovedError):
            with self._lock:
                before = self._places.get(trouble.slot_id)
                host = trouble.host or (before.host if before is not None else self._seeds[0].host)
                self._places[trouble.slot_id] = Endpoint(host, trouble.port)
                self._ranges = ()
                self._primaries = frozenset(self._places.values())
                self.generation += 1
        super().heal(exchange)

    def _has_its_place(self, endpoint: Endpoint) -> bool:
        return endpoint in self._primaries

    def _ask_around(self, doubtful: Endpoint | None) -> Exception | None:
        # Servers that did not answer the last time are asked after the others, and the failed server last.
        candidates = [*self._servers, *(seed for seed in self._seeds if seed not in self._servers)]
        _ORDER.shuffle(candidates)
        candidates.sort(key=lambda server: (server == doubtful, server in self._silent))
        refused: Exception | None = None
        for server in candidates:
            try:
                ranges = self._ask(server, (b"CLUSTER", b"SLOTS"))
            except (RedisError, OSError) as error:
                refused = refused if isinstance(refused, AuthenticationError) else error
                self._silent.add(server)
                continue
            self._silent.discard(server)
            self._take_over(server, ranges)
            return None
        return refused

    def _take_over(self, server: Endpoint, ranges: Sequence[Any]) -> None:
        if ranges == self._ranges:
            return
        places: dict[int, Endpoint] = {}
        servers: list[Endpoint] = []
        for first, last, *nodes in ranges:
            # A server without a configured address returns an empty one.
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
        self._ranges = ranges  # set last: after Ctrl-C in between, the next answer is adopted again

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


def assemble(
    commands: Sequence[Command], stamp: int, *, durable: bool, oracle_slot: int, send: Send
) -> Exchange:
    """Send each command to its slot, and request a timestamp from the oracle's server.

    Commands to different slots have no order among each other. The returned exchange is answered or failed.
    """
    whole = Exchange((), stamp, durable=durable)
    if stamp == BEFORE and not _stamped(whole, oracle_slot, send):
        return whole
    places: dict[int, list[int]] = {}
    for position, command in enumerate(commands):
        places.setdefault(place_of(command, oracle_slot), []).append(position)
    parts = [
        Exchange([commands[position] for position in positions], slot=slot, durable=durable)
        for slot, positions in places.items()
    ]
    if parts:
        send(parts)
    replies: list[Any] = [None] * len(commands)
    for part, positions in zip(parts, places.values(), strict=True):
        whole.take_in(part)
        for position, reply in zip(positions, part.replies, strict=False):
            replies[position] = reply
    if whole.failure is None:
        whole.replies = replies
        if stamp >= AFTER:
            _stamped(whole, oracle_slot, send)
    return whole


def place_of(command: Command, oracle_slot: int) -> int:
    """Return the slot of a command's first key; without a key, that of the oracle."""
    key = first_key(command)
    return slot_of(key) if isinstance(key, bytes) and key.startswith(b"{") else oracle_slot


def _stamped(whole: Exchange, oracle_slot: int, send: Send) -> bool:
    """Request a timestamp for an exchange; return False if that failed."""
    stamp = Exchange((), BEFORE, slot=oracle_slot)
    send((stamp,))
    whole.timestamp, whole.epoch, whole.failure = stamp.timestamp, stamp.epoch, stamp.failure
    return stamp.failure is None
