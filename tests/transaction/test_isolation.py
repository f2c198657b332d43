"""The isolation anomalies by name: what snapshot isolation prevents, and what it allows.

x = 10 and y = 20 lie in different tablets. Every transaction fixes its snapshot when it begins.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

import percolator_core
from percolator_core import Database, LockTimeout, Transaction, TransactionConflict
from tests.servers.plain import commit_of, rows_apart

X, Y, Z = rows_apart(3)
Begin = Callable[[], Transaction]


@pytest.fixture
def connect(connect_to_every_kind: Callable[..., Database]) -> Callable[..., Database]:
    return connect_to_every_kind


@pytest.fixture
def begin(db: Database, two_phase: bool) -> Begin:
    db.client.one_call_a_tablet = two_phase
    with db.transaction() as t:
        put(t, X, 10)
        put(t, Y, 20)

    def begin() -> Transaction:
        t = db.begin()
        assert t.start_timestamp
        return t

    return begin


def put(t: Transaction, row: bytes, value: int) -> None:
    t.set("t", row, "v", b"%d" % value)


def read(t: Transaction, row: bytes) -> int:
    value = t.get("t", row, "v")
    assert value is not None
    return int(value)


def state(begin: Begin) -> tuple[int, int]:
    t = begin()
    return read(t, X), read(t, Y)


def test_g0_dirty_write(begin: Begin) -> None:
    t1, t2 = begin(), begin()
    put(t1, X, 11)
    put(t2, X, 12)
    put(t1, Y, 21)
    t1.commit()
    put(t2, Y, 22)
    with pytest.raises(TransactionConflict) as conflict:
        t2.commit()
    assert conflict.value.reason == "newer commit"
    assert (conflict.value.table, conflict.value.row, conflict.value.column) == ("t", X, "v")
    assert state(begin) == (11, 21)


def test_g1a_aborted_read(begin: Begin) -> None:
    t2, t1 = begin(), begin()  # t2 began before t1 and need not wait for its lock
    put(t1, X, 101)
    commit = commit_of(t1)
    commit.prewrite()
    assert read(t2, X) == 10
    commit.roll_back()
    assert read(t2, X) == 10
    assert read(begin(), X) == 10


def test_g1b_intermediate_read(begin: Begin) -> None:
    t1, t2 = begin(), begin()
    put(t1, X, 101)
    assert read(t2, X) == 10
    put(t1, X, 11)
    t1.commit()
    assert read(t2, X) == 10
    assert state(begin) == (11, 20)


def test_g1c_circular_information_flow(begin: Begin) -> None:
    t1, t2 = begin(), begin()
    put(t1, X, 11)
    put(t2, Y, 22)
    assert read(t1, Y) == 20
    assert read(t2, X) == 10
    t1.commit()
    t2.commit()
    assert state(begin) == (11, 22)


def test_otv_observed_transaction_vanishes(begin: Begin) -> None:
    t1 = begin()
    put(t1, X, 11)
    put(t1, Y, 19)
    t1.commit()
    t2, t3 = begin(), begin()
    assert read(t3, X) == 11
    put(t2, X, 12)
    put(t2, Y, 18)
    t2.commit()
    assert read(t3, Y) == 19
    assert read(t3, X) == 11
    assert state(begin) == (12, 18)


def test_pmp_predicate_many_preceders(begin: Begin) -> None:
    def rows(t: Transaction, holds: Callable[[int], bool]) -> list[bytes]:
        return [row for row, cells in t.scan("t") if holds(int(cells["v"]))]

    t1, t2 = begin(), begin()
    assert rows(t1, lambda v: v == 30) == []
    put(t2, Z, 30)
    t2.commit()
    assert rows(t1, lambda v: v % 3 == 0) == []
    assert rows(begin(), lambda v: v % 3 == 0) == [Z]


def test_p4_lost_update(begin: Begin) -> None:
    t1, t2 = begin(), begin()
    put(t1, X, read(t1, X) + 1)
    put(t2, X, read(t2, X) + 1)
    t1.commit()
    with pytest.raises(TransactionConflict):
        t2.commit()
    assert state(begin) == (11, 20)


def test_blind_write(begin: Begin) -> None:
    t1 = begin()
    t2 = begin()
    put(t2, X, 12)
    t2.commit()
    put(t1, X, 11)
    with pytest.raises(TransactionConflict):
        t1.commit()
    assert state(begin) == (12, 20)


def test_a_transaction_that_only_writes_is_ordered_at_its_commit(db: Database, begin: Begin) -> None:
    only_writes, other = db.begin(), begin()
    put(only_writes, X, 1)
    put(other, X, 2)
    other.commit()
    only_writes.commit()
    assert state(begin) == (1, 20)


def test_g_single_read_skew(begin: Begin) -> None:
    t1 = begin()
    assert read(t1, X) == 10
    t2 = begin()
    put(t2, X, 12)
    put(t2, Y, 18)
    t2.commit()
    assert read(t1, Y) == 20
    assert dict(t1.scan("t")) == {X: {"v": b"10"}, Y: {"v": b"20"}}


@pytest.mark.parametrize("first", [X, Y], ids=["x first", "y first"])
def test_long_fork(begin: Begin, first: bytes) -> None:
    t1, t2 = begin(), begin()
    put(t1, X, 11)
    put(t2, Y, 21)
    readers = [begin()]
    for t in (t1, t2) if first == X else (t2, t1):
        t.commit()
        readers.append(begin())
    views = [(read(t, X), read(t, Y)) for t in readers]
    assert views == [(10, 20), (11, 20) if first == X else (10, 21), (11, 21)]
    assert not {(11, 20), (10, 21)} <= set(views)


def test_long_fork_between_the_phases(connect: Callable[..., Database], db: Database, begin: Begin) -> None:
    """Both are prewritten: a reader that cannot tell which of them comes first waits."""
    db.client.one_call_a_tablet = True
    t1, t2 = begin(), begin()
    put(t1, X, 11)
    put(t2, Y, 21)
    before = begin()
    one, other = commit_of(t1), commit_of(t2)
    one_ts, other_ts = one.prewrite(), other.prewrite()
    assert one_ts < other_ts
    hasty = connect(lock_wait=0.05)
    other.commit_primary(other_ts)
    # Above both timestamps: not (10, 21), which another reader might contradict.
    between = hasty.begin()
    assert read(between, Y) == 21
    with pytest.raises(LockTimeout):
        read(between, X)
    one.commit_primary(one_ts)
    assert (read(between, X), read(between, Y)) == (11, 21)
    assert (read(before, X), read(before, Y)) == (10, 20)
    past = [db.snapshot(at) for at in (one_ts - 1, one_ts, other_ts - 1, other_ts)]
    assert [(s.get("t", X, "v"), s.get("t", Y, "v")) for s in past] == [
        (b"10", b"20"),
        (b"11", b"20"),
        (b"11", b"20"),
        (b"11", b"21"),
    ]


def test_internal_consistency(begin: Begin) -> None:
    t = begin()
    put(t, X, 1)
    t.delete("t", Y, "v")
    put(t, Z, 3)
    assert (t.get("t", X, "v"), t.get("t", Y, "v"), t.get("t", Z, "v")) == (b"1", None, b"3")
    assert t.get_many([("t", X, "v"), ("t", Y, "v"), ("t", Z, "v")]) == [b"1", None, b"3"]
    assert t.get_row("t", X) == {"v": b"1"}
    assert t.get_row("t", Y) == {}
    assert dict(t.scan("t")) == {X: {"v": b"1"}, Z: {"v": b"3"}}
    put(t, Y, 2)
    assert dict(t.scan("t", columns=["v"])) == {X: {"v": b"1"}, Y: {"v": b"2"}, Z: {"v": b"3"}}
    t.rollback()
    assert state(begin) == (10, 20)


def test_internal_consistency_of_reads_again(begin: Begin) -> None:
    t, other = begin(), begin()
    views = []
    for _ in range(2):
        views.append((read(t, X), t.get_row("t", Y), list(t.scan("t")), t.get("t", Z, "v")))
        if len(views) == 1:
            put(other, X, 99)
            other.delete("t", Y, "v")
            put(other, Z, 99)
            other.commit()
    assert views[0] == views[1]
    assert views[0][:2] == (10, {"v": b"20"})


def test_real_time(connect: Callable[..., Database], begin: Begin, two_phase: bool) -> None:
    other = connect()
    other.client.one_call_a_tablet = two_phase
    for value in range(50):
        t = begin()
        put(t, X, value)
        put(t, Y, value)
        t.commit()
        with other.transaction() as later:
            assert (read(later, Y), read(later, X)) == (value, value)


def answer(url: str, namespace: str, pipe: Connection) -> None:
    """Another process: for each message it begins a transaction, and says what it sees."""
    with percolator_core.connect(url, namespace) as db:
        pipe.send(None)
        while pipe.recv():
            with db.transaction() as t:
                pipe.send((read(t, Y), read(t, X)))


def test_real_time_from_another_process(db: Database, begin: Begin) -> None:
    mine, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=answer, args=(db.url, db.namespace, theirs))
    process.start()
    try:
        mine.recv()
        for value in range(50):
            t = begin()
            put(t, X, value)
            put(t, Y, value)
            t.commit()
            mine.send(True)
            assert mine.recv() == (value, value)
        mine.send(False)
    finally:
        process.join(10)
        process.kill()
        process.join()
        mine.close()
        theirs.close()


def test_g2_item_write_skew_is_allowed(begin: Begin) -> None:
    t1, t2 = begin(), begin()
    assert read(t1, X) + read(t1, Y) == read(t2, X) + read(t2, Y) == 30
    put(t1, X, 0)
    put(t2, Y, 0)
    t1.commit()
    t2.commit()
    assert state(begin) == (0, 0)


def test_g2_predicate_skew_is_allowed(begin: Begin) -> None:
    t1, t2 = begin(), begin()
    assert len(list(t1.scan("t"))) == len(list(t2.scan("t"))) == 2
    put(t1, Z, 30)
    put(t2, b"another", 30)
    t1.commit()
    t2.commit()
    assert len(list(begin().scan("t"))) == 4
