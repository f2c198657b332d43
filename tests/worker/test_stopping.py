"""The end of a worker whose observers do not end, and which tablets a worker takes first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from percolator_core import Cell, Worker
from percolator_core.layout.keys import tablet_number
from percolator_core.notifications.activation import live_workers
from percolator_core.notifications.dirty import DirtyIndex
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Database, Transaction

    Connect = Callable[..., Database]


def run_in_thread(worker: Worker) -> threading.Thread:
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    return thread


def test_a_run_that_does_not_end_is_given_back_after_the_grace(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()

    def blocks(t: Transaction, cell: Cell) -> None:
        begun.set()
        release.wait(PATIENCE)
        t.set("sums", "a", "n", b"late")

    def quick(t: Transaction, cell: Cell) -> None:
        t.set("sums", "a", "n", b"other")

    # What is not given back is nobody else's in the time of this test.
    monkeypatch.setattr(DirtyIndex.claim, "__defaults__", (3600.0,))
    monkeypatch.setattr("percolator_core.notifications.dirty.LEASE", 3600.0)
    db = connect()
    chain = chain_of(watch("it", blocks, "docs.text", executor="threads"))
    chain.create_tables(db)
    put(db, "a", b"1")
    worker = Worker(connect(), chain)
    thread = run_in_thread(worker)
    assert begun.wait(PATIENCE)
    worker.stop(grace=0.2)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert worker.abandoned == 1
    assert live_workers(db) == []
    twin = chain_of(watch("it", quick, "docs.text", executor="threads"))
    try:
        assert Worker(db, twin).run_until_idle(PATIENCE).ran == 1
    finally:
        release.set()
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("percolator-observer")])
    # The late run collided with the other one's acknowledgement.
    assert db.snapshot().get("sums", "a", "n") == b"other"


def test_a_lease_is_kept_during_the_grace(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grace is longer than a lease: nobody else begins what this worker is about to finish."""
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.1)
    begun, release = threading.Event(), threading.Event()

    def takes_a_while(t: Transaction, cell: Cell) -> None:
        begun.set()
        release.wait(PATIENCE)

    db = connect()
    chain = chain_of(watch("it", takes_a_while, "docs.text", executor="threads"))
    chain.create_tables(db)
    put(db, "a", b"1")
    key = db.catalog.table("docs").tag(b"a") + b"dirty:it"

    def deadline() -> float:
        return float(db.store.one((b"ZRANGE", key, 0, 0, b"WITHSCORES"))[1])

    worker = Worker(connect(), chain)
    thread = run_in_thread(worker)
    assert begun.wait(PATIENCE)
    worker.stop(grace=30)
    at_the_stop = deadline() + 200_000  # what was under way just then does not count
    until(lambda: deadline() > at_the_stop)
    release.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_run_that_ends_within_the_grace_is_finished(db: Database) -> None:
    begun, release = threading.Event(), threading.Event()

    def takes_a_while(t: Transaction, cell: Cell) -> None:
        begun.set()
        release.wait(PATIENCE)
        t.set("sums", "a", "n", b"done")

    chain = chain_of(watch("it", takes_a_while, "docs.text", executor="threads"))
    chain.create_tables(db)
    put(db, "a", b"1")
    worker = Worker(db, chain)
    thread = run_in_thread(worker)
    assert begun.wait(PATIENCE)
    worker.stop(grace=30)
    release.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert worker.abandoned == 0
    assert db.snapshot().get("sums", "a", "n") == b"done"
    assert dirty_of(db, chain).backlog() == {"it": 0}


def test_a_second_stop_may_only_shorten_the_grace(db: Database) -> None:
    begun, release = threading.Event(), threading.Event()

    def blocks(t: Transaction, cell: Cell) -> None:
        begun.set()
        release.wait(PATIENCE)

    chain = chain_of(watch("it", blocks, "docs.text", executor="threads"))
    chain.create_tables(db)
    put(db, "a", b"1")
    worker = Worker(db, chain)
    thread = run_in_thread(worker)
    assert begun.wait(PATIENCE)
    worker.stop(grace=60)
    worker.stop(grace=0.1)
    worker.stop(grace=60)
    thread.join(PATIENCE)
    release.set()
    assert not thread.is_alive()


def test_tasks_of_the_hub_end_after_the_grace_too(db: Database) -> None:
    """One that waits for the store, here for a lock, is ended there."""
    waiting = threading.Event()

    def waits(t: Transaction, cell: Cell) -> None:
        waiting.set()
        for _ in range(1000):
            db.store.sleep(0.05)

    chain = chain_of(watch("it", waits, "docs.text"))
    chain.create_tables(db)
    put(db, "a", b"1")
    worker = Worker(db, chain)
    thread = run_in_thread(worker)
    assert waiting.wait(PATIENCE)
    worker.stop(grace=0.2)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    (lease,), _ = dirty_of(db, chain).claim(10)
    assert lease.tries == 0


# Strategies.


def test_partitioned_workers_share_the_tablets_out(connect: Connect) -> None:
    db = connect()
    chain = chain_of(watch("it", lambda t, cell: None, "docs.text"))
    workers = [Worker(connect(), chain, strategy="partitioned") for _ in range(2)]
    threads = [run_in_thread(worker) for worker in workers]

    until(lambda: {worker.own_tablets for worker in workers} == {frozenset({0, 2}), frozenset({1, 3})})
    workers[0].stop()
    threads[0].join(PATIENCE)
    # What the one that has gone would have taken first is not left.
    for number in range(40):
        put(db, f"{number}", b"1")
    until(lambda: workers[1].counts.ran == 40)
    until(lambda: workers[1].own_tablets == frozenset({0, 1, 2, 3}))
    workers[1].stop()
    threads[1].join(PATIENCE)


def test_a_worker_with_tablets_of_its_own_begins_there_and_ends_everywhere(db: Database) -> None:
    order: list[int] = []

    def note(t: Transaction, cell: Cell) -> None:
        order.append(tablet_number(handle.tag(cell.row)))

    chain = chain_of(watch("it", note, "docs.text"))
    chain.create_tables(db)
    handle = db.catalog.table("docs")
    for number in range(40):
        put(db, f"{number}", b"1")
    counts = Worker(db, chain, width=4, strategy="partitioned", tablets=[2]).run_until_idle(PATIENCE)
    assert counts.ran == 40
    assert set(order[: order.count(2)]) == {2}


@pytest.mark.parametrize(
    "settings",
    [{"strategy": "best"}, {"tablets": [1]}, {"cpus": 0}, {"strategy": "random", "tablets": [0]}],
)
def test_settings_that_cannot_be(db: Database, settings: dict[str, object]) -> None:
    chain = chain_of(watch("it", lambda t, cell: None, "docs.text"))
    with pytest.raises(ValueError, match=r"strategy|tablets|cpus"):
        Worker(db, chain, **settings)  # type: ignore[arg-type]
