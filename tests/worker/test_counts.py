"""What the store knows of the runs of all workers, and the demand of a chain."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from percolator_core import Cell, StoreUnavailable, Worker
from percolator_core.admin.demand import Demand, demand
from percolator_core.admin.status import status
from percolator_core.layout.keys import dirty_key
from percolator_core.notifications.activation import live_workers
from percolator_core.notifications.counts import RunCounts, Tally, run_counts
from percolator_core.worker import ObserverCounts
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Chain, Database, Transaction

    Connect = Callable[[], Database]


def copying() -> Chain:
    """``copy`` copies the text, and fails on that of ``bad``; ``look`` looks at the copy."""

    def copy(t: Transaction, cell: Cell) -> None:
        if cell.row == b"bad":
            raise ValueError("it is bad")
        t.set("docs", cell.row, "copy", t.get("docs", cell.row, "text") or b"")

    def look(t: Transaction, cell: Cell) -> None:
        pass

    return chain_of(watch("copy", copy, "docs.text", writes=("docs.copy",)), watch("look", look, "docs.copy"))


def fill(db: Database, chain: Chain, *rows: str) -> None:
    chain.create_tables(db)
    for row in rows:
        put(db, row, b"text")


def run_in_thread(worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    return thread


# Counts.


def test_a_worker_that_has_ended_has_told_its_counts(db: Database) -> None:
    chain = copying()
    fill(db, chain, "a", "b", "bad")
    assert run_counts(db) == {}
    worker = Worker(db, chain)
    counts = worker.run_until_idle(PATIENCE)
    expected = {
        name: RunCounts(one.ran, one.failed, one.quarantined, one.conflicts)
        for name, one in counts.observers.items()
    }
    assert expected == {"copy": RunCounts(2, 3, 1, 0), "look": RunCounts(2, 0, 0, 0)}
    assert run_counts(db) == expected
    # The next stretch of the same worker counts from nothing again.
    put(db, "c", b"text")
    worker.run_until_idle(PATIENCE)
    assert run_counts(db) == {"copy": RunCounts(3, 3, 1, 0), "look": RunCounts(3, 0, 0, 0)}
    now = status(db, chain)
    assert [(one.name, one.ran, one.failures, one.failed) for one in now.observers] == [
        ("copy", 3, 3, 1),
        ("look", 3, 0, 0),
    ]
    assert [one.ran for one in status(db).observers] == [3, 3]


def test_counts_of_several_workers_add_up(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told while they run, too, and the sums are exact however often they tell."""
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.03)
    chain, db = copying(), connect()
    chain.create_tables(db)
    workers = [Worker(connect(), chain, width=4) for _ in range(2)]
    threads = [run_in_thread(worker) for worker in workers]
    for number in range(150):
        put(db, f"{number}", b"text")
    until(lambda: run_counts(db).get("look", RunCounts()).ran == 150)
    assert run_counts(db)["copy"].ran == 150
    assert all(worker.begun for worker in workers), "one has ended"
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(PATIENCE)
    found = run_counts(db)
    for name in chain.observers:
        both = [worker.counts.observers[name] for worker in workers]
        total = ObserverCounts.sum(both)
        assert found[name] == RunCounts(total.ran, total.failed, total.quarantined, total.conflicts)


def test_a_worker_that_an_exception_ends_has_told_its_counts(db: Database) -> None:
    chain = copying()
    fill(db, chain, "held", "a", "b", "c")
    worker = Worker(db, chain, observers=["copy"])
    index = dirty_of(db, chain)
    held, _ = index.claim(100)
    # Somebody else holds one of them for longer than there is time.
    db.store.run_all([index.postpone(one, 0, failed=False) for one in held if one.row != b"held"])
    with pytest.raises(TimeoutError):
        worker.run_until_idle(0.4)
    assert worker.counts.ran == run_counts(db)["copy"].ran == 3
    assert live_workers(db) == []


class Away:
    """A store that answers, or does not."""

    def __init__(self, db: Database) -> None:
        self.keyspace = db.store.keyspace
        self.answers = True
        self.killed = False
        self.sent: list[tuple[object, ...]] = []

    def call(self, *commands: tuple[object, ...]) -> None:
        if not self.answers:
            raise StoreUnavailable("away")
        self.sent = list(commands[1:])
        if self.killed:
            raise SystemExit


def test_what_was_not_told_is_told_the_next_time(db: Database) -> None:
    counts = {"one": ObserverCounts(), "other": ObserverCounts()}
    store = Away(db)
    key = db.store.keyspace.counts
    tally = Tally(store, counts)  # type: ignore[arg-type]
    tally.send_along((b"PING",))
    assert store.sent == []
    counts["one"].ran, counts["other"].conflicts = 3, 1
    store.answers = False
    with pytest.raises(StoreUnavailable):
        tally.send_along((b"PING",))
    counts["one"].ran = 5
    store.answers = True
    tally.send_along((b"PING",))
    assert store.sent == [(b"HINCRBY", key, "ran:one", 5), (b"HINCRBY", key, "conflicts:other", 1)]
    counts["one"].failed = 2
    store.killed = True
    with pytest.raises(SystemExit):
        tally.send_along((b"PING",))
    store.killed = False
    tally.send_along((b"PING",))
    assert store.sent == [], "it was sent by the one that was ended while it waited"


def test_a_store_that_is_away_at_the_end_does_not_hide_what_ended_the_worker(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = copying()
    fill(db, chain, "a")

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr("percolator_core.notifications.activation.Registration.withdraw", away)
    assert Worker(db, chain).run_until_idle(PATIENCE).ran == 2


# The demand.


def test_the_demand_of_a_chain(connect: Connect) -> None:
    chain, db = copying(), connect()
    assert demand(db, chain) == Demand(0, 0, None, 0, 0, 0), "there are no tables yet"
    fill(db, chain, "a", "b", "c")
    now = demand(db, chain)
    assert (now.backlog, now.due) == (3, 3)
    assert now.oldest is not None
    assert 0 <= now.oldest < 60
    index = dirty_of(db, chain)
    leases, _ = index.claim(2)
    now = demand(db, chain)
    assert (now.backlog, now.due) == (3, 1)
    db.store.run_all([index.postpone(lease, 5, failed=False) for lease in leases])
    leases, _ = index.claim(2)
    now = demand(db, chain)
    assert (now.backlog, now.due, now.oldest) == (3, 0, None)
    others, _ = dirty_of(db, chain).claim(10)
    assert others == [], "what is not due cannot be claimed"
    db.store.run_all([index.postpone(lease, 0, failed=False) for lease in leases])
    assert demand(db, chain).due == 1


def test_marks_from_before_the_clock_was_set_back_are_due(db: Database) -> None:
    """A worker claims them, so somebody must know that there is something to do."""
    chain = copying()
    fill(db, chain, "a")
    key = dirty_key(db.catalog.table("docs").tag(b"a"), "copy")
    mark = db.store.one((b"ZRANGE", key, 0, 0))[0]
    db.store.one((b"ZADD", key, db.store.now() + 3_600_000_000, mark))
    now = demand(db, chain)
    assert (now.backlog, now.due, now.oldest) == (1, 1, 0.0)
    assert len(dirty_of(db, chain).claim(1)[0]) == 1


def test_who_is_at_it(connect: Connect) -> None:
    chain, db = copying(), connect()
    fill(db, chain)
    begun, release = threading.Event(), threading.Event()

    def holds(t: Transaction, cell: Cell) -> None:
        begun.set()
        release.wait(PATIENCE)

    held = chain_of(watch("hold", holds, "docs.text", executor="threads"))
    held.create_tables(db)
    put(db, "a", b"text")
    # One that died is none. A look does not forget it; the next worker that starts may.
    db.store.one((b"HSET", db.store.keyspace.workers, "dead:1", b"{}"))
    assert (demand(db, held).workers, demand(db, held).drains) == (0, 0)
    assert db.store.one((b"HEXISTS", db.store.keyspace.workers, "dead:1"))
    drain = threading.Thread(target=Worker(connect(), held).run_until_idle, daemon=True)
    drain.start()
    assert begun.wait(PATIENCE)
    assert (demand(db, held).workers, demand(db, held).drains) == (0, 1)
    assert [one.until_idle for one in status(db).workers] == [True]
    worker = Worker(connect(), held)
    thread = run_in_thread(worker)
    until(lambda: demand(db, held).workers == 1)
    assert demand(db, held).drains == 1
    release.set()
    worker.stop()
    drain.join(PATIENCE)
    thread.join(PATIENCE)
    assert (demand(db, held).workers, demand(db, held).drains) == (0, 0)


def test_a_pulse_takes_three_round_trips(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = copying()
    fill(db, chain, *(f"{number}" for number in range(20)))
    demand(db, chain)
    asked: list[int] = []
    issue = db.store.exchange

    def counted(commands: list[object], *arguments: object, **settings: object) -> object:
        asked.append(len(commands))
        return issue(commands, *arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(db.store, "exchange", counted)
    demand(db, chain)
    assert len(asked) == 3
    # Of two observers in four tablets; only those with dirty cells are looked at closely.
    assert sum(asked) == 1 + (2 + 8) + 3 * 4


def test_a_registration_of_an_older_version_is_read(db: Database) -> None:
    """And of a newer one, which may say more."""
    name = f"{db.client.owner().decode()}:1"
    key = db.store.keyspace.workers
    for more in ("", ', "mood": "good"'):
        db.store.one((b"HSET", key, name, f'{{"digest": "x", "where": "there", "since": 1{more}}}'))
        (found,) = live_workers(db)
        assert (found.where, found.until_idle, found.observers) == ("there", False, None)
