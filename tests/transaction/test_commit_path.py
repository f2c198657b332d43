"""What a commit costs: how often its client waits for the store, and in how many calls the work is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

import percolator_core as percolator
from percolator_core import Database, PercolatorError
from percolator_core.scripts import calls
from percolator_core.store.connections import Connections
from percolator_core.store.request import Exchange
from percolator_core.transaction import write_set
from tests.servers.cluster import Cluster
from tests.servers.fixtures import BINARIES
from tests.servers.plain import Server, commit_of, rows_apart, sha_of, some_namespace
from tests.transaction.phases import X, Y, Z, locks, values

Connect = Callable[..., Database]
ROWS = rows_apart(8)


class Traffic:
    """What this thread sends: the scripts of each wait for answers, and those that nobody waits for.

    Other threads renew the tokens of clients, of the test's own too.
    """

    def __init__(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[list[str]] = []
        self.unawaited: list[str] = []
        self._names = {script.sha: name for name, script in db.store.scripts.items()}
        run, send_unawaited = Connections.run, Connections.send_unawaited
        mine = threading.get_ident()

        def watched_run(connections: Connections, exchanges: Sequence[Exchange]) -> None:
            if threading.get_ident() == mine:
                self.waits.append([name for one in exchanges for name in self._scripts(one)])
            run(connections, exchanges)

        def watched_send(connections: Connections, exchange: Exchange) -> None:
            if threading.get_ident() == mine:
                self.unawaited += self._scripts(exchange)
            send_unawaited(connections, exchange)

        monkeypatch.setattr(Connections, "run", watched_run)
        monkeypatch.setattr(Connections, "send_unawaited", watched_send)

    def _scripts(self, exchange: Exchange) -> list[str]:
        packed = exchange.packed
        named = [name for command in packed for sha, name in self._names.items() if sha in command]
        reads = ["read"] * (len(packed) - len(named))
        return ["stamp"] * bool(exchange.stamp) + reads + named

    def take(self) -> list[list[str]]:
        """The waits since the last look."""
        waits, self.waits = self.waits, []
        return waits


@pytest.fixture
def traffic(db: Database, monkeypatch: pytest.MonkeyPatch) -> Traffic:
    db.client.owner()
    with db.transaction() as t:
        for row in ROWS:
            t.set("t", row, "v", b"old")
    db.client.oracle.spares.clear()
    return Traffic(db, monkeypatch)


def test_the_first_read_brings_the_start_timestamp(db: Database, traffic: Traffic) -> None:
    t = db.begin()
    assert t.get("t", X, "v") == b"old"
    assert t.get("t", Y, "v") == b"old"
    assert traffic.take() == [["stamp", "read", "read"], ["read"]]
    assert t.start_timestamp
    assert traffic.take() == []


def test_a_write_set_of_one_call_is_committed_by_one_call(db: Database, traffic: Traffic) -> None:
    """Also across tablets, on a single server."""
    t = db.begin()
    t.get("t", X, "v")
    for row in ROWS:
        t.set("t", row, "v", b"new")
    t.commit()
    assert traffic.take() == [["stamp", "read", "read"], ["prewrite"]]
    assert traffic.unawaited == []
    assert locks(db) == []


def test_a_blind_write_is_one_round_trip_once_the_last_one_brought_a_spare_timestamp(
    db: Database, traffic: Traffic
) -> None:
    for _ in range(3):
        with db.transaction() as t:
            t.set("t", X, "v", b"new")
    assert traffic.take() == [["stamp"], ["stamp", "prewrite"], ["stamp", "prewrite"], ["stamp", "prewrite"]]


def test_two_phases_wait_twice(db: Database, traffic: Traffic) -> None:
    """All prewrites and the commit timestamp, then the primary; nobody waits for the secondaries."""
    db.client.one_call_a_tablet = True
    t = db.begin()
    t.get("t", X, "v")
    for row in ROWS:
        t.set("t", row, "v", b"new")
        t.set("t", row, "w", b"new")
    t.commit()
    assert traffic.take() == [["stamp", "read", "read"], ["stamp", *["prewrite"] * 8], ["commit"]]
    assert traffic.unawaited == ["commit"] * 7
    assert locks(db) == []


def test_a_commit_on_a_cluster_waits_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timestamps come from one server and the cells lie on several, so neither carries the other."""
    if "system" not in BINARIES:
        pytest.skip("NOT TESTED: no redis-server for a cluster on this machine")
    with (
        Cluster(BINARIES["system"], 3, 0) as cluster,
        percolator.connect(cluster.url, some_namespace()) as db,
    ):
        db.create_table("t")
        db.client.owner()
        with db.transaction() as t:
            for row in ROWS:
                t.set("t", row, "v", b"old")
        assert len(list(db.snapshot().scan("t"))) == 8
        traffic = Traffic(db, monkeypatch)
        t = db.begin()
        t.get("t", X, "v")
        for row in ROWS:
            t.set("t", row, "v", b"new")
        t.commit()
        begun, read, prewritten, stamped, committed = traffic.take()
        assert (begun, read, stamped, committed) == (["stamp"], ["read", "read"], ["stamp"], ["commit"])
        assert prewritten == ["prewrite"] * 8
        assert traffic.unawaited == ["commit"] * 7


def test_secondaries_are_visible_at_once_to_whoever_looks(db: Database, connect: Connect) -> None:
    """They may not have been committed yet; then the reader sees to it."""
    db.client.one_call_a_tablet = True
    with db.transaction() as t:
        for row in (X, Y, Z):
            t.set("t", row, "v", b"new")
    assert values(connect(lock_wait=0.1)) == [b"new"] * 3


@contextmanager
def all_calls_logged(binary: str) -> Iterator[Server]:
    with closing(Server(binary, "--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000")) as server:
        yield server


def test_a_commit_calls_the_workers_of_a_tablet_once_for_each_observer(db: Database) -> None:
    """However many cells it writes there: a message for each would cost as much as the write."""
    handle = db.catalog.table("t")
    tags = [handle.tag(row) for row in (X, Y)]
    observed = ("a", "look,other", "b", "other,look")
    for tag in tags:
        db.store.run(calls.observe(tag, "replace", handle.version, 0, (), observed))

    def published() -> int:
        (line,) = [
            line for line in db.store.one((b"INFO", b"commandstats")).splitlines() if b"_publish:" in line
        ]
        return int(line.partition(b"calls=")[2].partition(b",")[0])

    db.store.one((b"PUBLISH", b"somewhere else", b""))
    before = published()
    with db.transaction() as t:
        for row in (X, Y):
            for column in "ab":
                t.set("t", row, column, b"new")
    assert published() - before == 4
    assert [db.store.one((b"ZCARD", tag + b"dirty:look")) for tag in tags] == [2, 2]


def test_concurrent_tasks_share_requests_for_timestamps() -> None:
    """Tasks that wait at the same time are given their timestamps by one call of the oracle."""
    with (
        all_calls_logged(next(iter(BINARIES.values()))) as server,
        percolator.connect(server.unix, some_namespace()) as db,
    ):
        db.create_table("t")
        db.client.owner()

        def work(number: int) -> int:
            t = db.begin()
            t.get("t", b"%d" % number, "v")
            return t.start_timestamp

        with server.client() as client, db.concurrency(100) as executor:
            client.slowlog_reset()
            stamps = list(executor.map(work, range(400)))
            logged = [entry["command"] for entry in client.slowlog_get(100_000)]
        assert len(set(stamps)) == 400
        assert 1 <= sum(sha_of(db.store, "timestamp") in command for command in logged) <= 40


def test_a_commit_of_many_cells_is_cut_into_calls_of_bounded_size(db: Database) -> None:
    """And the calls into batches: a script holds up everybody, and a batch stands in the client's memory."""
    t = db.begin()
    assert t.start_timestamp
    for number in range(40_000):
        t.set("t", b"%d" % number, "v", b"x")
    for number in range(20):
        t.set("t", b"big %d" % number, "v", b"x" * (3 << 20))
    commit = commit_of(t)
    assert max(map(len, commit.calls)) == write_set.CELLS_PER_CALL
    batches = list(write_set.in_batches(commit.calls))
    assert [call for batch in batches for call in batch] == commit.calls
    for batch in batches:
        cells = [mutation for call in batch for mutation in call]
        assert len(cells) <= write_set.CELLS_PER_BATCH
        assert sum(len(one.value) + len(one.row) for one in cells) <= write_set.BYTES_PER_BATCH
    assert len(batches) == 4


def test_a_scan_does_not_go_on_after_the_commit(db: Database) -> None:
    """A blind commit may have begun at a spare timestamp, before what others had seen by then."""
    with db.transaction() as t:
        t.set("t", X, "v", b"1")
    t = db.begin()
    rows = t.scan("t")
    t.set("t", Y, "v", b"2")
    t.commit()
    with pytest.raises(PercolatorError, match="the transaction is committed"):
        next(rows)
