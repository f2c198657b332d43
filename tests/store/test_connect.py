# ruff: noqa: PT012
"""connect(): what is refused, how fast, in one sentence, and without the password."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

import percolator_core as percolator
from percolator_core import ConfigurationError, Database, StoreUnavailable
from percolator_core.cli.app import app
from percolator_core.cli.output import ExitCode
from percolator_core.store import FORMAT, checks
from percolator_core.store.url import parse
from tests.servers.cluster import Cluster
from tests.servers.plain import Server, binaries, free_port, some_namespace, until
from tests.servers.sentinel import Sentinels

SECRET = "hunter2-canary"


def refusal(url: str, **settings: Any) -> str:
    with pytest.raises((ConfigurationError, StoreUnavailable)) as error:
        percolator.connect(url, some_namespace(), **settings)
    words = str(error.value)
    assert words
    assert "\n" not in words
    assert SECRET not in words
    return words


def test_tcp(own: Server) -> None:
    with percolator.connect(own.tcp, "ns") as db:
        db.create_table("t")
        with db.transaction() as t:
            t.set("t", "r", "c", b"v")
        assert db.snapshot().get("t", "r", "c") == b"v"


def test_a_server_that_evicts(own: Server) -> None:
    with own.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "set maxmemory-policy noeviction" in refusal(own.unix)


def test_a_replica(own: Server) -> None:
    master = Server(own.binary)
    try:
        refuse_replica(own, master)
    finally:
        master.close()


def refuse_replica(own: Server, master: Server) -> None:
    with percolator.connect(master.unix, "ns") as db, own.client() as client:
        db.timestamp()
        client.replicaof("127.0.0.1", master.port)
        until(lambda: client.info("replication")["master_link_status"] == "up")
        with pytest.raises(ConfigurationError, match="replica"):
            percolator.connect(own.unix, "ns")


def test_an_old_version(own: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "OLDEST_SERVER", (99, 0))
    assert "upgrade" in refusal(own.unix)


def test_another_format(own: Server) -> None:
    with own.client() as client, percolator.connect(own.unix, "ns") as db:
        client.set(db.store.keyspace.prefix + b"format", "0")
        with pytest.raises(ConfigurationError, match="format '0'"):
            percolator.connect(own.unix, "ns")


def test_a_look_founds_no_namespace(own: Server) -> None:
    with own.client() as client, percolator.connect(own.unix, "ns") as db:
        assert db.tables() == []
        key = db.store.keyspace.format
        assert client.get(key) is None
        db.create_table("t")
        assert client.get(key) == FORMAT.encode()


def test_another_format_since_the_connection(own: Server) -> None:
    with own.client() as client, percolator.connect(own.unix, "ns") as db:
        client.set(db.store.keyspace.format, "1")
        with pytest.raises(ConfigurationError, match="format '1'"):
            db.create_table("t")
        assert db.tables() == []


def test_nobody_there() -> None:
    before = time.monotonic()
    assert "check that it runs" in refusal(f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0")
    assert time.monotonic() - before < 30


def test_somebody_who_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = time.monotonic()
        refusal(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout=0.5, patience=1)
        assert time.monotonic() - before < 30


def test_a_wrong_password_is_told_at_once(own: Server) -> None:
    with own.client() as client:
        client.config_set("requirepass", SECRET)
        before = time.monotonic()
        for url in (own.tcp, own.tcp.replace("//", "//:wrong@"), own.tcp.replace("//", "//someone:wrong@")):
            assert "check user and password" in refusal(url, patience=60)
        assert time.monotonic() - before < 30
        right = own.tcp.replace("//", f"//:{SECRET}@")
        with percolator.connect(right, "ns") as db:
            for shown in (repr(db), db.url, repr(parse(right))):
                assert SECRET not in shown


def test_settings_out_of_range() -> None:
    for settings in ({"lock_ttl": 0}, {"lock_ttl": 1e9}, {"lock_wait": -1}, {"timeout": float("nan")}):
        assert refusal("redis://127.0.0.1:1/0", **settings)
    with pytest.raises(ConfigurationError):
        percolator.connect("redis://127.0.0.1:1/0", "")
    with pytest.raises(ConfigurationError):
        percolator.connect("redis://127.0.0.1:1/0", "x" * 201)


def full(server: Server, db: Database) -> None:
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)


def test_memory_full(own: Server) -> None:
    """Nothing is half-written, and what was begun can still be finished or cleaned up."""
    from datetime import timedelta

    from tests.servers.plain import commit_of, die, rows_apart

    rows = rows_apart(3)
    with percolator.connect(own.unix, "ns") as db, percolator.connect(own.unix, "ns") as other:
        db.create_table("t")
        db.client.one_call_a_tablet = True
        unfinished, abandoned = db.begin(), other.begin()
        for t, column in ((unfinished, "a"), (abandoned, "b")):
            assert t.start_timestamp
            for row in rows:
                t.set("t", row, column, b"value")
        commit, lost = commit_of(unfinished), commit_of(abandoned)
        commit_ts = commit.prewrite()
        lost.prewrite()
        die(other)
        full(own, db)
        for two_phase in (False, True):
            db.client.one_call_a_tablet = two_phase
            with pytest.raises(StoreUnavailable, match="out of memory"), db.transaction() as t:
                assert t.get("t", "absent", "c") is None
                for row in rows:
                    t.set("t", row, "c", b"x" * 100)
        # Reading, finishing, cleaning up, and newcomers.
        commit.commit_secondaries(commit.commit_primary(commit_ts))
        with percolator.connect(own.unix, "ns") as late:
            resolved = late.resolve_locks(timedelta(0))
            assert resolved.live == 0
            assert list(late.locks()) == []
            with late.transaction() as t:
                assert dict(t.scan("t")) == {row: {"a": b"value"} for row in sorted(rows)}
            late.collect_garbage(timedelta(0))
            late.drop_table("t")


# What may be wrong with a URL: told in one sentence, soon, with the mend, and by the command line too.

SYSTEM = binaries().get("system", "")
needs_system = pytest.mark.skipif(not SYSTEM, reason="NOT TESTED: no redis-server on PATH")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(SYSTEM, 3, 0) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels(SYSTEM, 1) as sentinels:
        yield sentinels


def wrong(url: str, kind: type[Exception], match: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told in one sentence, and long before the patience with a store that is lost later would end."""
    before = time.monotonic()
    with pytest.raises(kind, match=match) as error:
        percolator.connect(url, "ns", patience=600.0)
    assert time.monotonic() - before < 60
    words = str(error.value)
    assert "\n" not in words
    assert SECRET not in words
    with pytest.raises(SystemExit) as ended:
        app(["status", "--url", url, "--namespace", "ns"])
    assert ended.value.code == (ExitCode.USAGE if kind is ConfigurationError else ExitCode.UNAVAILABLE)
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err
    assert "Traceback" not in told.err


@needs_system
def test_a_url_of_the_wrong_kind(
    cluster: Cluster, sentinels: Sentinels, capsys: pytest.CaptureFixture[str]
) -> None:
    node, sentinel, plain = (
        server.port for server in (cluster.nodes[0], sentinels.sentinels[0], sentinels.master)
    )
    for url, match in (
        (f"redis://127.0.0.1:{node}", r"belongs to a cluster: write redis\+cluster"),
        (f"redis+sentinel://127.0.0.1:{node}/x", "names no sentinels: use a redis://"),
        (f"redis+cluster://127.0.0.1:{plain}", "is no cluster: use a redis://"),
        (f"redis+sentinel://127.0.0.1:{plain}/x", "names no sentinels"),
        (f"redis://127.0.0.1:{sentinel}", r"is a sentinel: write redis\+sentinel"),
        (f"redis+cluster://127.0.0.1:{sentinel}", r"is no cluster: use .*redis\+sentinel"),
        (f"redis://127.0.0.1:{sentinels.replicas[0].port}", "is a replica.*connect to its master"),
        (sentinels.url.replace("the-service", "nope"), "know no service 'nope': they watch the-service"),
    ):
        wrong(url, ConfigurationError, match, capsys)


@needs_system
@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:{0}",
        "redis+cluster://127.0.0.1:{0},127.0.0.1:{1}",
        "redis+sentinel://127.0.0.1:{0},127.0.0.1:{1}/x",
    ],
)
def test_nobody_at_any_kind_of_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong(url.format(free_port(), free_port()), StoreUnavailable, "check that (it runs|they run)", capsys)


@needs_system
def test_logins_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(SYSTEM, 1, 0) as cluster:
        cluster.nodes[0].ask("CONFIG", "SET", "requirepass", SECRET)
        for url in (cluster.url, cluster.url.replace("//", f"//:{SECRET}x@")):
            wrong(url, StoreUnavailable, "refuses the login.*check user and password", capsys)
        with percolator.connect(cluster.url.replace("//", f"//:{SECRET}@"), "ns") as db:
            db.create_table("t")
            assert SECRET not in repr(db)


@needs_system
def test_a_cluster_that_lacks_a_slot(capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(SYSTEM, 2, 0) as cluster:
        for node in cluster.nodes:
            node.ask("CLUSTER", "DELSLOTS", 5)
        wrong(cluster.url, ConfigurationError, "serves 16383 of 16384 slots.*--cluster fix", capsys)


@needs_system
def test_a_cluster_one_of_whose_servers_evicts(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    for node in cluster.nodes:
        node.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        wrong(cluster.url, ConfigurationError, "set maxmemory-policy noeviction", capsys)
        node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.slow
@needs_system
@pytest.mark.parametrize("what", ["kill", "stop"])
def test_a_cluster_one_of_whose_servers_is_away(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(SYSTEM, 3, 0) as cluster:
        with percolator.connect(cluster.url, "ns") as db:
            oracle = cluster.primary_of(db.store.keyspace.oracle)
        for victim in (next(node for node in cluster.nodes if node is not oracle), oracle)[
            : 1 if what == "stop" else 2
        ]:
            getattr(cluster, what)(victim)
            wrong(cluster.url, StoreUnavailable, "check that it runs", capsys)
        for node in cluster.alive:
            cluster.kill(node)
        if what == "kill":
            wrong(cluster.url, StoreUnavailable, "check that they run", capsys)


@needs_system
def test_a_master_that_is_down_behind_sentinels_that_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    with Sentinels(SYSTEM, 0) as group:
        group.kill_master()
        wrong(group.url, StoreUnavailable, "check that it runs", capsys)


@needs_system
@pytest.mark.parametrize("kind", ["cluster", "sentinels"])
def test_commands_that_look_at_a_store_from_outside(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    url = request.getfixturevalue(kind).url

    def run(*arguments: str) -> tuple[Any, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app([*arguments, "--url", url, "--json"])
        return ended.value.code, json.loads(capsys.readouterr().out)

    code, told = run("status")
    assert code == ExitCode.USAGE
    assert "holds no tables yet" in told["error"]["message"]
    names = [f"look {number}" for number in range(4)]
    for name in names:  # of a cluster, on several servers
        with percolator.connect(url, name) as db:
            db.create_table("t")
            with db.transaction() as t:
                t.set("t", "r", "c", b"v")
    code, told = run("status")
    assert code == ExitCode.USAGE
    assert all(name in told["error"]["message"] for name in names)
    code, told = run("status", "--namespace", "look 1")
    assert code == ExitCode.OK
    assert told["store"]["memory"] > 0
    code, told = run("get", "t", "r", "--namespace", "look 2")
    assert code == ExitCode.OK
    code, told = run("get", "t", "r", "--namespace", "look 9")
    assert code == ExitCode.USAGE
    assert "look 3" in str(told)
    code, told = run("doctor")
    checks = {finding["check"]: finding for finding in told["findings"]}
    assert set(names) <= set(checks)
    assert ("cluster" if kind == "cluster" else "sentinel") in checks
    assert sum("eviction" in check for check in checks) == (3 if kind == "cluster" else 1)
