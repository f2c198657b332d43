"""``worker --processes``: several workers behind one command, which answers for them all."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from percolator_core import Chain
from percolator_core.cli.worker import parse_processes
from percolator_core.runtime.process import usable_cores
from tests.chains import dirty_of
from tests.cli.conftest import ROOT, Ended, Project
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Command:
    """A ``worker --json`` in a process group of its own, as a terminal makes one, with its log at hand."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self.project = project
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "percolator_core", "worker", "chain", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **project.environment(), "PYTHONPATH": str(ROOT)},
            cwd=project.folder,
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of that event. Every line but the error and the note is JSON."""
        parsed = [json.loads(line) for line in list(self.lines) if not line.startswith("error: ")]
        return [line for line in parsed if event in line["event"]]

    def await_line(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        until(
            lambda: len(self.logged(event)) >= count or self.process.poll() is not None,
            f"no {count} lines with {event!r}",
        )
        found = self.logged(event)
        assert len(found) >= count, self.lines
        return found

    def await_workers(self, count: int = 2) -> list[int]:
        return [line["process"] for line in self.await_line("worker started", count)]

    def await_handler(self, number: signal.Signals) -> None:
        """Wait until the command handles a signal: it would end by the signal before."""

        def handles() -> bool:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            [caught] = [line for line in status.splitlines() if line.startswith("SigCgt:")]
            return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

        until(handles, f"signal {number} is not handled")

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> Ended:
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return Ended(code, out, "".join(self.lines))

    def close(self) -> None:
        self.process.kill()
        self.end()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def start(project: Project) -> Iterator[Callable[..., Command]]:
    made: list[Command] = []

    def begin(*arguments: str, where: Project = project) -> Command:
        made.append(Command(where, "--processes", "2", *arguments))
        return made[-1]

    yield begin
    for command in made:
        command.close()


def lives(pid: int) -> bool:
    """Whether the process runs. One that has ended and that nobody has asked for is no process any more."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def await_file(project: Project, name: str) -> None:
    until((project.folder / name).exists, f"{name} was not made")


def test_workers_of_one_command(project: Project, start: Callable[..., Command], tmp_path: Path) -> None:
    own = replace(project, url=f"embedded:{tmp_path}/own")
    own.put(a="one two", b="three", c="boom")
    command = start(where=own)
    pids = command.await_workers()
    command.await_line("quarantine")
    own.ok("wait", "chain", "--timeout", "60")

    def shown() -> set[int]:
        return {int(one["where"].split()[1]) for one in own.ok("status", "--json").json["workers"]}

    until(lambda: shown() == set(pids), "status does not show both")
    for pid in pids:
        arguments = Path(f"/proc/{pid}/cmdline").read_text()
        assert "percolator_core.crew" in arguments
        assert str(tmp_path) not in arguments  # nor a password in it
    server = int((tmp_path / "own" / "redis.pid").read_text())
    assert lives(server)
    command.process.send_signal(signal.SIGTERM)
    ended = command.end()
    assert ended.code == 0, ended.err
    assert not lives(server)

    found = ended.json
    assert set(found) == {"seconds", "observers", "total", "processes"}
    assert found["observers"]["split"]["ran"] == 2
    assert found["total"]["quarantined"] == 1
    assert {one["process"] for one in found["processes"]} == set(pids)
    assert {one["ending"] for one in found["processes"]} == {"exit code 0"}
    for name in ("ran", "failed", "collapsed", "conflicts", "quarantined"):
        assert found["total"][name] == sum(one["total"][name] for one in found["processes"])
    (failed,) = command.logged("quarantine")
    assert (failed["level"], failed["row"], failed["observer"]) == ("error", "c", "split")
    assert failed["process"] in pids
    assert own.ok("get", "words", "sum", "total").out == "3\n"


def test_runs_under_way_are_finished(project: Project, start: Callable[..., Command]) -> None:
    project.put(a="held")
    command = start()
    await_file(project, "begun")
    command.process.send_signal(signal.SIGTERM)
    command.await_line("worker stopped")  # the one that held nothing
    assert command.process.poll() is None
    (project.folder / "go").touch()
    ended = command.end()
    assert ended.code == 0, ended.err
    assert ended.json["observers"]["split"]["ran"] == 1
    assert project.ok("status", "--json").json["workers"] == []


def test_ctrl_c_finishes_the_runs_too(project: Project, start: Callable[..., Command]) -> None:
    project.put(a="held")
    command = start()
    command.await_workers()
    await_file(project, "begun")
    command.interrupt()
    command.await_line("worker stopped")
    (project.folder / "go").touch()
    ended = command.end()
    assert ended.code == 130, ended.err
    assert ended.error == "interrupted; nothing is lost: `percolator worker chain` continues"
    assert "Traceback" not in ended.err
    assert "KeyboardInterrupt" not in ended.err
    assert len(command.logged("worker stopped")) == 2
    assert project.ok("drain", "chain", "--json").json["observers"]["split"]["ran"] == 0


def test_a_second_ctrl_c_does_not_wait(project: Project, start: Callable[..., Command]) -> None:
    project.put(a="held")
    command = start()
    await_file(project, "begun")
    command.interrupt()
    command.await_line("worker stopped")
    command.interrupt()
    ended = command.end()
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    assert "killed" not in ended.err
    (project.folder / "go").touch()
    # Given back: nobody has to wait for a lease to end.
    assert project.ok("drain", "chain", "--timeout", "8", "--json").json["observers"]["split"]["ran"] == 1


def test_ctrl_c_while_the_processes_start(project: Project, start: Callable[..., Command]) -> None:
    command = start()
    command.await_line("workers started")
    command.interrupt()
    ended = command.end()
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err
    assert "died" not in ended.err


def test_who_is_killed_is_replaced(project: Project, start: Callable[..., Command]) -> None:
    command = start()
    victim, other = command.await_workers()
    os.kill(victim, signal.SIGKILL)
    (line,) = command.await_line("replaced")
    assert (line["level"], line["process"], line["ending"]) == ("warning", victim, "SIGKILL")
    *_, newcomer = command.await_workers(3)
    project.put(a="one two")
    project.ok("wait", "chain", "--timeout", "60")
    command.process.send_signal(signal.SIGTERM)
    ended = command.end()
    assert ended.code == 0, ended.err
    endings = {one["process"]: one["ending"] for one in ended.json["processes"]}
    assert endings == {victim: "SIGKILL", other: "exit code 0", newcomer: "exit code 0"}
    assert ended.json["observers"]["split"]["ran"] == 1


def test_without_its_parent_a_worker_finishes_and_ends(
    project: Project, start: Callable[..., Command], tmp_path: Path
) -> None:
    own = replace(project, url=f"embedded:{tmp_path}/own")
    own.put(a="held")
    command = start(where=own)
    pids = command.await_workers()
    await_file(project, "begun")
    server = int((tmp_path / "own" / "redis.pid").read_text())
    command.process.kill()
    until(lambda: sum(map(lives, pids)) == 1, "the worker that held nothing lives on")
    (project.folder / "go").touch()
    until(lambda: not any(map(lives, pids)), "a worker lives on")
    until(lambda: not lives(server), "the server lives on")
    assert own.ok("history", "words", "a", "count", "--json").json["versions"]


def test_a_mistake_in_the_chain_is_told_once(project: Project, start: Callable[..., Command]) -> None:
    split = project.folder / "chain" / "split.yaml"
    right = split.read_text()
    split.write_text(right.replace("cli_steps:split", "cli_steps:splt"))
    ended = start().end()
    assert ended.code == 2
    assert "splt" in ended.error
    assert ended.json["error"]["kind"] == "ConfigurationError"
    split.write_text(right.replace("docs.text", "dogs.text"))
    declared = project("worker", "chain", "--processes", "2")
    assert declared.code == 2
    assert "'dogs' is not declared" in declared.error


def test_the_line_on_a_terminal_sums_up(project: Project) -> None:
    project.put(**{f"row{number}": "one" for number in range(12)})
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "percolator_core", "worker", "chain", "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
        env={
            **os.environ,
            **project.environment(),
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm",
            "COLUMNS": "120",
        },
        cwd=project.folder,
    )
    os.close(follower)
    shown = b""
    try:
        # 12 runs of split, and 1 to 12 of total.
        while not re.search(rb"words: (1[3-9]|2\d) ran \(", shown):
            shown += os.read(leader, 4096)
        process.send_signal(signal.SIGTERM)
        threading.Thread(target=_read_on, args=(leader,), daemon=True).start()
        out, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["split"][0] == "12"
    assert re.search(rb"worker started.*process", shown)


def _read_on(terminal: int) -> None:
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        pass  # the other end is closed
    os.close(terminal)


@pytest.mark.parametrize("number", ["0", "-1", "two", "1.5", ""])
def test_what_is_no_number_of_processes(project: Project, number: str) -> None:
    ended = project("worker", "chain", f"--processes={number}")
    assert ended.code == 2
    assert "is not a number of processes: write 1 or more, or auto" in ended.error


def ask(url: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def number_of(metrics: str, name: str, observer: str = "") -> float:
    (line,) = [
        line
        for line in metrics.splitlines()
        if line.startswith(f"{name}{{") and (f'observer="{observer}"' in line or not observer)
    ]
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("processes", [1, 2])
def test_health_and_metrics(
    project: Project, start: Callable[..., Command], tmp_path: Path, processes: int
) -> None:
    own = replace(project, url=f"embedded:{tmp_path}/own")
    with (project.folder / "chain" / "split.yaml").open("a") as file:
        file.write("executor: threads\n")  # the one that is held must not hold up the others
    own.put(a="one two", b="three", c="boom", d="held")
    command = start("--http", "0", f"--processes={processes}", where=own)
    (line,) = command.await_line("serving health and metrics")
    url = line["url"]
    assert url.startswith("http://127.0.0.1:")
    until(lambda: ask(url, "/readyz")[0] == 200, "it is never ready")
    assert ask(url, "/healthz")[0] == 200
    for counter, count in (("percolator_runs_total", 2), ("percolator_quarantined_total", 1)):
        until(
            lambda: number_of(ask(url, "/metrics")[1], counter, "split") == count,  # noqa: B023 - at once
            f"{counter} is not {count}",
        )
    metrics = ask(url, "/metrics")[1]
    assert number_of(metrics, "percolator_processes") == processes
    assert number_of(metrics, "percolator_store_up") == 1
    taken = own("worker", "chain", "--http", url.rpartition(":")[2], "--json")
    assert taken.code == 2
    assert taken.error.startswith(f"cannot listen on {url.removeprefix('http://')}: Address already in use;")

    command.process.send_signal(signal.SIGTERM)
    until(lambda: ask(url, "/readyz")[0] == 503, "it is ready although it stops")
    assert json.loads(ask(url, "/readyz")[1])["why"] == "the worker is stopping"
    assert ask(url, "/healthz")[0] == 200
    (project.folder / "go").touch()
    server = int((tmp_path / "own" / "redis.pid").read_text())
    ended = command.end()
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    assert not lives(server)


@pytest.mark.parametrize("place", ["", "here", "99999", ":80"])
def test_what_is_no_place_to_listen(project: Project, place: str) -> None:
    ended = project("worker", "chain", "--http", place)
    assert ended.code == 2
    assert "is no address to listen on: write PORT or HOST:PORT" in ended.error


STUCK = """\
import pathlib, time
from percolator_core import Worker

Worker.stop.__defaults__ = (0.3,)

def split(t, cell):
    pathlib.Path("begun").touch()
    if not pathlib.Path("go").exists():
        time.sleep(60)

def total(t, cell):
    pass
"""


@pytest.mark.parametrize(("processes", "number", "code"), [(1, "TERM", 0), (1, "INT", 130), (2, "TERM", 0)])
def test_a_run_that_takes_too_long_is_given_back(
    project: Project, start: Callable[..., Command], processes: int, number: str, code: int
) -> None:
    (project.folder / "cli_steps.py").write_text(STUCK)
    with (project.folder / "chain" / "split.yaml").open("a") as file:
        file.write("executor: threads\n")
    project.put(a="held")
    command = start(f"--processes={processes}")
    await_file(project, "begun")
    command.process.send_signal(signal.Signals[f"SIG{number}"])
    told = time.monotonic()
    ended = command.end()
    assert ended.code == code, ended.err
    assert time.monotonic() - told < 30  # the thread would take 60
    assert "Traceback" not in ended.err
    assert command.logged("worker stopped")
    assert [line["runs"] for line in command.logged("were given back")] == [1]
    assert command.logged("killed") == []
    found = ended.json
    if code == 0:
        assert found["total"]["ran"] == 0
    else:
        assert found["error"]["exit_code"] == 130
    # Given back: nobody has to wait for the lease to end.
    with project.connect() as db:
        (lease,), _ = dirty_of(db, Chain.load("chain", import_functions=False)).claim(1)
    assert lease.row == b"a"


def test_settings_reach_the_processes(project: Project, start: Callable[..., Command]) -> None:
    (project.folder / "cli_steps.py").write_text(TELLING)
    command = start("--strategy=partitioned", "--rolling", "--cpus=3", "--log-level=debug")
    command.await_workers()
    for told in command.await_line("made with", 2):
        assert "RunTimes.take" in told["settings"].pop("listener")
        assert told["settings"] == {"strategy": "partitioned", "rolling": True, "cpus": 3, **WIDE}
    assert {line["level"] for line in command.logged("for whoever looks")} == {"debug"}
    command.process.send_signal(signal.SIGTERM)
    assert command.end().code == 0
    quiet = start("--log-level=warning", "--processes=1", "--strategy=partitioned")
    quiet.await_line("made with")
    quiet.await_handler(signal.SIGTERM)
    assert {line["level"] for line in quiet.logged("")} == {"warning"}
    quiet.process.send_signal(signal.SIGTERM)
    assert quiet.end().code == 0


WIDE = {"threads": 8, "width": 256}
TELLING = """\
from percolator_core import Worker
from percolator_core.runtime.log import Log

def tell(self, *args, made=Worker.__init__, **settings):
    Log("test").warning("made with", settings=settings)
    Log("test").debug("for whoever looks")
    made(self, *args, **settings)

Worker.__init__ = tell

def split(t, cell):
    pass

total = split
"""


def test_auto_is_one_a_core() -> None:
    assert parse_processes("auto") == usable_cores() >= 1
    assert parse_processes("3") == 3
    with pytest.raises(typer.BadParameter):
        parse_processes("many")
