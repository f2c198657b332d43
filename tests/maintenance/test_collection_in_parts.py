"""Garbage collection and clean-up of some tablets: each part is safe, whatever becomes of the others."""

from __future__ import annotations

import random
from contextlib import ExitStack
from datetime import timedelta

import pytest

from percolator_core import Database, LockTimeout, Snapshot, SnapshotTooOld, UnknownTable
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.maintenance.locks import ResolvedLocks
from percolator_core.scripts import calls
from tests.maintenance.test_collection import ACCOUNTS, TOTAL, Crew, transfers
from tests.servers.plain import PATIENCE, commit_of, die, rows_apart
from tests.transaction.crash import Connect, Interrupted
from tests.transaction.test_growth import put, size_of

HOT, COOL = rows_apart(2)
NOTHING = timedelta(0)
TABLETS = 16


def part_of(db: Database, *rows: bytes) -> list[tuple[str, int]]:
    """The tablets of those rows."""
    return [("t", db.catalog.table("t").tablet(row)) for row in rows]


def strand(writer: Database, value: bytes = b"whole") -> None:
    """Commit to both rows, and die before the second row's lock is rolled forward."""
    writer.client.one_call_a_tablet = True
    t = writer.begin()
    t.set("t", HOT, "v", value)
    t.set("t", COOL, "v", value)
    commit = commit_of(t)
    commit.commit_primary(commit.prewrite())
    die(writer)


def both(db: Database) -> tuple[bytes | None, bytes | None]:
    found = db.snapshot()
    return found.get("t", HOT, "v"), found.get("t", COOL, "v")


def test_versions_are_dropped_in_the_part_and_nowhere_else(db: Database) -> None:
    early = 0
    for value in (b"1", b"2", b"3"):
        put(db, HOT, value)
        put(db, COOL, value)
        early = early or db.timestamp()
    done = db.collect_garbage(NOTHING, tablets=part_of(db, HOT, HOT))
    assert (done.versions, size_of(db, HOT).versions, size_of(db, COOL).versions) == (2, 0, 2)
    for row in (HOT, COOL):  # what is refused in one tablet is refused in all
        with pytest.raises(SnapshotTooOld):
            db.snapshot(early).get("t", row, "v")
    assert db.collect_garbage(NOTHING, tablets=[]).versions == 0
    rest = [("t", number) for number in range(TABLETS) if number not in dict(part_of(db, HOT)).values()]
    assert db.collect_garbage(NOTHING, tablets=iter(rest)).versions == 2
    assert both(db) == (b"3", b"3")


@pytest.mark.parametrize(
    "collected", [[HOT], [COOL], [HOT, COOL], []], ids=["primary", "other", "both", "none"]
)
def test_a_part_resolves_the_locks_of_all_tablets_first(
    connect: Connect, db: Database, collected: list[bytes]
) -> None:
    """The lock in one tablet is judged by a version in the other, which the part drops."""
    put(db, HOT, b"old")
    put(db, COOL, b"old")
    strand(connect())
    put(db, HOT, b"next")
    done = db.collect_garbage(NOTHING, tablets=part_of(db, *collected))
    assert done.locks == ResolvedLocks(committed=1)
    assert both(db) == (b"next", b"whole")


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "not pinned"])
@pytest.mark.parametrize("other", ["the same", "another", "all"])
def test_a_part_that_begins_later_and_ends_sooner(
    connect: Connect, db: Database, other: str, pinned: bool
) -> None:
    """Its safe point is further: the first must not drop up to there, the locks between are not its own."""
    put(db, HOT, b"old")
    put(db, COOL, b"old")
    first, second = GarbageCollector(db.client), GarbageCollector(connect().client)
    reader, taken = connect(), ExitStack()
    part = {"the same": part_of(db, HOT), "another": part_of(db, COOL), "all": None}[other]

    seen: list[Snapshot] = []

    def interfere() -> None:
        seen.append(taken.enter_context(reader.snapshot()) if pinned else reader.snapshot())
        put(db, COOL, b"older")
        second.collect(0.0, part=part)
        strand(connect())
        put(db, HOT, b"next")
        # A third one dies once it has raised the safe point.
        safe = seen[0].start_timestamp - 1 if pinned else db.timestamp()
        tags = db.catalog.table("t").tags
        db.store.run_all([calls.raise_safe_point(tag, safe) for tag in tags])

    first.store = Interrupted(db, "collect", interfere)  # type: ignore[assignment]
    first.collect(0.0, part=part_of(db, HOT))
    if pinned:
        assert [seen[0].get("t", row, "v") for row in (HOT, COOL)] == [b"old", b"old"]
    taken.close()
    assert both(db) == (b"next", b"whole")
    db.collect_garbage(NOTHING)
    assert both(db) == (b"next", b"whole")
    assert {size_of(db, row).versions for row in (HOT, COOL)} == {0}


@pytest.mark.parametrize("script", ["raise_safe_point", "sync", "collect"])
def test_a_part_dies_and_the_others_go_on(connect: Connect, db: Database, script: str) -> None:
    """Wherever it stops, another part and then a reader find the transaction whole."""
    put(db, HOT, b"old")
    put(db, COOL, b"old")
    strand(connect())
    put(db, HOT, b"next")
    collector = GarbageCollector(connect().client)

    class StoppedError(Exception):
        pass

    def stop(*_: object, **__: object) -> None:
        raise StoppedError

    if script == "sync":  # between raising and dropping
        collector.locks.settle = stop  # type: ignore[method-assign,assignment]
    else:
        collector.store = Interrupted(db, script, stop, 5 if script == "raise_safe_point" else 1)  # type: ignore[assignment]
    with pytest.raises(StoppedError):
        collector.collect(0.0, part=part_of(db, HOT))
    db.collect_garbage(NOTHING, tablets=part_of(db, HOT))
    assert size_of(db, HOT).versions == 0
    assert both(db) == (b"next", b"whole")


def test_a_part_waits_for_a_live_client_in_another_tablet(connect: Connect, db: Database) -> None:
    put(db, HOT, b"older")
    put(db, HOT, b"old")
    writer = connect(lock_ttl=60)
    writer.client.one_call_a_tablet = True
    t = writer.begin()
    t.set("t", COOL, "v", b"new")
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    with pytest.raises(LockTimeout, match="collect later"):
        connect(lock_wait=0.05).collect_garbage(NOTHING, tablets=part_of(db, HOT))
    assert size_of(db, HOT).versions == 1
    commit.commit_primary(commit_ts)
    assert db.collect_garbage(NOTHING, tablets=part_of(db, HOT)).versions == 1
    assert both(db) == (b"old", b"new")


def test_nothing_is_lost_while_parts_are_collected_and_others_read_and_write(  # noqa: C901
    connect: Connect, db: Database, two_phase: bool
) -> None:
    """A bank whose tablets are collected by several, each some of them, and not at once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    crew = Crew(seed)
    with db.transaction() as t:
        for account in ACCOUNTS:
            t.set("t", account, "v", b"100")

    def connected() -> Database:
        mine = connect(lock_wait=20)
        mine.client.one_call_a_tablet = two_phase
        return mine

    def collect(mine: Database, chance: random.Random) -> None:
        while not crew.done.is_set():
            part = [("t", number) for number in range(TABLETS) if chance.random() < 0.4]
            mine.collect_garbage(timedelta(milliseconds=chance.choice([0, 0, 5, 20])), tablets=part)
            mine.resolve_locks(timedelta(milliseconds=50), tablets=part)

    def read(mine: Database, chance: random.Random) -> None:
        while not crew.done.is_set():
            try:
                with mine.snapshot() as pinned:
                    for _ in range(2):
                        total(list(pinned.scan("t")))
                        mine.store.sleep(chance.uniform(0, 0.01))
            except SnapshotTooOld:
                continue  # it was pinned while somebody raised the safe point

    with connect().snapshot() as held:
        before = list(held.scan("t"))
        for work in (collect, collect, collect, read):
            crew.hire(connected(), work)
        for writer in [crew.hire(connected(), transfers) for _ in range(2)]:
            writer.join(PATIENCE)
        assert list(held.scan("t")) == before
    crew.dismiss()
    db.resolve_locks(NOTHING)
    for number in range(TABLETS):
        db.collect_garbage(NOTHING, tablets=[("t", number)])
    total(list(db.snapshot().scan("t")))
    assert {size_of(db, account).versions for account in ACCOUNTS} == {0}
    assert {size_of(db, account).fields for account in ACCOUNTS} == {1}


def total(found: list[tuple[bytes, dict[str, bytes]]]) -> None:
    assert [row for row, _ in found] == sorted(ACCOUNTS)
    assert sum(int(cells["v"]) for _, cells in found) == TOTAL


def test_locks_are_resolved_in_the_part_and_nowhere_else(connect: Connect, db: Database) -> None:
    strand(connect())
    assert [lock.row for lock in db.locks()] == [COOL]
    assert db.resolve_locks(NOTHING, tablets=part_of(db, HOT)) == ResolvedLocks()
    assert [lock.row for lock in db.locks()] == [COOL]
    assert db.resolve_locks(NOTHING, tablets=part_of(db, COOL)) == ResolvedLocks(committed=1)
    assert both(db) == (b"whole", b"whole")


def test_a_part_of_no_table(db: Database) -> None:
    for clean in (db.collect_garbage, db.resolve_locks):
        with pytest.raises(UnknownTable):
            clean(NOTHING, tablets=[("other", 0)])
        for number in (-1, TABLETS):
            with pytest.raises(
                ValueError, match=f"has 16 tablets, numbered from 0: no tablet {number} exists"
            ):
                clean(NOTHING, tablets=[("t", 0), ("t", number)])
