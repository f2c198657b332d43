"""Worker processes under one parent: replaced when they die, ended together, and told apart in the log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import pytest
import structlog

from percolator_core import Chain
from percolator_core.crew import Crew, supervisor
from percolator_core.crew.messages import (
    LineCutter,
    Orders,
    counts_content,
    error_content,
    read_counts,
    read_error,
    read_report,
    read_times,
    report,
)
from percolator_core.crew.process import Process
from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.notifications.activation import live_workers
from percolator_core.runtime.histogram import Histogram
from percolator_core.worker import Counts
from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.plan import WorkerSettings
from tests.chains import chain_of, watch
from tests.worker.conftest import ROOT, Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableMapping
    from pathlib import Path

TABLES = "  docs: {tablets: 4}\n"
COUNT = "observe: docs.text\nwrites: [docs.n]"
STEPS = """\
import os, sys

def count(t, cell):
    if cell.row == b"loud":
        print("one line\\nand another", flush=True)
        print("no end", end="", file=sys.stderr, flush=True)
    t.set("docs", cell.row, "n", b"%d" % (int(t.get("docs", cell.row, "n") or 0) + 1))
"""
PATIENT = 60.0


class Log:
    """What this process logs, the lines that it passes on included."""

    def __init__(self) -> None:
        self.lines: list[MutableMapping[str, Any]] = []

    def take(self, _: Any, level: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        self.lines.append({**event, "level": level})
        raise structlog.DropEvent

    def find(self, event: str) -> list[MutableMapping[str, Any]]:
        return [line for line in list(self.lines) if event in line["event"]]


@pytest.fixture
def log() -> Iterator[Log]:
    before, configured = structlog.get_config(), structlog.is_configured()
    made = Log()
    structlog.configure(processors=[made.take])
    yield made
    structlog.reset_defaults()
    if configured:
        structlog.configure(**before)


@pytest.fixture
def counting(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    project.write(STEPS, TABLES, count=COUNT)
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.01)
    return project


class Running:
    """A crew that runs in a thread of this process."""

    def __init__(self, project: Project, log: Log, processes: int = 2, url: str | None = None) -> None:
        self.log = log
        self.crew = Crew(project.chain(), url or project.url, project.namespace, processes, threads=1)
        self.error: BaseException | None = None
        self.counts: Counts | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.crew.stop()
        self.wait()
        assert self.crew.processes == ()

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that the crew brings about."""
        end = time.monotonic() + PATIENT
        while not condition():
            alive = self._thread.is_alive() and time.monotonic() < end
            assert alive, (self.crew.counts, self.error, self.log.lines)
            time.sleep(0.005)

    def await_runs(self, runs: int) -> None:
        self.until(lambda: self.crew.counts.ran == runs)

    def await_starts(self, starts: int) -> None:
        self.until(lambda: len(self.log.find("worker started")) == starts)

    def wait(self) -> None:
        self._thread.join(PATIENT)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.counts = self.crew.run()
        except Exception as error:  # noqa: BLE001 - asked for by the test
            self.error = error


def put_rows(project: Project, *rows: str) -> None:
    with project.connect() as db:
        project.chain().create_tables(db)
        with db.transaction() as t:
            for row in rows:
                t.set("docs", row, "text", b"it")


def test_processes_share_the_work_and_their_counts_are_summed(counting: Project, log: Log) -> None:
    rows = [f"row{number}" for number in range(60)]
    put_rows(counting, *rows)
    with Running(counting, log) as running:
        running.await_starts(2)
        running.await_runs(60)
        with counting.connect() as db:
            running.until(lambda: len(live_workers(db)) == 2)
        pids = set(running.crew.processes)
    assert running.error is None
    assert running.counts is not None
    assert running.counts.ran == 60
    assert running.counts.observers["count"].ran == 60
    assert {served.process for served in running.crew.served} == pids
    assert [served.ending for served in running.crew.served] == ["exit code 0"] * 2
    assert sum(served.counts.ran for served in running.crew.served) == 60
    assert {line["process"] for line in log.find("worker stopped")} == pids
    with counting.connect() as db:
        with db.transaction() as t:
            assert all(t.get("docs", row, "n") == b"1" for row in rows)
        assert live_workers(db) == []


def test_who_is_killed_is_replaced(counting: Project, log: Log) -> None:
    put_rows(counting, "early")
    with Running(counting, log) as running:
        running.await_starts(2)
        running.await_runs(1)
        before = set(running.crew.processes)
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        running.await_starts(3)
        assert before - set(running.crew.processes) == {killed}
        assert len(running.crew.processes) == 2
        put_rows(counting, "late")
        running.await_runs(2)
    assert running.error is None
    (line,) = log.find("replaced")
    assert (line["level"], line["process"], line["ending"]) == ("warning", killed, "SIGKILL")
    assert sorted(served.ending for served in running.crew.served) == [
        "SIGKILL",
        "exit code 0",
        "exit code 0",
    ]


class Ended:
    """A process that has ended; while it is buried, somebody looks at the counts of its crew."""

    pid, counts = 1, Counts({"count": ObserverCounts(ran=5)})
    up, name, up_since, returncode, error, killed = True, "", 0.0, 0, None, False

    def __init__(self, look: Callable[[], None]) -> None:
        self.times = {"count": Histogram.from_flat([1.0] * 17)}
        self.looks: list[threading.Thread] = []
        self._look = look

    def close(self) -> None:
        pass

    def ending(self) -> str:
        self.looks.append(threading.Thread(target=self._look))
        self.looks[-1].start()
        self.looks[-1].join(0.2)
        return "SIGKILL"


def test_what_a_killed_process_had_locked_does_not_wait_for_its_token(counting: Project, log: Log) -> None:
    """The parent has seen it end, so its successor may say so."""
    with Running(counting, log, 1) as running, counting.connect() as db:
        running.await_starts(1)
        put_rows(counting, "a")
        running.await_runs(1)
        (worker,) = live_workers(db)
        token = db.client.token_of(worker.owner.encode())
        assert db.store.one((b"PTTL", token)) > 5_000
        os.kill(running.crew.processes[0], signal.SIGKILL)
        running.await_starts(2)
        assert db.store.one((b"EXISTS", token)) == 0
        assert worker.owner not in {one.owner for one in live_workers(db)}


def test_no_count_falls_while_a_process_is_replaced(log: Log) -> None:
    crew = Crew(chain_of(watch("count", lambda t, cell: None, "docs.text")), "", "", 1)
    seen: list[tuple[int, int]] = []
    process = Ended(lambda: seen.append((crew.counts.ran, sum(crew.times()["count"].counts))))
    (slot,) = crew.slots
    slot.process = process  # type: ignore[assignment]
    crew.retire(slot, process)  # type: ignore[arg-type]
    for look in process.looks:
        look.join(PATIENT)
    assert set(seen) == {(5, 16)}


def test_how_long_a_loop_has_not_turned(counting: Project, log: Log) -> None:
    with Running(counting, log) as running:
        assert not running.crew.begun
        running.until(lambda: running.crew.begun)
        running.await_starts(2)
        stuck = min(running.crew.processes)
        os.kill(stuck, signal.SIGSTOP)
        running.until(lambda: running.crew.stalled() > 2.5)  # an idle loop turns more often
        os.kill(stuck, signal.SIGCONT)
        running.until(lambda: running.crew.stalled() < 2.5)
    assert log.find("replaced") == []


def test_times_of_runs_are_summed(log: Log) -> None:
    crew = Crew(chain_of(), "", "", 1)
    one, other = Histogram(), Histogram()
    one.add(0.5)
    other.add(0.25)
    assert crew.times() == {}
    ended = Ended(lambda: None)
    ended.times = {"count": one}
    crew.retire(crew.slots[0], ended)  # type: ignore[arg-type]
    crew.slots[0].process = process = object.__new__(Process)
    process.take_report(report("counts", counts_content(Counts(), 1.0, times={"count": other, "new": one})))
    assert crew.times() == {"count": Histogram.sum([one, other]), "new": one}


def test_who_is_told_to_end_by_somebody_else_is_replaced(counting: Project, log: Log) -> None:
    with Running(counting, log, processes=1) as running:
        running.await_starts(1)
        os.kill(running.crew.processes[0], signal.SIGTERM)
        running.await_starts(2)
    (line,) = log.find("replaced")
    assert (line["level"], line["ending"]) == ("info", "exit code 0")


def test_a_mistake_in_the_chain_is_told_once_and_ends_all(counting: Project, log: Log) -> None:
    (counting.folder / "steps.py").write_text("raise RuntimeError('not today')")
    with Running(counting, log, processes=3) as running:
        running.wait()
    assert isinstance(running.error, ConfigurationError)
    assert str(running.error).count("not today") == 1
    assert "Traceback" in running.error.__notes__[0]
    assert log.find("replaced") == []


def test_processes_that_die_at_their_start_are_not_started_for_ever(counting: Project, log: Log) -> None:
    (counting.folder / "steps.py").write_text("import os; os._exit(7)")
    with Running(counting, log, processes=1) as running:
        running.wait()
    assert type(running.error) is PercolatorError
    assert "die at their start, the last process with exit code 7" in str(running.error)
    assert [served.ending for served in running.crew.served] == ["exit code 7"] * supervisor.STARTS
    pauses = [line["pause"] for line in log.find("replaced")]
    assert pauses == [0.01, 0.02, 0.04]


def test_a_store_that_was_never_there(
    counting: Project, log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(supervisor, "STARTS", 1)
    with Running(counting, log, processes=1, url=f"unix://{tmp_path}/nobody") as running:
        running.wait()
    assert isinstance(running.error, StoreUnavailable)
    assert len(running.crew.served) == 1


def test_who_does_not_stop_in_time_is_killed(
    counting: Project, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other process ends within this time, also on a busy machine.
    monkeypatch.setattr(supervisor, "GRACE", 15.0)
    with Running(counting, log) as running:
        running.await_starts(2)
        stuck = min(running.crew.processes)
        os.kill(stuck, signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began >= 15
    assert [line["process"] for line in log.find("did not stop in time")] == [stuck]
    assert {one.process: one.ending for one in running.crew.served}[stuck] == "SIGKILL"
    assert running.error is None


def test_what_an_observer_prints_becomes_whole_log_lines(counting: Project, log: Log) -> None:
    put_rows(counting, "loud")
    with Running(counting, log, processes=1) as running:
        running.await_runs(1)
        (pid,) = running.crew.processes
    printed = [(line["text"], line["process"]) for line in log.find("printed")]
    assert printed == [("one line", pid), ("and another", pid), ("no end", pid)]
    assert running.crew.counts.ran == 1


@pytest.mark.parametrize("orphaned", ["by its parent's id", "by the end of its pipe"])
def test_without_its_parent_a_process_ends(counting: Project, orphaned: str) -> None:
    parent = 1 if "id" in orphaned else os.getpid()
    orders = Orders("chain", counting.url, counting.namespace, parent, {"threads": 1, "width": 1})
    process = subprocess.Popen(
        [sys.executable, "-m", "percolator_core.crew.member"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(orders.to_line())
        process.stdin.flush()
        if parent != 1:
            process.stdin.close()
        assert process.wait(PATIENT) == 0
    finally:
        process.kill()
        for file in (process.stdin, process.stdout, process.stderr):
            assert file is not None
            file.close()


def test_pauses_grow_until_a_process_has_lived() -> None:
    slot = supervisor._Slot()
    first = supervisor.FIRST_PAUSE
    assert [slot.delay(0.0) for _ in range(3)] == [first, 2 * first, 4 * first]
    assert [slot.delay(0.0) for _ in range(12)][-1] == supervisor.LONGEST_PAUSE
    assert slot.delay(supervisor.LIVED + 1) == first
    assert slot.start_at > time.monotonic() - PATIENT


@pytest.mark.parametrize(("processes", "threads", "width"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_numbers_below_one_are_refused(counting: Project, processes: int, threads: int, width: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Crew(counting.chain(), "", "", processes, threads=threads, width=width)


# What goes through the pipes.


def test_reports_come_out_as_they_went_in() -> None:
    fields = {"event": "x", "row": b"\x00\xff", "n": 1, "other": {"deep": b"y"}, "odd": {3: Chain}}
    line = report("log", fields)
    assert line.count(b"\n") == 1
    assert read_report(line) == ("log", {**fields, "odd": {"3": repr(Chain)}})


@pytest.mark.parametrize("line", [b"", b"hello", b"[1]", b"{}", b'{"a": 1, "b": 2}', b"\xff", b"1"])
def test_what_is_no_report(line: bytes) -> None:
    assert read_report(line) is None


def test_counts_orders_and_errors_come_out_as_they_went_in() -> None:
    counts = Counts({"one": ObserverCounts(ran=3, failed=1)}, 1.5)
    assert read_counts(counts_content(counts, 1.5)) == counts
    times = Histogram()
    times.add(2.0)
    assert read_times(counts_content(counts, 1.5, times={"one": times})) == {"one": times}
    assert read_times({"times": {"one": [1.0, 2]}}) == {}  # other buckets, of a newer program
    newer = {"seconds": 1.5, "observers": {"one": {"ran": 3, "failed": 1, "danced": 2}}}
    assert read_counts(newer) == counts
    settings: WorkerSettings = {
        "threads": 1,
        "width": 2,
        "strategy": "partitioned",
        "rolling": True,
        "cpus": 4,
    }
    orders = Orders("a\nchain", "redis://:secret@host", "ns", 3, settings, "debug", ("one", "other"))
    assert orders.to_line().count(b"\n") == 1
    assert Orders.from_line(orders.to_line()) == orders
    for error in (ConfigurationError("a\nb"), StoreUnavailable("away"), PercolatorError("else")):
        found = read_error(error_content(error, "where"))
        assert (type(found), str(found)) == (type(error), str(error))
    other = read_error(error_content(ZeroDivisionError("no"), "where"))
    assert (type(other), str(other)) == (PercolatorError, "ZeroDivisionError: no")


def test_lines_are_cut_where_they_end() -> None:
    lines = LineCutter()
    assert lines.feed(b"a\nb") == [b"a"]
    assert lines.feed(b"c\n\nd") == [b"bc", b""]
    assert lines.rest() == b"d"
    assert lines.rest() == b""
    assert lines.feed(bytes(2 << 20)) == [bytes(2 << 20)]


@pytest.mark.parametrize(
    "line", [b'{"counts": 3}', b'{"counts": {"observers": 1}}', b'{"log": []}', b'{"error": 1}']
)
def test_what_an_observer_writes_where_reports_are_read_ends_nobody(line: bytes, log: Log) -> None:
    process = object.__new__(Process)
    process.pid = 1
    process.take_report(line)
    assert [one["text"] for one in log.lines if one["event"] == "printed"] == [line.decode()]
