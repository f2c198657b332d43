"""Workers on stores of several servers: wake-up calls, and servers that go away while runs are under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from zlib import crc32

import pytest
import redis

import percolator_core
from percolator_core import Chain, Database, StoreUnavailable, Worker
from percolator_core.cli.app import app
from percolator_core.cli.output import ExitCode
from percolator_core.worker import candidates
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.cluster import Cluster
from tests.servers.plain import PATIENCE, Server, binaries, some_namespace, until
from tests.servers.sentinel import Sentinels
from tests.store.bank import await_replicas

SYSTEM = binaries().get("system", "")
pytestmark = pytest.mark.skipif(not SYSTEM, reason="NOT TESTED: no redis-server on PATH")

DOCS = 60


class Away:
    """A store whose server, the one that all need, is killed and comes back, or is replaced."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self.kind = kind
        self._plain: Server | None = None
        self._cluster: Cluster | None = None
        self._sentinels: Sentinels | None = None
        if kind == "plain":
            self._plain = Server(SYSTEM, "--appendonly", "yes", "--appendfsync", "always")
            stack.callback(self._plain.close)
            self.url = self._plain.unix
        elif kind == "cluster":
            self._cluster = stack.enter_context(Cluster(SYSTEM, 3, 1))
            self.url = self._cluster.url
        else:
            self._sentinels = stack.enter_context(Sentinels(SYSTEM, 1))
            self.url = self._sentinels.url

    def fail(self, key: bytes) -> Callable[[], object]:
        """Kill the server of the key, in step with its replica; returns what ends the outage."""
        if self._plain is not None:
            self._plain.kill()
            return self._plain.start
        if self._cluster is not None:
            cluster, old = self._cluster, self._cluster.primary_of(key)
            await_replicas(old)
            cluster.kill(old)
            return lambda: cluster.await_failover(old)
        assert self._sentinels is not None
        group, master = self._sentinels, self._sentinels.master
        await_replicas(master)
        group.kill_master()
        return lambda: group.await_failover(master)


@pytest.fixture(params=["plain", "cluster", "sentinel"])
def away(request: pytest.FixtureRequest) -> Iterator[Away]:
    with ExitStack() as stack:
        yield Away(request.param, stack)


@pytest.fixture
def store_url(away: Away) -> str:
    return away.url


@pytest.fixture
def namespace() -> str:
    return some_namespace()


def counting() -> Chain:
    """Each document adds one to the sum of its group, in another table."""

    def count(t: Any, cell: Any) -> None:
        t.set("docs", cell.row, "n", b"%d" % (int(t.get("docs", cell.row, "n") or b"0") + 1))
        group = b"group %d" % (crc32(cell.row) % 5)
        t.set("sums", group, "n", b"%d" % (int(t.get("sums", group, "n") or b"0") + 1))

    return chain_of(watch("count", count, "docs.text", writes=("docs.n", "sums.n")))


def total(db: Database) -> tuple[int, int]:
    with db.transaction() as t:
        docs = [int(cells["n"]) for _, cells in t.scan("docs") if "n" in cells]
        return len(docs), sum(int(cells["n"]) for _, cells in t.scan("sums"))


@contextmanager
def running(db: Database, chain: Chain) -> Iterator[Worker]:
    worker = Worker(db, chain)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert errors == []


def test_run_until_idle_and_wake_up_calls(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = counting()
    chain.create_tables(db)
    for number in range(DOCS):
        put(db, f"d{number}", b"x")
    assert Worker(db, chain).run_until_idle(PATIENCE).ran == DOCS
    assert total(db) == (DOCS, DOCS)
    # One that is not woken does not look in the time of this test.
    monkeypatch.setattr(candidates, "ALL_EVERY", 3600.0)
    with running(db, chain) as worker:
        for number in range(16):
            put(db, f"e{number}", b"x")
            until(lambda limit=number + 1: worker.counts.ran >= limit)  # type: ignore[misc]
    assert total(db) == (DOCS + 16, DOCS + 16)


@pytest.mark.parametrize("idle", [True, False], ids=["idle", "busy"])
def test_a_worker_waits_for_the_store_and_carries_on(away: Away, db: Database, idle: bool) -> None:
    chain = counting()
    chain.create_tables(db)
    with (
        percolator_core.connect(away.url, db.namespace, lock_ttl=1.0, patience=0.5) as mine,
        running(mine, chain) as worker,
    ):
        put(db, "first", b"x")
        until(lambda: worker.counts.ran == 1)
        if not idle:
            for number in range(DOCS):
                put(db, f"d{number}", b"x")
        end = away.fail(db.store.keyspace.oracle)
        time.sleep(1.0)  # longer than the worker's patience
        end()
        for number in range(DOCS):
            put(db, f"d{number}", b"y")
        until(lambda: total(db)[0] == DOCS + 1 and not any(dirty_of(db, chain).backlog().values()))
        # It hears again, too.
        before = worker.counts.ran
        put(db, "last", b"x")
        until(lambda: worker.counts.ran > before)
        docs, runs = total(db)
    assert docs == DOCS + 2
    with db.transaction() as t:
        # Each run that counts is in both tables: none half, none twice.
        assert runs == sum(int(cells["n"]) for _, cells in t.scan("docs") if "n" in cells)


@pytest.mark.parametrize("away", ["plain"], indirect=True)
def test_a_worker_waits_while_the_store_evicts(
    away: Away, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of that is held against its observers."""
    chain = counting()
    chain.create_tables(db)
    with (
        redis.Redis(unix_socket_path=away.url.removeprefix("unix://")) as server,
        running(db, chain) as worker,
    ):
        put(db, "first", b"x")
        until(lambda: worker.counts.ran == 1)
        server.config_set("maxmemory-policy", "allkeys-random")
        told = ""

        def is_told() -> bool:
            nonlocal told
            captured = capsys.readouterr()
            told += captured.out + captured.err
            return "set maxmemory-policy noeviction" in told

        until(is_told)
        with pytest.raises(StoreUnavailable):
            put(db, "second", b"x")
        server.config_set("maxmemory-policy", "noeviction")
        put(db, "second", b"x")
        until(lambda: worker.counts.ran == 2)
        assert not any(counts.failed for counts in worker.counts.observers.values())
    assert total(db) == (2, 2)


def test_a_finite_run_says_that_the_store_went_away(
    away: Away, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has an end, as `drain`, does not wait for ever: it fails, and can be repeated."""
    chain = counting()
    chain.create_tables(db)
    put(db, "first", b"x")
    with percolator_core.connect(away.url, db.namespace, lock_ttl=1.0, patience=0.5) as mine:
        end = away.fail(db.store.keyspace.oracle)
        if away.kind == "plain":
            # At its time limit it would raise TimeoutError.
            with pytest.raises(StoreUnavailable):
                Worker(mine, chain).run_until_idle(PATIENCE)
            with pytest.raises(SystemExit) as ended:
                app(["status", "--url", away.url, "--namespace", db.namespace])
            assert ended.value.code == ExitCode.UNAVAILABLE
            assert "Traceback" not in capsys.readouterr().err
        end()
        Worker(mine, chain).run_until_idle(PATIENCE)
    assert total(db) == (1, 1)
