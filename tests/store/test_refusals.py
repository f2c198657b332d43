"""What a single server refuses was not executed: it is sent again, and executed once."""

from __future__ import annotations

import random
import threading

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

import percolator_core as percolator
from percolator_core import StoreUnavailable
from tests.servers.plain import Busy, Faults, Server, rows_apart
from tests.store.bank import Bank, read, write

X, Y, Z = rows_apart(3)


@pytest.fixture(params=[False, True], ids=["one-call", "two-phase"])
def two_phase(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


def test_loading(own: Server, two_phase: bool) -> None:
    """A server that comes back answers LOADING until it has its data; who connects waits for it as well."""
    with percolator.connect(own.unix, "ns") as db:
        db.client.one_call_a_tablet = two_phase
        db.create_table("t")
        write(db, X, b"old")
        with own.client() as client:
            for number in range(60):
                client.set(f"ballast {number}", random.randbytes(300_000))
        faults = Faults(db)
        seen: list[bool] = []

        def restart() -> None:
            with own.client() as client:
                client.save()
            own.kill()
            # Four seconds, with a look at the callers after every two megabytes.
            own.settings = ("--key-load-delay", "60000")
            own.answers = lambda: loading(own, seen)  # type: ignore[method-assign]
            own.start()

        faults.script("commit" if two_phase else "prewrite", restart)

        def work(t: percolator.Transaction) -> None:
            assert t.get("t", X, "v") == b"old"
            for row in (X, Y, Z):
                t.set("t", row, "v", b"new")

        # One that began before the restart and comes to its prewrite only afterwards is run again.
        db.run(work)
        assert faults.plan == []
        assert seen == [True]
        with percolator.connect(own.unix, "ns") as late:
            assert [len(late.history("t", row, "v")) for row in (X, Y, Z)] == [2, 1, 1]
            assert read(late, X) == b"new"


def loading(server: Server, seen: list[bool]) -> bool:
    """Whether the server answers, and be it that it loads its data, as it is noted then."""
    with redis.Redis(unix_socket_path=str(server.socket), retry=Retry(NoBackoff(), 0)) as client:
        try:
            client.ping()
        except BusyLoadingError:
            seen.append(True)
            return True
        except RedisConnectionError:
            return False
    return True


def test_busy(own: Server, two_phase: bool) -> None:
    with percolator.connect(own.unix, "ns") as db:
        db.client.one_call_a_tablet = two_phase
        db.create_table("t")
        faults = Faults(db)
        busy = Busy(own)
        later = threading.Timer(0.3, busy.end)

        def strike() -> None:
            busy.begin()
            later.start()

        faults.script("commit" if two_phase else "prewrite", strike)
        try:
            for row in (X, Y):
                with db.transaction() as t:
                    assert t.get("t", row, "v") is None
                    t.set("t", row, "v", b"new")
                    t.set("t", Z, "v", row)
        finally:
            later.join()
        assert faults.plan == []
        assert [len(db.history("t", row, "v")) for row in (X, Y, Z)] == [1, 1, 2]


def test_busy_for_longer_than_patience(own: Server) -> None:
    with percolator.connect(own.unix, "ns", patience=0.3) as db:
        db.create_table("t")
        busy = Busy(own)
        busy.begin()
        try:
            with pytest.raises(StoreUnavailable, match="BUSY"):
                write(db, X, b"x")
        finally:
            busy.end()
        assert read(db, X) is None
        write(db, X, b"y")


@pytest.mark.slow
def test_scripts_are_forgotten_under_load(own: Server, two_phase: bool) -> None:
    with percolator.connect(own.unix, "ns") as db, own.client() as client:
        db.client.one_call_a_tablet = two_phase
        bank = Bank(db)
        with bank.busy(db):
            for _ in range(20):
                bank.goes_on(20)
                client.script_flush()
        assert not bank.open
        bank.check(db)


@pytest.mark.parametrize(
    ("script", "two_phase"),
    [("prewrite", False), ("prewrite", True), ("commit", True), ("timestamp", False), ("timestamp", True)],
)
def test_a_server_that_is_a_replica_for_a_moment(own: Server, script: str, two_phase: bool) -> None:
    """READONLY: the server was demoted when the request came, and is the master again soon after."""
    with percolator.connect(own.unix, "ns") as db, own.client() as client:
        db.client.one_call_a_tablet = two_phase
        db.create_table("t")
        faults = Faults(db)
        later = threading.Timer(0.3, lambda: client.execute_command("REPLICAOF", "NO", "ONE"))

        def demote() -> None:
            client.execute_command("CONFIG", "SET", "replica-serve-stale-data", "yes")
            client.execute_command("REPLICAOF", "127.0.0.1", 1)
            later.start()

        def work(t: percolator.Transaction) -> None:
            assert t.get("t", X, "v") is None
            for row in (X, Y, Z):
                t.set("t", row, "v", b"new")

        faults.script(script, demote)
        try:
            # It may be another server by now, so that what has read before may be run again.
            db.run(work)
        finally:
            later.join()  # the request that met the replica may have been the client's own, of its heartbeat
        assert faults.plan == []
        assert [len(db.history("t", row, "v")) for row in (X, Y, Z)] == [1, 1, 1]
