"""Finds the servers behind an address."""

from __future__ import annotations

from percolator_core.store.cluster import Cluster
from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.sentinel import SentinelMaster
from percolator_core.store.topology import Ask, EmbeddedOne, Endpoint, OneServer, Topology
from percolator_core.store.url import Address


def discover(address: Address, ask: Ask, url: str, embedded: EmbeddedServer | None = None) -> Topology:
    """Return the topology of the servers at an address. In messages, ``url`` stands for the servers.

    Raises:
        ConfigurationError: the servers are not of the kind that the address names.
        StoreUnavailable: none of the sentinels, or of the cluster's servers, in the address answers.
    """
    hosts = [Endpoint(*host) for host in address.hosts]
    if embedded is not None:
        return EmbeddedOne(embedded)
    if address.kind == "sentinel":
        assert address.service is not None
        return SentinelMaster(hosts, address.service, ask, url)
    if address.kind == "cluster":
        return Cluster(hosts, ask, url)
    return OneServer(Endpoint(address.socket_path, 0) if address.socket_path else hosts[0])
