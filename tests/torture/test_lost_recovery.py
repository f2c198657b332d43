"""A server that comes back twice, and the second time without the log of how it recovered the first time.

The oracle goes past the clock as well as past the mark: whoever recovers after a lost recovery comes later,
and goes further.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import percolator_core as percolator
from percolator_core.errors import TransactionAborted
from percolator_torture.servers.private_server import PrivateServer
from percolator_torture.servers.replication import follow, promote

NAMESPACE = "recovery"


@pytest.fixture
def server() -> Iterator[PrivateServer]:
    with PrivateServer(appendonly="yes", appendfsync="everysec") as server:
        yield server


def some_timestamps(server: PrivateServer) -> list[int]:
    with percolator.connect(server.url, NAMESPACE) as db:
        return [db.timestamp() for _ in range(5)]


def synced(server: PrivateServer) -> int:
    """The size of the log, with all that was written before."""
    with server.client() as client:
        client.config_set("appendfsync", "always")
        client.incr("synced")
        client.config_set("appendfsync", "everysec")
    return server.log_size()


def lose_since(server: PrivateServer, size: int) -> None:
    server.kill()
    log = server.newest_log()
    assert log is not None
    os.truncate(log, size)
    server.start()


def test_timestamps_of_a_recovery_that_is_lost_are_not_handed_out_again(server: PrivateServer) -> None:
    some_timestamps(server)
    lose_since(server, synced(server))
    size = synced(server)
    before = some_timestamps(server)
    lose_since(server, size)
    assert min(some_timestamps(server)) > max(before)


def test_timestamps_of_a_promoted_server_that_dies_are_not_handed_out_again() -> None:
    with (
        PrivateServer(listens=True) as primary,
        PrivateServer(listens=True) as one,
        PrivateServer(listens=True) as other,
    ):
        some_timestamps(primary)
        follow(one, primary)
        follow(other, primary)
        primary.kill()
        promote(one)
        before = some_timestamps(one)
        one.kill()  # before the other one has followed it
        promote(other)
        assert min(some_timestamps(other)) > max(before)


def test_what_read_a_write_that_is_lost_is_refused_after_a_second_recovery(server: PrivateServer) -> None:
    with percolator.connect(server.url, NAMESPACE) as db:
        db.create_table("t")
    lose_since(server, synced(server))
    size = synced(server)
    with percolator.connect(server.url, NAMESPACE) as db:
        with db.transaction() as lost:
            lost.set("t", "read", "c", b"lost")
        transaction = db.begin()
        assert transaction.get("t", "read", "c") == b"lost"
        transaction.set("t", "written", "c", b"copied")
        lose_since(server, size)
        with pytest.raises(TransactionAborted):
            transaction.commit()
