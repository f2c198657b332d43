"""A server that comes back without its newest writes: who began before builds on nothing that is lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core import Database, Transaction, TransactionAborted
from percolator_core.store.embedded import shutdown
from tests.servers.plain import commit_of, hang_up


def fail_over(db: Database, *lost: bytes) -> None:
    """As if another server had taken over, without some fields of the row ``a``."""
    db.store.one((b"HSET", db.store.keyspace.oracle, b"server", b"another"))
    tag = db.catalog.table("t").tag(b"a")
    if lost:
        db.store.one((b"HDEL", tag + b"r:a", *lost))
    hang_up(db)


@pytest.fixture
def filled(db: Database) -> Database:
    fill(db)
    return db


def fill(db: Database) -> None:
    with db.transaction() as t:
        t.set("t", b"a", "v", b"1")
        t.set("t", b"b", "v", b"1")


@pytest.fixture(params=[False, True], ids=["one-call", "large"])
def large(request: pytest.FixtureRequest) -> bool:
    """Whether a write set needs more than one call, and so two phases."""
    found: bool = request.param
    return found


def write_more(t: Transaction, large: bool) -> None:
    for number in range(1500 if large else 0):
        t.set("t", b"more %d" % number, "v", b"1")


def test_what_read_a_lost_write_is_refused(filled: Database, large: bool) -> None:
    t = filled.begin()
    assert t.get("t", b"a", "v") == b"1"
    fail_over(filled, b"cv")
    t.set("t", b"b", "v", b"2")
    write_more(t, large)
    with pytest.raises(TransactionAborted) as refused:
        t.commit()
    assert refused.value.reason == "failed over"
    assert not list(filled.locks())
    with filled.transaction() as again:
        assert again.get("t", b"b", "v") == b"1"


def test_run_runs_it_again(filled: Database, large: bool) -> None:
    seen = []

    def work(t: Transaction) -> None:
        seen.append(t.get("t", b"a", "v"))
        if len(seen) == 1:
            fail_over(filled, b"cv")
        t.set("t", b"b", "v", b"2")
        write_more(t, large)

    filled.run(work)
    assert seen == [b"1", None]


def test_what_read_nothing_is_not_refused(filled: Database, large: bool) -> None:
    for _ in range(3):
        with filled.transaction() as t:
            t.set("t", b"a", "v", b"3")  # leaves a spare start timestamp
            write_more(t, large)
        fail_over(filled)
    with filled.transaction() as t:
        t.set("t", b"a", "v", b"4")


def test_after_an_orderly_restart_nobody_is_refused(tmp_path: Path, large: bool) -> None:
    with percolator.connect(f"embedded:{tmp_path / 'state'}") as db:
        db.create_table("t")
        fill(db)
        t = db.begin()
        assert t.get("t", b"a", "v") == b"1"
        server = db.store.embedded
        assert server is not None
        before = server.pid
        assert shutdown.stop(server.folder, server.socket_path) is shutdown.Ending.IN_ORDER
        t.set("t", b"b", "v", b"2")
        write_more(t, large)
        t.commit()
        assert server.pid != before


def test_who_has_prewritten_at_the_server_before_is_refused(filled: Database) -> None:
    """A log that is cut between two prewrite calls loses some locks and keeps the primary's."""
    t = filled.begin()
    for number in range(1500):
        t.set("t", b"a" if not number else b"more %d" % number, "v", b"2")
    t.start_timestamp  # noqa: B018 - fixes the snapshot
    commit = commit_of(t)
    assert len(commit.calls) == 2
    commit_ts = commit.prewrite()
    lost = commit.calls[1][0]
    fail_over(filled)
    filled.store.one((b"HDEL", lost.tag + b"r:" + lost.row, b"l" + lost.column))
    with pytest.raises(TransactionAborted) as refused:
        commit.commit_primary(commit_ts)
    assert refused.value.reason == "failed over"
    filled.resolve_locks(timedelta(0))
    assert not list(filled.locks())
    assert [row for row, _ in filled.snapshot().scan("t")] == [b"a", b"b"]
    assert filled.snapshot().get("t", b"a", "v") == b"1"


def test_a_commit_that_was_executed_before_the_failover_stands(filled: Database) -> None:
    """A repeated request finds its work done: it is committed, whatever came in between."""
    t = filled.begin()
    t.set("t", b"a", "v", b"2")
    write_more(t, large=True)
    t.start_timestamp  # noqa: B018
    commit = commit_of(t)
    commit_ts = commit.commit_primary(commit.prewrite())
    fail_over(filled)
    assert commit.commit_primary(commit_ts + 1) == commit_ts
