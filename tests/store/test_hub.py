# ruff: noqa: PT012
"""Cooperative concurrency: tasks, futures, interruptions and broken connections."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from types import FrameType
from typing import Any

import greenlet
import pytest

import percolator_core as percolator
from percolator_core import Database
from percolator_core.store import (
    Hub,
    connections,
    hub,
    pipeline,
    request,
    retries,
    send_queue,
    task_pool,
    wakeup,
)
from percolator_core.store.hub import current_hub
from percolator_core.store.task import Future
from percolator_core.transaction.transaction import Transaction
from tests.servers.plain import until

Connect = Callable[..., Database]


@contextmanager
def interruption_after(seconds: float) -> Iterator[None]:
    """Ctrl-C in the main thread after a time, unless the block has ended."""

    def press(_signal: int, _frame: object) -> None:
        if not over.is_set():
            raise KeyboardInterrupt

    over = threading.Event()
    before = signal.signal(signal.SIGUSR1, press)
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        over.set()
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_results_come_in_order_and_never_more_than_width_run(db: Database) -> None:
    running = most = 0

    def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        db.store.sleep(random.random() / 500)
        with db.transaction() as t:
            t.set("t", b"%d" % number, "v", b"%d" % number)
        running -= 1
        return number

    with db.concurrency(7) as executor:
        assert list(executor.map(work, range(100))) == list(range(100))
    assert most == 7
    with db.transaction() as t:
        assert len(list(t.scan("t"))) == 100


def test_every_reply_reaches_its_caller(db: Database) -> None:
    with db.transaction() as t:
        for number in range(300):
            t.set("t", b"%d" % number, "v", b"%d" % number)

    def work(number: int) -> bool:
        with db.transaction() as t:
            one = t.get("t", b"%d" % (number % 300), "v") == b"%d" % (number % 300)
            many = t.get_many([("t", b"%d" % other, "v") for other in range(5)])
            return one and many == [b"%d" % other for other in range(5)]

    with db.concurrency(256) as executor:
        assert all(executor.map(work, range(2000)))


def test_exceptions_reach_whoever_asks(db: Database) -> None:
    def fail(number: int) -> int:
        db.timestamp()
        if number % 2:
            raise ValueError(number)
        return number

    with db.concurrency(4) as executor:
        futures = [executor.submit(fail, number) for number in range(10)]
        for number, future in enumerate(futures):
            if number % 2:
                with pytest.raises(ValueError, match=str(number)):
                    future.result()
                assert isinstance(future.exception(), ValueError)
            else:
                assert future.result() == number


@pytest.mark.parametrize("width", [1, 2, 8])
def test_tasks_may_submit_and_wait_for_tasks(db: Database, width: int) -> None:
    with db.concurrency(width) as executor:

        def tree(depth: int) -> int:
            db.timestamp()
            if not depth:
                return 1
            return sum(future.result() for future in [executor.submit(tree, depth - 1) for _ in range(3)])

        assert executor.submit(tree, 4).result() == 81


def test_sleeping_tasks_overlap(db: Database) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        for _ in range(3000):
            if len(begun) == 50:
                return
            db.store.sleep(0.01)
        raise AssertionError(f"{len(begun)} began while the first slept")

    with db.concurrency(50) as executor:
        list(executor.map(work, range(50)))


def test_another_thread_may_not_use_an_executor(db: Database) -> None:
    errors: list[BaseException] = []
    with db.concurrency(4) as executor:
        parked = executor.submit(db.store.sleep, 0.2)

        def misuse() -> None:
            for call in (lambda: executor.submit(db.timestamp), parked.result):
                try:
                    call()
                except RuntimeError as error:
                    errors.append(error)

        thread = threading.Thread(target=misuse)
        thread.start()
        thread.join()
        # The database itself may be used by any thread meanwhile.
        assert len(errors) == 2
        assert executor.submit(db.timestamp).result() > 0


def test_leaving_by_an_exception_ends_what_is_unfinished(db: Database) -> None:
    ended: list[int] = []

    def work(number: int) -> None:
        try:
            with db.transaction() as t:
                t.set("t", b"%d" % number, "v", b"")
                db.store.sleep(60)
        finally:
            ended.append(number)

    db.catalog.keep_fresh()  # so that no task waits for that
    with pytest.raises(ZeroDivisionError), db.concurrency(3) as executor:
        hub = current_hub_of(executor)
        futures = [executor.submit(work, number) for number in range(5)]
        executor.submit(db.timestamp)
        db.store.sleep(0.01)
        hub.turn()
        raise ZeroDivisionError
    assert sorted(ended) == [0, 1, 2]
    for future in futures:
        with pytest.raises(RuntimeError, match="closed"):
            future.result()
    with db.transaction() as t:
        assert list(t.scan("t")) == []


def test_leaving_cleanly_waits_for_everything(db: Database) -> None:
    with db.concurrency(2) as executor:
        futures = [executor.submit(db.timestamp) for _ in range(9)]
    assert len({future.result() for future in futures}) == 9


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interruption_in_a_task_gets_out(db: Database, stop: type[BaseException]) -> None:
    def work(number: int) -> int:
        db.timestamp()
        if number == 30:
            raise stop
        return db.timestamp()

    with pytest.raises(stop), db.concurrency(16) as executor:
        list(executor.map(work, range(100)))
    assert db.timestamp() > 0


# An interruption may land in a finalizer, or between the making of a socket and its use.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interruptions_at_any_moment(db: Database, two_phase: bool) -> None:
    """Ctrl-C, again and again: replies never go astray, sums stay whole, and the executor goes on."""
    db.client.one_call_a_tablet = two_phase
    with db.transaction() as t:
        for number in range(20):
            t.set("t", b"%d" % number, "v", b"100")

    def move(_: int) -> None:
        one, other = random.sample(range(20), 2)

        def work(t: percolator.Transaction) -> None:
            rows = t.get_many([("t", b"%d" % one, "v"), ("t", b"%d" % other, "v")])
            t.set("t", b"%d" % one, "v", b"%d" % (int(rows[0] or 0) - 1))
            t.set("t", b"%d" % other, "v", b"%d" % (int(rows[1] or 0) + 1))

        db.run(work, attempts=1)

    interrupted = 0
    with db.concurrency(32) as executor:
        before = time.monotonic()
        for future in [executor.submit(move, number) for number in range(20)]:
            future.exception()
        # A quick machine ends a round before a fixed delay is over: the delays are shares of a round.
        longest = 1.2 * (time.monotonic() - before)
        for _ in range(1000):
            if interrupted == 20:
                break
            futures = [executor.submit(move, number) for number in range(20)]
            try:
                with interruption_after(random.uniform(0, longest)):
                    for future in futures:
                        future.exception()
            except KeyboardInterrupt:
                interrupted += 1
    assert interrupted == 20
    db.resolve_locks(timedelta(0))
    with db.transaction() as t:
        assert sum(int(cells["v"]) for _, cells in t.scan("t")) == 2000


def test_an_interruption_between_two_functions_keeps_their_place(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = Future.settle
    armed: list[bool] = []

    def interrupted(future: Future[Any], value: Any, error: BaseException | None) -> None:
        if armed:
            armed.clear()
            raise KeyboardInterrupt
        settle(future, value, error)

    monkeypatch.setattr(Future, "settle", interrupted)
    with db.concurrency(1) as executor:
        hub = current_hub_of(executor)
        first = executor.submit(db.timestamp)
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            first.result()
        assert hub.active == 0
        assert executor.submit(db.timestamp).result() > 0


CONVERSATION = {
    module.__file__
    for module in (hub, send_queue, task_pool, wakeup, pipeline, connections, request, retries)
}


class Stuck(Exception):
    """Nothing went on for seconds."""


@contextmanager
def interrupted_at(line: int) -> Iterator[list[int]]:
    """Ctrl-C before that line of what the hub itself executes; yields how many there were."""
    count = [0]
    loop = greenlet.getcurrent()

    def enter(frame: FrameType, _event: str, _argument: object) -> Any:
        if greenlet.getcurrent() is not loop or frame.f_code.co_filename not in CONVERSATION:
            return None
        # What Python destroys just now has nothing to do with it, and no exception gets out of there.
        callers = itertools.takewhile(bool, (frame, frame.f_back, frame.f_back and frame.f_back.f_back))
        return None if any(one and one.f_code.co_name == "__del__" for one in callers) else step

    def step(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            count[0] += 1
            if count[0] == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield count
    finally:
        sys.settrace(before)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def give_up(_signal: int, _frame: object) -> None:
        raise Stuck

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.client
@pytest.mark.parametrize("flushed", [False, True], ids=["smoothly", "scripts missing"])
def test_an_interruption_between_any_two_lines_forgets_nobody(db: Database, flushed: bool) -> None:
    numbers = itertools.count()

    def work(number: int) -> int:
        with db.transaction() as t:
            assert t.get("t", b"nothing", "v") is None
            t.set("t", b"row %d" % number, "v", b"%d" % number)
        db.store.sleep(0.0001)
        return number

    def lines(stop_at: int) -> int:
        if flushed:
            db.store.one((b"SCRIPT", b"FLUSH"))
        with db.concurrency(2) as executor:
            mine = list(itertools.islice(numbers, 3))
            futures = [executor.submit(work, number) for number in mine]
            with at_most(20):
                with interrupted_at(stop_at) as count, suppress(KeyboardInterrupt):
                    for future in futures:
                        future.result()
                assert [future.result() for future in futures] == mine
        return count[0]

    total = lines(0)
    assert total > 200
    # Every second line, and where scripts are missing, which is as long again and mostly the same, fewer.
    for line in range(1, total + 1, 5 if flushed else 2):
        try:
            lines(line)
        except Stuck:
            raise AssertionError(f"it hangs when interrupted before line {line} of {total}") from None
    written = next(numbers)
    with db.transaction() as t:
        assert len(list(t.scan("t", prefix="row "))) == written


def test_what_was_not_sent_when_an_executor_is_left_is_not_sent_any_more(db: Database) -> None:
    key = db.store.keyspace.prefix + b"written"

    def work(number: int) -> None:
        db.store.one((b"SADD", key, number))

    with pytest.raises(ZeroDivisionError), db.concurrency(8) as executor:
        hub = current_hub_of(executor)
        futures = [executor.submit(work, number) for number in range(8)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(send_queue.SendQueue, "is_worth_sending", lambda _: False)
            hub._run_ready()
        assert len(hub._queue.parked) == 8
        raise ZeroDivisionError
    for future in futures:
        with pytest.raises(RuntimeError, match="closed before"):
            future.result()
    assert db.store.one((b"SCARD", key)) == 0


def current_hub_of(executor: Any) -> Hub:
    hub: Hub | None = executor.submit(current_hub).result()
    assert hub is not None
    return hub


def test_functions_that_wait_for_each_other_are_told(db: Database) -> None:
    futures: list[Future[Any]] = []

    def wait_for(number: int) -> None:
        futures[number].result()

    told = pytest.raises(RuntimeError, match="every function waits for another one")
    with at_most(20), told, db.concurrency(4) as executor:
        futures += [executor.submit(wait_for, 1), executor.submit(wait_for, 0)]
        futures[0].result()


def test_an_executor_is_entered_once(db: Database) -> None:
    executor = db.concurrency(2)
    with executor:
        with pytest.raises(RuntimeError, match="open already"), executor:
            pass
        assert executor.submit(lambda: 1).result() == 1
    with executor:
        assert executor.submit(lambda: 2).result() == 2


def test_a_task_that_is_ended_lets_go_of_its_pin(db: Database) -> None:
    def work() -> None:
        with db.snapshot():
            db.store.sleep(60)

    with pytest.raises(ZeroDivisionError), db.concurrency(2) as executor:
        executor.submit(work)
        current_hub_of(executor).turn()
        while not db.store.call_apart((b"ZCARD", db.store.keyspace.pins))[0]:
            current_hub_of(executor).turn()
        raise ZeroDivisionError
    until(lambda: not db.store.one((b"ZCARD", db.store.keyspace.pins)))


def test_context_variables_are_a_function_s_own(db: Database) -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")

    def function(number: int) -> str:
        before = name.get()
        db.timestamp()
        name.set(f"function {number}")
        return before

    with db.concurrency(2) as executor:
        assert set(executor.map(function, range(20))) == {"nobody"}


def test_what_a_function_returned_is_not_kept(db: Database) -> None:
    class Result:
        pass

    with db.concurrency(4) as executor:
        kept = weakref.ref(executor.submit(Result).result())
        assert executor.submit(db.timestamp).result() > 0
        gc.collect()
        assert kept() is None


# An interruption may land in a finalizer, or between the making of a socket and its use.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interruptions_without_a_hub(db: Database) -> None:
    with db.transaction() as t:
        for number in range(10):
            t.set("t", b"%d" % number, "v", b"%d" % number)
    for _ in range(60):
        with pytest.raises(KeyboardInterrupt), interruption_after(random.uniform(0.0001, 0.003)):
            while True:
                with db.transaction() as t:
                    for number in range(10):
                        assert t.get("t", b"%d" % number, "v") == b"%d" % number
    with db.transaction() as t:
        assert t.get("t", b"7", "v") == b"7"


def test_a_task_never_sends_to_the_server_of_another_database(
    db: Database, tmp_path_factory: pytest.TempPathFactory, connect: Connect
) -> None:
    """Two databases in one process: a task under the hub of one uses the other."""
    with percolator.connect(f"embedded:{tmp_path_factory.mktemp('other')}", "other") as other:
        other.create_table("t")

        def work(number: int) -> None:
            with db.transaction() as here, other.transaction() as there:
                here.set("t", b"%d" % number, "v", b"here")
                there.set("t", b"%d" % number, "v", b"there")
                assert there.get_row("t", b"%d" % number) == {"v": b"there"}

        with db.concurrency(8) as executor, other.concurrency(8) as second:
            list(executor.map(work, range(20)))
            list(second.map(work, range(20)))
        for store, value in ((db, b"here"), (other, b"there")):
            with store.transaction() as t:
                assert [cells for _, cells in t.scan("t")] == [{"v": value}] * 20


def test_two_hubs_in_two_threads(db: Database) -> None:
    totals: list[int] = []

    def count(t: percolator.Transaction) -> None:
        t.set("t", "counter", "v", b"%d" % (int(t.get("t", "counter", "v") or b"0") + 1))

    def run() -> None:
        with db.concurrency(4) as executor:
            totals.append(len([executor.submit(db.run, count, 1000).result() for _ in range(100)]))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [100, 100]
    with db.transaction() as t:
        assert t.get("t", "counter", "v") == b"200"


def test_a_hub_within_a_task(db: Database) -> None:
    def inner(number: int) -> int:
        hub = current_hub()
        assert hub is not None
        return db.timestamp() and number

    def outer(number: int) -> int:
        with db.concurrency(4) as executor:
            return sum(executor.map(inner, range(number)))

    with db.concurrency(4) as executor:
        assert list(executor.map(outer, range(6))) == [0, 0, 1, 3, 6, 10]


def test_connections_killed_under_load_conserve_the_total(
    connect: Connect, db: Database, two_phase: bool
) -> None:
    with db.transaction() as t:
        for number in range(50):
            t.set("t", b"%d" % number, "v", b"100")
    client = connect()
    client.client.one_call_a_tablet = two_phase
    outcomes = {"done": 0, "conflict": 0}

    def move(_: int) -> None:
        one, other = (b"%d" % number for number in random.sample(range(50), 2))
        try:
            with client.transaction() as t:
                mine, yours = (int(value or 0) for value in t.get_many([("t", one, "v"), ("t", other, "v")]))
                t.set("t", one, "v", b"%d" % (mine - 1))
                t.set("t", other, "v", b"%d" % (yours + 1))
        except percolator.TransactionConflict:
            outcomes["conflict"] += 1
        else:
            outcomes["done"] += 1

    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.05):
            db.store.one((b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes"))

    killer = threading.Thread(target=kill)
    killer.start()
    with client.concurrency(64) as executor:
        for _ in executor.map(move, range(2000)):
            pass
    stop.set()
    killer.join()
    assert sum(outcomes.values()) == 2000
    assert outcomes["done"] > 100
    with db.transaction() as t:
        assert sum(int(cells["v"]) for _, cells in t.scan("t")) == 5000


def test_an_embedded_server_is_killed_and_comes_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("state")
    with percolator.connect(f"embedded:{folder}") as db:
        db.create_table("t")
        stamps: list[int] = []

        def touch(t: Transaction, number: int) -> Transaction:
            t.get("t", b"%d" % number, "v")
            t.set("t", b"%d" % number, "v", b"x")
            return t

        def write(number: int) -> None:
            if number in (100, 200):
                assert db.store.embedded is not None
                os.kill(db.store.embedded.pid, signal.SIGKILL)
            # Again, where the server was replaced between the read and the commit.
            t = db.run(lambda t: touch(t, number))
            stamps.append(t.commit_timestamp or 0)

        with db.concurrency(32) as executor:
            list(executor.map(write, range(300)))
        assert len(set(stamps)) == 300
        with db.transaction() as t:
            found = {int(row) for row, _ in t.scan("t")}
            # While the disk is slow, Redis keeps the last seconds in memory: those before a kill may be lost.
            assert found >= set(range(200 + 32, 300))
            assert t.start_timestamp > max(stamps)


def test_a_server_that_stays_away_fails_every_task(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.servers.plain import Server, binaries

    server = Server(next(iter(binaries().values())))
    try:
        with percolator.connect(server.unix, patience=0.3) as db:
            db.create_table("t")
            with db.concurrency(20) as executor:
                futures = [executor.submit(db.timestamp) for _ in range(20)]
                server.kill()
                assert all(isinstance(future.exception(), percolator.StoreUnavailable) for future in futures)
                server.start()
                assert executor.submit(db.timestamp).result() > 0
    finally:
        server.close()


def in_a_child(work: Callable[[], None]) -> None:
    child = os.fork()
    if not child:
        try:
            signal.alarm(20)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child ends here, whatever happens
            import traceback

            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("embedded", [True, False])
def test_a_forked_child_uses_the_same_database(
    db: Database, tmp_path_factory: pytest.TempPathFactory, embedded: bool
) -> None:
    mine = percolator.connect(f"embedded:{tmp_path_factory.mktemp('state')}") if embedded else db
    mine.client.one_call_a_tablet = True
    mine.create_table("t", notify_only=[] if embedded else ["ping"])

    def add(t: percolator.Transaction) -> None:
        t.set("t", "counter", "v", b"%d" % (int(t.get("t", "counter", "v") or b"0") + 1))
        t.set("t", b"%d" % os.getpid(), "v", b"")

    def work() -> None:
        for _ in range(20):
            mine.run(add, attempts=1000)
        with mine.concurrency(4) as executor:
            list(executor.map(lambda _: mine.run(add, attempts=1000), range(20)))
        if embedded:
            mine.close()

    mine.run(add)
    owner = mine.client.owner()
    thread = threading.Thread(target=work if not embedded else lambda: None)
    thread.start()
    in_a_child(work)
    thread.join()
    # A child that forks inside a task, as multiprocessing does, is no task of the hub that it left behind.
    if not embedded:
        with mine.concurrency(4) as executor:
            executor.submit(in_a_child, lambda: mine.run(add)).result()
    assert mine.client.owner() == owner
    with mine.transaction() as t:
        assert t.get("t", "counter", "v") == (b"41" if embedded else b"82")
    if embedded:
        mine.close()


AMONG_GARBAGE = """
import gc, sys, threading, time, weakref
import percolator_core

ready, end = threading.Event(), threading.Event()
loop, lived = [], []

class Finalized:
    def __del__(self):
        end.set()
        thread.join()
        time.sleep(0.1)
        for _ in range(100_000):
            pass  # the interpreter ends threads' greenlets between two turns of a loop
        lived.append(loop[0]() is not None)

def own_a_hub():
    hub = db.store.hub(1)
    hub.close()
    loop.append(weakref.ref(hub.loop))
    hub.itself, hub.finalized = hub, Finalized()
    del hub
    ready.set()
    end.wait()

with percolator_core.connect(*sys.argv[1:]) as db:
    gc.disable()
    thread = threading.Thread(target=own_a_hub)
    thread.start()
    ready.wait()
    gc.collect()
print(lived)
"""


def test_a_hub_among_garbage_outlives_its_thread(db: Database) -> None:
    """A thread ends while a finalizer runs: the collector still visits the hub, and what it refers to.

    In a process of its own, which would crash.
    """
    command = [sys.executable, "-c", AMONG_GARBAGE, db.url, db.namespace]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("[True]\n", 0)
