"""Servers and their replicas."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from percolator_core.errors import StoreUnavailable
from percolator_torture.servers.private_server import LOOPBACK, PrivateServer

_LIMIT: Final = 60.0
_STEP: Final = 0.005
_NOWHERE: Final = "1"
"""A port without a server."""


def follow(replica: PrivateServer, primary: PrivateServer) -> None:
    """Make a server a replica of a running one, and wait until it is in step.

    Raises:
        StoreUnavailable: it is not in step after a minute.
    """
    with replica.client() as client, primary.client() as primary_client:
        client.replicaof(LOOPBACK, str(primary.port))
        until = time.monotonic() + _LIMIT
        while True:
            # Read the primary's offset first: the primary still accepts writes, and its offset grows.
            before = primary_client.info("replication")
            state = client.info()
            linked = state.get("master_link_status") == "up"
            in_step = linked and int(state["slave_repl_offset"]) >= int(before["master_repl_offset"])
            if in_step and not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]:
                # A replica counts for the durability of writes only after its first acknowledgement.
                primary_client.incr("followed")
                everyone = int(before["connected_slaves"])
                if primary_client.wait(everyone, 100) >= everyone:
                    return
            if time.monotonic() > until:
                raise StoreUnavailable(f"no replica after {_LIMIT:g} s: check the log in {replica.folder}")
            time.sleep(_STEP)


def cut_off(replica: PrivateServer) -> None:
    """Disconnect a replica from its primary. It stays a replica, with its data."""
    with replica.client() as client:
        client.replicaof(LOOPBACK, _NOWHERE)


def offset_of(replica: PrivateServer) -> int:
    """Return the position of a replica, in bytes of its primary's stream."""
    with replica.client() as client:
        return int(client.info("replication")["slave_repl_offset"])


def promote(replica: PrivateServer) -> None:
    """Make a replica a primary."""
    with replica.client() as client:
        client.replicaof("NO", "ONE")


def furthest(replicas: Sequence[PrivateServer]) -> PrivateServer:
    """Return the replica with the most data, which a failover promotes."""
    return max(replicas, key=offset_of)
