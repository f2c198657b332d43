"""Observers with ``executor: processes``: runs in child processes, which may die, hang, or go on for long."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from percolator_core import Chain, Database, Worker
from percolator_core.worker.runs import EndedRun
from tests.chains import dirty_of, failed_of, put
from tests.servers.plain import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.worker.conftest import Project

TABLES = "  docs: {tablets: 4}\n  sums: {tablets: 4, notify_only: [changed]}\n"
STEPS = """\
import enum, os, signal, sys, time, structlog
PARENT = os.getppid()
if os.path.exists("stall") and "child" in sys.argv[0]:
    open("starting", "w").write(str(os.getpid()))
    time.sleep(600)

def total(t, cell):
    with open("totals", "a") as runs:
        runs.write("x")
    time.sleep(0.5)
    t.set("sums", cell.row, "n", b"1")

def work(t, cell):
    word = t.get("docs", cell.row, "text")
    if word == b"die" and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if word == b"die late":
        if not os.path.exists("failed"):
            open("failed", "w").close()
            raise ValueError("the first time")
        if not os.path.exists("died"):
            import percolator_core.worker.attempt
            open("died", "w").close()
            percolator_core.worker.attempt.Attempts.done = lambda *_: os._exit(9)
    if word == b"always die":
        os._exit(7)
    if word == b"hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
        time.sleep(600)
    if word == b"loop":
        while True:
            pass
    if word == b"block":
        open("begun", "w").close()
        while not os.path.exists("release"):
            time.sleep(0.01)
    if word == b"loses":
        t.get("sums", "all", "n")
        number = sum(name.startswith("lost") for name in os.listdir())
        if number < 3:
            open(f"losing{number}", "w").close()
            while not os.path.exists(f"lost{number}"):
                time.sleep(0.01)
        time.sleep(0.4)
    if word == b"enum":
        structlog.get_logger("mine").warning("noted", kind=enum.IntEnum("Kind", "A").A)
    if word == b"raise":
        raise ValueError("no such thing")
    print("printed", word)
    structlog.get_logger("mine").warning("noted", word=word)
    n = int(t.get("sums", "all", "n") or 0)
    t.set("sums", "all", "n", b"%d" % (n + 1))
    t.set("docs", cell.row, "by", b"%d" % os.getpid())

def beside(t, cell):
    t.set("docs", cell.row, "by", b"%d" % os.getpid())
"""
WORK = (
    "observe: docs.text\nwrites: [docs.by, sums.n]\nexecutor: processes\ntimeout: 30s\n"
    "retry: {attempts: 2, backoff: 10ms, max_backoff: 20ms}"
)
BESIDE = "observe: docs.title\nwrites: [docs.by]"
TOTAL = "observe: sums.changed\nmode: weak\nwrites: [sums.n]\nexecutor: processes"


@pytest.fixture
def chain(project: Project, monkeypatch: pytest.MonkeyPatch) -> Chain:
    project.write(STEPS, TABLES, work=WORK, beside=BESIDE, total=TOTAL)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(str(project.folder))
    monkeypatch.setattr("percolator_core.worker.offload.parent.GRACE", 0.5)
    monkeypatch.delitem(__import__("sys").modules, "steps", raising=False)
    return Chain.load(project.folder / "chain")


@pytest.fixture
def db(project: Project, chain: Chain) -> Iterator[Database]:
    with project.connect() as db:
        chain.create_tables(db)
        yield db


def by(db: Database, row: str) -> int:
    return int(db.snapshot().get("docs", row, "by") or 0)


def test_runs_happen_in_children_and_are_counted(db: Database, chain: Chain) -> None:
    for number in range(30):
        put(db, f"{number}", b"1")
        put(db, f"b{number}", b"1", column="title")
    ended: list[EndedRun] = []
    counts = Worker(db, chain, cpus=2, listener=ended.append).run_until_idle(PATIENCE)
    assert sorted((run.observer, run.row, run.outcome) for run in ended) == sorted(
        [("work", b"%d" % number, "ran") for number in range(30)]
        + [("beside", b"b%d" % number, "ran") for number in range(30)]
    )
    assert counts.observers["work"].ran == counts.observers["beside"].ran == 30
    assert db.snapshot().get("sums", "all", "n") == b"30"
    pids = {by(db, f"{number}") for number in range(30)}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    assert {by(db, f"b{number}") for number in range(30)} == {os.getpid()}
    assert counts.observers["work"].operations > 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_child_that_dies_costs_an_attempt(db: Database, chain: Chain) -> None:
    put(db, "a", b"die")
    counts = Worker(db, chain, cpus=1).run_until_idle(PATIENCE).observers["work"]
    assert (counts.ran, counts.failed, counts.quarantined) == (1, 1, 0)
    assert db.snapshot().get("sums", "all", "n") == b"1"


def test_a_cell_that_always_kills_its_child_goes_to_quarantine(db: Database, chain: Chain) -> None:
    put(db, "a", b"always die")
    put(db, "b", b"1")
    counts = Worker(db, chain, cpus=1).run_until_idle(PATIENCE).observers["work"]
    assert (counts.ran, counts.failed, counts.quarantined) == (1, 2, 1)
    (failed,) = failed_of(db, chain)
    assert failed.row == b"a"
    assert "exit code 7" in failed.error


def test_a_child_that_dies_after_its_last_commit_leaves_nothing_in_quarantine(
    db: Database, chain: Chain
) -> None:
    put(db, "a", b"die late")
    counts = Worker(db, chain, cpus=1).run_until_idle(PATIENCE).observers["work"]
    assert (counts.failed, counts.collapsed, counts.quarantined) == (2, 1, 0)
    assert db.snapshot().get("sums", "all", "n") == b"1"
    assert failed_of(db, chain) == []


def test_an_exception_is_told_with_its_traceback(db: Database, chain: Chain) -> None:
    put(db, "a", b"raise")
    assert Worker(db, chain, cpus=1).run_until_idle(PATIENCE).quarantined == 1
    (failed,) = failed_of(db, chain)
    assert failed.error == "ValueError: no such thing"
    assert 'raise ValueError("no such thing")' in failed.traceback


@pytest.mark.parametrize("word", [b"hang", b"loop"])
def test_a_run_past_its_timeout_is_ended(db: Database, project: Project, word: bytes) -> None:
    """An endless loop is interrupted; what cannot be is killed with its process."""
    declaration = project.folder / "chain" / "work.yaml"
    declaration.write_text(declaration.read_text().replace("timeout: 30s", "timeout: 300ms"))
    chain = Chain.load(project.folder / "chain")
    put(db, "a", word)
    put(db, "b", b"1")
    counts = Worker(db, chain, cpus=1).run_until_idle(PATIENCE).observers["work"]
    assert (counts.ran, counts.quarantined) == (1, 1)
    (failed,) = failed_of(db, chain)
    assert "timeout" in failed.error or "killed" in failed.error


def test_the_hub_goes_on_while_a_child_computes(db: Database, chain: Chain, project: Project) -> None:
    put(db, "a", b"block")
    worker = Worker(db, chain, cpus=1)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until((project.folder / "begun").exists)
    put(db, "b", b"1", column="title")
    until(lambda: by(db, "b"))
    (project.folder / "release").touch()
    worker.stop()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_at_a_stop_a_child_that_does_not_end_is_killed_and_its_cell_given_back(
    db: Database, chain: Chain, project: Project
) -> None:
    put(db, "a", b"block")
    worker = Worker(db, chain, cpus=1)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until((project.folder / "begun").exists)
    worker.stop(grace=0.05)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert worker.abandoned == 0
    (lease,), _ = dirty_of(db, chain).claim(10)
    assert lease.tries == 0


def test_children_end_with_a_worker_that_is_killed(db: Database, project: Project) -> None:
    process = project.worker()
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    put(db, "a", b"1")
    until(lambda: by(db, "a"))
    child = by(db, "a")
    assert child != process.pid
    process.kill()
    process.wait()

    def gone() -> bool:
        try:
            return Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    until(gone)


def test_a_signal_for_the_whole_group_does_not_end_a_child_in_the_middle(
    db: Database, project: Project
) -> None:
    """A service manager sends SIGTERM to every process of a unit."""
    process = project.worker()
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    put(db, "a", b"1")
    until(lambda: by(db, "a"))
    child = by(db, "a")
    put(db, "b", b"block")
    until((project.folder / "begun").exists)
    os.kill(child, signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.05)  # nothing tells that nothing happens
    (project.folder / "release").touch()
    assert process.wait(PATIENCE) == 0
    assert by(db, "b") == child


def test_a_weak_run_is_done_once_though_its_lease_was_renewed(
    db: Database, chain: Chain, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child clears the mark by a deadline that its worker has moved meanwhile."""
    monkeypatch.setattr("percolator_core.worker.housekeeping.LEASE", 0.3)
    with db.transaction() as t:
        t.notify("sums", "all", "changed")
    assert Worker(db, chain, cpus=1).run_until_idle(PATIENCE).observers["total"].ran == 1
    assert (project.folder / "totals").read_text() == "x"


def test_a_run_that_loses_has_its_whole_time_again(
    db: Database, chain: Chain, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict is no failure: not even where all rounds together take longer than one may."""
    monkeypatch.setattr("percolator_core.worker.offload.parent.GRACE", 1.2 - 30)
    put(db, "a", b"loses")
    worker = Worker(db, chain, cpus=1)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    for number in range(3):
        until((project.folder / f"losing{number}").exists)
        put(db, "all", b"%d" % number, table="sums", column="n")
        (project.folder / f"lost{number}").touch()
    until(lambda: worker.counts.observers["work"].ran + worker.counts.observers["work"].failed)
    counts = worker.counts.observers["work"]
    worker.stop()
    thread.join(PATIENCE)
    assert (counts.ran, counts.conflicts, counts.failed) == (1, 3, 0)


def test_a_stop_does_not_wait_for_a_child_that_is_not_ready(
    db: Database, chain: Chain, project: Project
) -> None:
    (project.folder / "stall").touch()
    put(db, "a", b"1")
    worker = Worker(db, chain, cpus=1)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    until(lambda: (project.folder / "starting").exists() and (project.folder / "starting").read_text())
    worker.stop(grace=0.05)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert worker.abandoned == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((project.folder / "starting").read_text()), 0)


def test_a_run_whose_worker_died_is_finished_though_it_logs(db: Database, project: Project) -> None:
    process = project.worker()
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    put(db, "a", b"block")
    until((project.folder / "begun").exists)
    process.kill()
    process.wait()
    (project.folder / "release").touch()
    until(lambda: db.snapshot().get("sums", "all", "n") == b"1")
    until(lambda: not any(dirty_of(db, project.chain()).backlog().values()))


def test_a_value_of_a_type_that_only_the_child_knows_is_logged_as_text(db: Database, chain: Chain) -> None:
    put(db, "a", b"enum")
    counts = Worker(db, chain, cpus=1).run_until_idle(PATIENCE).observers["work"]
    assert (counts.ran, counts.failed) == (1, 0)
