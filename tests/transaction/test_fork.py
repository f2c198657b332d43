"""A process that forks: what was begun before belongs to the side that began it, and no lock stays locked."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import percolator_core as percolator
from percolator_core import Database, PercolatorError
from percolator_core.runtime import process
from percolator_core.store import Store, python_gc
from percolator_core.transaction.metrics import Tally
from percolator_core.transaction.scan import PAGE_ROWS
from tests.servers.plain import PATIENCE
from tests.store.test_hub import in_a_child
from tests.store.test_reentry import a_client_waits, signalled

Connect = Callable[..., Database]

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")

refused = pytest.raises(PercolatorError, match="this one was forked")


@contextmanager
def refused_in_the_child() -> Iterator[list[int]]:
    """For a block that forks, and puts the child into the list: the child leaves it by the refusal."""
    children: list[int] = []
    parent = os.getpid()
    try:
        yield children
        if os.getpid() != parent:
            os._exit(2)
    except BaseException as error:
        if os.getpid() != parent:
            os._exit(0 if isinstance(error, PercolatorError) and "this one was forked" in str(error) else 3)
        raise
    (child,) = children
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def read_in_every_way(view: percolator.Snapshot) -> list[Callable[[], object]]:
    return [
        lambda: view.get("t", "a", "v"),
        lambda: view.get("t", "never read", "v"),
        lambda: view.get_many([("t", "b", "v")]),
        lambda: view.get_row("t", "b"),
        lambda: view.get_row("t", "b", ["v"]),
        lambda: list(view.scan("t")),
    ]


@pytest.mark.parametrize("read_before", [True, False], ids=["after a read", "unread"])
def test_a_transaction_that_is_carried_on_on_both_sides(
    db: Database, two_phase: bool, read_before: bool
) -> None:
    """The child would report the parent's commit as its own, or commit the half of it."""
    db.client.one_call_a_tablet = two_phase
    with db.transaction() as t:
        t.set("t", "a", "v", b"0")
        t.set("t", "b", "v", b"0")
    t = db.begin()
    if read_before:
        assert t.get("t", "a", "v") == b"0"
    t.set("t", "a", "v", b"1")
    t.set("t", "b", "v", b"1")

    def work() -> None:
        with refused:
            t.commit()
        for read in read_in_every_way(t):
            with refused:
                read()
        with refused:
            t.set("t", "a", "v", b"2")
        t.rollback()  # of what this side has of it, which is nothing
        with refused:
            t.commit()
        # The database itself goes on, with transactions of the child's own.
        with db.transaction() as mine:
            assert mine.get("t", "a", "v") == b"0"
            mine.set("t", "child", "v", b"x")

    in_a_child(work)
    t.commit()
    with db.transaction() as t:
        assert t.get_many([("t", row, "v") for row in ("a", "b", "child")]) == [b"1", b"1", b"x"]
    db.resolve_locks()
    assert not list(db.locks())


def test_the_block_of_a_transaction_ends_on_both_sides(db: Database, two_phase: bool) -> None:
    db.client.one_call_a_tablet = two_phase
    with refused_in_the_child() as children, db.transaction() as t:
        t.set("t", "a", "v", b"1")
        t.set("t", "b", "v", b"1")
        children.append(os.fork())
    with db.transaction() as t:
        assert t.get_many([("t", "a", "v"), ("t", "b", "v")]) == [b"1", b"1"]


def test_a_handler_that_forks_in_the_middle_of_a_commit(
    connect: Connect, db: Database, two_phase: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child would send the commit, too: it may succeed there after a refusal in the parent."""
    client = connect()
    client.client.one_call_a_tablet = two_phase
    t = client.begin()
    assert t.get("t", "a", "v") is None
    t.set("t", "a", "v", b"1")
    t.set("t", "b", "v", b"1")
    decide = Store.decide
    with refused_in_the_child() as children:

        def interrupted(store: Store, *args: Any, **options: Any) -> Any:
            if not children:
                children.append(os.fork())
            return decide(store, *args, **options)

        monkeypatch.setattr(Store, "decide", interrupted)
        t.commit()
    assert db.snapshot().get_many([("t", "a", "v"), ("t", "b", "v")]) == [b"1", b"1"]


def test_an_exception_that_leaves_the_block_in_the_child_comes_out(db: Database) -> None:
    t = db.begin()
    t.set("t", "a", "v", b"1")

    def work() -> None:
        with pytest.raises(ZeroDivisionError), t:
            raise ZeroDivisionError

    in_a_child(work)
    t.commit()


def test_a_child_does_not_unpin_its_parent_s_snapshot(db: Database) -> None:
    def pins() -> Any:
        return db.store.one((b"ZCARD", db.store.keyspace.pins))

    with db.transaction() as t:
        t.set("t", "a", "v", b"0")

    def leave() -> None:
        snapshot.__exit__(None, None, None)
        for read in read_in_every_way(snapshot):
            with refused:
                read()
        with refused:
            snapshot.__enter__()
        with db.snapshot() as mine:
            assert mine.get("t", "a", "v") == b"0"

    with db.snapshot() as snapshot:
        assert pins() == 1
        in_a_child(leave)
        assert pins() == 1
        assert snapshot.get("t", "a", "v") == b"0"
    assert pins() == 0


def test_a_collected_generator_of_the_parent_keeps_its_pin(db: Database) -> None:
    def pinned() -> Iterator[None]:
        with db.snapshot():
            yield

    held = [pinned()]
    next(held[0])
    in_a_child(held.clear)
    assert db.store.one((b"ZCARD", db.store.keyspace.pins)) == 1
    held.clear()
    assert db.store.one((b"ZCARD", db.store.keyspace.pins)) == 0


def test_an_open_scan(db: Database) -> None:
    db.create_table("long", tablets=1)
    with db.transaction() as t:
        for number in range(2 * PAGE_ROWS):
            t.set("long", b"%04d" % number, "v", b"x")
    for view in (db.begin(), db.snapshot()):
        scan = view.scan("long")
        assert next(scan)[0] == b"0000"

        def work(scan: Iterator[Any] = scan) -> None:
            with refused:
                list(scan)

        in_a_child(work)
        assert len(list(scan)) == 2 * PAGE_ROWS - 1


def test_an_executor_of_the_parent(db: Database) -> None:
    with db.concurrency(4) as executor:
        parked = executor.submit(db.store.sleep, 0.01)

        def work() -> None:
            for use in (
                lambda: executor.submit(db.timestamp),
                parked.result,
                lambda: list(executor.map(str, [1])),
                lambda: executor.__exit__(None, None, None),
            ):
                with refused:
                    use()
            with db.concurrency(2) as mine:
                assert mine.submit(db.timestamp).result() > 0

        in_a_child(work)
        in_a_child(lambda: executor.__exit__(ValueError, ValueError(), None))
        executor.submit(in_a_child, work).result()
        assert parked.result() is None
        assert executor.submit(db.timestamp).result() > 0


def test_a_function_that_returns_on_both_sides(db: Database) -> None:
    """The child has no part in the other functions of the executor, nor in what their connection brings."""
    with db.transaction() as t:
        for number in range(40):
            t.set("t", b"%d" % number, "v", b"%d" % number)
    told_r, told_w = os.pipe()
    parent = os.getpid()

    def read(number: int) -> bytes | None:
        found = None
        for _ in range(3):
            with db.transaction() as t:
                found = t.get("t", b"%d" % number, "v")
            os.write(told_w, b"." if os.getpid() == parent else b"!")
        if number == 17:
            children.append(os.fork())
        return found

    with refused_in_the_child() as children, db.concurrency(8) as executor:
        assert list(executor.map(read, range(40))) == [b"%d" % number for number in range(40)]
    os.close(told_w)
    with os.fdopen(told_r, "rb") as told:
        assert told.read() == b"." * 120


@pytest.mark.parametrize("under_hub", [False, True], ids=["alone", "under a hub"])
def test_a_handler_that_forks_while_a_call_waits(connect: Connect, db: Database, under_hub: bool) -> None:
    """The child, back in the call, neither reads its parent's reply nor sends the command again."""
    key, other = db.store.keyspace.prefix + b"list", connect()

    def fork() -> None:
        children.append(os.fork())
        if children[-1]:
            other.store.one((b"RPUSH", key, b"x"))
        else:
            signal.alarm(20)

    def wait() -> Any:
        return db.store.one((b"BLPOP", key, 8))

    found: list[Any] = []
    with refused_in_the_child() as children, signalled(fork, lambda: a_client_waits(other)):
        if under_hub:
            with db.concurrency(2) as executor:
                found += executor.submit(wait).result()
        else:
            found += wait()
    assert found == [key, b"x"]
    assert other.store.one((b"LLEN", key)) == 0


# Locks that another thread holds.


def test_while_another_thread_makes_the_liveness_token(connect: Connect, db: Database) -> None:
    mine = connect()
    mine.client.one_call_a_tablet = True
    there, go_on, call_apart = threading.Event(), threading.Event(), mine.store.call_apart

    def slowly(*commands: Any) -> Any:
        there.set()
        assert go_on.wait(PATIENCE)
        return call_apart(*commands)

    mine.store.call_apart = slowly  # type: ignore[method-assign]
    owners: list[bytes] = []
    thread = threading.Thread(target=lambda: owners.append(mine.client.owner()))
    thread.start()
    assert there.wait(PATIENCE)

    def work() -> None:
        mine.store.call_apart = call_apart  # type: ignore[method-assign]
        with mine.transaction() as t:
            t.set("t", "a", "v", b"1")
            t.set("t", "b", "v", b"1")
        owner = mine.client.owner()
        assert owner.startswith(b"%x." % os.getpid())
        assert mine.store.one((b"EXISTS", mine.client.token_of(owner)))
        mine.close()

    in_a_child(work)
    go_on.set()
    thread.join()
    assert owners == [mine.client.owner()]
    with db.transaction() as t:
        assert t.get("t", "a", "v") == b"1"


@contextmanager
def held_by_another_thread(lock: Any) -> Iterator[None]:
    there, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            there.set()
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    assert there.wait(PATIENCE)
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_while_another_thread_adds_up_counts() -> None:
    tally = Tally()
    tally.ended.append((True, (1, 0, 0, 0, 0, 0, 0, 0, 0)))

    def work() -> None:
        assert tally.metrics().commits == 1

    with held_by_another_thread(tally._lock):
        in_a_child(work)


def test_while_another_thread_makes_an_executor(db: Database) -> None:
    def work() -> None:
        with db.concurrency(4) as executor:
            assert executor.submit(db.timestamp).result() > 0

    with held_by_another_thread(python_gc._lock):
        in_a_child(work)


def test_a_lock_that_the_forking_code_holds_itself() -> None:
    lock = process.Lock()

    def work() -> None:
        with lock:
            pass

    with lock, lock:
        in_a_child(work)
    with held_by_another_thread(lock):
        assert not lock._lock.acquire(timeout=0)
        in_a_child(lambda: in_a_child(work))
    work()
