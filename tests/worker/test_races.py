"""Marks, leases and acknowledgements under every schedule that could lose or double a run."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import percolator_core
from percolator_core import Cell, Worker
from percolator_core.admin.quarantine import Quarantine
from percolator_core.errors import TransactionConflict
from percolator_core.notifications.ack import acknowledge
from percolator_core.notifications.dirty import DirtyIndex, Lease
from percolator_core.transaction.commit import Commit
from percolator_core.transaction.transaction import Transaction
from percolator_core.worker import housekeeping
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    from percolator_core import Chain, Database


class Log:
    """An observer that remembers what it read at each run."""

    def __init__(self) -> None:
        self.seen: list[bytes | None] = []

    def __call__(self, t: Transaction, cell: Cell) -> None:
        self.seen.append(t.get("docs", cell.row, "text") if cell.table == "docs" else cell.row)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def strong(db: Database, log: Log) -> Chain:
    chain = chain_of(watch("look", log, "docs.text"))
    chain.create_tables(db)
    return chain


@pytest.fixture
def weak(db: Database, log: Log) -> Chain:
    chain = chain_of(watch("look", log, "sums.dirty", mode="weak"))
    chain.create_tables(db)
    return chain


def claim(dirty: DirtyIndex, lease: float = 5.0) -> Lease:
    [held], _ = dirty.claim(10, lease)
    return held


def begin_run(db: Database, held: Lease, mode: Any = "strong") -> Transaction:
    transaction = Transaction(db.client)
    assert acknowledge(transaction, held, mode) is not None
    return transaction


def two_phases(db: Database, row: str, value: bytes, *notified: str) -> Commit:
    """A transaction to be committed phase by phase, one call a tablet."""
    t = db.begin()
    assert t.start_timestamp
    t.set("docs", row, "text", value)
    for name in notified:
        t.notify("sums", name, "dirty")
    return Commit(db.client, t.start_timestamp, t.mutations())


def notify(db: Database, row: str) -> None:
    with db.transaction() as t:
        t.notify("sums", row, "dirty")


def drain(db: Database, chain: Chain) -> Worker:
    worker = Worker(db, chain)
    worker.run_until_idle(PATIENCE)
    return worker


def test_a_commit_between_snapshot_and_clear_keeps_the_mark(db: Database, strong: Chain, log: Log) -> None:
    dirty = dirty_of(db, strong)
    put(db, "a", b"1")
    held = claim(dirty)
    run = begin_run(db, held)
    put(db, "a", b"2")
    run.commit()
    assert not db.store.run(dirty.clear(held, "strong", run.start_timestamp))
    drain(db, strong)
    assert log.seen == [b"2"]


def test_a_lock_at_the_clear_keeps_the_mark(db: Database, strong: Chain, log: Log) -> None:
    dirty = dirty_of(db, strong)
    put(db, "a", b"1")
    held = claim(dirty)
    run = begin_run(db, held)
    writer = two_phases(db, "a", b"2")
    commit_ts = writer.prewrite()
    run.commit()
    assert not db.store.run(dirty.clear(held, "strong", run.start_timestamp))
    writer.commit_primary(commit_ts)
    drain(db, strong)
    assert log.seen == [b"2"]


def test_a_writer_that_died_after_its_prewrite_leaves_an_idle_mark(
    db: Database, strong: Chain, log: Log
) -> None:
    put(db, "a", b"1")
    drain(db, strong)
    two_phases(db, "a", b"2").prewrite()
    assert dirty_of(db, strong).backlog() == {"look": 1}
    counts = drain(db, strong).counts
    assert log.seen == [b"1"]
    assert counts.observers["look"].collapsed == 1
    assert not list(db.locks())


def test_a_writer_that_died_after_its_primary_is_rolled_forward(db: Database) -> None:
    db.client.one_call_a_tablet = True
    log = Log()
    chain = chain_of(watch("look", log, "docs.text"), watch("add", log, "sums.dirty", mode="weak"))
    chain.create_tables(db)
    t = db.begin()
    assert t.start_timestamp
    for number in range(8):
        t.set("docs", f"{number}", "text", b"%d" % number)
    t.notify("sums", "all", "dirty")
    writer = Commit(db.client, t.start_timestamp, t.mutations())
    writer.commit_primary(writer.prewrite())
    # Its secondaries are stranded: the strong marks stand, the weak one waits in its lock.
    counts = drain(db, chain).counts
    assert sorted(map(str, log.seen)) == sorted(map(str, [b"all", *(b"%d" % number for number in range(8))]))
    assert counts.ran == 9
    assert not list(db.locks())


@pytest.mark.parametrize("who", ["owner", "reader", "resolver", "worker"])
def test_a_chain_activated_between_prewrite_and_commit_sees_the_write(
    db: Database, connect: Callable[[], Database], who: str
) -> None:
    """What counts is the commit, by whoever makes a secondary visible."""
    db.client.one_call_a_tablet = True
    log = Log()
    chain = chain_of(watch("look", log, "docs.text"))
    for table in chain.tables:
        db.create_table(table.name, table.tablets, table.notify_only)
    t = db.begin()
    assert t.start_timestamp
    for number in range(8):
        t.set("docs", f"{number}", "text", b"%d" % number)
    writer = Commit(db.client, t.start_timestamp, t.mutations())
    commit_ts = writer.prewrite()
    other = connect()
    chain.create_tables(other)
    writer.commit_primary(commit_ts)
    if who == "owner":
        writer.commit_secondaries(commit_ts)
    elif who == "reader":
        assert len(list(other.snapshot().scan("docs"))) == 8
    elif who == "resolver":
        assert other.resolve_locks(timedelta(0)).committed
    if who != "worker":
        until(lambda: dirty_of(other, chain).backlog() == {"look": 8})
    drain(other, chain)
    assert sorted(map(str, log.seen)) == sorted(str(b"%d" % number) for number in range(8))


def test_an_observer_that_was_taken_out_and_put_back_sees_a_write_begun_before(
    db: Database, strong: Chain, log: Log
) -> None:
    writer = two_phases(db, "a", b"1")
    commit_ts = writer.prewrite()
    chain_of(watch("other", log, "docs.title")).create_tables(db)
    strong.create_tables(db)
    assert dirty_of(db, strong).backlog() == {"look": 0}
    writer.commit_primary(commit_ts)
    drain(db, strong)
    assert log.seen == [b"1"]


def test_a_commit_leaves_a_lease_alone_and_is_seen_by_its_holder(
    db: Database, strong: Chain, log: Log
) -> None:
    """The mark of the commit is the mark that a worker holds: nobody else is given the cell meanwhile."""
    dirty = dirty_of(db, strong)
    put(db, "a", b"1")
    held = claim(dirty)
    run = begin_run(db, held)
    writer = two_phases(db, "a", b"2")
    writer.commit_primary(writer.prewrite())
    assert dirty.claim(10)[0] == []
    run.commit()
    assert not db.store.run(dirty.clear(held, "strong", run.start_timestamp))
    drain(db, strong)
    assert log.seen == [b"2"]


def test_a_commit_that_is_repeated_leaves_no_mark(db: Database, strong: Chain, log: Log) -> None:
    writer = two_phases(db, "a", b"1")
    commit_ts = writer.prewrite()
    writer.commit_primary(commit_ts)
    drain(db, strong)
    writer.commit_primary(commit_ts)
    assert dirty_of(db, strong).backlog() == {"look": 0}
    assert log.seen == [b"1"]


def test_a_cell_that_was_put_off_waits_until_then_also_when_a_write_to_it_commits(
    db: Database, strong: Chain
) -> None:
    dirty = dirty_of(db, strong)
    put(db, "a", b"1")
    db.store.run(dirty.postpone(claim(dirty), 60, failed=True))
    writer = two_phases(db, "a", b"2")
    writer.commit_primary(writer.prewrite())
    assert dirty.claim(10)[0] == []


def test_a_running_worker_fires_stranded_notifications(
    db: Database, weak: Chain, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "LEASE", 0.1)
    db.client.one_call_a_tablet = True
    writer = two_phases(db, "a", b"1", "all")
    worker = Worker(db, weak)
    writer.commit_primary(writer.prewrite())
    original = Log.__call__

    def and_stop(self: Log, t: Transaction, cell: Cell) -> None:
        original(self, t, cell)
        worker.stop()

    monkeypatch.setattr(Log, "__call__", and_stop)
    worker.run()
    assert log.seen == [b"all"]


def test_a_weak_mark_set_again_during_the_run_is_kept(db: Database, weak: Chain, log: Log) -> None:
    dirty = dirty_of(db, weak)
    notify(db, "a")
    held = claim(dirty)
    run = begin_run(db, held, "weak")
    notify(db, "a")
    run.commit()
    assert not db.store.run(dirty.clear(held, "weak", run.start_timestamp))
    drain(db, weak)
    assert log.seen == [b"a"]


@pytest.mark.parametrize("renewal_lost", [False, True])
def test_a_renewed_lease_clears_its_weak_mark(db: Database, weak: Chain, renewal_lost: bool) -> None:
    dirty = dirty_of(db, weak)
    notify(db, "a")
    held = claim(dirty)
    held.renewed -= 2.5
    if renewal_lost:
        held.prolong()
    else:
        dirty.renew([held])
        [_, score] = db.store.one((b"ZRANGE", held.tag + b"dirty:look", 0, -1, b"WITHSCORES"))
        assert float(score) == held.deadline == pytest.approx(held.before + 2.5e6, abs=1e5)
    run = begin_run(db, held, "weak")
    run.commit()
    assert db.store.run(dirty.clear(held, "weak", run.start_timestamp))


def test_a_lost_lease_does_not_clear_the_weak_mark_of_the_next(db: Database, weak: Chain) -> None:
    dirty = dirty_of(db, weak)
    notify(db, "a")
    first = claim(dirty, lease=0.0)
    run = begin_run(db, first, "weak")
    second = claim(dirty)
    run.commit()
    assert not db.store.run(dirty.clear(first, "weak", run.start_timestamp))
    dirty.renew([first])
    assert dirty.claim(10)[0] == []
    run = begin_run(db, second, "weak")
    run.commit()
    assert db.store.run(dirty.clear(second, "weak", run.start_timestamp))


@pytest.mark.parametrize("mode", ["strong", "weak"])
@pytest.mark.parametrize("one_call_a_tablet", [False, True])
def test_duplicates_collide_in_the_acknowledgement(
    db: Database, mode: str, one_call_a_tablet: bool, log: Log
) -> None:
    db.client.one_call_a_tablet = one_call_a_tablet
    where = "docs.text" if mode == "strong" else "sums.dirty"
    chain = chain_of(watch("look", log, where, mode=mode))
    chain.create_tables(db)
    put(db, "a", b"1")
    notify(db, "a")
    dirty = dirty_of(db, chain)
    runs = [begin_run(db, claim(dirty, lease=0.0), mode) for _ in range(2)]
    for number, run in enumerate(runs):
        for table in ("docs", "sums"):
            run.set(table, f"out{number}", "n", b"1")
    primary = runs[0].mutations()[0]
    assert primary.row == b"a"
    assert primary.column.startswith(b"\xfflook\xff")
    runs[0].commit()
    with pytest.raises(TransactionConflict):
        runs[1].commit()
    counts = drain(db, chain).counts
    # One weak notification may wake twice (paper, section 2.4); a strong change may not.
    assert counts.observers["look"].ran == (0 if mode == "strong" else 1)
    assert [row for row, _ in db.snapshot().scan("docs", prefix="out")] == [b"out0"]


def test_an_acknowledged_change_does_not_run_again(db: Database, strong: Chain, log: Log) -> None:
    """A worker that died between its commit and the clear."""
    dirty = dirty_of(db, strong)
    put(db, "a", b"1")
    begin_run(db, claim(dirty, lease=0.0)).commit()
    counts = drain(db, strong).counts
    assert (counts.observers["look"].ran, counts.observers["look"].collapsed) == (0, 1)


def test_a_late_failure_does_not_put_aside_what_another_run_did(db: Database, strong: Chain) -> None:
    dirty = dirty_of(db, strong)
    put(db, "a", b"1")
    late = claim(dirty, lease=0.0)
    late_run = begin_run(db, late)
    held = claim(dirty)
    run = begin_run(db, held)
    run.commit()
    assert db.store.run(dirty.clear(held, "strong", run.start_timestamp))
    record = {"error": "", "traceback": "", "attempts": 1, "time": 1}
    assert not db.store.run(dirty.quarantine(late, "strong", late_run.start_timestamp, record))
    assert db.store.run(dirty.postpone(late, 0, failed=True)) == 0
    assert Quarantine(db, strong).count() == {"look": 0}


def test_leases_are_odd_and_marks_are_even(db: Database, strong: Chain) -> None:
    """So the time at which a mark is set can never equal a deadline."""
    dirty = dirty_of(db, strong)
    for number in range(20):
        put(db, f"{number}", b"1")
    held, _ = dirty.claim(100)
    assert len(held) == 20
    assert all(lease.deadline % 2 == 1 and lease.due % 2 == 0 for lease in held)
    held[0].renewed -= random.random()
    held[0].prolong()
    assert held[0].deadline % 2 == 1


def test_no_run_of_a_cell_begins_while_another_is_under_way(db: Database) -> None:
    """A weak mark set again during a slow run waits for it in the same worker: the two would collide."""
    under_way = most = 0
    runs = 0

    def slow(t: Transaction, cell: Cell) -> None:
        nonlocal under_way, most, runs
        runs += 1
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            notify(db, "all")
            db.store.sleep(0.002)
        if runs > 10:
            worker.stop()
        under_way -= 1

    chain = chain_of(watch("slow", slow, "sums.dirty", mode="weak"))
    chain.create_tables(db)
    notify(db, "all")
    worker = Worker(db, chain)
    counts = worker.run()
    assert most == 1
    assert counts.observers["slow"].conflicts == 0


def test_a_weak_mark_that_is_set_during_its_run_is_nobody_elses_before_the_end(
    db: Database, weak: Chain
) -> None:
    """Another run would only collide with the one under way."""
    dirty = dirty_of(db, weak)
    notify(db, "all")
    held = claim(dirty)
    for _ in range(3):
        notify(db, "all")
    assert dirty.claim(10)[0] == []
    dirty.renew([held])
    assert dirty.claim(10)[0] == []
    db.store.run(dirty.clear(held, "weak", db.timestamp()))
    # At once, and not when the lease would have ended.
    again, _ = dirty.claim(10)
    assert len(again) == 1
    db.store.run(dirty.clear(again[0], "weak", db.timestamp()))
    assert dirty.backlog() == {"look": 0}


def test_a_weak_mark_that_is_set_during_its_run_outlives_its_holder(db: Database, weak: Chain) -> None:
    dirty = dirty_of(db, weak)
    notify(db, "all")
    claim(dirty, 0.2)
    notify(db, "all")
    until(lambda: dirty.claim(10)[0])


def test_a_weak_mark_that_another_one_holds_by_now_is_left_to_it(db: Database, weak: Chain) -> None:
    dirty = dirty_of(db, weak)
    notify(db, "all")
    late = claim(dirty, 0.01)
    other: list[Lease] = []

    def take() -> list[Lease]:
        other.extend(dirty.claim(10)[0])
        return other

    until(take)
    notify(db, "all")
    assert not db.store.run(dirty.clear(late, "weak", db.timestamp()))
    assert dirty.claim(10)[0] == []
    assert not db.store.run(dirty.clear(other[0], "weak", db.timestamp()))
    assert len(dirty.claim(10)[0]) == 1


@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_a_failure_that_is_told_twice_counts_once_and_disturbs_no_later_lease(
    db: Database, request: pytest.FixtureRequest, mode: str
) -> None:
    """A request whose reply got lost is sent again, perhaps when somebody else has the cell."""
    dirty = dirty_of(db, request.getfixturevalue(mode))
    if mode == "strong":
        put(db, "all", b"1")
    else:
        notify(db, "all")
    held = claim(dirty)
    postponed = dirty.postpone(held, 0, failed=True)
    assert db.store.run(postponed) == 1
    assert db.store.run(postponed) == 1
    other = claim(dirty)
    assert other.tries == 1
    assert db.store.run(postponed) == 1
    assert dirty.claim(10)[0] == []
    assert db.store.run(dirty.postpone(other, 0, failed=True)) == 2


def test_a_mark_that_nobody_observes_any_more_goes_unless_it_is_observed_again(
    db: Database, log: Log
) -> None:
    """A worker decides to give it back, and a chain is activated before it does."""
    both = chain_of(watch("look", log, "docs.text", "docs.title"))
    text = chain_of(watch("look", log, "docs.text"))
    dirty = dirty_of(db, both)
    for is_observed_again in (True, False):
        both.create_tables(db)
        put(db, "a", b"1", column="title")
        text.create_tables(db)
        held = claim(dirty)
        if is_observed_again:
            both.create_tables(db)
            put(db, "a", b"2", column="title")
        db.store.run(dirty.postpone(held, 0, failed=False))
        assert dirty.backlog() == {"look": 1 if is_observed_again else 0}


def test_two_workers_with_tiny_leases_commit_each_change_once(
    store_url: str, namespace: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = DirtyIndex.claim
    monkeypatch.setattr(DirtyIndex, "claim", lambda self, room, **more: claims(self, room, 0.001, **more))

    def count(t: Transaction, cell: Cell) -> None:
        own = int(t.get("sums", cell.row, "n") or b"0")
        threading.Event().wait(0.0005)
        t.set("sums", cell.row, "n", b"%d" % (own + 1))

    chain = chain_of(watch("count", count, "docs.text"))
    chain.create_tables(db)
    for number in range(200):
        put(db, f"d{number}", b"1")

    def work() -> None:
        with percolator_core.connect(store_url, namespace) as mine:
            Worker(mine, chain).run_until_idle(PATIENCE)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = dict(db.snapshot().scan("sums"))
    assert len(found) == 200
    assert {cells["n"] for cells in found.values()} == {b"1"}
