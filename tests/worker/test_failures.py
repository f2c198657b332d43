"""Observers that raise, hang, or do what they may not; and what becomes of their cells."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import greenlet
import pytest

from percolator_core import Cell, Worker
from percolator_core.admin.quarantine import Quarantine
from percolator_core.errors import TransactionConflict
from percolator_core.observers import Retry
from percolator_core.worker.runs import EndedRun
from percolator_core.worker.watchdog import Deadline, Watchdog, may_be_interrupted
from tests.chains import chain_of, dirty_of, failed_of, put, watch
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Chain, Database, Transaction
    from percolator_core.worker import Counts


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Own(BaseException):
    pass


def raises(error: BaseException | type[BaseException]) -> Callable[[Transaction, Cell], None]:
    def function(t: Transaction, cell: Cell) -> None:
        raise error

    return function


def sleeps(t: Transaction, cell: Cell) -> None:
    time.sleep(30 if threading.current_thread() is threading.main_thread() else 0.3)


def loops(t: Transaction, cell: Cell) -> None:
    while True:
        pass


def reads(t: Transaction, cell: Cell) -> None:
    while True:
        t.get("docs", "other", "text")


def swallows(t: Transaction, cell: Cell) -> None:
    while True:
        try:
            time.sleep(0.001)
            t.get("docs", "other", "text")
        except Exception:  # noqa: BLE001
            continue


def undeclared(t: Transaction, cell: Cell) -> None:
    t.set("docs", "other", "text", b"")


def recurses(t: Transaction, cell: Cell) -> None:
    recurses(t, cell)


def too_big(t: Transaction, cell: Cell) -> None:
    t.set("docs", "other", "big", bytes(257 << 20))


FAILURES: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "raises": (raises(ValueError("boom")), "ValueError: boom"),
    "unprintable": (raises(Unprintable), "Unprintable"),
    "conflict": (raises(TransactionConflict("docs", b"a", "text", "newer commit")), "TransactionConflict"),
    "base": (raises(Own("x")), "Own: x"),
    "exit": (lambda t, cell: sys.exit(3), "SystemExit: 3"),
    "generator_exit": (raises(GeneratorExit), "GeneratorExit"),
    "huge_error": (raises(ValueError("x" * 1_000_000)), "ValueError: xxx"),
    "recursion": (recurses, "RecursionError"),
    "undeclared": (undeclared, "ConfigurationError: observer fails wrote docs.text"),
    "commits": (lambda t, cell: t.commit(), "ConfigurationError"),
    "too_big": (too_big, "ValueError: a value has at most"),
    "sleeps": (sleeps, "ObserverTimeout: ran for more than its timeout of 0.1 s"),
    "loops": (loops, "ObserverTimeout: ran for more than its timeout of 0.1 s"),
    "reads": (reads, "ObserverTimeout: ran for more than its timeout of 0.1 s"),
    "swallows": (swallows, "ObserverTimeout: ran for more than its timeout of 0.1 s"),
}


def drain(db: Database, chain: Chain, *, in_thread: bool = False) -> Counts:
    worker = Worker(db, chain)
    if not in_thread:
        return worker.run_until_idle(PATIENCE)
    counts: list[Counts] = []
    thread = threading.Thread(target=lambda: counts.append(worker.run_until_idle(PATIENCE)))
    thread.start()
    thread.join()
    return counts[0]


@pytest.mark.parametrize("where", ["main", "other", "threads"])
@pytest.mark.parametrize("what", FAILURES)
def test_a_failing_observer_is_retried_and_put_aside_while_others_go_on(
    db: Database, what: str, where: str
) -> None:
    function, error = FAILURES[what]
    good: list[bytes] = []
    chain = chain_of(
        watch(
            "fails",
            function,
            "docs.text",
            retry=Retry(2, 0.001, 0.002),
            timeout=0.1 if error.startswith("ObserverTimeout") else 60.0,
            executor="threads" if where == "threads" else "hub",
        ),
        watch("good", lambda t, cell: good.append(cell.row), "docs.title"),
    )
    chain.create_tables(db)
    put(db, "a", b"1")
    for number in range(10):
        put(db, f"{number}", b"1", column="title")
    counts = drain(db, chain, in_thread=where == "other").observers["fails"]
    assert (counts.ran, counts.failed, counts.quarantined) == (0, 2, 1)
    assert len(good) == 10
    [failed] = failed_of(db, chain)
    assert (failed.observer, failed.table, failed.row, failed.column) == ("fails", "docs", b"a", "text")
    assert failed.error.startswith(error)
    assert len(failed.error) <= 2_000
    assert failed.attempts == 2
    assert failed.time > 0
    assert failed.error.split(":")[0] in failed.traceback or len(failed.traceback) == 16_000
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


def test_what_an_observer_returns_is_ignored(db: Database) -> None:
    chain = chain_of(watch("look", lambda t, cell: object(), "docs.text"))
    chain.create_tables(db)
    put(db, "a", b"1")
    assert drain(db, chain).ran == 1


def test_nothing_that_a_failed_run_wrote_is_there(db: Database) -> None:
    def half(t: Transaction, cell: Cell) -> None:
        t.set("sums", "a", "n", b"1")
        t.notify("sums", "a", "dirty")
        raise ValueError

    chain = chain_of(watch("half", half, "docs.text", writes=("sums.n",)))
    chain.create_tables(db)
    put(db, "a", b"1")
    drain(db, chain)
    assert list(db.snapshot().scan("sums")) == []


def test_retry_and_a_new_write_run_a_quarantined_cell_again(db: Database) -> None:
    broken = True

    def function(t: Transaction, cell: Cell) -> None:
        if broken:
            raise ValueError(t.get("docs", cell.row, "text"))

    chain = chain_of(watch("look", function, "docs.text"))
    chain.create_tables(db)
    quarantine = Quarantine(db, chain)
    for row in ("a", "b", "c"):
        put(db, row, b"1")
    assert drain(db, chain).quarantined == 3
    assert drain(db, chain).observers["look"].failed == 0
    # A new write counts its attempts from the start, and its record replaces the old one.
    put(db, "a", b"2")
    assert drain(db, chain).observers["look"].failed == 3
    assert {cell.row: cell.error for cell in quarantine.cells()}[b"a"] == "ValueError: b'2'"
    assert quarantine.retry([cell for cell in quarantine.cells() if cell.row == b"b"]) == 1
    assert (quarantine.count(), dirty_of(db, chain).backlog()) == ({"look": 2}, {"look": 1})
    broken = False
    put(db, "a", b"3")
    assert drain(db, chain).ran == 2
    assert [cell.row for cell in quarantine.cells()] == [b"c"]
    assert quarantine.retry() == 1
    assert drain(db, chain).ran == 1
    assert quarantine.count() == {"look": 0}
    assert quarantine.retry() == 0


def test_many_quarantined_cells_are_all_put_back(db: Database) -> None:
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    chain.create_tables(db)
    tag = db.catalog.table("docs").tags[0]
    for start in range(0, 30_000, 1_000):
        fields = [x for n in range(start, start + 1_000) for x in (b"\0\4text%d" % n, b"{}")]
        db.store.one((b"HSET", tag + b"failed:look", *fields))
    assert Quarantine(db, chain).retry() == 30_000


def test_attempts_are_counted_across_workers(db: Database) -> None:
    runs = 0

    def function(t: Transaction, cell: Cell) -> None:
        nonlocal runs
        runs += 1
        worker.stop()
        raise ValueError

    chain = chain_of(watch("look", function, "docs.text", retry=Retry(3, 0.001, 0.001)))
    chain.create_tables(db)
    put(db, "a", b"1")
    for _ in range(3):
        worker = Worker(db, chain)
        worker.run()
    assert runs == 3
    [failed] = failed_of(db, chain)
    assert failed.attempts == 3


def test_backoff_grows_and_is_waited_for(db: Database) -> None:
    times: list[float] = []

    def function(t: Transaction, cell: Cell) -> None:
        times.append(time.monotonic())
        if len(times) < 4:
            raise ValueError

    chain = chain_of(watch("look", function, "docs.text", retry=Retry(8, 0.1, 0.2)))
    chain.create_tables(db)
    put(db, "a", b"1")
    assert drain(db, chain).ran == 1
    waits = [after - before for before, after in itertools.pairwise(times)]
    for wait, longest in zip(waits, (0.1, 0.2, 0.2), strict=True):
        assert longest / 2 - 0.01 <= wait <= longest + 0.3


def test_a_listener_is_told_how_each_run_ended(db: Database) -> None:
    ended: list[EndedRun] = []

    def twice(t: Transaction, cell: Cell) -> None:
        if len(ended) < 2:
            raise ValueError

    def never(t: Transaction, cell: Cell) -> None:
        raise ValueError

    chain = chain_of(watch("twice", twice, "docs.text"), watch("never", never, "docs.title"))
    chain.create_tables(db)
    written = put(db, "a", b"1")
    Worker(db, chain, listener=ended.append).run_until_idle(PATIENCE)
    assert [(run.outcome, run.attempt, run.row) for run in ended] == [
        ("failed", 1, b"a"),
        ("failed", 2, b"a"),
        ("ran", 3, b"a"),
    ]
    assert all(run.run > written and 0 < run.seconds < 10 for run in ended)
    ended.clear()
    put(db, "b", b"1", column="title")
    Worker(db, chain, listener=ended.append).run_until_idle(PATIENCE)
    assert [run.outcome for run in ended] == ["failed", "failed", "quarantined"]


def test_a_notification_does_not_shorten_the_wait_after_a_failure(db: Database) -> None:
    """One cell that is notified again and again would use up its attempts at once."""
    runs: list[float] = []

    def fails(t: Transaction, cell: Cell) -> None:
        runs.append(time.monotonic())
        raise ValueError

    retry = Retry(attempts=5, backoff=20.0, max_backoff=20.0)
    chain = chain_of(watch("fails", fails, "sums.dirty", mode="weak", retry=retry))
    chain.create_tables(db)
    for _ in range(5):
        with db.transaction() as t:
            t.notify("sums", "a", "dirty")
        with pytest.raises(TimeoutError):
            Worker(db, chain).run_until_idle(0.1)
    assert len(runs) == 1
    assert dirty_of(db, chain).backlog() == {"fails": 1}


def test_a_conflict_that_never_ends_gives_the_cell_back_unharmed(db: Database) -> None:
    """Real conflicts are nobody's fault: they are not counted as failures."""
    left = 12

    def function(t: Transaction, cell: Cell) -> None:
        nonlocal left
        t.get("sums", "hot", "n")
        t.set("sums", "hot", "n", b"1")
        if left:
            left -= 1
            put(db, "hot", b"0", "sums", "n")

    chain = chain_of(watch("look", function, "docs.text"))
    chain.create_tables(db)
    put(db, "a", b"1")
    counts = drain(db, chain).observers["look"]
    assert (counts.ran, counts.failed, counts.conflicts) == (1, 0, 12)


def test_ctrl_c_in_an_observer_ends_the_worker_and_gives_the_leases_back(db: Database) -> None:
    chain = chain_of(watch("look", raises(KeyboardInterrupt), "docs.text"))
    chain.create_tables(db)
    for number in range(100):
        put(db, f"{number}", b"1")
    with pytest.raises(KeyboardInterrupt):
        Worker(db, chain, width=64).run()
    leases, _ = dirty_of(db, chain).claim(1_000)
    assert len(leases) > 90, len(leases)  # a share of each tablet at a time


def test_a_signal_handler_that_exits_ends_the_worker(db: Database) -> None:
    def exits(_signal: int, _frame: object) -> None:
        sys.exit(7)

    before = signal.signal(signal.SIGUSR1, exits)
    try:
        chain = chain_of(watch("look", lambda t, cell: signal.raise_signal(signal.SIGUSR1), "docs.text"))
        chain.create_tables(db)
        put(db, "a", b"1")
        with pytest.raises(SystemExit) as raised:
            Worker(db, chain).run()
        assert raised.value.code == 7
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert dirty_of(db, chain).backlog() == {"look": 1}


def test_a_thread_that_ends_in_an_unheard_of_way_gives_its_place_back(db: Database) -> None:
    ran: list[bytes] = []

    def leaves(t: Transaction, cell: Cell) -> None:
        ran.append(cell.row)
        if cell.row == b"a":
            raise greenlet.GreenletExit

    chain = chain_of(watch("it", leaves, "docs.text", executor="threads"))
    chain.create_tables(db)
    put(db, "a", b"1")
    worker = Worker(db, chain, threads=1)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: ran)
    put(db, "b", b"1")
    until(lambda: b"b" in ran)
    worker.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_nothing_is_interrupted_once_the_observer_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeout that came late would strike the commit, and one that is not taken back later runs as well."""
    found: list[bool] = []

    class Deadlines(set[Deadline]):
        def discard(self, deadline: object) -> None:
            found.append(may_be_interrupted(sys._getframe()))
            super().discard(deadline)

    watchdog = Watchdog(None)
    monkeypatch.setattr(watchdog, "_threads", Deadlines())
    deadline = Deadline(0.0, threading.get_ident())
    with watchdog:
        for _ in range(20):
            watchdog.guard(deadline)
            watchdog.release(deadline)
        time.sleep(0.1)  # nothing tells that nothing happens
    assert found == [False] * 20
