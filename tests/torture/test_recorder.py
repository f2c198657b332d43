"""Workloads on a real server, recorded and checked; and a checker that notices tampering with the store."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

import percolator_core as percolator
from percolator_core import Database, TransactionConflict
from percolator_core.layout.keys import encode_mark
from percolator_core.layout.records import row_bytes, unpack_version
from percolator_core.transaction.commit import Commit
from percolator_core.transaction.transaction import Transaction
from percolator_torture.checker.check import check
from percolator_torture.checker.report import Anomaly, Report
from percolator_torture.histories.history import CellKey
from percolator_torture.histories.journal import read_history
from percolator_torture.histories.recorder import RecordedTransaction, Recorder
from percolator_torture.histories.settling import end_locks
from percolator_torture.histories.survey import read_final
from tests.servers.cluster import Cluster
from tests.servers.plain import Server, rows_apart, some_namespace, until
from tests.torture.conftest import BINARIES

X, Y, Z = rows_apart(3)
ROWS = [b"row %02d" % number for number in range(12)]


def verdict(db: Database, folder: Path) -> Report:
    assert end_locks(db)
    return check(read_history(folder), read_final(db, ["t"]))


def put_all(t: RecordedTransaction) -> None:
    for row in ROWS:
        t.set("t", row, "v", b"10")


def step(rng: random.Random, t: RecordedTransaction) -> None:
    """A bit of everything."""
    one, other = rng.sample(ROWS, 2)
    kind = rng.randrange(7)
    if kind == 0:
        t.set("t", one, "v", b"1")
        t.set("t", other, "v", b"1")
    elif kind == 1:
        rows = t.scan("t", one, columns=["v"], limit=rng.choice([None, 0, 3]), reverse=rng.random() < 0.5)
        assert all(cells["v"].lstrip(b"-").isdigit() for _, cells in rows)
        t.delete("t", one, "v")
        t.scan("t", prefix=b"row 0")
    elif kind == 2:
        t.get_row("t", one)
        t.set("t", one, "w", b"2")
        assert t.get_row("t", one)["w"] == b"2"
        t.delete("t", one, "w")
        t.set("t", one, "w", b"3")
    else:
        first, second = t.get_many([("t", one, "v"), ("t", other, "v")])
        t.set("t", one, "v", b"%d" % (int(first or 0) - 1))
        t.set("t", other, "v", b"%d" % (int(second or 0) + 1))
        if kind == 3:
            t.delete("t", one, "v")
            assert t.get("t", one, "v") is None
        if kind == 4:
            assert t.get("t", other, "v") == b"%d" % (int(second or 0) + 1)
            t.set("t", other, "v", b"5")
        if kind == 5:
            raise LookupError("given up")


def attempt(recorder: Recorder, rng: random.Random, attempts: int) -> None:
    try:
        recorder.run(lambda t: step(rng, t), attempts=attempts)
    except (TransactionConflict, LookupError):
        pass


def test_a_workload_is_clean(
    db: Database, connect: Callable[..., Database], tmp_path: Path, two_phase: bool
) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    other = connect()
    for one in (db, other):
        one.client.one_call_a_tablet = two_phase
    with Recorder(db, tmp_path, "w1") as recorder, Recorder(other, tmp_path, "w2") as second:
        recorder.run(put_all)

        def in_a_thread() -> None:
            own = random.Random(seed + 1)
            for _ in range(60):
                attempt(second, own, 3)

        thread = threading.Thread(target=in_a_thread)
        thread.start()
        with db.concurrency(16) as executor:
            list(executor.map(lambda _: attempt(recorder, rng, 3), range(240)))
        thread.join()
        report = verdict(db, tmp_path)
    assert report.ok, f"seed {seed}: {report}"
    history = read_history(tmp_path)
    assert report.transactions == len(history) >= 301
    assert report.reads > 100
    assert report.scans > 10
    assert report.outcomes["unknown"] == 0
    assert report.outcomes["fail"] > 0
    assert any(record.blind for record in history)
    assert any(record.own_reads for record in history)


def test_a_workload_on_a_cluster(tmp_path: Path) -> None:
    if "system" not in BINARIES:
        pytest.skip("NOT TESTED: no redis-server on the path for a cluster")
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    with (
        Cluster(BINARIES["system"], 3, 0) as cluster,
        percolator.connect(cluster.url, some_namespace()) as db,
    ):
        db.create_table("t")
        with Recorder(db, tmp_path, "w1") as recorder:
            recorder.run(put_all)
            with db.concurrency(8) as executor:
                list(executor.map(lambda _: attempt(recorder, rng, 3), range(120)))
        report = verdict(db, tmp_path)
        assert report.ok, f"seed {seed}: {report}"
        for row in ROWS:
            leave_mark(db, db.catalog.table("t").tag(row), row)
        assert verdict(db, tmp_path).counts == {Anomaly.NOTIFICATION: len(ROWS)}


def test_what_is_recorded(db: Database, tmp_path: Path) -> None:
    with Recorder(db, tmp_path, "w1") as recorder:
        recorder.run(lambda t: t.set("t", X, "v", b"1"))

        def second(t: RecordedTransaction) -> list[object]:
            t.set("t", Y, "v", b"2")
            seen: list[object] = [t.get("t", X, "v"), t.get("t", Y, "v"), t.get("t", Z, "v")]
            t.delete("t", X, "v")
            t.set("t", Y, "v", b"3")
            return [*seen, t.scan("t", limit=1), t.start_timestamp]

        *seen, start_ts = recorder.run(second)
        assert seen == [b"1", b"2", None, [(Y, {"v": b"3"})]]
    first, record = read_history(recorder.path)
    x, y, z = (CellKey("t", row, "v") for row in (X, Y, Z))
    assert first.blind
    assert not record.blind
    assert record.start_ts == start_ts
    assert record.reads == ((x, first.mark()), (z, None))
    assert record.own_reads == ((y, 1, record.mark(1)),)
    assert record.writes == ((y, 2), (x, 0))
    (scan,) = record.scans
    assert (scan.low, scan.high) == (b"", Y + b"\0")
    assert scan.seen == ((y, record.mark(2)),)
    assert set(scan.own) == {write for write in record.writes if write.cell.row <= Y}
    assert first.began < (first.returned or 0) < record.began < (record.returned or 0)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (percolator.TransactionConflict("t", b"x", "v", "locked"), "fail"),
        (percolator.TransactionAborted("t", b"x", "v", "rolled back"), "fail"),
        (percolator.SnapshotTooOld("too old"), "fail"),
        (percolator.StoreUnavailable("away"), "fail"),
        (percolator.LockTimeout("slow"), "fail"),
        (percolator.CommitUndetermined(5), "unknown"),
        (percolator.PercolatorError("anything else"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_outcomes_of_a_commit(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, outcome: str
) -> None:
    def fail(self: Transaction) -> int:
        raise error

    monkeypatch.setattr(Transaction, "commit", fail)
    recorder = Recorder(db, tmp_path, "w1")
    with pytest.raises(type(error)):
        recorder.run(lambda t: t.set("t", X, "v", b""), attempts=1)
    with pytest.raises(type(error)):
        recorder.run(lambda t: t.get("t", X, "v"), attempts=1)
    wrote, read = read_history(tmp_path)
    assert wrote.outcome == outcome
    assert len(wrote.writes) == 1
    assert read.outcome == "fail"


def test_every_attempt_is_recorded(db: Database, tmp_path: Path) -> None:
    recorder = Recorder(db, tmp_path, "w1")

    def losing(t: RecordedTransaction) -> None:
        t.get("t", X, "v")
        with db.transaction() as other:
            other.set("t", X, "v", b"mine")
        t.set("t", X, "v", b"never")

    with pytest.raises(TransactionConflict):
        recorder.run(losing, attempts=3)
    with pytest.raises(ZeroDivisionError):
        recorder.run(lambda t: 1 / len(t.scan("t", limit=0)))
    with pytest.raises(ValueError, match="attempts"):
        recorder.run(losing, attempts=0)
    history = read_history(tmp_path)
    assert [record.outcome for record in history] == ["fail"] * 4
    # The other writer is not recorded, and that is what the checker says.
    assert verdict(db, tmp_path).names == {Anomaly.NOWHERE}


def test_a_forked_child_needs_a_recorder_of_its_own(db: Database, tmp_path: Path) -> None:
    recorder = Recorder(db, tmp_path, "w1")

    def child() -> None:
        try:
            recorder.run(put_all)
        except RuntimeError:
            os._exit(7)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 7


# Tampering with the store, behind the library's back.

Tamper = Callable[[Database, bytes, bytes], None]


def lose_newest(db: Database, tag: bytes, row: bytes) -> None:
    assert db.store.one((b"HDEL", tag + b"r:" + row, b"cv")) == 1


def lose_history(db: Database, tag: bytes, row: bytes) -> None:
    assert db.store.one((b"DEL", tag + b"v:" + row)) == 1


def restore_old(db: Database, tag: bytes, row: bytes) -> None:
    (member,) = db.store.one((b"ZRANGE", tag + b"v:" + row, 0, 0))
    old = member[len(encode_mark(b"v", b"")) :]
    assert unpack_version(old).value
    db.store.one((b"HSET", tag + b"r:" + row, b"cv", old))


def write_plainly(db: Database, tag: bytes, row: bytes) -> None:
    with db.transaction() as t:
        t.set("t", row, "v", b"unmarked")


def hide_row(db: Database, tag: bytes, row: bytes) -> None:
    assert db.store.one((b"ZREM", tag + b"rows", row)) == 1


def leave_lock(db: Database, tag: bytes, row: bytes) -> None:
    db.store.one((b"HSET", tag + b"r:" + row, b"lv", b"\0" + b"\1" * 30))


def leave_lock_entry(db: Database, tag: bytes, row: bytes) -> None:
    db.store.one((b"ZADD", tag + b"locks", 5, b"\0" * 7 + b"\5" + encode_mark(b"v", row)))


def leave_mark(db: Database, tag: bytes, row: bytes) -> None:
    db.store.one((b"ZADD", tag + b"dirty:observer", 5, encode_mark(b"v", row)))


@pytest.mark.parametrize(
    ("tamper", "anomalies"),
    [
        (lose_newest, {Anomaly.MISSING, Anomaly.STALE_READ, Anomaly.PHANTOM}),
        (lose_history, {Anomaly.MISSING}),
        (restore_old, {Anomaly.MISSING, Anomaly.STALE_READ, Anomaly.REPEATED_VERSION}),
        (write_plainly, {Anomaly.NOWHERE}),
        (hide_row, {Anomaly.ORPHAN, Anomaly.PHANTOM, Anomaly.MISSING}),
        (leave_lock, {Anomaly.LOCK}),
        (leave_lock_entry, {Anomaly.ORPHAN}),
        (leave_mark, {Anomaly.NOTIFICATION}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tampering_is_noticed(db: Database, tmp_path: Path, tamper: Tamper, anomalies: set[Anomaly]) -> None:
    with Recorder(db, tmp_path, "w1") as recorder:
        for _ in range(3):
            recorder.run(put_all)
        assert check(read_history(tmp_path), read_final(db, ["t"])).ok
        tamper(db, db.catalog.table("t").tag(ROWS[0]), ROWS[0])
        if tamper not in (leave_lock, leave_lock_entry):
            recorder.run(lambda t: t.get("t", ROWS[0], "v"))
            recorder.run(lambda t: t.scan("t"))
        report = check(read_history(tmp_path), read_final(db, ["t"]))
    assert report.names == anomalies, str(report)


# The survey.


def test_the_survey_agrees_with_the_library(db: Database, tmp_path: Path) -> None:
    with Recorder(db, tmp_path, "w1") as recorder:
        for number in range(30):
            recorder.run(put_all)
            recorder.run(lambda t, row=ROWS[number % 5]: t.delete("t", row_bytes(row), "v"))  # type: ignore[misc]
    final = read_final(db, ["t"])
    for row in ROWS:
        versions = db.history("t", row, "v")
        assert [
            (v.commit_ts, v.start_ts, v.mark is None) for v in final.versions(CellKey("t", row, "v"))
        ] == [(v.commit_ts, v.start_ts, v.value is None) for v in reversed(versions)]
    assert check(read_history(tmp_path), final).ok


def test_after_garbage_collection(db: Database, tmp_path: Path) -> None:
    with Recorder(db, tmp_path, "w1") as recorder:
        for number in range(6):
            recorder.run(put_all)
            recorder.run(lambda t, row=ROWS[number]: t.delete("t", row, "v"))  # type: ignore[misc]
        assert db.collect_garbage(timedelta(0)).versions > 0
        recorder.run(put_all)
    final = read_final(db, ["t"], collected=True)
    report = check(read_history(tmp_path), final)
    assert report.ok, str(report)
    assert final.safe_point > 0
    # What must not be collected is missed all the same.
    final.put(CellKey("t", ROWS[7], "v"), final.versions(CellKey("t", ROWS[7], "v"))[1:])
    assert check(read_history(tmp_path), final).names == {Anomaly.MISSING}


def test_an_empty_row_is_an_orphan_once_garbage_was_collected(db: Database) -> None:
    db.store.one((b"ZADD", db.catalog.table("t").tag(X) + b"rows", 0, X))
    assert read_final(db, ["t"]).leftovers == []
    (leftover,) = read_final(db, ["t"], collected=True).leftovers
    assert (leftover.kind, leftover.row) == ("orphan", X)


# Processes that are killed.


def work_until_killed(url: str, namespace: str, folder: Path, process: str, two_phase: bool) -> None:
    with percolator.connect(url, namespace, lock_ttl=0.1) as db, Recorder(db, folder, process) as recorder:
        db.client.one_call_a_tablet = two_phase
        rng = random.Random(process)
        with db.concurrency(8) as executor:
            while True:
                list(executor.map(lambda _: attempt(recorder, rng, 5), range(20)))


def test_processes_are_killed(server: Server, db: Database, tmp_path: Path, two_phase: bool) -> None:
    with Recorder(db, tmp_path, "setup") as recorder:
        recorder.run(put_all)
    context = multiprocessing.get_context("fork")
    for generation in range(3):
        names = [f"w{generation}.{number}" for number in range(2)]
        clients = [
            context.Process(
                target=work_until_killed,
                args=(server.unix, db.namespace, tmp_path, name, two_phase),
                daemon=True,
            )
            for name in names
        ]
        for client in clients:
            client.start()

        def lines(name: str) -> int:
            path = tmp_path / f"{name}.history"
            return path.read_bytes().count(b"\n") if path.exists() else 0

        try:
            until(lambda names=names: all(lines(name) > 60 for name in names))  # type: ignore[misc]
        finally:
            for client in clients:
                client.kill()
                client.join()
                client.close()
    report = verdict(db, tmp_path)
    assert report.ok, str(report)
    assert report.transactions > 6 * 20


def die_while_committing(url: str, namespace: str, folder: Path, before: bool) -> None:
    """Be killed right before, or right after the commit point."""

    def dying(self: Commit, commit_ts: int) -> int:
        if not before:
            commit_primary(self, commit_ts)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    commit_primary = Commit.commit_primary
    Commit.commit_primary = dying  # type: ignore[method-assign]
    with percolator.connect(url, namespace, lock_ttl=0.1) as db, Recorder(db, folder, "victim") as recorder:
        db.client.one_call_a_tablet = True

        def three_rows(t: RecordedTransaction) -> None:
            for row in (X, Y, Z):
                t.set("t", row, "v", b"1")

        recorder.run(three_rows)


@pytest.mark.parametrize("before", [True, False], ids=["before the commit point", "after it"])
def test_a_process_killed_at_the_commit_point(
    server: Server, db: Database, tmp_path: Path, before: bool
) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=die_while_committing, args=(server.unix, db.namespace, tmp_path, before)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    locked = check(read_history(tmp_path), read_final(db, ["t"]))
    assert Anomaly.LOCK in locked.names
    assert (Anomaly.PARTIAL in locked.names) is not before
    report = verdict(db, tmp_path)
    assert report.ok, str(report)
    assert report.outcomes["unknown"] == 1
    assert report.committed_unknown == (0 if before else 1)
    (record,) = read_history(tmp_path)
    assert record.returned is None
    assert record.blind
