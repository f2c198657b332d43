"""Every fault really happens at the server, and has the effect that is said of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from percolator_core import CommitUndetermined, LockTimeout, StoreUnavailable, TransactionConflict
from percolator_core.layout.keys import Keyspace
from percolator_core.store import OutcomeOpenError
from percolator_torture.faults.clock import FakeClock
from percolator_torture.faults.plan import (
    GIVES_UP,
    HELD,
    ExactPlan,
    Fault,
    Kind,
    Operation,
    RandomPlan,
    named,
)
from percolator_torture.faults.stepper import Point, Stepper
from percolator_torture.faults.store import FaultyDatabase, connect
from tests.servers.plain import Server, rows_apart, some_namespace, until

X, Y = rows_apart(2, 2)
COUNT = (b"INCR", b"counter")

EXECUTED = {
    Kind.REFUSED: 0,
    Kind.REQUEST_LOST: 1,
    Kind.REQUEST_LOST_FOR_GOOD: 0,
    Kind.REPLY_LOST: 2,
    Kind.REPLY_LOST_FOR_GOOD: 1,
    Kind.TWICE_FIRST: 2,
    Kind.TWICE: 2,
    Kind.LATE_COPY: 1,
    Kind.LATE: 0,
    Kind.SLOW_REQUEST: 1,
    Kind.SLOW_REPLY: 1,
}
"""How often the server executes an operation before the client goes on."""
LATE = {Kind.LATE, Kind.LATE_COPY}
KNOWN = {Kind.REFUSED, Kind.SLOW_REQUEST, Kind.SLOW_REPLY}
"""With these the client knows how often that was."""

How = Callable[[Callable[[], object]], object]


def in_a_thread(db: FaultyDatabase, work: Callable[[], object]) -> object:
    return work()


def under_a_hub(db: FaultyDatabase, work: Callable[[], object]) -> object:
    with db.concurrency() as executor:
        return executor.submit(work).result()


@pytest.fixture(params=[in_a_thread, under_a_hub])
def run(request: pytest.FixtureRequest, db: FaultyDatabase) -> How:
    """Blocking, or as a task of a hub."""
    return lambda work: request.param(db, work)


@pytest.fixture
def open_faulty(server: Server) -> Iterator[Callable[..., FaultyDatabase]]:
    namespace = some_namespace()
    made: list[FaultyDatabase] = []

    def make(**settings: object) -> FaultyDatabase:
        made.append(connect(server.unix, namespace, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for db in made:
        db.faulty.plan = None
        db.close()


@pytest.fixture
def db(open_faulty: Callable[..., FaultyDatabase]) -> FaultyDatabase:
    """A store to be faulty, with a counter that tells how often something was executed."""
    db = open_faulty(lock_wait=0.05)
    db.create_table("t", tablets=2)
    db.store.one((b"DEL", b"counter"))
    return db


def executed(db: FaultyDatabase) -> int:
    db.faulty.plan = None
    return int(db.store.one((b"GET", b"counter")) or 0)


def values(db: FaultyDatabase) -> list[bytes | None]:
    with db.transaction() as t:
        return t.get_many([("t", X, "v"), ("t", Y, "v")])


def write(db: FaultyDatabase, value: bytes = b"new") -> int:
    """A transaction whose snapshot is fixed."""
    with db.transaction() as t:
        t.get("t", X, "v")
        t.set("t", X, "v", value)
        t.set("t", Y, "v", value)
    assert t.commit_timestamp
    return t.commit_timestamp


@pytest.mark.parametrize("kind", Kind)
def test_what_the_server_executes_and_the_client_believes(db: FaultyDatabase, run: How, kind: Kind) -> None:
    db.faulty.plan = ExactPlan().on("INCR", Fault(kind, HELD if kind in LATE else 0.01))
    exchange = None

    def send() -> None:
        nonlocal exchange
        exchange = db.faulty.exchange((COUNT,))

    run(send)
    assert exchange is not None
    assert exchange.executed_maybe == (kind not in KNOWN)
    if kind in GIVES_UP:
        with pytest.raises(StoreUnavailable) as unavailable:
            exchange.result()
        assert unavailable.value.executed_maybe == exchange.executed_maybe
    else:
        [reply] = exchange.result()
        assert reply == (EXECUTED[kind] if kind is not Kind.TWICE_FIRST else 1)
    assert executed(db) == EXECUTED[kind]
    assert db.faulty.late == (kind in LATE)
    assert db.faulty.deliver() == (kind in LATE)
    assert executed(db) == EXECUTED[kind] + (kind in LATE)
    assert db.faulty.counts == {kind: 1}


@pytest.mark.parametrize("kind", Kind)
def test_a_decision(db: FaultyDatabase, kind: Kind) -> None:
    """Whoever gives up does not know the outcome, but where nothing was sent."""
    db.faulty.plan = ExactPlan().on("INCR", Fault(kind, HELD if kind in LATE else 0.0))
    if kind is Kind.REFUSED:
        with pytest.raises(StoreUnavailable):
            db.faulty.decide(COUNT)
    elif kind in GIVES_UP:
        with pytest.raises(OutcomeOpenError):
            db.faulty.decide(COUNT)
    else:
        _, repeated, _, _ = db.faulty.decide(COUNT)
        assert repeated == (kind not in KNOWN)


@pytest.mark.parametrize("kind", Kind)
def test_what_nobody_waits_for(db: FaultyDatabase, run: How, kind: Kind) -> None:
    db.faulty.plan = ExactPlan().on("INCR", Fault(kind, HELD if kind in LATE else 0.0))
    run(lambda: db.faulty.defer(COUNT))
    db.store.one((b"PING",))
    expected = {Kind.REQUEST_LOST: 0, Kind.LATE_COPY: 0, Kind.REPLY_LOST: 1}.get(kind, EXECUTED[kind])
    assert executed(db) == expected
    db.faulty.deliver()
    assert executed(db) == expected + (kind in LATE)


def test_what_is_sent_apart(db: FaultyDatabase, run: How) -> None:
    db.faulty.plan = ExactPlan().on("INCR", Kind.TWICE).on("INCR", Kind.REPLY_LOST_FOR_GOOD)
    assert run(lambda: db.faulty.call_apart(COUNT)) == [2]
    with pytest.raises(StoreUnavailable):
        run(lambda: db.faulty.call_apart(COUNT))
    assert executed(db) == 3


def test_a_late_request_comes_by_itself(db: FaultyDatabase) -> None:
    db.faulty.plan = ExactPlan().on("INCR", Fault(Kind.LATE, 0.05))
    with pytest.raises(StoreUnavailable):
        db.store.one(COUNT)
    db.faulty.plan = None
    until(lambda: executed(db) == 1)
    until(lambda: not db.faulty.late)
    assert db.faulty.deliver() == 0


def test_late_requests_come_when_they_are_due(db: FaultyDatabase) -> None:
    plan = ExactPlan()
    for kind, seconds in ((Kind.LATE, HELD), (Kind.LATE, 0.02), (Kind.LATE, 0.001)):
        plan.on("APPEND", Fault(kind, seconds))
    db.faulty.plan = plan
    db.store.one((b"DEL", b"order"))
    for letter in (b"c", b"b", b"a"):
        with pytest.raises(StoreUnavailable):
            db.store.one((b"APPEND", b"order", letter))
    until(lambda: db.faulty.late == 1)
    db.faulty.deliver()
    assert db.store.one((b"GET", b"order")) in {b"abc", b"bac"}  # a thread may sleep for too long
    assert plan.finished


def test_a_closed_store_forgets_what_is_late(
    open_faulty: Callable[..., FaultyDatabase], db: FaultyDatabase
) -> None:
    other = open_faulty(plan=ExactPlan().on("INCR", Fault(Kind.LATE, 3600)))
    with pytest.raises(StoreUnavailable):
        other.store.one(COUNT)
    other.close()
    assert other.faulty.late == 0
    assert executed(db) == 0


# What becomes of transactions.


def at(name: str, when: str = "before") -> Callable[[Point], bool]:
    return lambda point: point.when == when and point.operation is not None and name in point.operation.names


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("two_phase", [False, True])
def test_a_commit_under_a_fault(db: FaultyDatabase, run: How, kind: Kind, two_phase: bool) -> None:
    db.client.one_call_a_tablet = two_phase
    decisive = "commit" if two_phase else "prewrite"
    db.faulty.plan = ExactPlan().on(decisive, Fault(kind, HELD if kind in LATE else 0.0))
    happened = EXECUTED[kind] > 0
    if kind is Kind.REFUSED:
        with pytest.raises(StoreUnavailable):
            run(lambda: write(db))
    elif kind in GIVES_UP:
        with pytest.raises(CommitUndetermined):
            run(lambda: write(db))
    else:
        run(lambda: write(db))
    db.faulty.plan = None
    db.mortal.die()
    db.resolve_locks(timedelta(0))
    # What is late by now finds a tombstone, or, of a commit in one call that nobody knew of, nothing.
    db.faulty.deliver()
    happened = happened or (kind is Kind.LATE and not two_phase)
    assert values(db) == [b"new" if happened else None] * 2
    assert list(db.locks()) == []
    assert len(db.history("t", X, "v")) == happened


def test_a_late_prewrite_is_refused_after_a_rollback(
    open_faulty: Callable[..., FaultyDatabase], db: FaultyDatabase
) -> None:
    """The first copy of a prewrite arrives after its transaction was rolled back, and before its commit."""
    slow = open_faulty()
    slow.client.one_call_a_tablet = True
    stepper = Stepper(write, slow)
    slow.faulty.plan = ExactPlan().on("prewrite", Fault(Kind.LATE_COPY, HELD))
    stepper.run(until=at("commit"))
    slow.mortal.die()
    assert values(db) == [None, None]
    assert slow.faulty.deliver() == 1
    assert list(db.locks()) == []
    with pytest.raises(TransactionConflict, match="rolled back"):
        stepper.result()
    assert values(db) == [None, None]


def test_a_transaction_left_after_its_commit(
    open_faulty: Callable[..., FaultyDatabase], db: FaultyDatabase
) -> None:
    dead = open_faulty()
    dead.client.one_call_a_tablet = True
    stepper = Stepper(write, dead, after=True)
    stepper.run(until=at("commit", "after"))
    stepper.abandon()
    stepper.abandon()
    assert stepper.done
    assert [lock.row for lock in db.locks()] == [Y]
    assert values(db) == [b"new", b"new"]
    with pytest.raises(RuntimeError, match="abandoned"):
        stepper.result()


def test_a_transaction_left_before_its_commit(
    open_faulty: Callable[..., FaultyDatabase], db: FaultyDatabase
) -> None:
    dead = open_faulty(lock_ttl=3600)
    dead.client.one_call_a_tablet = True
    stepper = Stepper(write, dead)
    stepper.run(until=at("commit"))
    stepper.abandon()
    with pytest.raises(LockTimeout):
        values(db)
    dead.mortal.die()
    assert values(db) == [None, None]
    dead.mortal.revive()
    assert db.store.one((b"EXISTS", dead.client.token_of(dead.client.owner()))) == 1
    dead.mortal.die(token_outlives=True)
    assert db.store.one((b"EXISTS", dead.client.token_of(dead.client.owner()))) == 1
    dead.mortal.revive()
    assert write(dead, b"newer")


def test_an_abandoned_transaction_sends_nothing_more(db: FaultyDatabase) -> None:
    """Not even the rollback with which it would leave."""
    db.client.one_call_a_tablet = True
    db.catalog.keep_fresh()
    stepper = Stepper(write, db)
    names: list[str] = []
    while (point := stepper.step()) is not None and point.operation is not None:
        names.extend(point.operation.names)
        if names.count("prewrite") == 2:
            break
    stepper.abandon()
    assert names == ["timestamp", "HMGET", "HMGET", "SET", "timestamp", "prewrite", "prewrite"]
    assert [lock.row for lock in db.locks()] == [X]


def test_steps(db: FaultyDatabase) -> None:
    db.catalog.keep_fresh()
    whole = Stepper(write, db, after=True, singly=False)
    seen = []
    while (point := whole.step()) is not None:
        assert point.operation is not None
        seen.append((point.when, point.operation.names))
    assert seen == [
        ("before", ("timestamp", "HMGET", "HMGET")),
        ("after", ("timestamp", "HMGET", "HMGET")),
        ("before", ("prewrite",)),
        ("after", ("prewrite",)),
    ]
    assert whole.result() > 0

    def fails() -> None:
        db.store.one((b"PING",))
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        Stepper(fails).result()
    waits = Stepper(lambda: db.store.sleep(3600))
    assert waits.run(until=lambda point: point.when == "asleep")
    assert waits.step() is None

    def for_ever() -> None:
        while True:
            db.store.sleep(1)

    with pytest.raises(RuntimeError, match="never happens"):
        Stepper(for_ever).run()


# Plans.


def operation(number: int, *names: str) -> Operation:
    return Operation(number, names, (), 0)


def test_a_random_plan_repeats_itself() -> None:
    chances = {Kind.TWICE: 0.2, Kind.LATE: 0.1}
    one, other = (RandomPlan(7, chances, where=named("a"), seconds=(1, 2)) for _ in range(2))
    chosen = [one.choose(operation(number, "a")) for number in range(2000)]
    assert chosen == [other.choose(operation(number, "a")) for number in reversed(range(2000))][::-1]
    assert chosen != [RandomPlan(8, chances).choose(operation(number, "a")) for number in range(2000)]
    kinds = [fault.kind for fault in chosen if fault is not None]
    assert 300 < kinds.count(Kind.TWICE) < 500
    assert 130 < kinds.count(Kind.LATE) < 270
    assert all(1 <= fault.seconds <= 2 for fault in chosen if fault is not None)
    assert not any(one.choose(operation(number, "b", "c")) for number in range(2000))


@pytest.mark.parametrize("chances", [{Kind.TWICE: -0.1}, {Kind.TWICE: 0.6, Kind.LATE: 0.6}])
def test_chances_that_cannot_be(chances: dict[Kind, float]) -> None:
    with pytest.raises(ValueError, match="chances"):
        RandomPlan(0, chances)


def test_an_exact_plan_counts() -> None:
    plan = (
        ExactPlan().on("a", Kind.LATE, nth=2, times=2).on(lambda one: one.number > 3, Fault(Kind.TWICE, 1.0))
    )
    chosen = [plan.choose(operation(number, "a", "b")) for number in range(6)]
    assert chosen == [None, Fault(Kind.LATE), Fault(Kind.LATE), None, Fault(Kind.TWICE, 1.0), None]
    assert plan.finished
    with pytest.raises(ValueError, match="1 or more"):
        plan.on("a", Kind.LATE, nth=0)


def test_threads_share_a_store(db: FaultyDatabase) -> None:
    db.faulty.plan = RandomPlan(
        1, {Kind.TWICE: 0.5, Kind.REPLY_LOST: 0.5}, where=named("INCR"), seconds=(0, 0)
    )
    threads = [threading.Thread(target=lambda: [db.store.one(COUNT) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert executed(db) == 400
    assert sum(db.faulty.counts.values()) == len(db.faulty.happened) == 200


# The clock.


def test_all_clients_see_the_clock_jump(server: Server) -> None:
    namespace = some_namespace()
    clock = FakeClock(Keyspace(namespace))
    with (
        connect(server.unix, namespace, clock=clock, lock_ttl=600) as one,
        connect(server.unix, namespace, clock=clock, lock_wait=0.05) as other,
        connect(server.unix, some_namespace()) as elsewhere,
    ):
        one.create_table("t", tablets=2)

        def now(db: FaultyDatabase) -> int:
            return db.store.now()

        ahead, before = now(elsewhere), one.timestamp()
        clock.set_back(one.store, 3600)
        assert -3601e6 < now(other) - ahead < -3000e6
        # Timestamps do not follow.
        assert before < other.timestamp() < one.timestamp() < before + 60_000_000
        clock.set_forward(other.store, 7200)
        assert now(one) - ahead > 3599e6
        assert one.timestamp() - before > 3599e6
        # A lock is outlived at once, though its owner lives.
        one.client.one_call_a_tablet = True
        stepper = Stepper(write, one)
        stepper.run(until=at("commit"))
        with pytest.raises(LockTimeout):
            values(other)
        clock.set_forward(one.store, 601)
        assert values(other) == [None, None]
        with pytest.raises(TransactionConflict):
            stepper.result()
