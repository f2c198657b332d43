# ruff: noqa: PT012
"""connect(): what is refused, how fast, in one sentence, and without the password."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

import percolator_core as percolator
from percolator_core import ConfigurationError, Database, StoreUnavailable
from percolator_core.store import facts as facts_module
from tests.core.servers import Server, binaries, free_port, some_namespace, until

SECRET = "hunter2-canary"


@pytest.fixture(params=list(binaries()))
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(binaries()[request.param])
    yield server
    server.close()


def refusal(url: str, **settings: float) -> str:
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
    monkeypatch.setattr(facts_module, "OLDEST_SERVER", (99, 0))
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
        assert client.get(key) == b"1"


def test_another_format_since_the_connection(own: Server) -> None:
    with own.client() as client, percolator.connect(own.unix, "ns") as db:
        client.set(db.store.keyspace.format, "2")
        with pytest.raises(ConfigurationError, match="format '2'"):
            db.create_table("t")
        assert db.tables() == []


def test_nobody_there() -> None:
    before = time.monotonic()
    assert "check that it runs" in refusal(f"redis://user:{SECRET}@127.0.0.1:{free_port()}/0")
    assert time.monotonic() - before < 5


def test_somebody_who_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        before = time.monotonic()
        refusal(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout=0.5, patience=1)
        assert time.monotonic() - before < 4


def test_a_wrong_password_is_told_at_once(own: Server) -> None:
    with own.client() as client:
        client.config_set("requirepass", SECRET)
        before = time.monotonic()
        for url in (own.tcp, own.tcp.replace("//", "//:wrong@"), own.tcp.replace("//", "//someone:wrong@")):
            assert "check user and password" in refusal(url)
        assert time.monotonic() - before < 2
        with percolator.connect(own.tcp.replace("//", f"//:{SECRET}@"), "ns") as db:
            for shown in (repr(db), db.url, repr(db.store.__dict__["_address"])):
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

    from tests.core.servers import commit_of, die, rows_apart

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
