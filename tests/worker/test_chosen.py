"""Workers that take the cells of some observers only, and what leaves the others alone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from percolator_core import Cell, ConfigurationError, Worker
from percolator_core.admin.demand import demand
from percolator_core.notifications.activation import active, live_workers
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE, commit_of, die, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Chain, Database, Transaction

    Connect = Callable[[], Database]


def passing() -> Chain:
    """``first`` wakes ``second`` in the same table, and ``third``, which is weak."""

    def first(t: Transaction, cell: Cell) -> None:
        t.set("docs", cell.row, "seen", b"yes")
        t.notify("sums", cell.row, "dirty")

    def second(t: Transaction, cell: Cell) -> None:
        t.set("sums", cell.row, "second", b"yes")

    def third(t: Transaction, cell: Cell) -> None:
        t.set("sums", cell.row, "third", b"yes")

    return chain_of(
        watch("first", first, "docs.text", writes=("docs.seen", "sums.dirty")),
        watch("second", second, "docs.seen", executor="threads"),
        watch("third", third, "sums.dirty", mode="weak"),
    )


def fill(db: Database, chain: Chain, rows: int = 20) -> None:
    chain.create_tables(db)
    for number in range(rows):
        put(db, f"{number}", b"text")


def run_in_thread(worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    return thread


def test_it_is_idle_when_nothing_is_left_for_its_own(db: Database) -> None:
    chain = passing()
    fill(db, chain)
    counts = Worker(db, chain, observers=["first"]).run_until_idle(PATIENCE)
    assert {name: one.ran for name, one in counts.observers.items()} == {"first": 20}
    assert dirty_of(db, chain).backlog() == {"first": 0, "second": 20, "third": 20}
    counts = Worker(db, chain, observers={"third", "second"}).run_until_idle(PATIENCE)
    assert {name: one.ran for name, one in counts.observers.items()} == {"second": 20, "third": 20}
    assert dirty_of(db, chain).backlog() == {"first": 0, "second": 0, "third": 0}


def test_it_leases_nothing_of_others(connect: Connect) -> None:
    """Not even for a moment: what it held, nobody else could begin."""
    db, chain = connect(), passing()
    fill(db, chain)
    worker = Worker(connect(), chain, observers=["first"])
    thread = run_in_thread(worker)
    until(lambda: dirty_of(db, chain).backlog()["second"] == 20)
    put(db, "later", b"text")
    until(lambda: dirty_of(db, chain).backlog() == {"first": 0, "second": 21, "third": 21})
    now = demand(db, chain)
    assert (now.backlog, now.due) == (42, 42)
    assert (now.workers, now.unattended) == (1, 42), "of these nobody takes care"
    # All at once, while it still runs.
    assert len(dirty_of(db, chain).claim(100)[0]) == 42
    worker.stop()
    thread.join(PATIENCE)


def test_the_chain_is_active_as_a_whole(connect: Connect) -> None:
    chain, db = passing(), connect()
    fill(db, chain, rows=1)
    worker = Worker(connect(), chain, observers=["first"])
    thread = run_in_thread(worker)
    until(lambda: live_workers(db))
    assert active(db.client).digest == chain.digest
    (found,) = live_workers(db)
    assert (found.digest, found.observers, found.until_idle) == (chain.digest, ("first",), False)
    # Of the same chain, so they get along.
    Worker(db, chain, observers=["second", "third"]).run_until_idle(PATIENCE)
    Worker(db, chain).run_until_idle(PATIENCE)
    worker.stop()
    thread.join(PATIENCE)
    assert db.snapshot().get_row("sums", "0") == {"second": b"yes", "third": b"yes"}
    assert db.active_observers() == {"first", "second", "third"}


def test_workers_with_different_observers_finish_a_chain_together(connect: Connect) -> None:
    """Shared-out tablets are those of workers with the same observers: each looks after all of its own."""
    chain, db = passing(), connect()
    fill(db, chain)
    workers = [
        Worker(connect(), chain, strategy="partitioned", observers=names)
        for names in (["first"], ["second"], ["third"], ["first", "second"], None)
    ]
    threads = [run_in_thread(worker) for worker in workers]

    until(lambda: [len(worker.own_tablets) for worker in workers] == [4] * 5)
    for number in range(40):
        put(db, f"more-{number}", b"text")
    until(lambda: sum(dirty_of(db, chain).backlog().values()) == 0)
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(PATIENCE)
    rows = dict(db.snapshot().scan("sums"))
    assert len(rows) == 60
    assert all(cells == {"second": b"yes", "third": b"yes"} for cells in rows.values())


def test_notifications_that_got_stranded_are_passed_on_by_any_worker(connect: Connect) -> None:
    chain, db = passing(), connect()
    chain.create_tables(db)
    dying = connect()
    dying.client.one_call_a_tablet = True
    t = dying.begin()
    t.set("docs", "a", "plain", b"value")
    t.notify("sums", "a", "dirty")
    assert t.start_timestamp
    commit = commit_of(t)
    commit.commit_primary(commit.prewrite())
    die(dying)
    Worker(db, chain, observers=["first"]).run_until_idle(PATIENCE)
    assert dirty_of(db, chain).backlog()["third"] == 1


def test_names_that_cannot_be(db: Database) -> None:
    chain = passing()
    with pytest.raises(ConfigurationError, match=r"no observer 'fist', 'x': it has first, second, third"):
        Worker(db, chain, observers=["x", "first", "fist"])
    with pytest.raises(ValueError, match="observers is empty"):
        Worker(db, chain, observers=[])
    with pytest.raises(ValueError, match=r"\['first'\], not 'first'"):
        Worker(db, chain, observers="first")


def test_all_of_them_by_name_is_as_good_as_none(connect: Connect) -> None:
    """Else it would not share tablets with those that name none."""
    chain, db = passing(), connect()
    worker = Worker(connect(), chain, observers=["third", "second", "first"])
    thread = run_in_thread(worker)
    until(lambda: live_workers(db))
    assert live_workers(db)[0].observers is None
    worker.stop()
    thread.join(PATIENCE)
