# ruff: noqa: PT012
"""Redis Cluster as a store: slots that move, servers that die, stop and change roles, and refusals."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.crc import key_slot

import percolator_core as percolator
from percolator_core import CommitUndetermined, Database, StoreUnavailable
from percolator_core.store.connector import Connector
from percolator_core.store.packing import Command
from percolator_core.store.request import Decision
from percolator_core.store.store import Store
from percolator_core.store.topology import Endpoint
from tests.servers.cluster import Cluster, Move, Node
from tests.servers.fixtures import Connect, connecting
from tests.servers.plain import Busy, Faults, binaries, rows_apart
from tests.store.bank import Bank, bump, read, write

SYSTEM = binaries().get("system", "")
pytestmark = pytest.mark.skipif(not SYSTEM, reason="NOT TESTED: no redis-server on PATH")

ROWS = rows_apart(8)


@pytest.fixture(scope="module")
def steady() -> Iterator[Cluster]:
    """A cluster for tests after which it is whole again: no server dies."""
    with Cluster(SYSTEM, 3, 0) as cluster:
        yield cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster with a replica for each primary."""
    with Cluster(SYSTEM, 3, 1) as cluster:
        yield cluster


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Connects to the cluster of the test, always in the same fresh namespace."""
    name = "steady" if "steady" in request.fixturenames else "cluster"
    yield from connecting(request.getfixturevalue(name).url)


@pytest.fixture
def db(connect: Connect) -> Database:
    db = connect(lock_ttl=1.0)
    db.create_table("t")
    return db


def tag(db: Database, row: bytes) -> bytes:
    return db.catalog.table("t").tag(row)


def slot(db: Database, row: bytes) -> int:
    return int(key_slot(tag(db, row)))


def another(cluster: Cluster, than: Node) -> Node:
    return next(node for node in cluster.primaries if node is not than)


def begin_move(cluster: Cluster, number: int) -> Move:
    return cluster.begin_move(number, another(cluster, cluster.owner(number)))


def rows_apart_in(db: Database, row: bytes) -> Iterator[bytes]:
    """Other rows of the same tablet."""
    rows = (b"other %d" % number for number in itertools.count())
    return (other for other in rows if tag(db, other) == tag(db, row))


def versions(db: Database, row: bytes) -> int:
    return len(db.history("t", row, "v", limit=1000))


# Slots that move.


def test_connecting_in_the_middle_of_a_planned_failover(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was named a moment ago says that it is a replica: so another one has its slots by now."""
    asking = Connector.ask
    struck: list[Endpoint] = []

    def ask(self: Connector, endpoint: Endpoint, command: Command) -> Any:
        if command == (b"INFO",) and not struck:
            struck.append(endpoint)
            primary = next(node for node in cluster.nodes if node.port == endpoint.port)
            cluster.change_roles(cluster.replica_of(primary))
        return asking(self, endpoint, command)

    monkeypatch.setattr(Connector, "ask", ask)
    with percolator.connect(cluster.url, "ns") as db:
        assert struck
        assert db.timestamp() > 0
        assert struck[0] not in db.store.endpoints()


def test_a_slot_moves_while_transactions_run(steady: Cluster, connect: Connect) -> None:
    db = connect(lock_ttl=1.0)
    bank = Bank(db)
    with bank.busy(db, connect(lock_ttl=1.0)):
        bank.goes_on()
        before = bank.done
        number = slot(db, b"account 3")
        steady.move_slot(number, another(steady, steady.owner(number)), batch=5)
        bank.goes_on()
    assert bank.done > before
    bank.check(db)


def test_others_go_on_while_a_slot_is_closed(steady: Cluster, connect: Connect) -> None:
    db = connect()
    db.create_table("t")
    moving, *others = ROWS
    for row in ROWS:
        write(db, row, b"0")
    move = begin_move(steady, slot(db, moving))
    done = []
    with db.concurrency(8) as executor:
        stuck = [executor.submit(db.run, lambda t: bump(t, moving), 100) for _ in range(3)]
        for row in others * 5:
            executor.submit(db.run, lambda t, row=row: bump(t, row), 100).result()
            done.append(row)
        assert not any(future.done() for future in stuck)
        thread = threading.Thread(target=move.finish)
        thread.start()
        for future in stuck:
            future.result()
        thread.join()
    assert read(db, moving) == b"3"
    assert [read(db, row) for row in others] == [b"5"] * len(others)


def test_the_oracles_slot_moves_to_and_fro(steady: Cluster, connect: Connect) -> None:
    db = connect(lock_ttl=1.0)
    bank = Bank(db)
    oracle = int(key_slot(db.store.keyspace.oracle))
    stamps = [db.timestamp()]
    with bank.busy(db):
        for _ in range(4):
            bank.goes_on(20)
            stamps.append(db.timestamp())
            steady.move_slot(oracle, another(steady, steady.owner(oracle)))
            stamps.append(connect().timestamp())
    assert stamps == sorted(set(stamps))
    bank.check(db)


def test_a_move_that_is_never_finished_names_its_slot(steady: Cluster, connect: Connect) -> None:
    db = connect(patience=0.5)
    db.create_table("t")
    moving, *others = ROWS
    write(db, moving, b"before")
    move = begin_move(steady, slot(db, moving))
    before = time.monotonic()
    for row in (moving, next(row for row in rows_apart_in(db, moving) if row != moving)):
        with pytest.raises(StoreUnavailable, match=rf"slot {move.slot} is on its way.*--cluster fix"):
            write(db, row, b"x")
    assert read(db, moving) == b"before"  # it is there still, and nothing can be written
    assert time.monotonic() - before < 8
    with db.concurrency(4) as executor:
        stuck = executor.submit(write, db, moving, b"x")
        assert list(executor.map(lambda row: write(db, row, b"x"), others))
        assert isinstance(stuck.exception(), StoreUnavailable)
    move.finish()
    assert read(db, moving) == b"before"
    assert versions(db, moving) == 1


def test_a_slot_that_the_others_do_not_know_to_be_elsewhere(steady: Cluster, db: Database) -> None:
    row = ROWS[0]
    write(db, row, b"1")
    move = begin_move(steady, slot(db, row))
    move.conclude_at_target()
    thread = threading.Timer(0.3, move.finish)
    thread.start()
    try:
        write(db, row, b"2")
    finally:
        thread.join()
    assert read(db, row) == b"2"
    assert versions(db, row) == 2


# Error replies that mean: not executed. Each strikes at the very moment when a script is sent.


def moved(steady: Cluster, db: Database, row: bytes) -> threading.Thread | None:
    steady.move_slot(slot(db, row), another(steady, steady.owner(slot(db, row))))
    return None


def ask(steady: Cluster, db: Database, row: bytes) -> threading.Thread | None:
    return threading.Timer(0.3, begin_move(steady, slot(db, row)).finish)


def clusterdown(steady: Cluster, db: Database, row: bytes) -> threading.Thread | None:
    number = slot(db, row)
    node = steady.owner(number)
    node.ask("CLUSTER", "DELSLOTS", number)

    def mend() -> None:
        node.ask("CLUSTER", "ADDSLOTS", number)
        steady.await_ready()

    return threading.Timer(0.3, mend)


def noscript_on_one(steady: Cluster, db: Database, row: bytes) -> threading.Thread | None:
    steady.owner(slot(db, row)).ask("SCRIPT", "FLUSH")
    return None


def noscript_on_all(steady: Cluster, db: Database, row: bytes) -> threading.Thread | None:
    for node in steady.nodes:
        node.ask("SCRIPT", "FLUSH")
    return None


def busy(steady: Cluster, db: Database, row: bytes) -> threading.Thread | None:
    hogged = Busy(steady.owner(slot(db, row)))
    hogged.begin()
    return threading.Timer(0.3, hogged.end)


NOT_EXECUTED = [moved, ask, clusterdown, noscript_on_one, noscript_on_all, busy]


@pytest.mark.parametrize("cause", NOT_EXECUTED)
@pytest.mark.parametrize("script", ["commit", "prewrite", "read"])
def test_what_was_not_executed_is_sent_again_and_known_to_be_executed_once(  # noqa: PLR0917
    steady: Cluster,
    connect: Connect,
    db: Database,
    cause: Callable[[Cluster, Database, bytes], threading.Thread | None],
    script: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row, second = ROWS[:2]
    client = connect()
    decisions: list[Decision] = []

    def decide(self: Store, *command: Any, **options: Any) -> Decision:
        decisions.append(deciding(self, *command, **options))
        return decisions[-1]

    deciding = Store.decide
    monkeypatch.setattr(Store, "decide", decide)
    write(db, row, b"old")
    faults = Faults(client)
    later: list[threading.Thread] = []

    def strike() -> None:
        timer = cause(steady, db, row)
        if timer is not None:
            timer.start()
            later.append(timer)

    t = client.begin()
    t.get("t", row, "v")
    t.set("t", row, "v", b"new")
    t.set("t", second, "v", b"new")
    try:
        if script != "read":
            faults.script(script, strike)
            t.commit()
            assert faults.plan == []
        else:
            strike()
            assert client.snapshot().get("t", row, "v") == b"old"
            t.commit()
    finally:  # also when it failed: the servers are there for the others
        for timer in later:
            timer.join()
    assert [repeated for _, repeated, _, _ in decisions[1:]] == [False]
    assert (read(db, row), read(db, second)) == (b"new", b"new")
    assert (versions(db, row), versions(db, second)) == (2, 1)
    assert list(db.locks()) == []


def test_scripts_are_flushed_under_load(steady: Cluster, connect: Connect) -> None:
    db = connect()
    bank = Bank(db)
    with bank.busy(db):
        for number in range(20):
            bank.goes_on(10)
            for node in steady.nodes if number % 2 else steady.nodes[:1]:
                node.ask("SCRIPT", "FLUSH")
    assert not bank.open
    bank.check(db)


def test_a_tablet_is_counted_once_whatever_moves(steady: Cluster, db: Database) -> None:
    """A counter is raised by single transactions while its slot moves to and fro: none counts twice."""
    row = ROWS[0]
    over = threading.Event()

    def to_and_fro() -> None:
        while not over.is_set():
            moved(steady, db, row)

    thread = threading.Thread(target=to_and_fro)
    thread.start()
    try:
        for _ in range(40):
            db.run(lambda t: bump(t, row), 100)
    finally:
        over.set()
        thread.join()
    assert read(db, row) == b"40"
    assert versions(db, row) == 40


# What leaves the outcome open.


@pytest.mark.parametrize("what", ["lose request", "lose reply", "twice"])
@pytest.mark.parametrize("script", ["commit", "prewrite", "timestamp"])
def test_any_message_lost_or_doubled(
    steady: Cluster, connect: Connect, db: Database, script: str, what: str
) -> None:
    client = connect()
    faults = Faults(client)
    faults.script(script, what)
    with client.transaction() as t:
        assert t.get("t", ROWS[0], "v") is None
        for row in ROWS[:3]:
            t.set("t", row, "v", b"new")
    assert faults.plan == []
    assert [read(db, row) for row in ROWS[:3]] == [b"new"] * 3
    assert [versions(db, row) for row in ROWS[:3]] == [1] * 3


def test_a_store_that_falls_silent_at_the_commit(steady: Cluster, connect: Connect, db: Database) -> None:
    client = connect(patience=0.2)
    faults = Faults(client)
    t = client.begin()
    for row in ROWS[:3]:
        t.set("t", row, "v", b"new")
    faults.script("commit", "lose reply")
    faults.plan += [(b"connect", lambda: None)] * 200
    with pytest.raises(CommitUndetermined):
        t.commit()
    assert [read(db, row) for row in ROWS[:3]] == [b"new"] * 3


# Servers that die, stop and change roles.


@pytest.mark.parametrize("victim", ["data", "oracle"])
def test_a_killed_primary_loses_nothing_that_its_replica_acknowledged(
    cluster: Cluster, connect: Connect, victim: str
) -> None:
    """With one replica the one that acknowledged is the one that is promoted, so this must hold.

    With several, Redis may promote another one than had acknowledged.
    """
    db = connect(lock_ttl=1.0, durability="replicas=1")
    bank = Bank(db)
    key = db.store.keyspace.oracle if victim == "oracle" else tag(db, b"account 3")
    with bank.busy(db, connect(lock_ttl=1.0, durability="replicas=1")):
        bank.goes_on()
        old = cluster.primary_of(key)
        cluster.kill(old)
        new = cluster.await_failover(old)
        # The new primary has no replica: what it is given cannot be safe until the old one is back.
        cluster.restart(old)
        bank.goes_on()
    assert cluster.primary_of(key) is new
    bank.check(connect())


@pytest.mark.parametrize("victim", ["data", "oracle"])
def test_a_stopped_primary_neither_takes_nor_tells_anything_when_it_is_back(
    cluster: Cluster, connect: Connect, victim: str
) -> None:
    idle, late = connect(), connect()
    db = connect(lock_ttl=1.0, durability="replicas=1,timeout=0.2")
    bank = Bank(db)
    key = db.store.keyspace.oracle if victim == "oracle" else tag(db, b"x")
    for client in (idle, late):
        write(client, b"x", b"old")
    with bank.busy(db):
        bank.goes_on()
        old = cluster.primary_of(key)
        cluster.stop(old)
        new = cluster.await_failover(old)
        # The new primary has no replica: whatever touches its tablets falls short, and others wait behind it.
        bank.goes_on(5)
        newest = write(connect(), b"x", b"new")
        # Those who were idle, and those who waited for it, must not believe it.
        cluster.resume(old)
        for client in (idle, late):
            with client.transaction() as t:
                assert t.get("t", b"x", "v") == b"new"
                assert t.start_timestamp > newest
        bank.goes_on()
    cluster.await_ready()
    assert cluster.primary_of(key) is new
    bank.check(connect())


def test_a_takeover_while_transactions_run(cluster: Cluster, connect: Connect) -> None:
    db = connect(lock_ttl=1.0, durability="replicas=1")
    bank = Bank(db)
    with bank.busy(db):
        bank.goes_on()
        for key in (db.store.keyspace.oracle, tag(db, b"account 3")):
            cluster.promote(cluster.replica_of(cluster.primary_of(key)))
            bank.goes_on()
    bank.check(connect())


def test_a_killed_replica_is_not_missed(cluster: Cluster, connect: Connect) -> None:
    db = connect()
    bank = Bank(db)
    with bank.busy(db):
        bank.goes_on()
        cluster.kill(cluster.replica_of(cluster.primary_of(db.store.keyspace.oracle)))
        bank.goes_on(200)
    assert not bank.open
    bank.check(db)


@pytest.mark.parametrize("node", ["primary", "secondary"])
def test_a_server_dies_when_the_primary_is_about_to_be_committed(
    cluster: Cluster, connect: Connect, node: str
) -> None:
    db = connect(lock_ttl=1.0, durability="replicas=1")
    db.create_table("t")
    first = ROWS[0]
    second = next(
        row for row in ROWS if cluster.primary_of(tag(db, row)) is not cluster.primary_of(tag(db, first))
    )
    old = cluster.primary_of(tag(db, first if node == "primary" else second))
    faults = Faults(db)
    faults.script("commit", lambda: cluster.kill(old))
    t = db.begin()
    for row in (first, second):
        t.set("t", row, "v", b"new")
    try:
        t.commit()
        outcome = "committed"
    except CommitUndetermined:
        outcome = "open"  # the new primary has no replica that could acknowledge
    assert outcome == ("open" if node == "primary" else "committed")
    cluster.await_failover(old)
    other = connect()
    found = {read(other, row) for row in (first, second)}
    assert found in ({b"new"}, {None})
    assert outcome == "open" or found == {b"new"}


# Hubs, threads, interruptions, children.


def test_a_stopped_server_holds_up_only_those_who_need_it(connect: Connect, steady: Cluster) -> None:
    db = connect(timeout=4.0, patience=60.0)
    db.create_table("t", tablets=64)
    rows = rows_apart(64, 64)
    oracle = steady.primary_of(db.store.keyspace.oracle)
    stopped = another(steady, oracle)
    here = [row for row in rows if steady.primary_of(tag(db, row)) is stopped]
    elsewhere = [row for row in rows if steady.primary_of(tag(db, row)) is not stopped]
    for row in rows:
        write(db, row, b"0")
    with db.concurrency(20) as executor:
        executor.submit(write, db, here[0], b"1").result()
        steady.stop(stopped)
        try:
            stuck = [executor.submit(db.run, lambda t, row=row: bump(t, row)) for row in here[:5]]
            before = time.monotonic()
            for row in elsewhere[:10] * 10:
                executor.submit(db.run, lambda t, row=row: bump(t, row), 100).result()
            took = time.monotonic() - before
            assert not any(future.done() for future in stuck)
        finally:
            steady.resume(stopped)
        for future in stuck:
            future.result()
    # Each of a hundred would have had to wait for the silent server's time limit.
    assert took < 20
    steady.await_ready()
    assert [read(db, row) for row in elsewhere[:10]] == [b"10"] * 10
    assert [read(db, row) for row in here[:5]] == [b"2", b"1", b"1", b"1", b"1"]


def test_many_threads(steady: Cluster, db: Database) -> None:
    def work(number: int) -> None:
        for _ in range(10):
            db.run(lambda t: bump(t, b"counter"), 1000)
            write(db, b"mine %d" % number, b"x")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(db, b"counter") == b"160"


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child(steady: Cluster, db: Database) -> None:
    def work() -> None:
        for _ in range(10):
            db.run(lambda t: bump(t, b"counter"), 1000)
        with db.concurrency(4) as executor:
            list(executor.map(lambda _: db.run(lambda t: bump(t, b"counter"), 1000), range(10)))

    work()
    child = os.fork()
    if not child:
        try:
            signal.alarm(30)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the child ends here, whatever happens
            os._exit(1)
    work()
    assert os.waitpid(child, 0)[1] == 0
    assert read(db, b"counter") == b"60"


# An interruption may land in a finalizer, or between the making of a socket and its use.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interruptions_of_what_goes_to_several_servers(steady: Cluster, db: Database) -> None:
    from tests.store.test_hub import interruption_after

    for row in ROWS:
        write(db, row, row)

    def look() -> None:
        with db.transaction() as t:
            assert t.get_many([("t", row, "v") for row in ROWS]) == ROWS

    rng = random.Random(7)
    for _ in range(60):
        with pytest.raises(KeyboardInterrupt), interruption_after(rng.uniform(0.0001, 0.005)):
            while True:
                look()
    interrupted = 0
    with db.concurrency(8) as executor:
        for _ in range(200):
            if interrupted == 20:
                break
            try:
                with interruption_after(rng.uniform(0.0001, 0.01)):
                    for future in [executor.submit(look) for _ in range(16)]:
                        future.exception()
            except KeyboardInterrupt:
                interrupted += 1
    look()
