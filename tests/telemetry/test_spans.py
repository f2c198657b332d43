"""Spans of runs: connected over processes, with every outcome, and never in the way of a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Chain, ConfigurationError, Worker
from percolator_core.admin.rerun import rerun
from percolator_core.observers import Retry
from percolator_core.telemetry import export
from percolator_core.telemetry.identity import commit_id
from tests.chains import QUICK, chain_of, failed_of, put, watch
from tests.servers.plain import PATIENCE, until
from tests.worker.conftest import ROOT, Project

if TYPE_CHECKING:
    from percolator_core import Cell, Database, ObserverTransaction
    from tests.telemetry.collector import Collector, Sent


CHANGE = "change of docs.text"


def drain(db: Database, *observers: Any) -> None:
    chain = chain_of(*observers)
    Worker(db, chain).run_until_idle(PATIENCE)


def activated(db: Database, *observers: Any) -> Chain:
    chain = chain_of(*observers)
    chain.create_tables(db)
    return chain


def first(t: ObserverTransaction, cell: Cell) -> None:
    t.set("docs", cell.row, "title", b"1")


def second(t: ObserverTransaction, cell: Cell) -> None:
    t.set("sums", b"of " + cell.row, "total", b"1")


def third(t: ObserverTransaction, cell: Cell) -> None:
    t.set("docs", cell.row, "end", b"1")


def three() -> Chain:
    return chain_of(
        watch("first", first, "docs.text", writes=("docs.title",)),
        watch("second", second, "docs.title", writes=("sums.total",)),
        watch("third", third, "sums.total"),
    )


def linked(a: Sent, b: Sent) -> bool:
    return b.identity in a.links


def is_chain(collector: Collector, *names: str) -> None:
    """Each run is below the commit of the run before, and that commit and its run link to each other."""
    [change] = [one for one in collector.spans if one.name.startswith("change of ")]
    above = change
    for name in names:
        [run] = collector.runs(name)
        assert (run.trace, run.parent) == above.identity, name
        commits = collector.named(f"{name} commit")
        if name != names[-1]:
            [above] = commits
            assert linked(run, above)
            assert linked(above, run)
            assert not above.parent
        else:
            assert not commits  # nobody observes what it wrote
    assert len(collector.parts()) == 1


def test_a_chain_in_one_process(db: Database, on: Collector) -> None:
    chain = three()
    chain.create_tables(db)
    at = put(db, "a", b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.spans) == 6)
    is_chain(on, "first", "second", "third")
    [run] = on.runs("first")
    assert run.attributes == {
        "percolator.namespace": db.namespace,
        "percolator.chain": "test",
        "percolator.observer": "first",
        "percolator.table": "docs",
        "percolator.row": "a",
        "percolator.column": "text",
        "percolator.attempt": 1,
        "percolator.mode": "strong",
        "percolator.outcome": "ran",
        "percolator.conflicts": 0,
        "percolator.start_timestamp": run.attributes["percolator.start_timestamp"],
    }
    assert run.attributes["percolator.start_timestamp"] > at
    [commit] = [event for event in run.events if event.name == "commit"]
    assert commit.attributes["percolator.commit_timestamp"] > run.attributes["percolator.start_timestamp"]
    assert run.resource["service.name"] == "percolator"
    assert run.start <= run.end
    [change] = on.named("change of docs.text")
    assert change.start == at * 1000


STEPS = """\
import os

def first(t, cell):
    t.set("docs", cell.row, "title", b"1")

def second(t, cell):
    t.set("sums", b"of " + cell.row, "total", b"1")

def third(t, cell):
    t.set("docs", cell.row, "end", b"1")
"""
TABLES = "  docs: {tablets: 4}\n  sums: {tablets: 4}\n"


def three_in(project: Project, code: str = STEPS, executor: str = "") -> None:
    project.write(
        code,
        TABLES,
        first=f"observe: docs.text\nwrites: [docs.title]{executor}",
        second=f"observe: docs.title\nwrites: [sums.total]{executor}",
        third=f"observe: sums.total{executor}",
    )


def started(project: Project, collector: Collector, names: str) -> subprocess.Popen[bytes]:
    """A worker process for some observers, with telemetry."""
    set_up = f"import os; os.environ.update({collector.variables()!r})\n"
    process = project.start(
        f"{set_up}w = p.Worker(db, chain, observers={names.split()!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: w.stop())\nprint('up', flush=True)\nw.run()\ndb.close()\n"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_a_document_through_two_processes_is_one_trace(project: Project, collector: Collector) -> None:
    three_in(project)
    with project.connect() as db:
        project.chain().create_tables(db)
        processes = [started(project, collector, "first third"), started(project, collector, "second")]
        put(db, "a", b"x")
        until(lambda: len(collector.spans) == 6)
    is_chain(collector, "first", "second", "third")
    for process in processes:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_trace_goes_on_after_a_crash(project: Project, collector: Collector) -> None:
    """The process dies with its spans unsent, and the next run still belongs to the same trace."""
    dying = (
        STEPS.replace("def third", "def third_of_all")
        + "\n\ndef third(t, cell):\n    os.path.exists('die') and os.kill(os.getpid(), 9)\n"
    )
    three_in(project, dying)
    (project.folder / "die").touch()
    with project.connect() as db:
        project.chain().create_tables(db)
        process = started(project, collector, "first second third")
        put(db, "a", b"x")
        assert process.wait(PATIENCE) == -signal.SIGKILL
        (project.folder / "die").unlink()
        sent_before = len(collector.spans)
        started(project, collector, "first second third")
        until(lambda: collector.runs("third"))
    [run] = collector.runs("third")
    commits = collector.named("second commit")
    if commits:  # it was sent before the crash
        assert (run.trace, run.parent) == commits[0].identity
    with project.connect() as db:
        [(at, *_)] = db.history("sums", "of a", "total")
    assert commit_id(project.namespace, at) == (int.from_bytes(run.trace), int.from_bytes(run.parent))
    assert len(collector.spans) >= sent_before


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_other_executors(project: Project, collector: Collector, executor: str) -> None:
    three_in(project, executor=f"\nexecutor: {executor}")
    with project.connect() as db:
        project.chain().create_tables(db)
        started(project, collector, "first second third")
        put(db, "a", b"x")
        until(lambda: len(collector.spans) == 6)
    is_chain(collector, "first", "second", "third")


def test_a_killed_child_process_is_told_by_its_parent(project: Project, collector: Collector) -> None:
    project.write(
        "import os\ndef first(t, cell):\n    os.kill(os.getpid(), 9)\n",
        TABLES,
        first="observe: docs.text\nexecutor: processes\nretry: {attempts: 1}",
    )
    with project.connect() as db:
        project.chain().create_tables(db)
        started(project, collector, "first")
        put(db, "a", b"x")
        until(lambda: collector.runs("first"))
    [run] = collector.runs("first")
    assert run.outcome == "quarantined"
    assert "SIGKILL" in run.message


def test_failures_a_retry_and_the_quarantine(db: Database, on: Collector) -> None:
    fails = {b"twice": 2, b"always": 9}

    def failing(t: ObserverTransaction, cell: Cell) -> None:
        fails[cell.row] -= 1
        if fails[cell.row] >= 0:
            raise ValueError("no")

    chain = activated(db, watch("failing", failing, "docs.text", retry=QUICK))
    put(db, "twice", b"x")
    put(db, "always", b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert len(failed_of(db, chain)) == 1
    until(lambda: len(on.runs()) == 6)
    by_row: dict[str, list[Sent]] = {"twice": [], "always": []}
    for run in on.runs():
        by_row[run.attributes["percolator.row"]].append(run)
    assert [run.outcome for run in by_row["twice"]] == ["failed", "failed", "ran"]
    assert [run.outcome for run in by_row["always"]] == ["failed", "failed", "quarantined"]
    for runs in by_row.values():
        assert [run.attributes["percolator.attempt"] for run in runs] == [1, 2, 3]
        assert len({run.trace for run in runs}) == 1
        assert len({run.span for run in runs}) == 3
        assert [run.failed for run in runs] == [run.outcome != "ran" for run in runs]
    assert by_row["always"][0].message == "ValueError: no"


def test_an_aborted_run_is_repeated_in_one_span(db: Database, on: Collector) -> None:
    again = iter(range(9))

    def racing(t: ObserverTransaction, cell: Cell) -> None:
        t.set("sums", "all", "n", b"mine")
        if next(again) < 2:
            put(db, "all", b"theirs", "sums", "n")

    chain = activated(db, watch("racing", racing, "docs.text"))
    put(db, "a", b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(on.runs)
    [run] = on.runs()
    assert run.outcome == "ran"
    assert run.attributes["percolator.conflicts"] == 2
    assert [event.name for event in run.events] == ["transaction aborted"] * 2 + ["commit"]
    assert run.events[0].attributes == {
        "percolator.reason": "newer commit",
        "percolator.table": "sums",
        "percolator.column": "n",
    }
    assert not run.failed


def test_a_run_that_always_conflicts_is_given_back(db: Database, on: Collector) -> None:
    again = iter(range(99))

    def racing(t: ObserverTransaction, cell: Cell) -> None:
        t.set("sums", "all", "n", b"mine")
        if next(again) < 5:
            put(db, "all", b"theirs", "sums", "n")

    chain = activated(db, watch("racing", racing, "docs.text"))
    put(db, "a", b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.runs()) == 2)
    assert [run.outcome for run in on.runs()] == ["postponed", "ran"]
    assert on.runs()[0].attributes["percolator.conflicts"] == 5
    assert len({run.trace for run in on.runs()}) == 1


def test_changes_that_became_one_run_are_links(db: Database, on: Collector) -> None:
    chain = activated(db, watch("first", first, "docs.text"))
    put(db, "a", b"0")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.runs()) == 1)
    for value in (b"1", b"2", b"3"):
        put(db, "a", value)
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.runs()) == 2)
    until(lambda: len(on.named("change of docs.text")) == 4)
    before, run = on.runs()
    changes = sorted(on.named("change of docs.text"), key=lambda one: one.start)
    assert (run.trace, run.parent) == changes[3].identity
    assert set(run.links) == {changes[1].identity, changes[2].identity}
    assert not before.links


def test_notifications_that_became_one_run_are_links(db: Database, on: Collector) -> None:
    def announce(t: ObserverTransaction, cell: Cell) -> None:
        t.notify("sums", "all", "dirty")

    def add(t: ObserverTransaction, cell: Cell) -> None:
        t.set("sums", "all", "n", b"1")

    announcing = watch("announce", announce, "docs.text", writes=("sums.dirty",))
    adding = watch("add", add, "sums.dirty", mode="weak", settle=10.0)
    chain = activated(db, announcing, adding)
    for row in "abc":
        put(db, row, b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.named("announce commit")) == 3)
    until(lambda: on.runs("add"))
    causes = {one.identity for one in on.named("announce commit")}
    runs = on.runs("add")
    assert set().union(*(run.links for run in runs)) == causes
    assert sum(len(run.links) for run in runs) == 3  # each notification is told once
    assert len(on.parts()) == 1 or len(runs) > 1


def test_one_cause_and_two_observers_are_one_trace(db: Database, on: Collector) -> None:
    chain = activated(db, watch("a", first, "docs.text"), watch("b", third, "docs.text"))
    put(db, "x", b"x")
    put(db, "y", b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.spans) == 6)
    assert len(on.named("change of docs.text")) == 2
    assert {len(part) for part in on.parts()} == {3}


@pytest.mark.parametrize("row", [b"\xff\x00\n", b"k" * 60_000, "ü\n".encode(), b"hex:00", b""])
def test_keys_of_every_kind(db: Database, on: Collector, row: bytes) -> None:
    long = "c" * 300

    def write(t: ObserverTransaction, cell: Cell) -> None:
        t.set("docs", cell.row, long, b"1")

    chain = activated(
        db,
        watch("write", write, "docs.text", writes=(f"docs.{long}",)),
        watch("read", third, f"docs.{long}"),
    )
    put(db, row, b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.spans) == 4)
    is_chain(on, "write", "read")
    for run in on.runs():
        assert len(run.attributes["percolator.row"]) <= 64
        assert len(run.attributes["percolator.column"]) <= 64
        assert run.attributes["percolator.row"].isprintable()


def test_a_rerun_has_a_span_of_its_own(db: Database, on: Collector) -> None:
    chain = activated(db, watch("first", first, "docs.text"))
    put(db, "a", b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    rerun(db, chain, "first")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.runs()) == 2)
    assert len({run.trace for run in on.runs()}) == 1
    assert len({run.span for run in on.runs()}) == 2
    assert len(on.named(CHANGE)) == 1, "the rerun does not send the span of the change again"
    db.collect_garbage(keep=timedelta(0))
    put(db, "a", b"y")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.runs()) == 3)


def quick(db: Database, runs: int = 50) -> float:
    """Seconds that a worker needs for some runs, while telemetry is as it is."""
    chain = activated(db, watch("first", first, "docs.text"))
    for number in range(runs):
        put(db, b"%d" % number, b"x")
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    assert counts.ran == runs
    assert counts.total().failed == counts.quarantined == 0
    return counts.seconds


def test_a_collector_that_is_away_delays_no_run(
    db: Database, on: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    on.close()
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    quick(db)
    assert not on.spans


@pytest.mark.parametrize("status", [400, 503])
def test_a_collector_that_refuses_fails_no_run(db: Database, on: Collector, status: int) -> None:
    on.status = status
    quick(db)
    until(lambda: on.paths)
    assert not on.spans


def test_a_collector_that_never_answers_delays_no_run(
    db: Database, on: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100000")
    monkeypatch.setattr(export, "FLUSH", 0.1)
    on.hold = True
    ended = threading.Event()
    chain = activated(db, watch("first", lambda t, cell: ended.set(), "docs.text"))
    put(db, "a", b"x")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: on.paths)  # a request hangs from here on
    ended.clear()
    put(db, "b", b"x")
    # The end of a worker waits for a silent collector only once: this limit would be too long for the test.
    monkeypatch.setattr(export, "FLUSH", 100_000.0)
    assert Worker(db, chain).run_until_idle(PATIENCE).ran == 1
    assert ended.is_set()


def test_spans_of_the_observers_code_are_inside_its_run(project: Project, collector: Collector) -> None:
    project.write(
        "from opentelemetry import trace\n"
        "def first(t, cell):\n"
        "    t.get('docs', cell.row, 'text')\n"
        "    with trace.get_tracer('mine').start_as_current_span('parse'):\n"
        "        t.get('docs', cell.row, 'other')\n"
        "    trace.get_current_span().set_attribute('pages', len(cell.row))\n",
        TABLES,
        first="observe: docs.text",
    )
    with project.connect() as db:
        project.chain().create_tables(db)
        with db.transaction() as t:
            for number in range(1, 20):
                t.set("docs", b"x" * number, "text", b"")
        started(project, collector, "first")
        until(lambda: len(collector.runs()) == 19)
        until(lambda: len(collector.named("parse")) == 19)
    for run in collector.runs():
        assert run.attributes["pages"] == len(run.attributes["percolator.row"])
        [inner] = [one for one in collector.named("parse") if (one.trace, one.parent) == run.identity]
        assert run.start <= inner.start <= inner.end <= run.end


def test_a_sampler_decides_alike_in_every_process(
    db: Database, on: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    chain = activated(db, watch("a", first, "docs.text"), watch("b", third, "docs.text"))
    for number in range(40):
        put(db, b"%d" % number, b"x")
    Worker(db, chain, observers=["a"]).run_until_idle(PATIENCE)
    Worker(db, chain, observers=["b"]).run_until_idle(PATIENCE)

    def rows(name: str) -> set[str]:
        return {run.attributes["percolator.row"] for run in on.runs(name)}

    until(lambda: rows("a") == rows("b") == {one.attributes["percolator.row"] for one in on.named(CHANGE)})
    assert 0 < len(rows("a")) < 40


def test_a_forked_child_sends_its_own_spans(project: Project, collector: Collector) -> None:
    """A program that forks after its first worker: the threads of the parent do not exist in the child."""
    three_in(project)
    with project.connect() as db:
        project.chain().create_tables(db)
        put(db, "a", b"x")
        process = project.start(
            f"import os; os.environ.update({collector.variables()!r})\n"
            "from percolator_core.telemetry import export; export.FLUSH = 100.0\n"
            f"p.Worker(db, chain).run_until_idle({PATIENCE})\n"
            "db.close()\n"
            "child = os.fork()\n"
            f"with p.connect({project.url!r}, {project.namespace!r}) as again:\n"
            "    with again.transaction() as t:\n"
            "        t.set('docs', 'child' if child == 0 else 'parent', 'text', b'x')\n"
            f"    p.Worker(again, chain).run_until_idle({PATIENCE})\n"
            "if child:\n"
            "    os.waitpid(child, 0)\n"
        )
        assert process.wait(PATIENCE) == 0
    rows = {run.attributes["percolator.row"] for run in collector.runs("first")}
    assert rows == {"a", "child", "parent"}


def test_a_crew_sends_spans_of_each_process(project: Project, collector: Collector) -> None:
    three_in(project)
    with (project.folder / "stderr").open("wb") as errors:
        command = subprocess.Popen(
            [sys.executable, "-m", "percolator_core", "worker", "chain", "--json", "--processes", "2",
             "--url", project.url, "--namespace", project.namespace],
            cwd=project.folder,
            env={**os.environ, **collector.variables(OTEL_METRICS_EXPORTER="none"), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=errors,
        )  # fmt: skip
    project.processes.append(command)
    with project.connect() as db:
        until(lambda: len(live(db)) == 2)
        with db.transaction() as t:
            for number in range(200):
                t.set("docs", b"%d" % number, "text", b"x")
        until(lambda: len(collector.runs()) == 600)
    command.send_signal(signal.SIGTERM)
    assert command.wait(PATIENCE) == 0
    for line in (project.folder / "stderr").read_text().splitlines():
        assert json.loads(line)["event"] != "telemetry is incomplete"
    assert len(collector.parts()) == 200


def live(db: Database) -> list[Any]:
    from percolator_core.notifications.activation import live_workers

    return list(live_workers(db))


def test_off_nothing_is_imported_and_nothing_sent(project: Project, collector: Collector) -> None:
    three_in(project)
    with project.connect() as db:
        project.chain().create_tables(db)
        put(db, "a", b"x")
    process = project.start(
        f"import os; os.environ.update({collector.variables(PERCOLATOR_OTEL='off')!r})\n"
        f"assert p.Worker(db, chain).run_until_idle({PATIENCE}).ran == 3\n"
        # redis imports other modules of OpenTelemetry, where that is installed.
        "ours = ('percolator_core.telemetry.spans', 'percolator_core.telemetry.export')\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.exporter', *ours))])\n"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"[]\n"
    assert process.wait(PATIENCE) == 0
    assert not collector.paths


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"PERCOLATOR_OTEL": "maybe"}, "set it to 'on' or 'off'"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "usually 4318"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "set it to 'otlp', or to 'none'"),
    ],
)
def test_settings_that_cannot_work(
    db: Database, on: Collector, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=says):
        drain(db, watch("first", first, "docs.text"))


@pytest.mark.parametrize(
    "variables", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}, {"PERCOLATOR_OTEL": ""}]
)
def test_settings_that_switch_it_off(
    db: Database, on: Collector, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    quick(db, 1)
    assert not on.paths


def test_without_the_extra_the_command_is_named(
    db: Database, on: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_core.telemetry import settings

    monkeypatch.setattr(settings, "_PACKAGES", ("opentelemetry_is_missing.sdk",))
    with pytest.raises(ConfigurationError, match=r"pip install 'percolator-core\[otel\]'"):
        drain(db, watch("first", first, "docs.text"))


def test_a_run_past_its_timeout_and_an_exit_are_told(db: Database, on: Collector) -> None:
    def slow(t: ObserverTransaction, cell: Cell) -> None:
        until_late = time.monotonic() + 30
        while time.monotonic() < until_late:
            pass

    def leaving(t: ObserverTransaction, cell: Cell) -> None:
        sys.exit(3)

    once = Retry(attempts=1)
    chain = activated(
        db,
        watch("slow", slow, "docs.text", timeout=0.05, retry=once),
        watch("leaving", leaving, "docs.title", retry=once),
    )
    put(db, "a", b"x")
    put(db, "a", b"x", "docs", "title")
    Worker(db, chain).run_until_idle(PATIENCE)
    until(lambda: len(on.runs()) == 2)
    assert {(run.name, run.outcome, run.message.partition(":")[0]) for run in on.runs()} == {
        ("slow", "quarantined", "ObserverTimeout"),
        ("leaving", "quarantined", "SystemExit"),
    }
