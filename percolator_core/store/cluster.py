"""The primaries of a Redis Cluster."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.store.replaceable import ReplaceableServers
from percolator_core.store.request import Exchange
from percolator_core.store.topology import SLOTS, Ask, Endpoint

_NO_NAME: Final = (None, b"", b"?")
"""In the reply to CLUSTER SLOTS, the host of a server whose address is not known."""


class Cluster(ReplaceableServers):
    """The primaries of a Redis Cluster, by slot.

    While a slot moves to another server, its keys move one by one, so a script would find half a tablet.
    Therefore an ASK redirection is never followed: requests to the slot are repeated until the move is over.
    Until then both servers refuse a script, because a script declares a tag as its key, and no key has the
    name of a tag. The old server answers a plain read of a key that has not moved yet.
    """

    clustered = True

    def __init__(self, seeds: Sequence[Endpoint], ask: Ask, url: str) -> None:
        """``seeds`` are the servers that are asked first.

        Raises:
            ConfigurationError: the servers are no cluster, or do not serve all slots.
            StoreUnavailable: none of them answers.
        """
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
        """Return the primary that has the slot."""
        found = self._places.get(slot)
        if found is None:
            raise ClusterDownError(f"CLUSTERDOWN no server has slot {slot}")
        return found

    def endpoints(self) -> Sequence[Endpoint]:
        """Return all primaries that have slots."""
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
        random.shuffle(candidates)
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
