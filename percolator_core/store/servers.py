"""Finds the servers behind an address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import redis

from percolator_core import scripts
from percolator_core.layout.keys import Keyspace
from percolator_core.store.cluster import Cluster
from percolator_core.store.connector import Connector
from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.redaction import redacted
from percolator_core.store.sentinel import SentinelMaster
from percolator_core.store.topology import Ask, EmbeddedOne, Endpoint, OneServer, Topology
from percolator_core.store.url import Address, parse


def discover(address: Address, ask: Ask, url: str, embedded: EmbeddedServer | None = None) -> Topology:
    """Return the topology of the servers at an address. In messages, ``url`` stands for the servers.

    Raises:
        ConfigurationError: the servers are not of the kind that the address names, know no such service, or
            do not serve all slots.
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


@contextmanager
def clients_of(url: str, timeout: float) -> Iterator[dict[Endpoint, redis.Redis]]:
    """Open a client of redis-py for each server that holds data, without any namespace.

    ``timeout`` is how many seconds one reply may take. The URL must not begin with ``embedded:``.
    The errors are those of `discover`.
    """
    address = parse(url)
    connector = Connector(address, Keyspace("look"), scripts.load, timeout)
    with ExitStack() as stack:
        endpoints = discover(address, connector.ask, redacted(url)).endpoints()
        yield {endpoint: stack.enter_context(connector.client(endpoint)) for endpoint in endpoints}
