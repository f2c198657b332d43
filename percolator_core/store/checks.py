"""Check that the servers of a store keep data, and give the durability that was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from redis.connection import AbstractConnection

from percolator_core.errors import ConfigurationError, StoreUnavailable
from percolator_core.store.embedded.binary import OLDEST_SERVER
from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.eviction import refuse_eviction
from percolator_core.store.server_info import ServerInfo
from percolator_core.store.topology import Topology

_LOOK: Final = 0.1
"""Seconds between two requests to a server that may be in the middle of a failover."""


def examine(
    ask: Callable[[], list[ServerInfo]], topology: Topology, url: str, until: float
) -> list[ServerInfo]:
    """Check the servers' replies to INFO, which ``ask`` requests, and return the replies.

    A server that is being replaced is asked again, until the time ``until`` (`time.monotonic`).

    Raises:
        ConfigurationError: a server could lose data, or is of another kind than the URL says.
        StoreUnavailable: a server does not answer, or evicts keys (`EvictingStore`).
    """
    info = _info_in_time(ask, topology, until)
    for one in info:
        _refuse_unsuitable(one, url, clustered=topology.clustered)
        refuse_eviction(one, url)
    return info


def _info_in_time(ask: Callable[[], list[ServerInfo]], topology: Topology, until: float) -> list[ServerInfo]:
    while True:
        is_over = time.monotonic() > until
        try:
            info = ask()
            if is_over or not topology.replaceable or all(one.role == "master" for one in info):
                return info
        except StoreUnavailable:
            if is_over or not topology.clustered:
                raise
        time.sleep(_LOOK)
        topology.look_around()


def _refuse_unsuitable(info: ServerInfo, url: str, *, clustered: bool) -> None:
    """Raise ConfigurationError for a server that cannot hold data, or that needs another kind of URL."""
    oldest = ".".join(map(str, OLDEST_SERVER))
    if info.mode == "sentinel":
        raise ConfigurationError(f"{url} is a sentinel: write redis+sentinel://HOST:PORT/SERVICE")
    if info.mode == "cluster" and not clustered:
        raise ConfigurationError(f"{url} belongs to a cluster: write redis+cluster://HOST:PORT")
    if info.version_pair < OLDEST_SERVER:
        raise ConfigurationError(
            f"{url} is Redis {info.version} and {oldest} is the oldest that works: upgrade the server"
        )
    if info.role != "master":
        raise ConfigurationError(f"{url} is a replica, which takes no writes: connect to its master")


def demand_log(info: Sequence[ServerInfo], url: str) -> None:
    """Raise ConfigurationError unless every server keeps a log on disk."""
    if any(one.raw.get("aof_enabled") != "1" for one in info):
        raise ConfigurationError(
            f"durability fsync: {url} keeps no log on disk: set appendonly yes, or leave fsync out"
        )


def assure_disk(embedded: EmbeddedServer | None, url: str, connection: AbstractConnection) -> None:
    """Raise ConfigurationError unless a server without WAITAOF writes to disk before it replies."""
    if embedded is not None:
        # No other program uses this server, and the setting makes no write less safe.
        connection.send_command("CONFIG", "SET", "appendfsync", "always")
        connection.read_response()
        return
    connection.send_command("CONFIG", "GET", "append*")
    flat = connection.read_response(disable_decoding=True)
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    if found.get(b"appendonly") != b"yes" or found.get(b"appendfsync") != b"always":
        raise ConfigurationError(
            f"durability fsync: {url} is older than Redis 7.2 and cannot say what is on disk: "
            "set appendonly yes and appendfsync always on each server, or leave fsync out"
        )
