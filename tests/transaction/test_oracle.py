"""Timestamps never repeat nor go back."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import redis

import percolator_core as percolator
from percolator_core import Database, StoreUnavailable
from percolator_core.layout.records import MAX_TIMESTAMP
from tests.servers.plain import Server, binaries, hang_up, until

SECOND = 1_000_000


def many(url: str, namespace: str, count: int) -> list[int]:
    with percolator.connect(url, namespace) as db, db.concurrency(16) as executor:
        return list(executor.map(lambda _: db.timestamp(), range(count)))


def ask(url: str, namespace: str, pipe: object) -> None:
    pipe.send(many(url, namespace, 2000))  # type: ignore[attr-defined]


def test_timestamps_are_microseconds_of_the_wall_clock(db: Database) -> None:
    before, stamp = time.time() * SECOND, db.timestamp()
    assert before - SECOND < stamp < time.time() * SECOND + 20 * SECOND


def test_unique_over_threads_and_processes(server: Server, db: Database) -> None:
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(2):
        mine, theirs = context.Pipe()
        process = context.Process(target=ask, args=(server.unix, db.namespace, theirs))
        process.start()
        pipes.append((process, mine))
    stamps: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: stamps.append([db.timestamp() for _ in range(300)])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process, pipe in pipes:
        stamps.append(sorted(pipe.recv()))
        process.join()
    assert all(one < other for series in stamps for one, other in pairwise(series))
    everything = [stamp for series in stamps for stamp in series]
    assert len(everything) == len(set(everything)) == 5200


@pytest.mark.parametrize("ahead", [3600 * SECOND, 10**15])
def test_a_clock_set_back(db: Database, ahead: int) -> None:
    """As if the server's clock had been ahead until now."""
    future = min(db.timestamp() + ahead, MAX_TIMESTAMP - 20 * SECOND)
    db.create_table("clock")
    db.store.one((b"HSET", db.store.keyspace.oracle, b"last", future, b"limit", future + 10 * SECOND))
    assert [db.timestamp() for _ in range(3)] == [future + 1, future + 2, future + 3]
    with db.transaction() as t:
        t.set("clock", "row", "c", b"1")
    with db.transaction() as t:
        assert t.get("clock", "row", "c") == b"1"
        t.set("clock", "row", "c", b"2")
    assert t.commit_timestamp
    assert t.commit_timestamp > future
    [(commit_ts, start_ts, _), (first, _, _)] = db.history("clock", "row", "c")
    assert first < start_ts < commit_ts
    assert b"e" not in db.store.one((b"HGET", db.store.keyspace.oracle, b"limit"))


def test_a_client_refuses_a_store_that_went_back(db: Database) -> None:
    db.timestamp()
    db.client.oracle.seen += 3600 * SECOND
    with pytest.raises(StoreUnavailable, match="went back in time"):
        db.timestamp()


@pytest.mark.parametrize("binary", list(binaries()))
def test_a_restart_that_lost_the_newest_timestamps(binary: str) -> None:
    server = Server(binaries()[binary], "--appendonly", "yes", "--appendfsync", "always")
    try:
        with percolator.connect(server.unix, "ns") as db:
            db.create_table("t")
            early = db.timestamp()
            with server.client() as client:
                client.bgrewriteaof()
                until(lambda: not is_rewriting(client))
                state = client.hgetall(db.store.keyspace.oracle)
            sizes = {path: path.stat().st_size for path in logs(server)}
            later = [db.timestamp() for _ in range(100)]
            server.kill()
            for path, size in sizes.items():
                if path.exists() and path.stat().st_size > size:
                    with path.open("r+b") as file:
                        file.truncate(size)
            server.start()
            assert db.timestamp() > max(later) > early
            assert int(state[b"limit"]) > int(state[b"last"])
    finally:
        server.close()


def is_rewriting(client: redis.Redis) -> bool:
    state = client.info("persistence")
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])


def logs(server: Server) -> list[Path]:
    return [path for path in server.folder.rglob("*") if path.suffix == ".aof"]


def test_last_is_lost_and_limit_kept(db: Database) -> None:
    oracle = db.store.keyspace.oracle
    future = db.timestamp() + 60 * SECOND
    db.store.one((b"HSET", oracle, b"server", b"another", b"last", future - 5 * SECOND, b"limit", future))
    hang_up(db)
    assert db.timestamp() > future
    state = db.store.one((b"HMGET", oracle, b"last", b"limit"))
    assert int(state[1]) > int(state[0]) > future


def test_a_restart_in_good_order_does_not_run_ahead_of_the_clock(tmp_path: Path) -> None:
    for _ in range(5):
        with percolator.connect(f"embedded:{tmp_path / 'state'}") as db:
            assert abs(db.timestamp() - time.time() * 1e6) < 1e6


def test_a_forked_child_has_no_spare_timestamps_of_its_parent(tmp_path: Path) -> None:
    with percolator.connect(f"embedded:{tmp_path / 'state'}") as db:
        db.create_table("t")
        with db.transaction() as t:
            t.set("t", "first", "v", b"leaves a spare")
        child = os.fork()
        if not child:
            with db.transaction() as t:
                t.set("t", "row", "v", b"child")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
        with db.transaction() as t:
            t.set("t", "row", "v", b"parent")
        versions = db.history("t", "row", "v")
        assert [version.value for version in versions] == [b"parent", b"child"]
        assert len({version.start_ts for version in versions}) == 2


def test_the_mark_lies_ahead_before_a_timestamp_is_asked_for(db: Database) -> None:
    """After a pause the first timestamp and the mark must not be lost together."""
    key = db.store.keyspace.oracle
    db.store.one((b"HSET", key, b"limit", b"1000"))
    hang_up(db)
    db.store.one((b"PING",))
    assert int(db.store.one((b"HGET", key, b"limit"))) > time.time() * SECOND
    assert db.timestamp() < int(db.store.one((b"HGET", key, b"limit")))


def test_whoever_lives_keeps_the_mark_ahead(db: Database) -> None:
    key = db.store.keyspace.oracle
    owner = db.client.owner()
    db.store.one((b"HSET", key, b"limit", b"1000"))
    db.client.renew(owner)
    assert int(db.store.one((b"HGET", key, b"limit"))) > time.time() * SECOND


def test_a_server_that_lost_what_we_saw_jumps_beyond(db: Database) -> None:
    key = db.store.keyspace.oracle
    seen = db.client.oracle.seen = int(time.time() * SECOND) + 3600 * SECOND
    db.store.one((b"HSET", key, b"server", b"another"))
    hang_up(db)
    assert db.timestamp() > seen
