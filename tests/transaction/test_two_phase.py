"""The commit protocol stopped at every point: what others make of the locks that stand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from percolator_core import (
    Database,
    LockTimeout,
    TransactionAborted,
    TransactionConflict,
)
from percolator_core.scripts import calls
from tests.clock import FakeClock, connect_with_clock
from tests.servers.plain import Server, commit_of, die
from tests.transaction.phases import X, Y, Z, locks, started, values

Connect = Callable[..., Database]


def meet(how: str, db: Database) -> None:
    """Let somebody meet all locks."""
    if how == "reader":
        values(db)
    elif how == "scan":
        with db.transaction() as t:
            assert len(list(t.scan("t"))) == 3
    elif how == "backward scan":
        with db.transaction() as t:
            assert len(list(t.scan("t", reverse=True, columns=["v"]))) == 3
    elif how == "row":
        with db.transaction() as t:
            assert all(t.get_row("t", row) for row in (X, Y, Z))
    elif how == "writer":
        with db.transaction() as t:
            for row in (X, Y, Z):
                t.set("t", row, "other", b"")
                t.delete("t", row, "v")
    else:
        db.resolve_locks(timedelta(0))


MEETING = ["reader", "scan", "backward scan", "row", "writer", "resolver"]


@pytest.mark.parametrize("how", MEETING)
def test_owner_dies_after_prewrite(writer: Database, reader: Database, how: str) -> None:
    commit = commit_of(started(writer))
    commit_ts = commit.prewrite()
    assert set(locks(reader)) == {X, Y, Z}
    die(writer)
    meet(how, reader)
    assert locks(reader) == []
    assert values(reader) == ([None] * 3 if how == "writer" else [b"old"] * 3)
    with pytest.raises(TransactionAborted):
        commit.commit_primary(commit_ts)


@pytest.mark.parametrize("how", MEETING)
def test_owner_dies_after_the_primary(writer: Database, reader: Database, how: str) -> None:
    t = started(writer)
    commit = commit_of(t)
    commit_ts = commit.commit_primary(commit.prewrite())
    assert set(locks(reader)) == {Y, Z}
    die(writer)
    meet(how, reader)
    assert locks(reader) == []
    versions = [reader.history("t", row, "v") for row in (X, Y, Z)]
    mine = [version for version in versions[0] if version.commit_ts == commit_ts]
    assert mine == [(commit_ts, t.start_timestamp, b"new")]
    assert all(mine[0] in version for version in versions)
    commit.commit_secondaries(commit_ts)
    assert values(reader) == ([None] * 3 if how == "writer" else [b"new"] * 3)


def test_stranded_locks_beyond_any_number_of_rounds(writer: Database, reader: Database) -> None:
    t = writer.begin()
    assert t.start_timestamp
    for number in range(100):
        t.set("t", b"many%d" % number, "v", b"new")
    commit = commit_of(t)
    commit.commit_primary(commit.prewrite())
    reader.client.one_call_a_tablet = False
    with reader.transaction() as t:
        for number in range(100):
            t.set("t", b"many%d" % number, "v", b"newer")
    with reader.transaction() as t:
        assert [cells["v"] for _, cells in t.scan("t", prefix="many")] == [b"newer"] * 100


def test_a_reader_waits_for_a_live_writer_and_then_gives_up(writer: Database, reader: Database) -> None:
    commit = commit_of(started(writer))
    commit_ts = commit.prewrite()
    with pytest.raises(LockTimeout, match="another client has been committing"):
        values(reader)
    with pytest.raises(LockTimeout), reader.transaction() as t:
        list(t.scan("t"))
    with pytest.raises(TransactionConflict) as conflict, reader.transaction() as t:
        t.set("t", Y, "v", b"mine")
    assert conflict.value.reason == "locked"
    commit.commit_primary(commit_ts)
    assert values(reader) == [b"new"] * 3


def test_a_reader_that_began_before_the_writer_does_not_wait(writer: Database, reader: Database) -> None:
    early = reader.begin()
    assert early.start_timestamp
    commit = commit_of(started(writer))
    commit.prewrite()
    assert early.get("t", Y, "v") == b"old"
    assert [cells for _, cells in early.scan("t")] == [{"v": b"old"}] * 3
    commit.roll_back()


def test_an_outlived_lock_of_a_live_owner_is_rolled_back_with_a_tombstone(
    connect: Connect, db: Database, reader: Database
) -> None:
    slow = connect(lock_ttl=0.05)
    slow.client.one_call_a_tablet = True
    patient = connect(lock_wait=5)
    t = started(slow)
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    assert values(patient) == [None] * 3
    tag = db.catalog.table("t").tag(X)
    tombstone = b"x" + t.start_timestamp.to_bytes(8, "big") + b"v"
    assert db.store.one((b"HEXISTS", tag + b"r:" + X, tombstone)) == 1
    with pytest.raises(TransactionAborted) as aborted:
        commit.commit_primary(commit_ts)
    assert aborted.value.reason == "rolled back"
    # A copy of the prewrite that arrives late is refused.
    with pytest.raises(TransactionAborted):
        commit_of(t).prewrite()
    assert values(patient) == [None] * 3
    assert locks(db) == []


def test_a_primary_rolled_back_before_it_was_written_is_refused(writer: Database, reader: Database) -> None:
    t = started(writer)
    commit = commit_of(t)
    primary = commit.primary
    # The secondaries arrive first, and their owner dies.
    writer.store.run(commit.prewrite_call(commit.calls[1], "secondaries"))
    die(writer)
    assert values(reader) == [b"old"] * 3
    writer.client.lives.clear()
    with pytest.raises(TransactionAborted):
        commit.prewrite()
    assert primary.row == X
    assert locks(reader) == []


def test_a_refresh_prolongs_the_life_of_the_primary(server: Server, db: Database) -> None:
    keyspace = db.store.keyspace
    clock = FakeClock(keyspace)
    with (
        connect_with_clock(server.unix, keyspace, clock, lock_ttl=600.0) as slow,
        connect_with_clock(server.unix, keyspace, clock, lock_wait=0.01) as reader,
    ):
        slow.client.one_call_a_tablet = True
        commit = commit_of(started(slow))
        commit_ts = commit.prewrite()
        refresh = calls.refresh(commit.primary.tag, commit.start_ts, X, b"v")
        for _ in range(10):
            assert slow.store.run(refresh)
            clock.set_forward(slow.store, 500)
            with pytest.raises(LockTimeout):
                values(reader)
        commit.commit_secondaries(commit.commit_primary(commit_ts))
        assert not slow.store.run(refresh)
        assert values(reader) == [b"new"] * 3


def test_a_lock_from_before_the_clock_was_set_back_ends(writer: Database, reader: Database) -> None:
    before = values(reader)
    t = started(writer)
    commit = commit_of(t)
    commit.prewrite()
    tag = reader.catalog.table("t").tag(X)
    key, field = tag + b"r:" + X, b"lv"
    packed = reader.store.one((b"HGET", key, field))
    ahead = int.from_bytes(packed[8:16], "big") + 3_600_000_000
    reader.store.one((b"HSET", key, field, packed[:8] + ahead.to_bytes(8, "big") + packed[16:]))
    assert values(reader) == before
