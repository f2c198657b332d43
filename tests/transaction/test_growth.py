"""Nothing grows without bound: what was written, rolled back, deleted and acknowledged is collected.

But not what somebody may still see.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from percolator_core import Database, SnapshotTooOld, Transaction, TransactionConflict
from percolator_core.admin.quarantine import Quarantine
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.notifications.ack import acknowledge
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.scripts import calls
from percolator_core.transaction.snapshot import Snapshot
from tests.chains import chain_of, watch
from tests.servers.plain import commit_of, die, rows_apart
from tests.transaction.crash import TABLES, Connect

HOT, COOL, OTHER = rows_apart(3)
NOTHING = timedelta(0)
CHAIN = chain_of(watch("look", lambda t, cell: None, "t.v"), tables=TABLES)

ALLOCATIONS = 3
"""Of a row without older versions: its key, the object, and the hash in one block."""

ALLOCATOR_SLACK = 16
"""Bytes by which glibc may hand out more than was asked: a remainder too small to be a block of its own."""


class Size(NamedTuple):
    """What a row occupies: bytes of its keys, fields of its hash, older versions."""

    memory: int
    fields: int
    versions: int

    def is_that_of(self, other: Size) -> bool:
        """Whether both hold as much, whatever blocks the allocator had left for them."""
        return self[1:] == other[1:] and abs(self.memory - other.memory) <= ALLOCATIONS * ALLOCATOR_SLACK


def size_of(db: Database, row: bytes) -> Size:
    tag, one = db.catalog.table("t").tag(row), db.store.one
    keys = [tag + b"r:" + row, tag + b"v:" + row]
    memory = sum(one((b"MEMORY", b"USAGE", key, b"SAMPLES", 0)) or 0 for key in keys)
    return Size(memory, one((b"HLEN", keys[0])), one((b"ZCARD", keys[1])))


def keys_of(db: Database) -> set[bytes]:
    """All keys of the namespace that hold data; liveness tokens come and go by themselves."""
    found: list[bytes] = db.store.one((b"KEYS", db.store.keyspace.prefix.replace(b"}", b"") + b"[:}]*"))
    return {key for key in found if b"}client:" not in key}


def keys_with(db: Database, *parts: bytes) -> set[bytes]:
    return {key for key in keys_of(db) if any(part in key for part in parts)}


def but_safe_points(keys: set[bytes]) -> set[bytes]:
    """Without the keys that collection itself makes, one of each tablet."""
    return {key for key in keys if b"}meta" not in key}


def put(db: Database, row: bytes, *values: bytes) -> None:
    for value in values:
        with db.transaction() as t:
            t.set("t", row, "v", value)


@pytest.fixture
def watched(connect: Connect) -> tuple[Database, DirtyIndex]:
    """A database in which the column ``v`` is observed."""
    db = connect(lock_wait=0.1)
    CHAIN.create_tables(db)
    return db, DirtyIndex(db.client, CHAIN.observed)


# Rows come back to their size.


@pytest.mark.slow
def test_a_row_written_100_000_times_occupies_what_one_written_10_times_does(db: Database) -> None:
    columns = [f"c{number}" for number in range(10)]

    def write(row: bytes, times: int) -> None:
        for number in range(times):
            with db.transaction() as t:
                for column in columns:
                    t.set("t", row, column, b"%06d" % number)

    write(COOL, 1)
    before = keys_of(db)
    write(HOT, 10_000)
    assert size_of(db, HOT).versions == 99_990
    collected = db.collect_garbage(NOTHING)
    assert collected.versions == 99_990
    assert size_of(db, HOT).is_that_of(size_of(db, COOL))
    # Only its row is new, and the row index of its tablet.
    new = keys_of(db) - before
    assert {key.rpartition(b"}")[2] for key in new} == {b"r:" + HOT, b"rows"}
    assert db.snapshot().get_row("t", HOT) == dict.fromkeys(columns, b"009999")


def test_acknowledgements_do_not_pile_up(watched: tuple[Database, DirtyIndex]) -> None:
    db, dirty = watched

    def change_and_run(row: bytes) -> None:
        put(db, row, b"changed")
        [lease], _ = dirty.claim(1)
        run = Transaction(db.client)
        assert acknowledge(run, lease, "strong")
        run.commit()
        assert db.store.run(dirty.clear(lease, "strong", run.start_timestamp))

    change_and_run(COOL)
    for _ in range(1000):
        change_and_run(HOT)
    assert size_of(db, HOT).versions == 2 * 999
    before = keys_of(db)
    db.collect_garbage(NOTHING)
    assert size_of(db, HOT).is_that_of(size_of(db, COOL))
    assert size_of(db, HOT).versions == 0
    assert keys_of(db) <= before
    # The acknowledgement goes with its cell.
    for row in (HOT, COOL):
        with db.transaction() as t:
            t.delete("t", row, "v")
        [lease], _ = dirty.claim(1)
        run = Transaction(db.client)
        acknowledge(run, lease, "strong")
        run.commit()
        db.store.run(dirty.clear(lease, "strong", run.start_timestamp))
    for _ in range(2):  # first the cell, then what acknowledges it
        GarbageCollector(db.client).collect(0)
    assert but_safe_points(keys_with(db, b":t:")) == set()


def test_attempts_and_quarantine_leave_nothing_once_the_cell_is_dealt_with(
    watched: tuple[Database, DirtyIndex],
) -> None:
    db, dirty = watched
    record = {"error": "", "traceback": "", "attempts": 1, "time": 1}

    def lease_all() -> list[Any]:
        leases, _ = dirty.claim(1000)
        leases += dirty.claim(1000)[0]
        return leases

    for number in range(30):
        put(db, b"%d" % number, b"changed")
    for lease in dirty.claim(1000)[0]:
        assert db.store.run(dirty.postpone(lease, 0, failed=True)) == 1
    assert keys_with(db, b"tries:")
    now = db.timestamp()
    for lease in dirty.claim(1000)[0]:
        assert lease.tries == 1
        assert db.store.run(dirty.quarantine(lease, "strong", now, record))
    assert not keys_with(db, b"dirty:", b"tries:")
    quarantine = Quarantine(db, CHAIN)
    assert quarantine.count() == {"look": 30}
    # One half is tried again, the other gets a new value: both ways out leave nothing.
    failed = list(quarantine.cells())
    assert quarantine.retry(failed[:15]) == 15
    for cell in failed[15:]:
        put(db, cell.row, b"changed again")
    now = db.timestamp()
    for lease in dirty.claim(1000)[0]:
        assert db.store.run(dirty.clear(lease, "strong", now))
    assert not keys_with(db, b"dirty:", b"tries:", b"failed:")


def test_notifications_of_one_cell_are_one_mark(connect: Connect, two_phase: bool) -> None:
    db = connect()
    db.client.one_call_a_tablet = two_phase
    chain = chain_of(watch("hear", lambda t, cell: None, "t.ping", mode="weak"), tables=TABLES)
    chain.create_tables(db)
    for number in range(200):
        with db.transaction() as t:
            t.set("t", OTHER, "v", b"%d" % number)
            t.notify("t", HOT, "ping")
    db.store.one((b"PING",))
    assert DirtyIndex(db.client, chain.observed).backlog() == {"hear": 1}
    assert not keys_with(db, b"}locks", b"}r:" + HOT)


def test_tombstones_go(connect: Connect, db: Database) -> None:
    """Of transactions that others rolled back: one tombstone each at the primary, none elsewhere."""
    db.client.one_call_a_tablet = True
    for row in (HOT, COOL, OTHER):
        put(db, row, b"kept")
    before = keys_of(db)
    for row, times in ((COOL, 1), (HOT, 1000)):
        for _ in range(times):
            t = db.begin()
            t.set("t", row, "v", b"lost")
            t.set("t", OTHER, "v", b"lost")
            commit = commit_of(t)
            commit.prewrite()
            cell = commit.primary.tag, t.start_timestamp, row, b"v"
            assert db.store.run(calls.resolve_primary(*cell, "dead", 0, 0)).state == "rolled back"
    with db.transaction() as t:  # the next writer clears the other locks away
        t.set("t", OTHER, "v", b"kept")
    assert [size_of(db, row).fields for row in (HOT, COOL, OTHER)] == [1001, 2, 1]
    db.collect_garbage(NOTHING)
    assert [size_of(db, row).fields for row in (HOT, COOL, OTHER)] == [1, 1, 1]
    # The server makes the table of a hash smaller little by little, while the hash is in use.
    for _ in range(1000):
        assert db.snapshot().get("t", HOT, "v") == b"kept"
    assert size_of(db, HOT).memory < size_of(db, COOL).memory + 1500
    assert but_safe_points(keys_of(db)) <= before
    assert list(db.locks()) == []


@pytest.mark.parametrize("how", ["rolled back", "judged", "refused"])
def test_rows_of_aborted_inserts_go(connect: Connect, db: Database, how: str) -> None:
    put(db, OTHER, b"there")
    before = keys_of(db)
    writer = connect()
    writer.client.one_call_a_tablet = True
    for number in range(60):
        t = writer.begin()
        for part in (b"a", b"b"):
            t.set("t", b"new %d %b" % (number, part), "v", b"lost")
        if how == "refused":
            assert t.start_timestamp
            t.set("t", OTHER, "v", b"lost")
            put(db, OTHER, b"there")
            with pytest.raises(TransactionConflict):
                t.commit()
            continue
        commit = commit_of(t)
        commit.prewrite()
        if how == "rolled back":
            commit.roll_back()
    writer.store.one((b"PING",))
    if how == "judged":
        die(writer)
    assert list(db.snapshot().scan("t", prefix="new")) == []
    assert len(keys_with(db, b"}rows")) > 10
    assert db.collect_garbage(NOTHING).rows > 100  # a refused call leaves nothing at all
    assert but_safe_points(keys_of(db)) == but_safe_points(before)


def test_deleted_rows_go_and_snapshots_from_before_are_refused(db: Database) -> None:
    before = keys_of(db)
    for value in (b"1", b"2"):
        with db.transaction() as t:
            for number in range(500):
                t.set("t", b"%d" % number, "v", value)
    early = db.begin()
    assert early.get("t", b"7", "v") == b"2"
    with db.transaction() as t:
        for number in range(500):
            t.delete_row("t", b"%d" % number)
    collected = db.collect_garbage(NOTHING)
    assert (collected.versions, collected.rows) == (1500, 500)
    with pytest.raises(SnapshotTooOld):
        early.get("t", b"8", "v")
    assert but_safe_points(keys_of(db)) == but_safe_points(before)


def test_a_deletion_that_nobody_observed_yet_is_kept(watched: tuple[Database, DirtyIndex]) -> None:
    db, dirty = watched
    put(db, HOT, b"there")
    with db.transaction() as t:
        t.delete("t", HOT, "v")
    GarbageCollector(db.client).collect(0)
    [lease], _ = dirty.claim(1)
    run = Transaction(db.client)
    assert acknowledge(run, lease, "strong")
    assert run.get("t", HOT, "v") is None
    run.commit()


def test_locks_of_finished_commits_leave_the_index(db: Database) -> None:
    db.client.one_call_a_tablet = True
    for number in range(100):
        with db.transaction() as t:
            for row in (HOT, COOL, OTHER):
                t.set("t", row, "v", b"%d" % number)
    db.store.one((b"PING",))
    assert not keys_with(db, b"}locks")


# What is still wanted stays.


def test_pinned_snapshots_hold_back_and_let_go(db: Database) -> None:
    put(db, HOT, b"0", b"1")
    with db.snapshot() as early:
        put(db, HOT, b"2", b"3")
        with db.snapshot() as late:
            put(db, HOT, b"4", b"5")
            assert db.collect_garbage(NOTHING).safe_point == early.start_timestamp - 1
            assert [early.get("t", HOT, "v"), late.get("t", HOT, "v")] == [b"1", b"3"]
            assert size_of(db, HOT).versions == 4
        # The later one let go: the earlier one holds back what came after it, too.
        assert db.collect_garbage(NOTHING).versions == 0
        assert dict(early.scan("t")) == {HOT: {"v": b"1"}}
    with db.snapshot() as last:
        put(db, HOT, b"6")
        assert db.collect_garbage(NOTHING).safe_point == last.start_timestamp - 1
        assert last.get("t", HOT, "v") == b"5"
        assert size_of(db, HOT).versions == 1
    assert db.collect_garbage(NOTHING).versions == 1
    assert size_of(db, HOT).versions == 0
    assert not keys_with(db, b"}pins")


def test_the_pins_of_a_dead_client_let_go(connect: Connect, db: Database) -> None:
    other = connect()
    other.snapshot().__enter__()
    die(other)
    put(db, HOT, b"1", b"2")
    assert db.collect_garbage(NOTHING).versions == 1
    assert not keys_with(db, b"}pins")


READS: dict[str, Callable[[Snapshot], object]] = {
    "get": lambda s: s.get("t", HOT, "v"),
    "get of what was never there": lambda s: s.get("t", b"never", "v"),
    "get of what was deleted": lambda s: s.get("t", COOL, "v"),
    "get_row": lambda s: s.get_row("t", HOT),
    "get_row of columns": lambda s: s.get_row("t", COOL, ["v"]),
    "get_many": lambda s: s.get_many([("t", COOL, "v"), ("t", HOT, "v")]),
    "scan": lambda s: list(s.scan("t")),
    "scan backward": lambda s: list(s.scan("t", reverse=True, limit=1)),
    "scan of columns": lambda s: list(s.scan("t", columns=["v"])),
}


@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("missed", [False, True], ids=["", "missed before"])
def test_a_snapshot_below_the_safe_point_is_refused(db: Database, how: str, missed: bool) -> None:
    """It never answers None, nor with another version; also if the read asks for the safe point."""
    if missed:
        assert db.snapshot().get("t", b"never", "v") is None
    put(db, HOT, b"1", b"2")
    put(db, COOL, b"1")
    at = db.timestamp()
    put(db, HOT, b"3")
    with db.transaction() as t:
        t.delete("t", COOL, "v")
    assert db.snapshot(at).get_many([("t", HOT, "v"), ("t", COOL, "v")]) == [b"2", b"1"]
    GarbageCollector(db.client).collect(0)
    with pytest.raises(SnapshotTooOld):
        READS[how](db.snapshot(at))
    assert dict(db.snapshot().scan("t")) == {HOT: {"v": b"3"}}


def test_a_snapshot_at_the_safe_point_sees_everything(db: Database) -> None:
    put(db, HOT, b"1", b"2")
    put(db, COOL, b"1")
    at = db.timestamp()
    with db.snapshot(at + 1) if at + 1 <= db.timestamp() else db.snapshot() as pinned:
        put(db, HOT, b"3")
        put(db, COOL, b"2")
        safe = db.collect_garbage(NOTHING).safe_point
        assert safe == pinned.start_timestamp - 1
        assert db.snapshot(safe).get_many([("t", HOT, "v"), ("t", COOL, "v")]) == [b"2", b"1"]
        assert dict(db.snapshot(safe).scan("t")) == {HOT: {"v": b"2"}, COOL: {"v": b"1"}}
        with pytest.raises(SnapshotTooOld):
            db.snapshot(safe - 1).get("t", b"never", "v")
