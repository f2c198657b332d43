"""A server that begins to evict keys, or has done so, is noticed by every client that uses it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import percolator_core as percolator
from percolator_core import ConfigurationError, Database, StoreUnavailable, UnknownTable
from percolator_core.admin.status import status
from percolator_core.cli.app import app
from percolator_core.cli.output import ExitCode
from percolator_core.store import eviction
from tests.servers.cluster import Cluster
from tests.servers.plain import Server, binaries, rows_apart, some_namespace, until
from tests.servers.sentinel import Sentinels

BINARIES = binaries()
SYSTEM = BINARIES.get("system", "")
needs_system = pytest.mark.skipif(not SYSTEM, reason="NOT TESTED: no redis-server on PATH")
ROWS = rows_apart(8)
POLICY = "set maxmemory-policy noeviction"
LOST = "rows may be lost.*CONFIG RESETSTAT"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "INTERVAL", 0.1)


@pytest.fixture
def db(own: Server) -> Iterator[Database]:
    with percolator.connect(own.unix, some_namespace()) as db:
        fill(db)
        yield db


def fill(db: Database) -> None:
    db.create_table("t")
    with db.transaction() as t:
        for row in ROWS:
            t.set("t", row, "v", row)


def read(db: Database, row: bytes = ROWS[0]) -> bytes | None:
    return db.snapshot().get("t", row, "v")


def write(db: Database) -> None:
    with db.transaction() as t:
        t.set("t", ROWS[0], "v", b"new")


def use_policy(server: Any, policy: str) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", policy)


def evict_something(server: Server) -> None:
    """Have the server drop a key. It has enough memory and the right policy afterwards."""
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 1)
        until(lambda: client.set("another", "key") and client.info("stats")["evicted_keys"])
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


def await_refusal(use: Any, match: str, kind: type[Exception] = StoreUnavailable) -> None:
    """Wait until ``use`` is refused, without any other error before that."""
    told: list[str] = []

    def is_refused() -> bool:
        try:
            use()
        except kind as error:
            told.append(str(error))
        except UnknownTable:
            pass  # the catalog was evicted, too
        return bool(told)

    until(is_refused)
    with pytest.raises(kind, match=match):  # and from then on
        use()
    assert "\n" not in told[0]


@pytest.mark.parametrize("use", [read, write])
def test_a_policy_that_changes_is_noticed(own: Server, db: Database, use: Any) -> None:
    use(db)
    use_policy(own, "allkeys-random")
    await_refusal(lambda: use(db), POLICY)
    use_policy(own, "noeviction")
    use(db)


def test_an_idle_client_is_refused_before_it_sends_anything(own: Server, db: Database) -> None:
    read(db)
    use_policy(own, "allkeys-random")
    time.sleep(eviction.INTERVAL)  # what is tested is what an idle time brings
    with own.client() as client:
        before = client.info("commandstats")
        with pytest.raises(StoreUnavailable, match=POLICY):
            write(db)
        after = client.info("commandstats")
    assert before["cmdstat_evalsha"]["calls"] == after["cmdstat_evalsha"]["calls"]


def test_a_hub_that_always_waits_for_something_notices(own: Server, db: Database) -> None:
    changed: list[bool] = []
    end = time.monotonic() + 20

    def work(number: int) -> str:
        for count in itertools.count():
            if number == 0 and count == 10:
                use_policy(own, "allkeys-random")
                changed.append(True)
            try:
                read(db, ROWS[number % len(ROWS)])
            except StoreUnavailable as error:
                assert changed
                return str(error)
            assert time.monotonic() < end, "it was not refused"
        raise AssertionError("unreachable")

    with db.concurrency(32) as executor:
        assert all(POLICY in told for told in executor.map(work, range(32)))


def test_rows_that_were_evicted_are_noticed_when_it_is_over(own: Server, db: Database) -> None:
    read(db)
    evict_something(own)
    await_refusal(lambda: read(db), LOST)
    with pytest.raises(ConfigurationError, match=LOST):
        percolator.connect(own.unix, db.namespace)
    with own.client() as client:
        client.config_resetstat()
    db.tables()
    percolator.connect(own.unix, db.namespace).close()


def test_both_are_told_in_one_sentence(own: Server, db: Database) -> None:
    evict_something(own)
    use_policy(own, "volatile-ttl")
    with pytest.raises(
        ConfigurationError, match=f"volatile-ttl.*has evicted [0-9]+ keys.*{POLICY}.*RESETSTAT"
    ):
        percolator.connect(own.unix, db.namespace)


def test_an_embedded_store_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"embedded:{tmp_path}/state"
    with percolator.connect(url, "ns") as db:
        fill(db)
        with redis.Redis(unix_socket_path=db.store.endpoints()[0].host) as client:
            client.config_set("maxmemory-policy", "allkeys-lfu")
            await_refusal(lambda: read(db), POLICY)
            with pytest.raises(SystemExit) as ended:
                app(["status", "--url", url, "--namespace", "ns"])
            assert ended.value.code == ExitCode.USAGE
            assert POLICY in capsys.readouterr().err
            client.config_set("maxmemory-policy", "noeviction")
        assert read(db) == ROWS[0]


@needs_system
def test_a_promoted_replica_is_looked_at() -> None:
    with Sentinels(SYSTEM, 1) as group, percolator.connect(group.url, some_namespace(), patience=60) as db:
        fill(db)
        assert group.master.ask("WAIT", 1, 10_000) == 1
        group.replicas[0].ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        new = group.await_failover(group.kill_master())
        with pytest.raises(StoreUnavailable, match=POLICY):
            read(db)
        new.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert read(db) == ROWS[0]


@needs_system
def test_each_primary_of_a_cluster_is_looked_at() -> None:
    with Cluster(SYSTEM, 3, 0) as cluster, percolator.connect(cluster.url, some_namespace()) as db:
        fill(db)
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
            await_refusal(lambda: [read(db, row) for row in ROWS], f"127.0.0.1:{node.port} of .*{POLICY}")
            with pytest.raises(StoreUnavailable, match=POLICY):
                status(db)
            node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
            assert [read(db, row) for row in ROWS] == ROWS
