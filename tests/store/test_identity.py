"""A server is the same by each of its names, and another one once it may have lost something."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core import Database
from percolator_core.store.embedded.binary import Binary
from percolator_core.store.embedded.server import EmbeddedServer
from tests.servers.cluster import Cluster
from tests.servers.plain import Server, binaries, hang_up
from tests.servers.sentinel import Sentinels
from tests.store.embedding import kill

BINARIES = binaries()
SECOND = 1_000_000
COUNT = b"\xff"
FAR = 1_000_000


def floor(db: Database) -> int:
    return int(db.store.one((b"HGET", db.store.keyspace.oracle, b"floor")) or 0)


def count(db: Database) -> int:
    return int(db.store.one((b"HGET", db.store.keyspace.catalog, COUNT)) or 0)


def alternate(urls: Sequence[str]) -> None:
    """Clients connect by each name in turn, and none of them takes the server for another one."""
    with ExitStack() as stack:
        clients = [stack.enter_context(percolator.connect(url, "ns")) for url in urls]
        clients[0].create_table("t")
        for _ in range(2):
            for db in clients:
                hang_up(db)
                assert db.timestamp() < time.time() * SECOND + 5 * SECOND
                assert not floor(db)
        assert 0 < count(clients[0]) < FAR


def test_an_embedded_server_and_its_socket(state: Path, binary: Binary) -> None:
    with EmbeddedServer.join(state) as server:
        socket = server.socket_path
        alternate([f"embedded:{state}", f"unix://{socket}", f"unix://{socket}?db=0"])


@pytest.mark.parametrize("kind", list(BINARIES))
def test_a_server_by_tcp_and_by_its_socket(kind: str) -> None:
    with closing(Server(BINARIES[kind])) as server:
        alternate([server.tcp, server.unix, server.tcp.replace("127.0.0.1", "localhost")])


@pytest.mark.skipif("system" not in BINARIES, reason="NOT TESTED: no redis-server on the PATH")
def test_a_master_by_its_sentinels_and_by_its_address() -> None:
    with Sentinels(BINARIES["system"], 1) as servers:
        master = servers.servers[0]
        alternate([servers.url, master.tcp, master.unix])


@pytest.mark.skipif("system" not in BINARIES, reason="NOT TESTED: no redis-server on the PATH")
def test_a_cluster_by_each_of_its_servers() -> None:
    with Cluster(BINARIES["system"], 3, 0) as cluster:
        alternate([f"redis+cluster://127.0.0.1:{server.port}" for server in cluster.primaries])


def test_a_master_that_was_a_replica_meanwhile_is_another_one(own: Server) -> None:
    """It never heard what its replacement gave out."""
    with percolator.connect(own.tcp, "ns") as db:
        before = db.timestamp()
        with own.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", own.port)
            client.execute_command("REPLICAOF", "NO", "ONE")
        hang_up(db)
        assert db.timestamp() > before + 5 * SECOND
        assert floor(db) > before


def test_an_orderly_restart_that_is_seen_by_another_name_first(state: Path, binary: Binary) -> None:
    with percolator.connect(f"embedded:{state}", "ns") as db:
        before = db.timestamp()
    with EmbeddedServer.join(state) as server, percolator.connect(f"unix://{server.socket_path}", "ns") as db:
        assert before < db.timestamp() < time.time() * SECOND + 5 * SECOND
        assert not floor(db)


def test_a_crash_that_is_seen_by_another_name_first(state: Path, binary: Binary) -> None:
    with percolator.connect(f"embedded:{state}", "ns") as db:
        before = db.timestamp()
        assert db.store.embedded is not None
        kill(db.store.embedded)
    with EmbeddedServer.join(state) as server, percolator.connect(f"unix://{server.socket_path}", "ns") as db:
        assert floor(db) > before


# The catalog's count, where the versions of tables come from.


def another_server(db: Database) -> None:
    db.store.one((b"HSET", db.store.keyspace.oracle, b"server", b"another"))
    hang_up(db)


def test_no_version_of_a_table_is_given_twice_over_a_failover(own: Server) -> None:
    with percolator.connect(own.tcp, "ns") as db:
        db.create_table("kept")
        with own.client() as client:
            saved = client.hgetall(db.store.keyspace.catalog)
        db.create_table("lost")
        lost = db.catalog.table("lost").version
        with own.client() as client:
            client.delete(db.store.keyspace.catalog)
            client.hset(db.store.keyspace.catalog, mapping=saved)
        another_server(db)
        with percolator.connect(own.unix, "ns") as other:
            other.create_table("made since")
            assert int(other.catalog.table("made since").version) > int(lost) + FAR // 2
            assert count(other) > FAR


def test_the_count_stays_where_nothing_is_lost(own: Server) -> None:
    with percolator.connect(own.tcp, "ns") as db:
        db.create_table("t")
        hang_up(db)
        db.timestamp()
        assert 0 < count(db) < FAR


def test_a_namespace_without_tables_gets_no_catalog(own: Server) -> None:
    with percolator.connect(own.tcp, "ns") as db:
        db.timestamp()
        another_server(db)
        db.timestamp()
        assert floor(db)
        assert not db.store.one((b"EXISTS", db.store.keyspace.catalog))


def test_a_recovery_that_was_stopped_midway_is_made_by_the_next_connection(own: Server) -> None:
    with percolator.connect(own.tcp, "ns") as db:
        db.create_table("t")
        before = db.timestamp()
        with own.client() as client:
            client.hset(db.store.keyspace.catalog, COUNT, "no number")
            another_server(db)
            with pytest.raises(percolator.PercolatorError):
                db.timestamp()
            client.hset(db.store.keyspace.catalog, COUNT, "1")
        assert db.timestamp() > before + 5 * SECOND
        assert floor(db) > before
