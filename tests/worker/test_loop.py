"""How a worker begins, waits, divides its places, and ends."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Cell, Worker
from percolator_core.notifications.activation import live_workers
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers import Retry
from percolator_core.store.pipeline import Stream
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    from percolator_core import Database, Transaction


@pytest.mark.parametrize(("threads", "width"), [(0, 1), (1, 0)])
def test_numbers_that_cannot_be(db: Database, threads: int, width: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Worker(db, chain_of(watch("look", lambda t, cell: None, "docs.text")), threads, width)


def test_a_timeout_is_kept_and_nothing_stays_leased(db: Database) -> None:
    def fails(t: Transaction, cell: Cell) -> None:
        raise ValueError

    chain = chain_of(watch("fails", fails, "docs.text", retry=Retry(9, 30.0, 30.0)))
    chain.create_tables(db)
    put(db, "a", b"1")
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="not idle"):
        Worker(db, chain).run_until_idle(0.2)
    assert time.monotonic() - began < 10  # and not until the retry, after 30
    assert live_workers(db) == []
    assert dirty_of(db, chain).backlog() == {"fails": 1}


def test_a_worker_of_width_one_gets_through(db: Database) -> None:
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    chain.create_tables(db)
    for number in range(20):
        put(db, f"{number}", b"1")
    assert Worker(db, chain, threads=1, width=1).run_until_idle(PATIENCE).ran == 20


def test_observers_in_threads_run_beside_the_hub_and_hold_nobody_up(db: Database) -> None:
    under_way = most = 0
    counting = threading.Lock()
    fast: list[float] = []
    release = threading.Event()

    def slow(t: Transaction, cell: Cell) -> None:
        nonlocal under_way, most
        assert threading.current_thread() is not threading.main_thread()
        with counting:
            under_way += 1
            most = max(most, under_way)
        release.wait(PATIENCE)
        t.set("sums", cell.row, "n", t.get("docs", cell.row, "text") or b"")
        with counting:
            under_way -= 1

    def quick(t: Transaction, cell: Cell) -> None:
        fast.append(time.monotonic())
        if len(fast) == 200:
            release.set()  # all of them ran while the slow ones waited

    chain = chain_of(
        watch("slow", slow, "docs.text", executor="threads"),
        watch("quick", quick, "docs.title"),
    )
    chain.create_tables(db)
    for number in range(200):
        put(db, f"{number}", b"%d" % number)
        put(db, f"{number}", b"1", column="title")
    counts = Worker(db, chain, threads=4, width=8).run_until_idle(PATIENCE)
    assert [counts.observers[name].ran for name in ("slow", "quick")] == [200, 200]
    assert most == 4
    assert {row: cells["n"] for row, cells in db.snapshot().scan("sums")} == {
        b"%d" % n: b"%d" % n for n in range(200)
    }


def test_a_worker_is_told_to_stop_and_may_run_again(db: Database) -> None:
    seen: list[bytes] = []
    chain = chain_of(watch("look", lambda t, cell: seen.append(cell.row), "docs.text"))
    chain.create_tables(db)
    worker = Worker(db, chain)
    for number in range(3):
        put(db, f"{number}", b"1")
        thread = threading.Thread(target=worker.run)
        thread.start()
        until(lambda count=number: len(seen) == count + 1)  # type: ignore[misc]
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    worker.stop()
    assert worker.run().ran == 0  # a stop that came before the run counts


def test_ctrl_c_while_idle(db: Database) -> None:
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    chain.create_tables(db)
    before = signal.getsignal(signal.SIGURG)

    def interrupt() -> None:
        until(lambda: live_workers(db))
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Worker(db, chain).run()
    thread.join()
    assert live_workers(db) == []
    assert signal.getsignal(signal.SIGURG) is before


def test_ctrl_c_while_the_answer_to_a_look_is_awaited(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is given up then, and what is in flight sent again, or the worker would never end."""
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    chain.create_tables(db)
    put(db, "a", b"1")
    claim, read = DirtyIndex.claim, Stream.read
    looking: list[bool] = []

    def look(index: DirtyIndex, *arguments: Any, **more: Any) -> Any:
        looking.append(True)
        return claim(index, *arguments, **more)

    def interrupted(stream: Stream) -> Any:
        if looking and threading.current_thread() is thread:
            looking.clear()
            monkeypatch.undo()
            raise KeyboardInterrupt
        return read(stream)

    monkeypatch.setattr(DirtyIndex, "claim", look)
    monkeypatch.setattr(Stream, "read", interrupted)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            Worker(db, chain).run()
        except KeyboardInterrupt as interrupt:
            ended.append(interrupt)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert ended
    assert live_workers(db) == []
    assert Worker(db, chain).run_until_idle(PATIENCE).ran == 1


def test_nothing_is_left_behind(db: Database) -> None:
    """No thread, no subscription, no announcement, and SIGURG as it was."""
    chain = chain_of(
        watch("look", lambda t, cell: None, "docs.text"),
        watch("slow", lambda t, cell: None, "docs.text", executor="threads"),
    )
    chain.create_tables(db)
    before = signal.signal(signal.SIGURG, lambda *_: None)
    mine = signal.getsignal(signal.SIGURG)
    try:
        put(db, "a", b"1")
        Worker(db, chain).run_until_idle(PATIENCE)
        threads = {thread.name for thread in threading.enumerate()}
        assert not {name for name in threads if name.startswith(("percolator-observer", "percolator-watch"))}
        assert signal.getsignal(signal.SIGURG) is mine
    finally:
        signal.signal(signal.SIGURG, before)
    assert db.store.one((b"EXISTS", db.store.keyspace.workers)) == 0


def test_a_missed_wake_up_is_made_up_for(db: Database) -> None:
    """Marks that nobody announced are found by the look at the index."""
    seen: list[float] = []
    chain = chain_of(watch("look", lambda t, cell: seen.append(time.monotonic()), "sums.dirty", mode="weak"))
    chain.create_tables(db)
    worker = Worker(db, chain)
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: live_workers(db))
    tag = db.catalog.table("sums").tag(b"a")
    db.store.one((b"ZADD", tag + b"dirty:look", 0, b"\0\0\0\5dirtya"))
    until(lambda: seen)
    worker.stop()
    thread.join()
