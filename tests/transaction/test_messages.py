"""Messages of the commit protocol that are lost, doubled, late, or meet a server without scripts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import redis

from percolator_core import (
    CommitUndetermined,
    Database,
    StoreUnavailable,
    TransactionConflict,
)
from percolator_core.layout.keys import CellAddress, encode_primary
from percolator_core.layout.records import Lock
from percolator_core.scripts import calls
from percolator_core.scripts.replies import Fate
from percolator_core.transaction.lock_resolver import Resolver
from tests.servers.plain import Faults, at_once_call, commit_of
from tests.transaction.phases import X, Y, Z, locks, started, values

Connect = Callable[..., Database]


def test_every_script_may_be_repeated(writer: Database, reader: Database) -> None:
    store = writer.store
    t = started(writer)
    commit = commit_of(t)
    primary, secondaries = commit.calls[0], commit.calls[1:]
    prewrites = [commit.prewrite_call(primary, "primary")]
    prewrites += [commit.prewrite_call(call, "secondaries") for call in secondaries]
    for prewrite in prewrites * 2:
        assert store.run(prewrite)[0] == "prewritten"
    first, second = writer.timestamp(), writer.timestamp()
    assert store.run(commit.commit_call(primary, first, "primary")) == ("committed", first)
    # A second copy, even with a later timestamp, learns the first.
    assert store.run(commit.commit_call(primary, second, "primary")) == ("committed", first)
    for call in secondaries * 2:
        assert store.run(commit.commit_call(call, first, "secondaries")) == ("committed", first)
    # Copies of the prewrite change nothing any more, nor when others have committed since.
    for _ in range(2):
        for prewrite in prewrites:
            assert store.run(prewrite)[0] == "prewritten"
        assert locks(reader) == []
        with reader.transaction() as other:
            other.set("t", X, "v", b"newer")
    assert store.run(commit.commit_call(primary, second, "primary")) == ("committed", first)
    assert [version.commit_ts for version in reader.history("t", X, "v")].count(first) == 1


def fate_of(reader: Database, lock: Lock) -> Fate:
    return Resolver(reader.client).fates([lock])[lock.start_ts]


def test_a_repeated_rollback_and_resolution_say_the_same(writer: Database, reader: Database) -> None:
    store = writer.store
    t = started(writer)
    commit = commit_of(t)
    commit.prewrite()
    primary = encode_primary(CellAddress(reader.catalog.table("t").tag(X), X, b"v"))
    lock = Lock(0, t.start_timestamp, 0, 0, b"nobody", primary)
    for _ in range(3):
        assert fate_of(reader, lock).state == "rolled back"
    tags = [commit.calls[1][0].tag]
    rollback = calls.rollback(tags, t.start_timestamp, (1, Y, b"v", 0))
    assert store.run_all([rollback, rollback]) == [1, 0]
    again = started(writer)
    commit = commit_of(again)
    commit_ts = commit.commit_primary(commit.prewrite())
    lock = Lock(0, again.start_timestamp, 0, 0, b"nobody", primary)
    for _ in range(3):
        fate = fate_of(reader, lock)
        assert (fate.state, fate.commit_ts) == ("committed", commit_ts)


def test_both_phases_repeated_commit_once(db: Database) -> None:
    t = started(db)
    commit = commit_of(t)
    prewrite = at_once_call(commit)
    first = db.store.run(prewrite)
    assert first[0] == "committed"
    with db.transaction() as other:
        other.set("t", X, "v", b"newer")
    assert db.store.run(prewrite) == first
    assert values(db) == [b"newer", b"new", b"new"]


FAULTS = ["lose request", "lose reply", "twice"]


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize(
    ("script", "two_phase"),
    [("prewrite", False), ("prewrite", True), ("commit", True), ("timestamp", False), ("timestamp", True)],
)
def test_any_message_lost_or_doubled(
    connect: Connect, db: Database, script: str, what: str, two_phase: bool
) -> None:
    client = connect()
    client.client.one_call_a_tablet = two_phase
    faults = Faults(client)
    faults.script(script, what)
    t = started(client)
    commit_ts = t.commit()
    assert faults.plan == []
    assert values(db) == [b"new"] * 3
    for row in (X, Y, Z):
        assert db.history("t", row, "v") == [(commit_ts, t.start_timestamp, b"new")]


def test_a_lost_reply_and_then_a_dead_owner_is_learned(writer: Database, reader: Database) -> None:
    """The commit happened, its reply was lost, and others took us for dead meanwhile."""
    faults = Faults(writer)
    t = started(writer)
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    faults.script("commit", "lose reply")
    faults.plan.append((b"connect", lambda: None))
    assert commit.commit_primary(commit_ts) == commit_ts
    assert values(reader) == [b"new"] * 3


def test_a_silent_store_leaves_the_commit_undetermined(
    connect: Connect, db: Database, two_phase: bool
) -> None:
    client = connect(patience=0.1)
    client.client.one_call_a_tablet = two_phase
    faults = Faults(client)
    t = started(client)
    faults.script("commit" if two_phase else "prewrite", "lose reply")
    faults.plan += [(b"connect", lambda: None)] * 100
    with pytest.raises(CommitUndetermined) as undetermined:
        t.commit()
    assert undetermined.value.start_timestamp == t.start_timestamp
    assert t.commit_timestamp is None
    # And indeed it had happened.
    assert values(db) == [b"new"] * 3


def test_a_request_that_never_left_is_no_commit(connect: Connect, db: Database) -> None:
    client = connect(patience=0.1)
    t = started(client)
    faults = Faults(client)
    faults.plan += [(b"connect", lambda: None)] * 100
    with pytest.raises(StoreUnavailable):
        t.commit()
    assert values(db) == [None] * 3


def test_a_late_copy_of_a_refused_commit_changes_nothing(connect: Connect, writer: Database) -> None:
    """The first copy of a one-phase commit sticks; the second is refused by a lock, which goes away; now
    the first arrives. The caller was told that nothing was written, so nothing may be written."""
    client = connect()
    holder = commit_of(started(writer, Y, Z))
    holder.prewrite()
    faults = Faults(client)
    faults.script("prewrite", "hold")
    t = started(client, X, Y)
    with pytest.raises(TransactionConflict):
        t.commit()
    holder.roll_back()
    writer.store.one((b"PING",))
    faults.deliver()
    assert values(writer) == [b"old"] * 3
    assert locks(writer) == []


def test_a_late_copy_may_win_before_it_is_fenced(connect: Connect, writer: Database) -> None:
    client = connect()
    holder = commit_of(started(writer, Y, Z))
    holder.prewrite()
    faults = Faults(client)

    def late() -> None:
        holder.roll_back()
        writer.store.one((b"PING",))
        faults.deliver()

    faults.script("prewrite", "hold")
    faults.script("resolve_primary", "lose request")  # of the lock in the way: not reached
    faults.plan.pop()
    faults.script("resolve_primary", late)
    t = started(client, X, Y)
    commit_ts = t.commit()
    assert values(writer) == [b"new", b"new", b"old"]
    assert writer.history("t", X, "v")[0].commit_ts == commit_ts


def test_collected_traces_leave_a_repeated_commit_undetermined(
    connect: Connect, db: Database, two_phase: bool
) -> None:
    """The commit happened, its reply was lost, and garbage collection came before the repetition."""
    client = connect()
    client.client.one_call_a_tablet = two_phase
    faults = Faults(client)

    def collect() -> None:
        for value in (b"1", b"2"):
            with db.transaction() as other:
                for row in (X, Y, Z):
                    other.set("t", row, "v", value)
        db.collect_garbage(keep=timedelta(0))

    script = "commit" if two_phase else "prewrite"
    t = started(client)
    faults.script(script, "lose reply")
    faults.script(script, collect)
    with pytest.raises(CommitUndetermined):
        t.commit()


@pytest.mark.parametrize("made_again", [False, True])
def test_a_drop_leaves_a_repeated_commit_undetermined(
    connect: Connect, db: Database, made_again: bool
) -> None:
    """The commit happened, its reply was lost, and its primary's table was dropped before the repetition."""
    client = connect()
    client.client.one_call_a_tablet = True
    faults = Faults(client)
    db.create_table("other")
    db.create_table("primary")

    def drop() -> None:
        db.drop_table("primary")
        if made_again:
            db.create_table("primary")

    t = client.begin()
    t.set("primary", X, "v", b"new")
    t.set("other", X, "v", b"new")
    faults.script("commit", "lose reply")
    faults.script("commit", drop)
    with pytest.raises(CommitUndetermined):
        t.commit()
    assert db.snapshot().get("other", X, "v") == b"new"


def test_the_commit_timestamp_comes_after_the_last_prewrite(
    connect: Connect, writer: Database, db: Database
) -> None:
    """A prewrite missed its script while the timestamp behind it was answered; the repetition then loses its
    connection. The old timestamp must not be used: a snapshot taken since would change."""
    client = connect()
    client.client.one_call_a_tablet = True
    faults = Faults(client)
    t = started(client)
    early = []

    def look() -> None:
        snapshot = db.begin()
        early.append((snapshot, snapshot.get("t", X, "v")))

    # Only the oracle's script is there: the prewrite is not executed, its timestamp is.
    def forget() -> None:
        db.store.one((b"SCRIPT", b"FLUSH"))
        db.store.one((b"SCRIPT", b"LOAD", db.store.scripts["timestamp"].source))

    faults.script("prewrite", forget)
    faults.script("prewrite", look)
    t.commit()
    (snapshot, seen), *_ = early
    assert seen == b"old"
    assert snapshot.get("t", X, "v") == b"old"
    assert t.commit_timestamp is not None
    assert t.commit_timestamp > snapshot.start_timestamp


def test_script_flush_at_any_moment(connect: Connect, db: Database, two_phase: bool) -> None:
    client = connect()
    client.client.one_call_a_tablet = two_phase
    flush = redis.Redis(unix_socket_path=db.store.endpoints()[0].host)
    with flush:
        for number in range(30):
            flush.script_flush()
            with client.transaction() as t:
                t.get("t", X, "v")
                flush.script_flush()
                assert len(list(t.scan("t"))) == (3 if number else 0)
                for row in (X, Y, Z):
                    t.set("t", row, "v", b"%d" % number)
                flush.script_flush()
        assert values(db) == [b"29"] * 3


def test_script_flush_under_a_hub(connect: Connect, db: Database, two_phase: bool) -> None:
    client = connect()
    client.client.one_call_a_tablet = two_phase
    flush = redis.Redis(unix_socket_path=db.store.endpoints()[0].host)

    def write(number: int) -> int:
        if number % 20 == 0:
            flush.script_flush()
        with client.transaction() as t:
            t.get("t", b"%d" % number, "v")
            t.set("t", b"%d" % number, "v", b"a")
            t.set("t", b"%d" % -number, "v", b"b")
        assert t.commit_timestamp
        return t.commit_timestamp

    with flush, client.concurrency(64) as executor:
        stamps = list(executor.map(write, range(1, 400)))
    assert len(set(stamps)) == 399
    with db.transaction() as t:
        assert len(list(t.scan("t"))) == 798


def test_tasks_that_find_a_cell_at_once_soon_ask_for_no_more_than_the_cell(
    connect: Connect, db: Database
) -> None:
    with db.transaction() as t:
        t.set("t", X, "v", b"a")
    client = connect()
    column = client.catalog.table("t").columns["v"]
    assert column.sparse
    with client.concurrency(16) as executor:
        found = list(executor.map(lambda _: client.snapshot().get("t", X, "v"), range(64)))
    assert found == [b"a"] * 64
    assert not column.sparse
