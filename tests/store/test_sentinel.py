"""Redis Sentinel in front of a store: masters that die, stop, switch, and sentinels that do not answer."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import percolator_core as percolator
from percolator_core import CommitUndetermined, Database, StoreUnavailable, TransactionAborted
from percolator_core.store.pipeline import IDLE
from tests.servers.plain import PATIENCE, Faults, binaries, pipelines_of, rows_apart, some_namespace, until
from tests.servers.sentinel import DataServer, Sentinels, SentinelServer
from tests.store.bank import Bank, await_replicas, bump, read, write

SYSTEM = binaries().get("system", "")
pytestmark = pytest.mark.skipif(not SYSTEM, reason="NOT TESTED: no redis-server on PATH")

Connect = Callable[..., Database]
X, Y, Z = rows_apart(3)


@pytest.fixture
def group() -> Iterator[Sentinels]:
    with Sentinels(SYSTEM, 1) as group:
        yield group


@pytest.fixture
def connect(group: Sentinels) -> Iterator[Connect]:
    """Connects to the master of the test's group, always in the same fresh namespace."""
    namespace = some_namespace()
    made: list[Database] = []

    def make(url: str = "", **settings: Any) -> Database:
        made.append(percolator.connect(url or group.url, namespace, **settings))
        return made[-1]

    yield make
    for db in made:
        db.close()


@pytest.fixture(params=[False, True], ids=["one-call", "two-phase"])
def two_phase(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


def end(sentinel: SentinelServer) -> None:
    assert sentinel.process is not None
    sentinel.process.send_signal(signal.SIGKILL)
    sentinel.process.wait()


@pytest.mark.slow
def test_a_killed_master_loses_nothing_that_its_replica_acknowledged(
    group: Sentinels, connect: Connect, two_phase: bool
) -> None:
    """With one replica the one that acknowledged is the one that is promoted, so this must hold."""
    db, other = (connect(lock_ttl=1.0, durability="replicas=1,timeout=0.5") for _ in range(2))
    for client in (db, other):
        client.client.one_call_a_tablet = two_phase
    bank = Bank(db)
    with bank.busy(db, other), group.explained():
        bank.goes_on()
        old = group.kill_master()
        group.await_failover(old)
        # Nothing can be acknowledged until the old one is a replica.
        failed = len(bank.open) + len(bank.refused)
        until(lambda: len(bank.open) + len(bank.refused) > failed + 50)
        group.restart(old)
        bank.goes_on()
    bank.check(connect())


def test_a_stopped_master_neither_takes_nor_tells_anything_when_it_is_back(
    group: Sentinels, connect: Connect
) -> None:
    """It believes for seconds that it is the master still."""
    busy, idle = connect(lock_ttl=1.0), connect()
    write_all = [busy, idle]
    busy.create_table("t")
    for client in write_all:
        write(client, X, b"old")
    old = group.stop_master()
    # One waits for its answer all the while; the other has nothing to do.
    pool = ThreadPoolExecutor(1)
    waiting = pool.submit(write, busy, Y, b"from before")
    pool.shutdown(wait=False)
    new = group.await_failover(old)
    newest = write(connect(), X, b"new")
    group.resume(old)
    until(lambda: b"role:master" in old.ask("INFO", "replication"))
    before = [line for line in old.ask("INFO", "commandstats").splitlines() if b"evalsha" in line]
    for client in (idle, busy):
        with client.transaction() as t:
            assert t.get("t", X, "v") == b"new"
            assert t.start_timestamp > newest
        write(client, Z, b"mine")
    waiting.result(PATIENCE)
    assert read(connect(), Y) == b"from before"
    after = [line for line in old.ask("INFO", "commandstats").splitlines() if b"evalsha" in line]
    assert after in (before, [])
    assert group.master is new


def test_a_planned_switch_under_load(group: Sentinels, connect: Connect) -> None:
    db = connect(lock_ttl=1.0, durability="replicas=1,timeout=0.3")
    bank = Bank(db)
    with bank.busy(db), group.explained():
        bank.goes_on()
        old = group.master
        group.switch()
        group.await_replica(old)
        bank.goes_on()
    bank.check(connect())


def test_a_planned_switch_is_noticed_soon(group: Sentinels, connect: Connect) -> None:
    """The sentinels demote the old master only later, and it takes writes until then."""
    for sentinel in group.sentinels:
        # They leave it alone for four times as long as that.
        sentinel.ask("SENTINEL", "DEBUG", "publish-period", 60_000)
    db = connect()
    db.create_table("t")
    over = threading.Event()
    written: list[int] = []

    def work() -> None:
        while not over.is_set():
            written.append(write(db, X, b"x"))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        until(lambda: len(written) > 20)
        old = group.master
        new = group.switch()
        until(lambda: db.store.endpoints()[0].port == new.port)
        assert old.ask("ROLE")[0] == b"master"
        count = len(written)
        until(lambda: len(written) > count + 20)
    finally:
        over.set()
        thread.join(PATIENCE)
    assert read(connect(), X) == b"x"


@pytest.mark.slow
def test_an_idle_client_across_a_switch_and_back(group: Sentinels, connect: Connect) -> None:
    """Meanwhile another server gave out timestamps, which the first one never learned of."""
    idle, other = connect(), connect()
    idle.create_table("t")
    write(idle, X, b"1")
    first = group.master
    oracle = idle.store.keyspace.oracle
    before = first.ask("HGETALL", oracle)
    second = group.switch()
    group.await_replica(first)
    newest = write(other, X, b"2")
    await_replicas(second)
    # The first server's copy of the oracle is the one that it had when it was the master: a replica that is
    # promoted before it has got anything knows nothing of what happened meanwhile.
    until(lambda: group.switch() is first)
    group.await_replica(second)
    first.ask("DEL", oracle)
    first.ask("HSET", oracle, *before)
    # It is the same process as before, but another reign: it goes past all that may have been given out,
    # which is at most the window ahead of the clock.
    timestamp = idle.timestamp()
    assert timestamp > newest
    assert timestamp > (time.time() + 5) * 1e6
    assert read(idle, X) == b"2"


def test_an_answer_that_nobody_waited_for_does_not_pass_for_use(group: Sentinels, connect: Connect) -> None:
    """A connection with an uncollected answer was idle all the same, and is greeted."""
    db = connect()
    db.client.one_call_a_tablet = True
    db.create_table("t")
    with db.transaction() as t:
        for row in (X, Y, Z):
            t.set("t", row, "v", b"1")
    assert sum(pipeline.in_flight() for pipeline in pipelines_of(db)) > 0  # the secondaries' commits
    newest = db.client.oracle.seen
    group.master.ask("HSET", db.store.keyspace.oracle, "server", "another", "limit", newest + 10**9)
    until(lambda: all(pipeline.silent_for > IDLE for pipeline in pipelines_of(db)))
    assert db.timestamp() > newest + 10**9


def test_sentinels_that_die_are_passed_over(group: Sentinels, connect: Connect) -> None:
    db = connect()
    db.create_table("t")
    write(db, X, b"1")
    end(group.sentinels[0])
    fresh = connect()
    assert read(fresh, X) == b"1"
    old = group.kill_master()
    group.await_failover(old)
    write(db, X, b"2")
    assert read(fresh, X) == b"2"


def test_a_master_goes_on_without_any_sentinel(group: Sentinels, connect: Connect) -> None:
    db = connect(patience=60.0)
    db.create_table("t")
    for sentinel in group.sentinels:
        end(sentinel)
    with db.concurrency(8) as executor:
        list(executor.map(lambda n: write(db, b"%d" % n, b"x"), range(200)))
    # Now the sentinels would be asked.
    until(lambda: all(pipeline.silent_for > IDLE for pipeline in pipelines_of(db)))
    before = time.monotonic()
    write(db, X, b"2")
    assert time.monotonic() - before < 30
    assert read(db, X) == b"2"


def test_passwords_of_servers_and_sentinels() -> None:
    with Sentinels(SYSTEM, 1, 3, password="data-pass", sentinel_password="watch-pass") as group:
        url = f"{group.url}?sentinel_password=watch-pass"
        with percolator.connect(url, "ns") as db:
            db.create_table("t")
            write(db, X, b"1")
            assert "pass" not in db.url.replace("sentinel_password", "")
            old = group.kill_master()
            group.await_failover(old)
            write(db, X, b"2")
            assert read(db, X) == b"2"
        before = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"sentinels .* refuse the login.*sentinel_password"):
            percolator.connect(group.url, "ns", patience=60.0)
        for wrong in ("data-pass", "watch-pass"):
            with pytest.raises(StoreUnavailable, match=r"refuse.* the login") as error:
                percolator.connect(url.replace(wrong, "hunter2-canary"), "ns", patience=60.0)
            assert "hunter2" not in str(error.value)
        assert time.monotonic() - before < 30


def test_a_master_dies_when_the_primary_is_about_to_be_committed(
    group: Sentinels, connect: Connect, two_phase: bool
) -> None:
    db = connect(lock_ttl=1.0)
    db.client.one_call_a_tablet = two_phase
    db.create_table("t")
    faults = Faults(db)
    old: list[DataServer] = []
    # What was prewritten has to be at the replica, which nobody promised here.
    faults.script("commit" if two_phase else "prewrite", lambda: old.append(die(group)))
    t = db.begin()
    for row in (X, Y, Z):
        t.set("t", row, "v", b"new")
    try:
        t.commit()
        outcome = "committed"
    except CommitUndetermined:
        outcome = "open"
    except TransactionAborted as aborted:
        outcome = aborted.reason
    group.await_failover(old[0])
    found = {read(connect(), row) for row in (X, Y, Z)}
    assert found in ({b"new"}, {None})
    assert outcome == "open" or found == ({b"new"} if outcome == "committed" else {None})
    assert outcome in ("open", "committed", "failed over")


def die(group: Sentinels) -> DataServer:
    master = group.master
    await_replicas(master)
    return group.kill_master()


@pytest.mark.slow
def test_a_replica_that_was_the_master_is_left(group: Sentinels, connect: Connect) -> None:
    """READONLY: refused, hence not executed, and done once at the new master."""
    db = connect()
    db.create_table("t")
    write(db, X, b"0")
    faults = Faults(db)

    def switch() -> None:
        old = group.master
        await_replicas(old)
        group.switch()
        group.await_replica(old)

    faults.script("prewrite", switch)
    db.run(lambda t: bump(t, X))
    faults.script("timestamp", switch)
    db.run(lambda t: bump(t, Y))
    assert faults.plan == []
    assert (read(db, X), read(db, Y)) == (b"1", b"1")
    assert len(db.history("t", X, "v")) == 2


def test_a_server_that_became_a_replica_while_it_waited_for_its_own(
    group: Sentinels, connect: Connect
) -> None:
    """The commit was executed, and what WAIT answers is an error: that is neither committed nor aborted."""
    db = connect(durability="replicas=1,timeout=20", timeout=30.0, patience=1.0)
    db.create_table("t")
    master, replica = group.master, group.replicas[0]
    replica.ask("CLIENT", "KILL", "TYPE", "master")
    assert replica.process is not None
    replica.process.send_signal(signal.SIGSTOP)
    outcome: list[BaseException] = []

    def commit() -> None:
        try:
            write(db, X, b"new")
        except BaseException as error:  # noqa: BLE001 - looked at below
            outcome.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        until(lambda: b"blocked_clients:1" in master.ask("INFO", "clients"))
        master.ask("REPLICAOF", "127.0.0.1", replica.port)
        thread.join(PATIENCE)
    finally:
        replica.process.send_signal(signal.SIGCONT)
    assert [type(error) for error in outcome] == [CommitUndetermined]
