"""From an address to the servers behind it."""

from __future__ import annotations

from typing import Any, Protocol

from percolator_core.store.cluster import Cluster
from percolator_core.store.embedded.server import EmbeddedServer
from percolator_core.store.packing import Command
from percolator_core.store.sentinel import SentinelMaster
from percolator_core.store.topology import EmbeddedOne, Endpoint, OneServer, Topology
from percolator_core.store.url import Address


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
        return SentinelMaster(hosts, address.service, dialer.ask, url)
    if address.kind == "cluster":
        return Cluster(hosts, dialer.ask, url)
    return OneServer(Endpoint(address.socket_path, 0) if address.socket_path else hosts[0])
