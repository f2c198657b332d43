"""How places are shared out: between observers, between tablets, and where runs conflict."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from percolator_core import Cell, TableDefinition, Worker
from percolator_core.notifications.dirty import DirtyIndex, Lease
from percolator_core.worker.executors import ConcurrencyLimit, Slots
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    from percolator_core import Database, Transaction


def nothing(t: Transaction, cell: Cell) -> None:
    """An observer that only acknowledges."""


def some_lease(observer: str, number: int) -> Lease:
    return Lease(observer, "docs", b"{ns:docs:0}", b"%d" % number, b"text", 0, 0, 1, 1, 0.0)


# The claim.


def test_the_backlog_of_one_tablet_does_not_starve_the_others(db: Database) -> None:
    chain = chain_of(watch("look", nothing, "docs.text"))
    chain.create_tables(db)
    handle = db.catalog.table("docs")
    rows: dict[bytes, list[str]] = {}
    number = 0
    while min((len(found) for found in rows.values()), default=0) < 300 or len(rows) < 4:
        rows.setdefault(handle.tag(b"%d" % number), []).append(f"{number}")
        number += 1
    first, *others = sorted(rows)
    for row in rows[first][:300]:
        put(db, row, b"1")
    for tag in others:
        for row in rows[tag][:5]:
            put(db, row, b"1")
    leases, _ = dirty_of(db, chain).claim(40)
    by_tablet = Counter(lease.tag for lease in leases)
    assert by_tablet == {first: 25, **dict.fromkeys(others, 5)}


def test_the_backlog_of_one_observer_does_not_starve_the_others(db: Database) -> None:
    chain = chain_of(watch("many", nothing, "docs.text"), watch("few", nothing, "docs.title"))
    chain.create_tables(db)
    for number in range(200):
        put(db, f"{number}", b"1")
    for number in range(7):
        put(db, f"{number}", b"1", column="title")
    leases, _ = dirty_of(db, chain).claim(20)
    assert Counter(lease.observer for lease in leases) == {"many": 13, "few": 7}


def test_an_observer_has_no_more_than_its_limit(db: Database) -> None:
    chain = chain_of(watch("one", nothing, "docs.text"), watch("other", nothing, "docs.title"))
    chain.create_tables(db)
    for number in range(50):
        put(db, f"{number}", b"1")
        put(db, f"{number}", b"1", column="title")
    dirty = dirty_of(db, chain)
    leases, _ = dirty.claim(60, limits={"one": 3, "other": 100})
    assert Counter(lease.observer for lease in leases) == {"one": 3, "other": 50}
    leases, _ = dirty.claim(60, limits={"other": 9})
    assert leases == []


def test_own_tablets_come_first_and_the_others_are_not_left(db: Database) -> None:
    chain = chain_of(watch("look", nothing, "docs.text"))
    chain.create_tables(db)
    for number in range(80):
        put(db, f"{number}", b"1")
    dirty = dirty_of(db, chain)
    tags = db.catalog.table("docs").tags
    mine, _ = dirty.claim(1_000, own=[1, 3])
    assert {lease.tag for lease in mine} == {tags[1], tags[3]}
    rest, _ = dirty.claim(1_000, own=[1, 3])
    assert {lease.tag for lease in rest} == {tags[0], tags[2]}
    assert len(mine) + len(rest) == 80


def test_a_chain_with_many_tablets_is_looked_through(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percolator_core.notifications.dirty._LOOKED_AT", 3)
    chain = chain_of(watch("look", nothing, "docs.text"), tables=(TableDefinition("docs", 16),))
    chain.create_tables(db)
    for number in range(40):
        put(db, f"{number}", b"1")
    assert len(dirty_of(db, chain).claim(100)[0]) == 40


# Limits and slots.


def test_a_limit_falls_with_conflicts_and_rises_without() -> None:
    one = ConcurrencyLimit(64, 64)
    for _ in range(64):
        one.ended(1)
    assert one.limit == 32
    for _ in range(500):
        one.ended(5)
    assert one.limit == 1
    for _ in range(16):
        one.ended(0)
    assert 1 < one.limit <= 3
    for _ in range(5_000):
        one.ended(0)
    assert one.limit == 64


def test_a_limit_doubles_until_runs_conflict() -> None:
    one = ConcurrencyLimit(100, 16)
    limits = []
    for count in (16, 32, 64, 100):
        for _ in range(count):
            one.ended(0)
        limits.append(one.limit)
    assert limits == [32, 64, 100, 100]
    for _ in range(100):
        one.ended(1)
    assert one.limit == 50
    for _ in range(50):
        one.ended(0)
    assert one.limit == 56


def test_slow_tasks_of_the_hub_lower_the_limit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("percolator_core.worker.executors.time", clock)
    for are_tasks, expected in ((True, 8), (False, 64)):
        slots = Slots(DirtyIndex(db.client, {}), frozenset({"one"}), 64, frozenset(), are_tasks=are_tasks)
        for _ in range(64):
            lease = some_lease("one", 0)
            slots.begin(lease)
            now += 3.0
            slots.end(lease, 0)
            if are_tasks and slots.limits()["one"] < 16:
                break
        assert slots.limits() == {"one": expected}


def test_a_few_conflicts_leave_a_limit_as_it_is() -> None:
    one = ConcurrencyLimit(64, 64)
    for number in range(640):
        one.ended(1 if number % 10 == 0 else 0)
    assert one.limit == 64


def test_each_observer_has_reserved_places(db: Database) -> None:
    dirty = DirtyIndex(db.client, {})
    slots = Slots(dirty, frozenset({"slow", "quick"}), 16, frozenset())
    assert slots.limits() == {"slow": 14, "quick": 14}
    for number in range(14):
        slots.begin(some_lease("slow", number))
    assert slots.limits() == {"slow": 0, "quick": 14}
    assert slots.free == 2
    assert slots.claim_at <= 100.0
    for number in range(2):
        slots.begin(some_lease("quick", number))
    assert slots.claim_at > 200.0
    slots.end(some_lease("slow", 0), 0)
    assert slots.limits()["slow"] == 1


def test_looks_for_reserved_places_alone_are_few_but_come(db: Database) -> None:
    slots = Slots(DirtyIndex(db.client, {}), frozenset({"slow", "quick"}), 32, frozenset())
    for number in range(28):
        slots.begin(some_lease("slow", number))
    slots.claimed_at = 100.0
    assert slots.claim_at > 100.001
    assert 100.001 < slots.claim_at < 100.1
    # Whoever asks takes no turn away from who looks.
    assert slots.claim_at <= 100.1
    assert slots.claim_at <= 100.1
    for number in range(3):
        slots.begin(some_lease("quick", number))
    slots.begin(some_lease("slow", 28))
    assert slots.claim_at == float("inf")


def test_slow_runs_leave_no_place_unused(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than half of the places are taken, and not one of those runs ends."""
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 600.0)
    release, begun = threading.Event(), []

    def slow(t: Transaction, cell: Cell) -> None:
        begun.append(cell.row)
        release.wait(PATIENCE)

    chain = chain_of(watch("slow", slow, "docs.text", executor="threads"))
    chain.create_tables(db)
    worker = Worker(db, chain, threads=32)
    thread = threading.Thread(target=worker.run, daemon=True)
    for number in range(20):
        put(db, f"{number}", b"1")
    thread.start()
    try:
        until(lambda: len(begun) == 20)
        for number in range(20, 40):
            put(db, f"{number}", b"1")
        until(lambda: len(begun) == 32)
    finally:
        release.set()
        worker.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_worker_looks_for_quick_work_while_slow_runs_have_most_places(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no call wakes it, and long before it next renews its leases."""
    monkeypatch.setattr("percolator_core.store.subscription.Subscription.heard", lambda self: set())
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 600.0)
    release, ran = threading.Event(), []
    chain = chain_of(
        watch("slow", lambda t, cell: release.wait(PATIENCE), "docs.text", executor="threads"),
        watch("quick", lambda t, cell: ran.append(cell.row), "docs.title", executor="threads"),
    )
    chain.create_tables(db)
    for number in range(40):
        put(db, f"{number}", b"1")
    worker = Worker(db, chain, threads=32)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        for number in range(10):
            put(db, f"{number}", b"1", column="title")
            until(lambda: len(ran) > number)  # noqa: B023 - at once
    finally:
        release.set()
        worker.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.parametrize(("places", "observers"), [(1, 1), (1, 3), (2, 3), (8, 2), (256, 40), (3, 3)])
def test_whatever_the_numbers_everyone_gets_a_place_and_no_more_run_than_there_are(
    db: Database, places: int, observers: int
) -> None:
    names = frozenset(f"o{number}" for number in range(observers))
    slots = Slots(DirtyIndex(db.client, {}), names, places, frozenset())
    assert all(1 <= limit <= places for limit in slots.limits().values())
    assert slots.claim_at <= 0.0


def test_a_slow_observer_holds_up_no_quick_one_in_threads(db: Database) -> None:
    release, ran = threading.Event(), []

    def slow(t: Transaction, cell: Cell) -> None:
        assert release.wait(PATIENCE)

    def quick(t: Transaction, cell: Cell) -> None:
        ran.append(cell.row)
        if len(ran) == 30:
            release.set()  # they are all done while the slow ones keep their threads

    chain = chain_of(
        watch("slow", slow, "docs.text", executor="threads"),
        watch("quick", quick, "docs.title", executor="threads"),
    )
    chain.create_tables(db)
    for number in range(30):
        put(db, f"{number}", b"1")
    for number in range(30):
        put(db, f"{number}", b"1", column="title")
    counts = Worker(db, chain, threads=4).run_until_idle(PATIENCE)
    assert counts.ran == 60


def test_runs_on_one_hot_cell_are_narrowed_until_they_succeed(db: Database) -> None:
    def add(t: Transaction, cell: Cell) -> None:
        t.set("sums", "all", "n", b"%d" % (int(t.get("sums", "all", "n") or b"0") + 1))

    chain = chain_of(watch("add", add, "docs.text"))
    chain.create_tables(db)
    for number in range(600):
        put(db, f"{number}", b"1")
    counts = Worker(db, chain).run_until_idle(PATIENCE).observers["add"]
    assert db.snapshot().get("sums", "all", "n") == b"600"
    assert counts.ran == 600
    # At the full width each of 256 runs would lose against all others, again and again.
    assert counts.conflicts < 6 * 600
