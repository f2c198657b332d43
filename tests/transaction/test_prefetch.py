"""Prefetch: what is learned, what is brought along, and that no guess is ever felt."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from percolator_core import Database, LockTimeout, SnapshotTooOld, Transaction
from percolator_core.transaction.prefetch import (
    LARGE,
    LARGEST,
    MOST_BROUGHT,
    MOST_KNOWN,
    WINDOW,
    Habits,
    Record,
)
from tests.servers.plain import commit_of
from tests.transaction.phases import X, Y, Z


@pytest.fixture
def habits() -> Habits:
    return Habits()


def put(db: Database, row: bytes, **cells: bytes) -> None:
    with db.transaction() as t:
        for column, value in cells.items():
            t.set("t", row, column, value)


def run(db: Database, habits: Habits, row: bytes, *columns: str) -> Transaction:
    """A run that reads these columns of a row, one after another."""
    t = Transaction(db.client, habits=habits)
    for column in columns:
        t.get("t", row, column)
    t.learn()
    t.rollback()
    return t


def brought(db: Database, habits: Habits, column: str = "a") -> set[str]:
    """What a first read of the column brings along."""
    plan = habits.plans.get(db.catalog.table("t").columns[column])
    return set() if plan is None else {fields.name for fields in plan.columns}


def acquainted(db: Database, habits: Habits, columns: Iterable[str] = ("a", "b")) -> None:
    run(db, habits, Z, *columns)
    assert brought(db, habits) == set(columns) - {"a"}


def test_what_runs_have_read_comes_with_the_first_read(db: Database, habits: Habits) -> None:
    put(db, X, a=b"1", b=b"2")
    cold = run(db, habits, X, "a", "b", "absent")
    assert (cold.cost.sent, cold.cost.prefetched, cold.cost.served) == (3, 0, 0)
    warm = Transaction(db.client, habits=habits)
    assert [warm.get("t", X, column) for column in ("a", "b", "absent", "b")] == [b"1", b"2", None, b"2"]
    cost = warm.cost
    assert (cost.sent, cost.requests, cost.prefetched, cost.served, cost.cached) == (1, 1, 2, 2, 1)
    assert cost.operations == 4
    # The row is known now: another column of it brings nothing along.
    assert warm.get("t", X, "b") == b"2"
    assert warm.get("t", X, "other") is None
    assert warm.cost.prefetched == 2


def test_many_rows_at_once(db: Database, habits: Habits) -> None:
    acquainted(db, habits)
    for row in (X, Y):
        put(db, row, a=b"a of " + row, b=b"b of " + row)
    t = Transaction(db.client, habits=habits)
    assert t.get_many([("t", row, "a") for row in (X, Y)]) == [b"a of " + X, b"a of " + Y]
    assert t.get_row("t", Y, ["b", "a"]) == {"a": b"a of " + Y, "b": b"b of " + Y}
    assert t.get("t", X, "b") == b"b of " + X
    assert (t.cost.sent, t.cost.requests, t.cost.served, t.cost.cached) == (2, 1, 2, 1)


def test_columns_read_in_fewer_than_half_of_the_rows_stay_away(db: Database, habits: Habits) -> None:
    for number in range(20):
        run(db, habits, X, "a", *(["b"] if number % 2 else []), *(["c"] if number % 5 == 0 else []))
    assert brought(db, habits) == {"b"}


def test_how_a_row_was_begun_makes_the_difference(db: Database, habits: Habits) -> None:
    """One row of its own is read broadly, many others narrowly: neither spoils the other."""
    for _ in range(3):
        t = Transaction(db.client, habits=habits)
        t.get_row("t", X, ["own", "a", "b"])
        t.get_many([("t", b"%d" % number, "b") for number in range(50)])
        t.learn()
    assert brought(db, habits, "own") == {"a", "b"}
    assert brought(db, habits, "b") == set()


def test_what_is_learned_follows_a_change(db: Database, habits: Habits) -> None:
    for _ in range(2 * WINDOW):
        run(db, habits, X, "a", "b")
    for _ in range(WINDOW + 16):
        run(db, habits, X, "a", "c")
    assert brought(db, habits) == {"c"}


def test_large_values_come_only_where_they_are_nearly_always_read(db: Database, habits: Habits) -> None:
    put(db, X, b=b"x" * (LARGE + 1), c=b"x" * (LARGE + 1))
    for number in range(20):
        run(db, habits, X, "a", "b", *(["c"] if number % 4 else []))
    assert brought(db, habits) == {"b"}


def test_what_could_not_be_kept_is_not_brought(db: Database, habits: Habits) -> None:
    put(db, X, b=b"x" * (LARGEST + 1), **{f"c{number}": b"x" * (LARGEST - 1000) for number in range(5)})
    assert run(db, habits, X, "a", "b").cost.sent == 2
    assert brought(db, habits) == set()
    # Each of these could be, but not all of them.
    names = [f"c{number}" for number in range(5)]
    for cost in [run(db, habits, X, "d", *names).cost for _ in range(2)]:
        assert (cost.sent, cost.prefetched) == (6, 0)
    assert brought(db, habits, "d") == set(names)


def test_so_many_columns_and_no_more(db: Database, habits: Habits) -> None:
    run(db, habits, X, "a", *(f"c{number}" for number in range(1000)))
    assert len(brought(db, habits)) == MOST_BROUGHT


def test_a_locked_column_is_neither_waited_for_nor_resolved(
    db: Database, writer: Database, reader: Database, habits: Habits
) -> None:
    put(db, X, a=b"1", b=b"old")
    locker = writer.begin()
    locker.set("t", X, "b", b"new")
    commit = commit_of(locker)
    commit_ts = commit.prewrite()
    acquainted(reader, habits)
    t = Transaction(reader.client, habits=habits)
    assert t.get("t", X, "a") == b"1"
    assert (t.cost.requests, t.cost.prefetched) == (1, 1)
    assert [lock.row for lock in db.locks()] == [X]
    with pytest.raises(LockTimeout):
        t.get("t", X, "b")
    commit.commit_primary(commit_ts)
    assert t.get("t", X, "b") == b"new"


def test_what_a_dead_client_left_is_settled_when_it_is_asked_for(
    db: Database, writer: Database, habits: Habits
) -> None:
    put(db, X, a=b"1", b=b"old")
    locker = writer.begin()
    locker.set("t", X, "b", b"new")
    commit_of(locker).prewrite()
    writer.store.one((b"DEL", writer.client.token_of(writer.client.owner())))
    acquainted(db, habits)
    t = Transaction(db.client, habits=habits)
    assert t.get("t", X, "a") == b"1"
    assert len(list(db.locks())) == 1
    assert t.get("t", X, "b") == b"old"
    assert list(db.locks()) == []


def test_what_is_newer_than_the_snapshot_is_not_served(db: Database, habits: Habits) -> None:
    acquainted(db, habits, ("a", "b", "c"))
    put(db, X, a=b"1", b=b"old", c=b"old")
    t = Transaction(db.client, habits=habits)
    t.get("t", Y, "unrelated")
    put(db, X, b=b"new")
    assert t.get("t", X, "a") == b"1"
    assert (t.cost.sent, t.cost.prefetched) == (2, 2)
    assert t.get("t", X, "c") == b"old"
    assert t.get("t", X, "b") == b"old"
    assert (t.cost.served, t.cost.sent) == (1, 4)


def test_a_deletion_that_was_brought_is_no_value(db: Database, habits: Habits) -> None:
    acquainted(db, habits)
    put(db, X, a=b"1", b=b"gone")
    with db.transaction() as deleting:
        deleting.delete("t", X, "b")
    t = Transaction(db.client, habits=habits)
    assert t.get_row("t", X, ["a"]) == {"a": b"1"}
    assert t.get("t", X, "b") is None
    assert (t.cost.sent, t.cost.served) == (1, 1)


def test_absence_is_believed_only_where_the_tablet_stands(db: Database, habits: Habits) -> None:
    acquainted(db, habits)
    put(db, X, a=b"1")
    t = Transaction(db.client, habits=habits)
    assert t.start_timestamp
    db.collect_garbage(timedelta(0))
    assert t.get("t", X, "a") == b"1"
    with pytest.raises(SnapshotTooOld):
        t.get("t", X, "b")
    assert t.cost.served == 0


def test_own_writes_lie_above_what_was_brought(db: Database, habits: Habits) -> None:
    acquainted(db, habits, ("a", "b", "c"))
    put(db, X, a=b"1", b=b"2", c=b"3")
    t = Transaction(db.client, habits=habits)
    t.set("t", X, "b", b"own")
    assert t.get("t", X, "a") == b"1"
    t.delete("t", X, "c")
    assert t.get("t", X, "b") == b"own"
    assert t.get_row("t", X, ["a", "b", "c"]) == {"a": b"1", "b": b"own"}


def test_a_table_that_is_made_again_keeps_what_was_learned(db: Database, habits: Habits) -> None:
    acquainted(db, habits)
    db.create_table("t", notify_only=["ping"])
    assert brought(db, habits) == {"b"}


def test_little_is_learned_from_a_run_that_reads_a_whole_table(
    db: Database, habits: Habits, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = Transaction(db.client, habits=habits)
    t.get_many([("t", b"%d" % number, "a") for number in range(2000)])
    assert t.get("t", b"1999", "a") is None
    assert t.cost.cached == 1
    learned: list[Record] = []
    monkeypatch.setattr(Habits, "learn", lambda _, records: learned.extend(records))
    t.learn()
    assert len(learned) == 512


def test_threads_learn_together(db: Database, habits: Habits) -> None:
    table = db.catalog.table("t")
    a, b = table.columns["a"], table.columns["b"]

    def learn(_: int) -> None:
        for _ in range(200):
            habits.learn([{a: 0, b: 1}])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(learn, range(8)))
    group = habits.groups[a]
    assert group.reads[b] == group.reads[a] == group.rows
    assert brought(db, habits) == {"b"}


def test_what_was_met_long_ago_makes_room_for_what_is_met_now(db: Database) -> None:
    with db.transaction() as t:
        for column in ("a", "b", "c"):
            t.set("t", X, column, b"1")
    habits = Habits()

    def requests(first: str) -> int:
        t = Transaction(db.client, habits=habits)
        for column in (first, "b", "c"):
            t.get("t", X, column)
        t.learn()
        return t.cost.requests

    for number in range(MOST_KNOWN + 10):
        assert requests(f"day {number}") == 3
    found = [requests("a") for _ in range(20)]
    assert found[-1] == 1
    assert len(habits.groups) == MOST_KNOWN
    assert len(habits.plans) <= MOST_KNOWN
