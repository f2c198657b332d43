"""Worker processes that are killed, suspended, or lose the store; and several of them at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import percolator_core
from percolator_core import Chain, Worker
from percolator_core.errors import ConfigurationError
from percolator_core.notifications.activation import active, live_workers
from tests.chains import chain_of, dirty_of, put, watch
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    import subprocess

    from percolator_core import Database
    from tests.worker.conftest import Project

TABLES = "  docs: {tablets: 4}\n  sums: {tablets: 4, notify_only: [dirty]}\n"
STEPS = """\
def count(t, cell):
    t.set("docs", cell.row, "n", b"%d" % (int(t.get("docs", cell.row, "n") or 0) + 1))
    total = b"total%d" % (cell.row[-1] % 8)
    t.set("sums", total, "n", b"%d" % (int(t.get("sums", total, "n") or 0) + 1))
    t.notify("sums", "all", "dirty")

def add(t, cell):
    found = [int(cells["n"]) for _, cells in t.scan("sums", prefix="total", columns=["n"])]
    t.set("sums", "sum", "n", b"%d" % sum(found))

def other(t, cell):
    pass
"""
COUNT = "observe: docs.text\nwrites: [sums.dirty, docs.n]"
SHORT_LEASES = """\
import percolator_core.worker.housekeeping as w, percolator_core.notifications.dirty as d
w.LEASE = 0.3
claim = d.DirtyIndex.claim
d.DirtyIndex.claim = lambda self, room, **more: claim(self, room, 0.3, **more)
print("up", flush=True)
"""
ADD = "observe: sums.dirty\nmode: weak"


@pytest.fixture
def counting(project: Project) -> Project:
    project.write(STEPS, TABLES, count=COUNT, add=ADD)
    return project


def write_documents(db: Database, count: int) -> None:
    def one(number: int) -> None:
        put(db, f"d{number}", b"1")

    with db.concurrency() as executor:
        for _ in executor.map(one, range(count)):
            pass


def check_counts(db: Database, count: int) -> None:
    snapshot = db.snapshot()
    docs = dict(snapshot.scan("docs", columns=["n"]))
    assert len(docs) == count
    assert {cells["n"] for cells in docs.values()} == {b"1"}
    assert sum(int(cells["n"]) for _, cells in snapshot.scan("sums", prefix="total")) == count
    assert snapshot.get("sums", "sum", "n") == b"%d" % count


def up(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def ran(db: Database) -> int:
    return sum(int(cells["n"]) for _, cells in db.snapshot().scan("sums", prefix="total"))


@pytest.mark.parametrize("one_call_a_tablet", [False, True])
def test_killed_workers_lose_and_double_nothing(counting: Project, one_call_a_tablet: bool) -> None:
    count = 600
    with counting.connect() as db:
        counting.chain().create_tables(db)
        write_documents(db, count)
        at = 0
        start = f"db.client.one_call_a_tablet = {one_call_a_tablet}\n{SHORT_LEASES}"
        for _ in range(3):
            process = up(counting.start(start + "p.Worker(db, chain, width=32).run()"))
            at += 100
            until(lambda limit=at: ran(db) > limit)  # type: ignore[misc]
            process.kill()
            process.wait()
        last = up(counting.start(f"{start}p.Worker(db, chain).run_until_idle(60)\ndb.close()"))
        assert last.wait(PATIENCE) == 0
        check_counts(db, count)
        assert not list(db.locks())


def test_a_suspended_worker_doubles_nothing(counting: Project) -> None:
    count = 600
    with counting.connect() as db:
        counting.chain().create_tables(db)
        write_documents(db, count)
        process = up(counting.start(SHORT_LEASES + "p.Worker(db, chain, width=64).run()"))
        until(lambda: ran(db) > 50)
        process.send_signal(signal.SIGSTOP)
        other = up(counting.start(SHORT_LEASES + "p.Worker(db, chain).run_until_idle(60)\ndb.close()"))
        assert other.wait(PATIENCE) == 0
        process.send_signal(signal.SIGCONT)
        put(db, f"d{count}", b"1")  # for the one that goes on
        until(lambda: not sum(dirty_of(db, counting.chain()).backlog().values()))
        assert process.poll() is None
        check_counts(db, count + 1)


def test_the_server_is_killed_under_a_worker(tmp_path: Path, counting: Project) -> None:
    counting.url = f"embedded:{tmp_path / 'store'}"
    with counting.connect() as db:
        counting.chain().create_tables(db)
        worker = up(counting.worker())
        count = 0
        for _ in range(2):
            for _ in range(100):
                put(db, f"d{count}", b"1")
                count += 1
            until(lambda limit=count - 100: ran(db) > limit)  # type: ignore[misc]
            assert db.store.embedded is not None
            os.kill(db.store.embedded.pid, signal.SIGKILL)
            put(db, f"d{count}", b"1")  # starts the server again
            count += 1
        until(lambda: not sum(dirty_of(db, counting.chain()).backlog().values()))
        assert worker.poll() is None
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
        check_counts(db, count)


def test_run_waits_while_the_store_is_away(db: Database, store_url: str, namespace: str) -> None:
    """A store that stops answering: `run` goes on when it is back, `run_until_idle` says so."""
    with percolator_core.connect(store_url, namespace, patience=0.1, timeout=0.2) as mine:
        seen: list[bytes] = []
        chain = chain_of(watch("look", lambda t, cell: seen.append(cell.row), "docs.text"))
        chain.create_tables(db)
        worker = Worker(mine, chain)
        thread = threading.Thread(target=worker.run)
        thread.start()
        put(db, "a", b"1")
        until(lambda: seen == [b"a"])
        db.store.one((b"CLIENT", b"PAUSE", 1500, b"ALL"))
        time.sleep(1.0)
        put(db, "b", b"1")
        until(lambda: seen == [b"a", b"b"])
        worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_workers_with_other_observers_are_refused_while_one_lives(counting: Project, db: Database) -> None:
    chain = counting.chain()
    first = up(counting.worker())
    until(lambda: active(db.client).digest == chain.digest)
    other = chain_of(watch("other", lambda t, cell: None, "docs.text"))
    with pytest.raises(ConfigurationError, match="another set of observers"):
        Worker(db, other).run_until_idle(PATIENCE)
    with pytest.raises(ConfigurationError, match="another set of observers"):
        other.create_tables(db)
    same = up(counting.worker())
    until(lambda: len(live_workers(db)) == 2)
    for process in (first, same):
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert live_workers(db) == []
    assert chain.digest != other.digest
    Worker(db, other).run_until_idle(PATIENCE)


def test_a_worker_notices_that_its_observers_were_retired(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a suspension that outlasted its liveness token."""
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.1)
    old = chain_of(watch("old", lambda t, cell: None, "docs.text"))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            Worker(db, old).run()
        except ConfigurationError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: active(db.client).digest == old.digest)
    db.store.one((b"DEL", db.store.keyspace.workers))
    chain_of(watch("new", lambda t, cell: None, "docs.text")).create_tables(db)
    thread.join(PATIENCE)
    assert "did not answer" in str(errors[0])
    assert live_workers(db) == []


def test_two_workers_on_one_connection_are_two(db: Database) -> None:
    chain = chain_of(watch("look", lambda t, cell: None, "docs.text"))
    workers = [Worker(db, chain) for _ in range(2)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    until(lambda: len(live_workers(db)) == 2)
    workers[0].stop()
    threads[0].join()
    assert len(live_workers(db)) == 1
    workers[1].stop()
    threads[1].join()


def test_a_writer_that_connected_before_the_activation_leaves_marks(counting: Project) -> None:
    code = (
        "for x in chain.tables: db.create_table(x.name, x.tablets, x.notify_only)\n"
        "def put(row):\n    with db.transaction() as t: t.set('docs', row, 'text', b'1')\n"
        "put('early')\nprint('up', flush=True)\n"
        "while db.snapshot().get('docs', 'go', 'title') is None: time.sleep(0.01)\n"
        "put('late')\ndb.close()\n"
    )
    writer = up(counting.start(code))
    with counting.connect() as db:
        chain = counting.chain()
        chain.create_tables(db)
        put(db, "go", b"1", column="title")
        assert writer.wait(PATIENCE) == 0
        assert dirty_of(db, chain).backlog() == {"add": 0, "count": 1}


def test_a_write_wakes_an_idle_worker(counting: Project) -> None:
    """One that looks by itself once an hour."""
    with counting.connect() as db:
        counting.chain().create_tables(db)
        up(counting.worker("from percolator_core.worker import candidates\ncandidates.ALL_EVERY = 3600.0\n"))
        for number in range(30):
            put(db, f"d{number}", b"1")
            until(lambda row=f"d{number}": db.snapshot().get("docs", row, "n"))  # type: ignore[misc]


def test_a_lost_subscription_comes_back(db: Database) -> None:
    seen: list[bytes] = []
    chain = chain_of(watch("look", lambda t, cell: seen.append(cell.row), "docs.text"))
    chain.create_tables(db)
    worker = Worker(db, chain)
    thread = threading.Thread(target=worker.run)
    thread.start()
    pattern = (b"PUBSUB", b"NUMPAT")
    try:
        until(lambda: db.store.one(pattern) >= 1)
        db.store.one((b"CLIENT", b"KILL", b"TYPE", b"pubsub"))
        put(db, "a", b"1")
        until(lambda: seen == [b"a"])
        until(lambda: db.store.one(pattern) >= 1)
    finally:
        worker.stop()
        thread.join()


def test_an_idle_worker_rests(counting: Project) -> None:
    with counting.connect() as db:
        counting.chain().create_tables(db)
        process = up(counting.worker())
        until(lambda: live_workers(db))

        def cpu() -> float:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        def calls() -> int:
            return int(db.store.server_info().raw["total_commands_processed"])

        def rests() -> bool:
            cpu_before, calls_before = cpu(), calls()
            time.sleep(1)
            return cpu() - cpu_before < 0.1 and calls() - calls_before < 70

        until(rests)  # not at once: it has just started


def test_a_signal_stops_a_busy_worker_soon(counting: Project) -> None:
    with counting.connect() as db:
        counting.chain().create_tables(db)
        write_documents(db, 3_000)
        process = up(counting.worker())
        until(lambda: ran(db) > 10)
        process.terminate()
        assert process.wait(PATIENCE) == 0
        left = dirty_of(db, Chain.load(counting.folder / "chain", import_functions=False))
        waiting = sum(left.backlog().values())
        assert waiting > 0  # soon: not after all of its work
        leases, _ = left.claim(100_000)
        assert len(leases) == waiting  # nothing is left leased
