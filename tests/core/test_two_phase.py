"""The commit protocol stopped, cut off and repeated at every point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import percolator_core as percolator
from percolator_core import (
    CommitUndetermined,
    Database,
    LockTimeout,
    StoreUnavailable,
    Transaction,
    TransactionAborted,
    TransactionConflict,
)
from percolator_core.commit import Commit
from percolator_core.keys import CellAddress, encode_primary
from percolator_core.model import NOTIFY, Lock
from percolator_core.resolver import Resolver
from tests.core.servers import Faults, commit_of, die, rows_apart

X, Y, Z = rows_apart(3)
Connect = Callable[..., Database]


@pytest.fixture
def writer(connect: Connect, db: Database) -> Database:
    """A client whose commits have two phases, and whose locks live for 10 s."""
    writer = connect()
    writer.client.one_call_a_tablet = True
    with db.transaction() as t:
        for row in (X, Y, Z):
            t.set("t", row, "v", b"old")
    return writer


@pytest.fixture
def reader(connect: Connect, db: Database) -> Database:
    return connect(lock_wait=0.1)


def started(writer: Database, *rows: bytes) -> Transaction:
    t = writer.begin()
    assert t.start_timestamp
    for row in rows or (X, Y, Z):
        t.set("t", row, "v", b"new")
    return t


def values(db: Database) -> list[bytes | None]:
    with db.transaction() as t:
        return t.get_many([("t", row, "v") for row in (X, Y, Z)])


def locks(db: Database) -> list[bytes]:
    return [lock.row for lock in db.locks()]


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
        from datetime import timedelta

        db.resolve_locks(timedelta(0))


MEETING = ["reader", "scan", "backward scan", "row", "writer", "janitor"]


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
        commit_of_again(slow, t).prewrite()
    assert values(patient) == [None] * 3
    assert locks(db) == []


def commit_of_again(db: Database, t: Transaction) -> Commit:
    t._state = "open"
    return commit_of(t)


def test_a_primary_rolled_back_before_it_was_written_is_refused(writer: Database, reader: Database) -> None:
    t = started(writer)
    commit = commit_of(t)
    primary = commit._primary
    # The secondaries arrive first, and their owner dies.
    writer.store.one(commit._prewrite_call(commit._calls[1], "secondaries"))
    die(writer)
    assert values(reader) == [b"old"] * 3
    writer.client._owner_pid = 0
    with pytest.raises(TransactionAborted):
        commit.prewrite()
    assert primary.row == X
    assert locks(reader) == []


def test_a_refresh_prolongs_the_life_of_the_primary(connect: Connect, db: Database) -> None:
    slow, reader = connect(lock_ttl=0.15), connect(lock_wait=0.01)
    slow.client.one_call_a_tablet = True
    t = started(slow)
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    refresh = slow.store.script("refresh", [commit._primary.tag], t.start_timestamp, X, b"v")
    for _ in range(10):
        assert slow.store.one(refresh) == b"refreshed"
        with pytest.raises(LockTimeout):
            values(reader)
        slow.store.sleep(0.05)
    slow.store.one(refresh)
    commit.commit_secondaries(commit.commit_primary(commit_ts))
    assert slow.store.one(refresh) == b"lost"


def test_every_script_may_be_repeated(writer: Database, reader: Database) -> None:
    store = writer.store
    t = started(writer)
    commit = commit_of(t)
    primary, secondaries = commit._calls[0], commit._calls[1:]
    commands = [commit._prewrite_call(primary, "primary")]
    commands += [commit._prewrite_call(call, "secondaries") for call in secondaries]
    for command in commands * 2:
        assert store.one(command) == [b"prewritten"]
    first, second = writer.timestamp(), writer.timestamp()
    assert store.one(commit._commit_call(primary, first, "primary")) == [b"committed", first]
    # A second copy, even with a later timestamp, learns the first.
    assert store.one(commit._commit_call(primary, second, "primary")) == [b"committed", first]
    for call in secondaries * 2:
        assert store.one(commit._commit_call(call, first, "secondaries")) == [b"committed", first]
    # Copies of the prewrite change nothing any more, nor when others have committed since.
    for _ in range(2):
        for command in commands:
            assert store.one(command) == [b"prewritten"]
        assert locks(reader) == []
        with reader.transaction() as other:
            other.set("t", X, "v", b"newer")
    assert store.one(commit._commit_call(primary, second, "primary")) == [b"committed", first]
    assert [version.commit_ts for version in reader.history("t", X, "v")].count(first) == 1


def test_a_repeated_rollback_and_resolution_say_the_same(writer: Database, reader: Database) -> None:
    store = writer.store
    t = started(writer)
    commit = commit_of(t)
    commit.prewrite()
    primary = encode_primary(CellAddress(reader.catalog.table("t").tag(X), X, b"v"))
    lock = Lock(0, t.start_timestamp, 0, 0, b"nobody", primary)
    for _ in range(3):
        assert Resolver(reader.client).fate(lock).state == "rolled back"
    tags = [commit._calls[1][0].tag]
    rollback = store.script("rollback", tags, t.start_timestamp, 1, Y, b"v", 0)
    assert [store.one(rollback), store.one(rollback)] == [1, 0]
    again = started(writer)
    commit = commit_of(again)
    commit_ts = commit.commit_primary(commit.prewrite())
    lock = Lock(0, again.start_timestamp, 0, 0, b"nobody", primary)
    for _ in range(3):
        fate = Resolver(reader.client).fate(lock)
        assert (fate.state, fate.commit_ts) == ("committed", commit_ts)


def test_both_phases_repeated_commit_once(db: Database) -> None:
    t = started(db)
    commit = commit_of(t)
    command = commit._prewrite_call(commit._calls[0], "both")
    first = db.store.one(command)
    assert first[0] == b"committed"
    with db.transaction() as other:
        other.set("t", X, "v", b"newer")
    assert db.store.one(command) == first
    assert values(db) == [b"newer", b"new", b"new"]


FAULTS = ["lose request", "lose reply", "twice"]


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("script", ["prewrite", "commit", "timestamp"])
def test_any_message_lost_or_doubled(
    connect: Connect, db: Database, script: str, what: str, two_phase: bool
) -> None:
    client = connect()
    client.client.one_call_a_tablet = two_phase
    faults = Faults(client)
    if script == "commit" and not two_phase:
        return
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
    from datetime import timedelta

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
        db.store.one((b"SCRIPT", b"LOAD", db.store._scripts["timestamp"].source))

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
    flush = redis.Redis(unix_socket_path=db.store._topology.endpoint(0).host)
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
    flush = redis.Redis(unix_socket_path=db.store._topology.endpoint(0).host)

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


def test_set_then_deleted_primary_carries_the_outcome(writer: Database, reader: Database) -> None:
    t = writer.begin()
    assert t.start_timestamp
    t.set("t", X, "v", b"new")
    t.delete("t", X, "v")
    t.set("t", Y, "v", b"new")
    commit = commit_of(t)
    assert commit._primary.row == X
    commit.commit_primary(commit.prewrite())
    die(writer)
    assert values(reader) == [None, b"new", b"old"]


def test_primary_and_secondary_in_one_row(
    writer: Database, reader: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percolator_core.commit.CELLS_PER_CALL", 1)
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
        writer.client._owner_pid = 0


def test_a_dropped_table_does_not_block_the_others(writer: Database, reader: Database) -> None:
    writer.create_table("other", tablets=1)
    t = writer.begin()
    assert t.start_timestamp
    t.set("other", "row", "v", b"primary")
    t.set("t", X, "v", b"new")
    commit_of(t).prewrite()
    reader.drop_table("other")
    die(writer)
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
    from percolator_core.keys import acknowledgement, decode_primary

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
