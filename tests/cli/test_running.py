"""``drain``, ``worker``, ``wait``, ``status``, and the quarantine: from a write to its consequences."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

if TYPE_CHECKING:
    from tests.cli.conftest import Project


def read_line(process: subprocess.Popen[str], word: str) -> str:
    """The first line on stderr with the word in it."""
    assert process.stderr is not None
    for line in process.stderr:
        if word in line:
            return line
    raise AssertionError(f"no line with {word!r}")


def test_drain_works_everything_off(project: Project) -> None:
    project.put(a="one two", b="three")
    ended = project.ok("drain", "chain")
    rows = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines()}
    assert rows["observer"] == ["ran", "collapsed", "conflicts", "failed", "quarantined", "reads", "sent"]
    assert rows["split"][0] == "2"
    reads, sent = map(int, rows["split"][-2:])
    assert reads > sent > 0
    assert project.ok("get", "words", "sum", "total").out == "3\n"
    again = project.ok("drain", "chain", "--json").json
    assert again["total"]["ran"] == 0
    assert set(again["observers"]) == {"split", "total"}


def test_log_lines_keep_out_of_the_result(project: Project) -> None:
    project.put(a="boom")
    ended = project.run("drain", "chain", "--json")
    assert ended.json["total"]["quarantined"] == 1
    logged = json.loads(ended.err.splitlines()[0])
    assert (logged["level"], logged["row"], logged["observer"]) == ("error", "a", "split")


def test_drain_makes_the_store_and_its_namespace(project: Project) -> None:
    ended = project("drain", "chain", "--url", "embedded:own", store=False)
    assert ended.code == 0
    assert project("tables", "--url", "embedded:own", "--json", store=False).json["namespace"] == "words"


def test_drain_of_some_observers(project: Project) -> None:
    project.put(a="one two", b="boom")
    ended = project.ok("drain", "chain", "--observer", "split", "--json").json
    assert (set(ended["observers"]), ended["total"]["ran"]) == ({"split"}, 1)
    now = project.ok("status", "chain", "--json").json
    found = [(one["name"], one["backlog"] > 0, one["ran"], one["failures"]) for one in now["observers"]]
    assert found == [("split", False, 1, 1), ("total", True, 0, 0)]
    assert project.ok("drain", "chain", "--observer", "total", "--observer", "split").code == 0
    assert project.ok("status", "--json").json["idle"]
    unknown = project("drain", "chain", "--observer", "spit")
    assert unknown.code == 2
    assert "no observer 'spit': it has split, total" in unknown.error


def test_drain_that_takes_too_long(project: Project) -> None:
    project.put(a="slow", b="slow")
    ended = project("drain", "chain", "--timeout", "0.2", "--json")
    assert ended.code == 4
    assert "not idle" in ended.error
    assert ended.json["error"]["exit_code"] == 4


def test_quarantine_from_failure_to_retry(project: Project) -> None:
    project.put(a="boom", b="fine", c="boom")
    ended = project.ok("drain", "chain")
    assert "2 cells put in quarantine: `percolator failed chain` lists them" in ended.err

    listed = project.ok("failed", "chain")
    assert listed.out.count("ValueError: no such word") == 2
    assert "Traceback" not in listed.out
    assert "Traceback" in project.ok("failed", "chain", "--traceback").out
    cells = project.ok("failed", "chain", "--json").json
    assert cells["total"] == 2
    assert sorted(cell["row"]["text"] for cell in cells["failed"]) == ["a", "c"]
    assert project.ok("failed", "chain", "--row", "a", "--json").json["failed"][0]["attempts"] == 1
    assert project.ok("failed", "chain", "--limit", "1").err.startswith("1 cell shown, there are more")

    assert project("wait", "chain", "--fail-on-quarantine").code == 4
    waited = project.ok("wait", "chain", "--json").json
    assert waited["quarantined"] == 2
    drained = project("drain", "chain", "--fail-on-quarantine")
    assert drained.code == 4
    assert drained.error == "words is idle, with 2 cells in quarantine: `percolator failed chain` lists them"
    assert drained.out.startswith("observer")
    error = project("drain", "chain", "--fail-on-quarantine", "--json").json["error"]
    assert (error["exit_code"], error["quarantined"], error["total"]["ran"]) == (4, 2, 0)
    project.ok("drain", "chain", "--fail-on-quarantine", "--observer", "total")

    assert project.ok("retry", "chain", "--observer", "total", "--json").json["retried"] == 0
    assert project.ok("retry", "chain", "--row", "a", "--json").json["retried"] == 1
    assert project.ok("retry", "chain", "--json").json["retried"] == 1
    assert project.ok("failed", "chain").out == "no cell is in quarantine\n"
    project.put(a="now fine", c="now fine")
    project.ok("drain", "chain", "--fail-on-quarantine")
    assert project.ok("get", "words", "sum", "total").out == "5\n"


def test_discard_asks_first(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.put(a="boom", b="fine", c="boom", d="boom")
    project.ok("drain", "chain")
    refused = project("discard", "chain")
    assert refused.code == 2
    assert refused.error == (
        "Invalid value: this discards 3 cells in quarantine, which `percolator failed chain` lists: "
        "add --yes to confirm"
    )
    assert project("discard", "chain", "--json").code == 2
    assert project("discard", "chain", "--observer", "nobody", "--yes").code == 2
    assert project.ok("discard", "chain", "--observer", "total", "--json").json["discarded"] == 0

    asked: list[str] = []

    def answers(answer: str) -> None:
        monkeypatch.setattr("percolator_core.cli.quarantine._is_a_terminal", lambda: True)

        def ask(console: Console, question: str) -> str:
            asked.append(question)
            if answer == "Ctrl-C":
                raise KeyboardInterrupt
            return answer

        monkeypatch.setattr(Console, "input", ask)

    for answer in ("", "n", "what"):
        answers(answer)
        assert project.ok("discard", "chain").out == "0 cells discarded\n"
    answers("Ctrl-C")
    assert project("discard", "chain").code == 130
    assert asked == ["Discard 3 cells in quarantine? [y/N] "] * 4
    answers("Y")
    ended = project.ok("discard", "chain", "--row", "a")
    assert ended.out == "1 cell discarded; the next change is observed\n"
    assert asked[-1] == "Discard 1 cell in quarantine? [y/N] "
    assert project.ok("discard", "chain", "--observer", "split", "--yes", "--json").json == {
        "chain": "words",
        "discarded": 2,
    }
    assert len(asked) == 5
    assert project.ok("discard", "chain", "--yes").out == "0 cells discarded\n"
    assert project.ok("failed", "chain").out == "no cell is in quarantine\n"
    project.ok("drain", "chain")
    assert project.ok("get", "words", "sum", "total").out == "1\n"
    project.put(a="now fine")
    project.ok("drain", "chain")
    assert project.ok("get", "words", "sum", "total").out == "3\n"


def test_discard_leaves_what_fails_after_the_question(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.put(a="boom", b="boom")
    project.ok("drain", "chain")

    def meanwhile(*_: object) -> str:
        project.ok("retry", "chain", "--row", "a")
        project.ok("drain", "chain")
        return "y"

    monkeypatch.setattr("percolator_core.cli.quarantine._is_a_terminal", lambda: True)
    monkeypatch.setattr(Console, "input", meanwhile)
    assert project.ok("discard", "chain").out.startswith("1 cell discarded")
    assert [cell["row"]["text"] for cell in project.ok("failed", "chain", "--json").json["failed"]] == ["a"]


def test_failed_before_anything_ran(project: Project) -> None:
    unknown = project("failed", "chain")
    assert unknown.code == 2
    assert f"has no namespace '{project.namespace}'" in unknown.error
    project.put()
    assert project.ok("failed", "chain", "--json").json == {"chain": "words", "total": 0, "failed": []}
    assert project.ok("retry", "chain", "--json").json["retried"] == 0


def test_status_of_a_chain_from_nothing_to_idle(project: Project) -> None:
    with project.connect() as db:
        db.create_table("docs", tablets=4)
    before = project.ok("status", "chain", "--json").json
    assert [(one["name"], one["active"]) for one in before["observers"]] == [
        ("split", False),
        ("total", False),
    ]
    project.put(a="one", b="boom")
    now = project.ok("status", "--json").json
    assert {one["name"]: one["rows"] for one in now["tables"]} == {"docs": 2, "words": 0}
    split = now["observers"][0]
    assert (split["name"], split["backlog"], split["failed"], split["active"]) == ("split", 2, 0, True)
    assert split["oldest"] >= 0
    assert not now["idle"]
    assert "2 cells to observe" in project.ok("status", "chain").out
    project.ok("drain", "chain")
    after = project.ok("status", "chain", "--json").json
    assert after["idle"]
    assert (after["backlog"], after["failed"], after["locks"]) == (0, 1, 0)
    assert "idle, 1 in quarantine" in project.ok("status").out


def test_wait_gives_up(project: Project) -> None:
    project.put(a="one")
    ended = project("wait", "chain", "--timeout", "0.1", "--json")
    assert ended.code == 4
    assert ended.json["error"]["backlog"] == {"split": 1, "total": 0}
    assert "no worker is running: start one with `percolator worker chain`" in ended.err


def test_a_worker_works_until_sigterm(project: Project) -> None:
    process = project.start("worker", "chain")
    try:
        assert "worker started" in read_line(process, "worker started")
        project.put(a="one two", b="boom")
        assert "observer failed for the last time" in read_line(process, "quarantine")
        assert project.run("wait", "chain", "--timeout", "20").code == 0
        assert project.ok("status", "--json").json["workers"][0]["where"].startswith("process ")
    finally:
        ended = project.stop(process)
    assert ended.code == 0, ended.err
    assert "worker stopped" in ended.err
    assert "split" in ended.out
    assert project.ok("get", "words", "sum", "total").out == "2\n"
    assert project.ok("status", "--json").json["workers"] == []


def test_a_worker_finishes_what_it_has_begun(project: Project) -> None:
    project.put(a="held")
    ended = project.stop_in_a_run(project.start("worker", "chain", "--json"))
    assert ended.code == 0, ended.err
    assert ended.json["observers"]["split"]["ran"] == 1
    for line in ended.err.splitlines():
        assert json.loads(line)["event"]


@pytest.mark.parametrize("command", ["worker", "drain"])
def test_ctrl_c_loses_nothing(project: Project, command: str) -> None:
    project.put(**{f"row{number}": "held" for number in range(3)})
    ended = project.stop_in_a_run(project.start(command, "chain", "--width", "1"), signal.SIGINT)
    assert ended.code == 130, ended.err
    assert f"interrupted; nothing is lost: `percolator {command} chain` continues" in ended.err
    assert "Traceback" not in ended.err
    assert project.ok("status", "--json").json["backlog"] > 0
    project.ok("drain", "chain")
    assert project.ok("get", "words", "sum", "total").out == "3\n"


def test_another_chain_is_refused_while_a_worker_runs(project: Project) -> None:
    project.put()
    process = project.start("worker", "chain")
    try:
        read_line(process, "worker started")
        until = time.monotonic() + 20
        while project.ok("status", "--json").json["workers"] == [] and time.monotonic() < until:
            time.sleep(0.05)
        (project.folder / "chain/total.yaml").unlink()
        ended = project("drain", "chain")
    finally:
        project.stop(process)
    assert ended.code == 2
    assert "a worker with another set of observers is running" in ended.error
