"""What must hold where the paper's pseudo-code says nothing: the late, the doubled, the collected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace

import pytest
from redis.exceptions import NoScriptError

from percolator_core import Database, LockTimeout, SnapshotTooOld, Transaction, TransactionAborted
from percolator_core.layout.records import Lock, unpack_lock
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Role
from percolator_core.store.request import AFTER, Exchange
from percolator_core.transaction.commit import Commit
from percolator_core.transaction.write_set import tags_and_cells
from tests.servers.plain import commit_of, prewrite_call, rows_apart

X, Y, Z = rows_apart(3)
NOTHING = timedelta(0)
Connect = Callable[..., Database]


@pytest.fixture
def writer(connect: Connect, db: Database) -> Database:
    """A client whose commits have two phases, and whose locks live long."""
    writer = connect(lock_ttl=60)
    writer.client.one_call_a_tablet = True
    put(db, b"old", X, Y, Z)
    return writer


def put(db: Database, value: bytes, *rows: bytes) -> None:
    with db.transaction() as t:
        for row in rows:
            t.set("t", row, "v", value)


def started(writer: Database, value: bytes, *rows: bytes) -> Commit:
    t = writer.begin()
    assert t.start_timestamp
    for row in rows:
        t.set("t", row, "v", value)
    return commit_of(t)


def judge(db: Database, commit: Commit) -> None:
    """Take the owner for dead and roll its primary back."""
    primary = commit.primary
    where = primary.tag, commit.start_ts, primary.row, primary.column
    assert db.store.run(calls.resolve_primary(*where, "dead", 0, 0)).state == "rolled back"


def values(db: Database) -> list[bytes | None]:
    with db.transaction() as t:
        return t.get_many([("t", row, "v") for row in (X, Y, Z)])


def lock_of(db: Database, row: bytes) -> Lock | None:
    packed = db.store.one((b"HGET", db.catalog.table("t").tag(row) + b"r:" + row, b"lv"))
    return None if packed is None else unpack_lock(packed)


# A prewrite that comes too late.


def test_a_tombstone_stands_until_the_safe_point_has_passed_its_transaction(
    writer: Database, db: Database
) -> None:
    with db.snapshot():  # it holds the safe point back
        late = started(writer, b"late", X, Y)
        judge(db, late)
        db.collect_garbage(NOTHING)
        with pytest.raises(TransactionAborted):
            late.prewrite()
    assert values(db) == [b"old"] * 3


def test_where_tombstones_may_be_gone_the_safe_point_refuses(writer: Database, db: Database) -> None:
    late = started(writer, b"late", X, Y)
    judge(db, late)
    db.collect_garbage(NOTHING)
    with pytest.raises(SnapshotTooOld):
        late.prewrite()
    assert values(db) == [b"old"] * 3
    assert list(db.locks()) == []


@pytest.mark.parametrize("role", ["both", "primary", "secondaries"])
def test_a_start_at_the_safe_point_itself_is_refused(writer: Database, db: Database, role: Role) -> None:
    late = started(writer, b"late", X)
    tag = late.primary.tag
    assert db.store.run(calls.raise_safe_point(tag, late.start_ts)) == late.start_ts
    assert db.store.run(prewrite_call(late, late.calls[0], role))[0] == "too old"
    above = started(writer, b"above", X)
    assert above.start_ts > late.start_ts
    assert db.store.run(prewrite_call(above, above.calls[0], role))[0] != "too old"


# Scripts that arrive when the cell belongs to somebody else by now.


def test_a_late_rollback_leaves_the_lock_of_another_alone(writer: Database, db: Database) -> None:
    gone = started(writer, b"gone", X, Y)
    judge(db, gone)
    there = started(writer, b"there", X, Y)
    commit_ts = there.prewrite()
    gone.roll_back()
    writer.store.one((b"PING",))
    assert len(list(db.locks())) == 2
    there.commit_secondaries(there.commit_primary(commit_ts))
    assert values(db) == [b"there", b"there", b"old"]


def test_a_late_second_phase_leaves_the_lock_of_another_alone(writer: Database, db: Database) -> None:
    early = started(writer, b"early", X, Y)
    early_ts = early.commit_primary(early.prewrite())
    assert values(db) == [b"early", b"early", b"old"]  # somebody rolled it forward
    there = started(writer, b"there", X, Y)
    there.prewrite()
    early.commit_secondaries(early_ts)
    assert early.commit_primary(early_ts) == early_ts
    for row in (X, Y):
        lock = lock_of(db, row)
        assert lock is not None
        assert lock.start_ts == there.start_ts
    there.roll_back()
    writer.store.one((b"PING",))
    assert values(db) == [b"early", b"early", b"old"]


# Garbage collection.


@pytest.mark.parametrize("committed", [True, False])
def test_a_stranded_lock_is_resolved_before_what_judges_it_is_dropped(
    writer: Database, db: Database, committed: bool
) -> None:
    stranded = started(writer, b"stranded", X, Y)
    commit_ts = stranded.prewrite()
    if committed:
        stranded.commit_primary(commit_ts)
    else:
        judge(db, stranded)
    put(db, b"next", X)
    found = db.collect_garbage(NOTHING).locks
    assert (found.committed, found.rolled_back) == ((1, 0) if committed else (0, 1))
    assert values(db) == [b"next", b"stranded" if committed else b"old", b"old"]
    assert db.store.one((b"EXISTS", stranded.primary.tag + b"v:" + X)) == 0


# Timestamps.


def test_a_batch_repeats_no_timestamp_while_the_clock_lags(db: Database) -> None:
    ahead = db.timestamp() + 3_600_000_000
    db.store.one((b"HSET", db.store.keyspace.oracle, b"last", ahead, b"limit", ahead))
    with db.concurrency(16) as executor:
        stamps = list(executor.map(lambda _: db.timestamp(), range(200)))
    assert len(set(stamps)) == 200
    assert min(stamps) > ahead


def test_a_timestamp_from_before_a_repetition_does_not_count() -> None:
    """It came behind a prewrite that was not executed; then that is, and the next timestamp gets lost."""
    exchange = Exchange([(b"EVALSHA", b"prewrite")], AFTER)
    exchange.timestamp = 7
    exchange.break_off(NoScriptError(), sent=False)
    exchange.replies.append([b"prewritten"])
    assert not exchange.done
    exchange.timestamp = 9
    assert exchange.done


# Times to live.


def test_only_the_time_to_live_of_the_primary_decides(writer: Database, connect: Connect) -> None:
    """The secondaries of a long commit are old, its primary was refreshed just now."""
    commit = started(writer, b"new", X, Y)
    commit_ts = commit.prewrite()
    lock = lock_of(writer, Y)
    assert lock is not None
    key = commit.calls[1][0].tag + b"r:" + Y
    packed = writer.store.one((b"HGET", key, b"lv"))
    hour_ago = (lock.wall - 3_600_000_000).to_bytes(8, "big")
    writer.store.one((b"HSET", key, b"lv", packed[:8] + hour_ago + packed[16:]))
    hasty = connect(lock_wait=0.02)
    with pytest.raises(LockTimeout):
        hasty.snapshot().get("t", Y, "v")
    assert hasty.resolve_locks(NOTHING).live == 2
    assert commit.commit_primary(commit_ts) == commit_ts
    assert values(hasty) == [b"new", b"new", b"old"]


def test_a_long_commit_refreshes_its_primary(writer: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 25))  # s, and a third of the time to live is 20 s
    monkeypatch.setattr(
        "percolator_core.transaction.commit.time", SimpleNamespace(monotonic=lambda: next(clock) + 1.0)
    )
    monkeypatch.setattr("percolator_core.transaction.write_set.CALLS_PER_BATCH", 1)
    started(writer, b"new", X, Y, Z).prewrite()
    walls = [lock.wall for lock in map(lambda row: lock_of(writer, row), (X, Y, Z)) if lock]  # noqa: C417
    assert len(walls) == 3
    assert walls[0] > walls[1]  # the primary was written before the others


def test_a_lock_never_ends_by_itself(writer: Database, db: Database) -> None:
    """A lock that expires would be a rollback without a record; and the row would go with it."""
    started(writer, b"new", X, Y, Z).prewrite()
    keys = db.store.one((b"KEYS", db.store.keyspace.prefix.replace(b"}", b"") + b"[:}]*"))
    ends = {key: db.store.one((b"PTTL", key)) for key in keys if b"}client:" not in key}
    assert any(b"}locks" in key for key in ends)
    assert set(ends.values()) == {-1}


# Scripts keep what they wrote before they stop.


def refused_by_a_newer_commit(db: Database, writer: Database, commit: Commit) -> str:
    put(db, b"newer", Y)
    return "newer commit"


def refused_by_a_lock(db: Database, writer: Database, commit: Commit) -> str:
    started(writer, b"other", Y, Z).prewrite()
    return "locked"


def refused_by_a_tombstone(db: Database, writer: Database, commit: Commit) -> str:
    judge(db, commit)
    return "rolled back"


def refused_by_a_safe_point(db: Database, writer: Database, commit: Commit) -> str:
    tag = db.catalog.table("t").tag(Y)
    db.store.run(calls.raise_safe_point(tag, commit.start_ts))
    return "too old"


@pytest.mark.parametrize(
    "refused", [refused_by_a_newer_commit, refused_by_a_lock, refused_by_a_tombstone, refused_by_a_safe_point]
)
@pytest.mark.parametrize("role", ["both", "primary"])
def test_a_prewrite_that_is_refused_has_written_nothing(
    writer: Database, db: Database, refused: Callable[[Database, Database, Commit], str], role: Role
) -> None:
    """What stands in the way is in its last cell but one, or concerns the whole of it."""
    t = writer.begin()
    assert t.start_timestamp
    for row in (X, b"absent", Y, Z):
        t.set("t", row, "v", b"mine")
    writer.client.one_call_a_tablet = False
    commit = commit_of(t)
    writer.client.one_call_a_tablet = True
    [call] = commit.calls
    why = refused(db, writer, commit)
    writer.client.owner()  # coming alive moves the oracle along
    before = everything(db)
    assert db.store.run(prewrite_call(commit, call, role))[0] == why
    assert everything(db) == before


def test_a_rollback_concerns_the_cells_that_it_is_given(writer: Database, db: Database) -> None:
    commit = started(writer, b"new", X, Y)
    commit.prewrite()
    tags, cells = tags_and_cells(commit.calls[1], values=False)
    assert db.store.run(calls.rollback(tags, commit.start_ts, cells)) == 1
    assert [lock.row for lock in db.locks()] == [X]


def everything(db: Database) -> dict[bytes, bytes]:
    """All keys of the namespace but the liveness tokens, as the server would dump them."""
    keys = db.store.one((b"KEYS", db.store.keyspace.prefix.replace(b"}", b"") + b"[:}]*"))
    kept = sorted(key for key in keys if b"}client:" not in key)
    return dict(zip(kept, db.store.call(*[(b"DUMP", key) for key in kept]), strict=True))


# Running again.


def test_a_repeated_function_sees_the_newer_value_and_its_first_writes_are_gone(db: Database) -> None:
    put(db, b"1", X)
    first = True

    def work(t: Transaction) -> None:
        nonlocal first
        value = int(t.get("t", X, "v") or b"0")
        t.set("t", X, "v", b"%d" % (value + 1))
        if first:
            first = False
            t.set("t", Y, "v", b"only the first time")
            put(db, b"10", X)

    db.run(work)
    assert values(db) == [b"11", None, None]
