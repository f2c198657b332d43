"""A signal handler or a finalizer uses the database that the code which it interrupts is using.

It is called before every line in turn that the interrupted call executes in the library: so whatever a moment
may spoil, one of these tests is at that moment.
"""

from __future__ import annotations

import _thread
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import percolator_core as percolator
from percolator_core import Database, PercolatorError
from percolator_core.runtime import process
from percolator_core.store.embedded.shutdown import pid_in_file
from percolator_core.transaction.metrics import FOLD, Tally
from tests.servers.plain import PATIENCE, open_pipelines, until
from tests.store.test_hub import Stuck, at_most

Connect = Callable[..., Database]
Handler = Callable[[], None]

LIBRARY = str(Path(percolator.__file__).parent)

HUB = ("store/hub.py", "store/send_queue.py", "store/task_pool.py", "store/wakeup.py")
"""The files of the hub, whose code a handler interrupts between any two lines."""


class Signal:
    """Indexed by the number of a signal, this process has it.

    No call in Python's sense: so not the function that does it runs the handler, but whatever comes next.
    """

    __getitem__ = staticmethod(_thread.interrupt_main)


SEND: Any = Signal()


class Interruption:
    """A signal arrives before one line of what this thread executes in the library; the handler is called.

    ``lines`` counts them, and ``sent`` tells whether there were as many.
    """

    def __init__(self, handler: Handler, line: int, part: str | tuple[str, ...] = "") -> None:
        """``line`` 0 only counts. ``part`` is how the names of the files end where it counts."""
        self._handler = handler
        self._line = line
        self._part = part
        self.sent = False
        self.lines = 0

    def __enter__(self) -> Self:
        self._handled = signal.signal(signal.SIGUSR1, lambda _signal, _frame: self._handler())
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        signal.signal(signal.SIGUSR1, self._handled)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if self.sent:
            return None
        name = frame.f_code.co_filename
        return self._step if name.startswith(LIBRARY) and name.endswith(self._part) else None

    def _step(self, _frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and not self.sent:
            self.lines += 1
            if self.lines == self._line:
                step, number = self._step, signal.SIGUSR1
                self.sent = True
                # The handler runs when this has returned, as far as Python runs handlers there at all.
                SEND[number]
                return step
        return self._step


def at_every_line(attempt: Callable[[int], Interruption], every: int = 1) -> int:
    """Run an attempt for each line at which it can be interrupted; returns how many there are."""
    attempt(0)  # what is done only once is done
    total = attempt(0).lines
    assert total, "no line was counted: no file has such a name"
    for line in range(1, total + 1, every):
        try:
            with at_most(20):
                attempt(line)
        except Stuck:
            raise AssertionError(f"it hangs when interrupted before line {line} of {total}") from None
        except BaseException as error:
            error.add_note(f"interrupted before line {line} of {total}")
            raise
    return total


@contextmanager
def signalled(handler: Handler, when: Callable[[], bool]) -> Iterator[None]:
    """Have this thread run the handler as soon as something holds, while it waits in the block."""
    errors: list[BaseException] = []

    def handle(_signal: int, _frame: FrameType | None) -> None:
        handler()

    def send(thread: int) -> None:
        try:
            until(when)
            signal.pthread_kill(thread, signal.SIGUSR1)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send, args=(threading.get_ident(),))
    sender.start()
    try:
        yield
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert not errors


def a_client_waits(db: Database) -> bool:
    """Whether a client of the server is blocked."""
    found = db.store.one((b"INFO", b"clients"))
    return b"blocked_clients:0" not in found


def fill(db: Database) -> None:
    with db.transaction() as t:
        for number in range(20):
            t.set("t", b"row %d" % number, "v", b"%d" % number)


class Nested:
    """A handler that reads one row and writes another, and knows what has to come of it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._numbers = itertools.count()
        self.calls = 0

    def __call__(self) -> None:
        number, db = next(self._numbers), self._db
        with db.transaction() as t:
            assert t.get("t", b"row 7", "v") == b"7"
            t.set("t", b"nested", "v", b"%d" % number)
        with db.transaction() as t:
            assert t.get_many([("t", b"row 3", "v"), ("t", b"nested", "v")]) == [b"3", b"%d" % number]
        self.calls += 1


def test_a_handler_is_answered_while_a_call_waits(connect: Connect, db: Database) -> None:
    key, other = db.store.keyspace.prefix + b"list", connect()
    told: list[Any] = []

    def push() -> None:
        told.append(db.store.one((b"RPUSH", key, b"x")))

    with at_most(20), signalled(push, lambda: a_client_waits(other)):
        assert db.store.one((b"BLPOP", key, 8)) == [key, b"x"]
    assert told == [1]


@pytest.mark.client
@pytest.mark.slow
def test_a_handler_between_any_two_lines(db: Database, two_phase: bool) -> None:
    db.client.one_call_a_tablet = two_phase
    fill(db)
    nested, numbers = Nested(db), itertools.count()

    def attempt(line: int) -> Interruption:
        number = next(numbers)
        with Interruption(nested, line) as interruption:
            with db.transaction() as t:
                assert t.get("t", b"row 1", "v") == b"1"
                t.set("t", b"outer", "v", b"%d" % number)
                t.set("t", b"other", "v", b"%d" % number)
            assert t.commit_timestamp
            with db.snapshot() as snapshot:
                assert snapshot.get_many([("t", b"outer", "v"), ("t", b"other", "v")]) == [
                    b"%d" % number,
                    b"%d" % number,
                ]
                rows = [row for row, _ in snapshot.scan("t", prefix="row ", limit=5)]
            assert rows == [b"row 0", b"row 1", b"row 10", b"row 11", b"row 12"]
        return interruption

    total = at_every_line(attempt)  # more or less, since now and then something else is due
    assert nested.calls > 0.9 * total > 200
    assert not db.store.one((b"ZCARD", db.store.keyspace.pins))


@pytest.mark.parametrize("goes_on", [False, True], ids=["committed", "written-again"])
def test_a_write_that_is_interrupted_is_made_or_not(db: Database, goes_on: bool) -> None:
    """Such as by the exception of a time limit, which the caller catches: the transaction may go on."""

    class OverError(Exception):
        pass

    def stop() -> None:
        raise OverError

    def attempt(line: int) -> Interruption:
        t = db.begin()
        with Interruption(stop, line, "transaction/transaction.py") as interruption, suppress(OverError):
            t.set("t", b"row", "v", b"x")
        try:
            if goes_on:
                t.set("t", b"row", "w", b"x")
            t.commit()
        except LookupError as error:
            raise AssertionError("the transaction is stuck") from error
        return interruption

    assert at_every_line(attempt) > 5


def test_a_handler_while_a_client_comes_alive(connect: Connect, db: Database) -> None:
    """The first lock of a client needs its liveness token: a handler may be the one to make it."""
    fill(db)
    owners: list[set[bytes]] = []

    def attempt(line: int) -> Interruption:
        mine = connect()
        mine.client.one_call_a_tablet = True
        seen: set[bytes] = set()

        def handler() -> None:
            Nested(mine)()
            seen.add(mine.client.owner())

        with Interruption(handler, line, "client.py") as interruption:
            with mine.transaction() as t:
                t.set("t", b"outer", "v", b"x")
                t.set("t", b"other", "v", b"x")
            seen.add(mine.client.owner())
        assert db.store.one((b"EXISTS", mine.client.token_of(mine.client.owner())))
        mine.close()
        owners.append(seen)
        assert not db.store.one((b"EXISTS", *map(mine.client.token_of, seen)))
        return interruption

    assert at_every_line(attempt) > 10
    # Who has named himself in a lock goes on being called so.
    assert all(len(one) == 1 for one in owners)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("percolator-liveness") <= 2


@pytest.mark.client
@pytest.mark.slow
@pytest.mark.parametrize("flushed", [False, True], ids=["smoothly", "scripts missing"])
def test_a_handler_between_any_two_lines_under_a_hub(db: Database, flushed: bool) -> None:
    fill(db)
    nested, numbers = Nested(db), itertools.count()

    def work(number: int) -> bytes | None:
        with db.transaction() as t:
            found = t.get("t", b"row %d" % (number % 20), "v")
            t.set("t", b"written %d" % number, "v", b"x")
        db.store.sleep(0.0001)
        return found

    def attempt(line: int) -> Interruption:
        if flushed:
            db.store.one((b"SCRIPT", b"FLUSH"))
        with db.concurrency(2) as executor:
            mine = list(itertools.islice(numbers, 3))
            with Interruption(nested, line) as interruption:
                futures = [executor.submit(work, number) for number in mine]
                assert [future.result() for future in futures] == [b"%d" % (one % 20) for one in mine]
        return interruption

    # Where scripts are missing much is the same.
    at_every_line(attempt, 5 if flushed else 1)
    assert nested.calls > 200
    with db.transaction() as t:
        assert len(list(t.scan("t", prefix="written "))) == next(numbers)


def test_a_handler_while_a_task_is_on_its_way_to_the_hub(db: Database) -> None:
    """It is parked for one thing at a time: else nobody would wake it for the first."""
    fill(db)
    nested = Nested(db)

    def get(number: int) -> bytes | None:
        with db.transaction() as t:
            found = t.get("t", b"row %d" % number, "v")
        db.store.sleep(0.0001)
        return found

    def attempt(line: int) -> Interruption:
        with db.concurrency(2) as executor, Interruption(nested, line, HUB) as interruption:
            futures = [executor.submit(get, number) for number in range(4)]
            assert [future.result() for future in futures] == [b"0", b"1", b"2", b"3"]
        return interruption

    assert at_every_line(attempt) > 200
    assert nested.calls > 200


def test_a_handler_while_a_task_submits_and_waits_for_another_function(db: Database) -> None:
    """The other function may end while the handler waits in the task, before the task is parked for it."""
    fill(db)
    nested = Nested(db)

    def attempt(line: int) -> Interruption:
        with (
            db.concurrency(4) as executor,
            Interruption(nested, line, (*HUB, "store/task.py")) as interruption,
        ):

            def outer() -> str:
                return executor.submit(str, "inner").result()

            futures = [executor.submit(outer), executor.submit(str, "other")]
            try:
                found: object = [future.result() for future in futures]
            except RuntimeError as error:  # every function waits for another one
                found = error
            assert found == ["inner", "other"]
        return interruption

    assert at_every_line(attempt) > 50
    assert nested.calls > 50


def test_a_handler_uses_the_executor_that_it_interrupts(db: Database) -> None:
    """What it submits runs; to wait for it is refused where the executor could not go on meanwhile."""
    fill(db)
    refused: list[str] = []

    def get(number: int) -> bytes | None:
        with db.transaction() as t:
            return t.get("t", b"row %d" % number, "v")

    def attempt(line: int) -> Interruption:
        submitted: list[Any] = []

        def handler() -> None:
            submitted.append(executor.submit(get, 7))
            try:
                assert submitted[0].result() == b"7"
            except RuntimeError as error:
                refused.append(str(error))

        with db.concurrency(2) as executor:
            with Interruption(handler, line, HUB) as interruption:
                futures = [executor.submit(get, number) for number in range(4)]
                assert [future.result() for future in futures] == [b"0", b"1", b"2", b"3"]
            assert [future.result() for future in submitted] == [b"7"] * interruption.sent
        return interruption

    total = at_every_line(attempt)
    assert 0 < len(refused) < total
    assert all("signal handler" in one for one in refused)


class Garbage:
    """Uses the database when Python collects it, being part of a cycle; then there is another one."""

    def __init__(self, use: Handler) -> None:
        self.itself, self.use = self, use

    def __del__(self) -> None:
        self.use()


@pytest.mark.parametrize("under_hub", [False, True], ids=["alone", "under a hub"])
def test_finalizers_use_the_database(db: Database, two_phase: bool, under_hub: bool) -> None:
    """Python collects garbage at any moment: here, at many."""
    db.client.one_call_a_tablet = two_phase
    fill(db)
    nested = Nested(db)
    failed: list[BaseException] = []
    busy, over = [False], [False]

    def use() -> None:
        if over[0]:
            return
        if not busy[0]:  # not one within another, without end
            busy[0] = True
            try:
                nested()
            except BaseException as error:  # noqa: BLE001 - Python would only print it
                failed.append(error)
            finally:
                busy[0] = False
        Garbage(use)

    def work(number: int) -> None:
        with db.transaction() as t:
            assert t.get("t", b"row %d" % (number % 20), "v") == b"%d" % (number % 20)
            t.set("t", b"written %d" % number, "v", b"x")

    before = gc.get_threshold()
    Garbage(use)
    try:
        with at_most(120):
            for threshold in (7, 11, 19, 31):
                with db.concurrency(8) as executor:
                    gc.set_threshold(threshold)
                    if under_hub:
                        list(executor.map(work, range(60)))
                    else:
                        list(map(work, range(60)))
    finally:
        over[0] = True
        gc.set_threshold(*before)
    gc.collect()
    assert not failed
    assert nested.calls > 50


def test_a_finalizer_does_not_park_the_task_that_collects_garbage(db: Database) -> None:
    """The collector has its lists on the stack, which would be put away meanwhile: Python would crash."""
    beats: list[int] = []
    during: list[int] = []
    refused: list[str] = []
    over: list[bool] = []

    def beat(number: int) -> None:
        while not over:
            db.timestamp()
            beats.append(number)

    def use() -> None:
        before = len(beats)
        assert db.timestamp() > 0
        db.store.sleep(0.0001)
        for wait in (executor.submit(db.timestamp).result, beating[0].result):
            try:
                wait()
            except RuntimeError as error:
                refused.append(str(error))
        during.append(len(beats) - before)

    def collect() -> None:
        for _ in range(5):
            Garbage(use)
            db.timestamp()
            gc.collect()
        over.append(True)

    gc.collect()
    gc.disable()
    try:
        with at_most(20), db.concurrency(4) as executor:
            beating = [executor.submit(beat, number) for number in range(2)]
            executor.submit(collect).result()
    finally:
        gc.enable()
    assert len(beats) > 5
    assert during == [0] * 5
    assert len(refused) == 10


def test_a_finalizer_of_another_thread_stops_no_executor(db: Database) -> None:
    """The collector runs in that thread for as long as the finalizer waits."""
    waits, may_end = threading.Event(), threading.Event()

    def use() -> None:
        waits.set()
        assert may_end.wait(PATIENCE)

    def collect() -> None:
        Garbage(use)
        gc.collect()

    gc.collect()
    gc.disable()
    collector = threading.Thread(target=collect)
    collector.start()
    try:
        assert waits.wait(PATIENCE)
        with db.concurrency(4) as executor:
            first = executor.submit(db.timestamp)
            second = executor.submit(first.result)
            stopped: list[str] = []
            try:
                assert second.result() > 0
            except RuntimeError as error:
                stopped.append(str(error))
            assert stopped == []
    finally:
        may_end.set()
        collector.join()
        gc.enable()


_COLLECT = """
import _thread, gc, operator, weakref
from percolator_core.store import python_gc

class AtEnd(weakref.ref):
    end = staticmethod(_thread.interrupt_main)

class Cycle:
    def __init__(self):
        self.me = self

gc.collect()
# The callback runs no code of Python, so the interrupt is still pending when the collection is over.
reference = AtEnd(Cycle(), operator.methodcaller("end"))
try:
    gc.collect()
except KeyboardInterrupt:
    print("interrupted", reference(), bool(python_gc.collecting))
"""


def test_ctrl_c_while_garbage_is_collected_is_raised_after_it() -> None:
    """In a process of its own: pytest's plugins may have callbacks of the collector, too."""
    done = subprocess.run([sys.executable, "-c", _COLLECT], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("interrupted None False\n", "")


def test_ctrl_c_leaves_no_lock_held() -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    taken: list[bool] = []
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for count in range(30):
            lock = process.Lock()
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.002 + count / 100_000)
                while True:
                    with lock:
                        pass
            other = threading.Thread(
                target=lambda one: taken.append(one._lock.acquire(timeout=1)), args=(lock,)
            )
            other.start()
            other.join()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert taken == [True] * 30


def test_a_collected_generator_lets_go_of_its_pin_in_the_middle_of_a_call(db: Database) -> None:
    fill(db)

    def pinned() -> Iterator[None]:
        with db.snapshot():
            yield

    def attempt(line: int) -> Interruption:
        held = [pinned()]
        next(held[0])
        with Interruption(held.clear, line, "pipeline.py") as interruption, db.transaction() as t:
            assert t.get("t", b"row 1", "v") == b"1"
            t.set("t", b"outer", "v", b"x")
        held.clear()
        assert not db.store.one((b"ZCARD", db.store.keyspace.pins))
        return interruption

    assert at_every_line(attempt) > 20


# Closing.


def test_a_handler_closes_the_database_while_a_call_waits(connect: Connect, db: Database) -> None:
    """The call has its reply; the next one is refused."""
    key, other = db.store.keyspace.prefix + b"list", connect()

    def close() -> None:
        db.close()
        other.store.one((b"RPUSH", key, b"x"))

    with at_most(20), signalled(close, lambda: a_client_waits(other)):
        assert db.store.one((b"BLPOP", key, 8)) == [key, b"x"]
    with pytest.raises(PercolatorError, match="closed"):
        db.timestamp()
    assert open_pipelines(db) == []


def test_a_handler_closes_an_embedded_store_while_a_call_waits(tmp_path: Path) -> None:
    """The server ends with its last user, once that has its reply."""
    db, other = (percolator.connect(f"embedded:{tmp_path}") for _ in range(2))
    key = db.store.keyspace.prefix + b"list"

    def close() -> None:
        db.close()
        assert pid_in_file(tmp_path) is not None
        other.store.one((b"RPUSH", key, b"x"))
        other.close()
        assert pid_in_file(tmp_path) is not None

    with at_most(40), signalled(close, lambda: a_client_waits(other)):
        assert db.store.one((b"BLPOP", key, 8)) == [key, b"x"]
    assert pid_in_file(tmp_path) is None
    db.close()


@pytest.mark.client
def test_a_handler_closes_the_database_between_any_two_lines(connect: Connect, db: Database) -> None:
    fill(db)
    outcomes = {"answered": 0, "refused": 0}

    def attempt(line: int) -> Interruption:
        mine = connect()
        mine.timestamp()
        error = None
        with Interruption(mine.close, line, ("store/store.py", "store/connections.py")) as interruption:
            try:
                with mine.transaction() as t:
                    assert t.get("t", b"row 1", "v") == b"1"
                    t.set("t", b"outer", "v", b"x")
            except PercolatorError as closed:
                error = str(closed)
        assert error is None or "is closed" in error
        outcomes["answered" if error is None else "refused"] += 1
        mine.close()
        assert open_pipelines(mine) == []
        return interruption

    assert at_every_line(attempt) > 20
    assert min(outcomes.values()) > 0


# Locks.


def test_a_handler_counts_while_counts_are_added_up() -> None:
    one = (1, 0, 0, 0, 0, 0, 0, 0, 0)

    def add(tally: Tally) -> None:
        tally.ended.append((True, one))
        if len(tally.ended) >= FOLD:
            tally.fold()

    def attempt(line: int) -> Interruption:
        tally = Tally()
        added: list[int] = []

        def handler() -> None:
            for _ in range(1500):
                add(tally)
            assert tally.metrics().transactions <= 1500 + 1200
            added.append(1500)

        with Interruption(handler, line, "metrics.py") as interruption:
            for _ in range(1200):
                add(tally)
            tally.metrics()
        assert tally.metrics().round_trips == 1200 + sum(added)
        assert tally.metrics().commits == 1200 + sum(added)
        return interruption

    attempt(0)
    total = attempt(0).lines
    with at_most(60):
        # The lines of the last of 1,200 calls stand for all, and for what follows.
        for line in [*range(1, 12), *range(total - 250, total + 1)]:
            attempt(line)


def test_a_handler_while_an_embedded_server_is_started_again(tmp_path: Path) -> None:
    """It would wait for the call that it interrupts: it is refused at once, and the call goes on."""
    with percolator.connect(f"embedded:{tmp_path}") as db:
        db.create_table("t")
        with db.transaction() as t:
            t.set("t", b"row", "v", b"1")
        assert db.store.embedded is not None
        refused: list[str] = []
        serve = db.store.embedded.serve

        def serve_and_interrupt() -> None:
            with suppress(AttributeError):
                del db.store.embedded.serve  # type: ignore[union-attr]
            try:
                db.timestamp()
            except PercolatorError as error:
                refused.append(str(error))
            serve()

        db.store.embedded.serve = serve_and_interrupt  # type: ignore[method-assign]
        server = db.store.embedded.pid
        os.kill(server, signal.SIGKILL)
        with at_most(60), db.transaction() as t:
            assert t.get("t", b"row", "v") == b"1"
        assert len(refused) == 1
        assert "started" in refused[0]
