"""The places of an attack: one server, sentinels, a cluster; and the faults of their servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from redis.crc import key_slot

from tests.attack.attack import Attack
from tests.attack.session import WITNESS
from tests.servers.cluster import Cluster
from tests.servers.plain import Server, binaries
from tests.servers.sentinel import Sentinels

KINDS = ("plain", "sentinel", "cluster")

_DURABLE = "?durability=replicas=1,timeout=0.3"


@dataclass
class Place:
    """A kind of store, and what `percolator_core.connect` needs for it."""

    kind: str
    url: str
    durable: str = ""
    """The suffix of the URL where servers fail over: acknowledged commits must survive this.

    Otherwise the checker rightly reports them as lost."""
    sentinels: Sentinels | None = None
    cluster: Cluster | None = None

    def disturb(self, attack: Attack) -> None:
        """A master is killed and failed over, and slots move; where there is one server, nothing."""
        if self.sentinels is not None:
            old = self.sentinels.kill_master()
            self.sentinels.await_failover(old)
            self.sentinels.restart(old)
        if self.cluster is not None:
            _move_slots(self.cluster, attack)
            old_primary = self.cluster.primary_of(attack.db.catalog.table(WITNESS).tags[1])
            self.cluster.kill(old_primary)
            self.cluster.await_failover(old_primary)
            self.cluster.restart(old_primary)


@contextmanager
def place_of(kind: str) -> Iterator[Place]:
    """Start servers, and end them."""
    binary = binaries()["system"]
    if kind == "plain":
        with closing(Server(binary)) as server:
            yield Place(kind, server.unix)
    elif kind == "sentinel":
        with Sentinels(binary, 1) as sentinels:
            yield Place(kind, sentinels.url, _DURABLE, sentinels=sentinels)
    else:
        with Cluster(binary, 3, 1) as cluster:
            yield Place(kind, cluster.url, _DURABLE, cluster=cluster)


def _move_slots(cluster: Cluster, attack: Attack) -> None:
    keys = [attack.db.store.keyspace.oracle, attack.db.catalog.table(WITNESS).tags[0]]
    for key in keys:
        slot = key_slot(key)
        owner = cluster.owner(slot)
        cluster.move_slot(slot, next(node for node in cluster.primaries if node is not owner))
