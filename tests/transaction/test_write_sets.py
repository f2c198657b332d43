"""What a transaction in two phases may write, and what may become of its tables meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core import (
    Database,
    LockTimeout,
    UnknownTable,
)
from percolator_core.layout.keys import CellAddress, encode_primary
from percolator_core.layout.records import NOTIFY
from tests.servers.plain import commit_of, die
from tests.transaction.phases import X, Y, Z, locks, started, values

Connect = Callable[..., Database]


def test_set_then_deleted_primary_carries_the_outcome(writer: Database, reader: Database) -> None:
    t = writer.begin()
    assert t.start_timestamp
    t.set("t", X, "v", b"new")
    t.delete("t", X, "v")
    t.set("t", Y, "v", b"new")
    commit = commit_of(t)
    assert commit.primary.row == X
    commit.commit_primary(commit.prewrite())
    die(writer)
    assert values(reader) == [None, b"new", b"old"]


def test_primary_and_secondary_in_one_row(
    writer: Database, reader: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percolator_core.transaction.write_set.CELLS_PER_CALL", 1)
    for finish in (True, False):
        t = writer.begin()
        assert t.start_timestamp
        t.set("t", X, "a", b"%d" % finish)
        t.set("t", X, "b", b"%d" % finish)
        commit = commit_of(t)
        commit_ts = commit.prewrite()
        if finish:
            commit.commit_primary(commit_ts)
        die(writer)
        with reader.transaction() as r:
            assert r.get_row("t", X) == {"a": b"1", "b": b"1", "v": b"old"}
        assert locks(reader) == []
        writer.client.lives.clear()


def test_a_dropped_table_does_not_block_the_others(writer: Database, reader: Database) -> None:
    writer.create_table("other", tablets=1)
    t = writer.begin()
    assert t.start_timestamp
    t.set("other", "row", "v", b"primary")
    t.set("t", X, "v", b"new")
    commit_of(t).prewrite()
    with pytest.raises(LockTimeout):
        reader.drop_table("other")
    with pytest.raises(UnknownTable):
        reader.snapshot().get("other", "row", "v")
    die(writer)
    reader.drop_table("other")
    assert values(reader) == [b"old"] * 3


def test_weak_notifications_never_conflict(writer: Database, reader: Database) -> None:
    first, second = started(writer, X), started(writer, Y)
    first.notify("t", Z, "ping")
    second.notify("t", Z, "ping")
    one, two = commit_of(first), commit_of(second)
    one_ts, two_ts = one.prewrite(), two.prewrite()
    assert len(locks(reader)) == 4
    two.commit_secondaries(two.commit_primary(two_ts))
    one.roll_back()
    writer.store.one((b"PING",))
    assert locks(reader) == []
    assert values(reader) == [b"old", b"new", b"old"]
    assert one_ts < two_ts


def test_more_notifications_than_fit_into_a_call(db: Database, two_phase: bool) -> None:
    db.client.one_call_a_tablet = two_phase
    with db.transaction() as t:
        for number in range(2500):
            t.notify("t", b"%d" % (number % 2200), "ping")
        t.notify("t", b"long" * 1000, "ping")
    assert t.commit_timestamp
    assert locks(db) == []


def test_long_acknowledgement_as_primary() -> None:
    from percolator_core.layout.keys import acknowledgement, decode_primary

    column = acknowledgement("o" * 63, b"c" * 200)
    address = CellAddress(b"{n:" + b"t" * 200 + b":7}", b"row\xff", column)
    assert decode_primary(encode_primary(address)) == address


def test_kinds_of_the_lock_count_when_others_settle_it(writer: Database, reader: Database) -> None:
    """A writer in whose way several locks of one transaction stand settles them all at once."""
    t = writer.begin()
    assert t.start_timestamp
    t.set("t", X, "v", b"new")
    t.delete("t", Y, "v")
    t.delete("t", Z, "v")
    t.notify("t", Z, "ping")
    commit = commit_of(t)
    commit.commit_primary(commit.prewrite())
    with reader.transaction() as other:
        for row in (X, Y, Z):
            other.set("t", row, "w", b"w")
            other.delete("t", row, "v")
    assert [version.value for version in reader.history("t", Y, "v")][1] is None
    assert [version.value for version in reader.history("t", X, "v")][:2] == [None, b"new"]
    assert [lock for lock in reader.locks() if lock.packed[0] != NOTIFY] == []


def test_a_client_with_an_old_idea_of_a_table_judges_at_the_right_place(tmp_path: Path) -> None:
    """Dropped and made anew with other tablets: the lock itself tells where its primary is."""
    url = f"embedded:{tmp_path / 'state'}"
    with percolator.connect(url) as old, percolator.connect(url) as db:
        old.create_table("x", tablets=16)
        old.create_table("y", tablets=1)
        old.catalog.table("x")
        db.drop_table("x")
        db.create_table("x", tablets=3)
        db.client.one_call_a_tablet = True
        t = db.begin()
        t.set("x", b"row", "c", b"1")
        t.set("y", b"row", "c", b"1")
        assert t.start_timestamp
        commit = commit_of(t)
        commit.commit_primary(commit.prewrite())
        assert old.snapshot().get("y", b"row", "c") == b"1"


def test_a_table_dropped_under_a_commit_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """Its primary stands in a table whose entry goes: all or nothing holds for the other table."""
    with percolator.connect(f"embedded:{tmp_path / 'state'}") as db:
        db.create_table("x", tablets=1)
        db.create_table("y", tablets=1)
        db.client.one_call_a_tablet = True
        t = db.begin()
        t.set("x", b"row", "c", b"1")
        t.set("y", b"row", "c", b"1")
        assert t.start_timestamp
        commit = commit_of(t)
        commit_ts = commit.prewrite()
        db.store.one((b"HDEL", db.store.keyspace.catalog, b"x"))
        with percolator.connect(f"embedded:{tmp_path / 'state'}", lock_wait=0.05) as other:
            with pytest.raises(LockTimeout):
                other.snapshot().get("y", b"row", "c")
            commit.commit_primary(commit_ts)
            assert other.snapshot().get("y", b"row", "c") == b"1"
