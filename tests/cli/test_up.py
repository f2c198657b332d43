"""``up``: store, workers and Airflow for a project, and all of them gone when it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from typer.testing import CliRunner

from percolator_core import ConfigurationError, connect
from percolator_core.cli import airflow_home
from percolator_core.cli.airflow_home import connection, environment
from percolator_core.cli.app import app
from percolator_core.cli.init import write_project
from percolator_core.cli.sessions import Child, await_end
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]

FAKE = """\
#!{python}
import http.server, json, os, pathlib, signal, subprocess, sys, time

home = pathlib.Path(os.environ["AIRFLOW_HOME"])
part = sys.argv[1]
if (home / f"break-{{part}}").exists():
    sys.exit(f"error: the {{part}} is broken")
if part == "db":
    (home / "airflow.db").touch()
    sys.exit()
if part == "scheduler":
    # As a task: it has a process group of its own, and hears of no signal.
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", deaf], process_group=0)
if part != "api-server":
    time.sleep(600)

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        self.wfile.write(json.dumps({{name: {{"status": "healthy"}} for name in parts}}).encode())

    def log_message(self, *_):
        pass

port = int(os.environ["AIRFLOW__API__PORT"])
http.server.ThreadingHTTPServer((os.environ["AIRFLOW__API__HOST"], port), Health).serve_forever()
"""

DRIVER = """\
import pathlib, sys
from percolator_core.cli import airflow_home, main

airflow_home._TASKS_LIMIT = airflow_home._OTHERS_LIMIT = 0.3
if fake := sys.argv.pop(1):
    airflow_home.program = lambda: pathlib.Path(fake)
main()
"""

DAG = """\
from airflow.sdk import BaseHook, dag, task

@dag(schedule=None)
def told():
    @task
    def tell():
        connection = BaseHook.get_connection("percolator_default")
        assert connection.conn_type == "percolator", connection.conn_type
        return connection.host

    tell()

told()
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def get(url: str, path: str, content: Any = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


class Up:
    """``percolator up --json`` of a project, in a process group of its own as a terminal makes one."""

    def __init__(self, project: Path, airflow: str = "", *arguments: str) -> None:
        self.lines: list[str] = []
        environment = {name: text for name, text in os.environ.items() if not name.startswith("PERCOLATOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, airflow, "up", str(project), "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONPATH": f"{ROOT}:{project}"},
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def logged(self, event: str) -> dict[str, Any] | None:
        parsed = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return next((line for line in parsed if line["event"] == event), None)

    def ready(self) -> str:
        until(lambda: self.logged("airflow ready") or self.process.poll() is not None, "".join(self.lines))
        found = self.logged("airflow ready")
        assert found is not None, self.lines
        return str(found["url"])

    def children(self) -> list[psutil.Process]:
        """All that it started, with what those started; a server that is a daemon is none of them."""
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def end(self) -> tuple[int, Any]:
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code, json.loads(out) if out else None

    def close(self) -> None:
        left = self.children() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        for one in left:
            one.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write_project(folder, "words")
    return folder


@pytest.fixture
def airflow(tmp_path: Path) -> str:
    """A program that behaves as Airflow's parts do, and starts at once."""
    program = tmp_path / "airflow"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def start(project: Path) -> Iterator[Callable[..., Up]]:
    made: list[Up] = []

    def begin(airflow: str = "", *arguments: str) -> Up:
        made.append(Up(project, airflow, *arguments))
        return made[-1]

    yield begin
    for one in made:
        one.close()
    for left in running(project):  # of a test that failed
        left.kill()


def running(project: Path) -> list[psutil.Process]:
    """The project's processes: its folder is in their command line, or in their variables."""
    found = []
    for one in psutil.process_iter():
        try:
            words = [*one.cmdline(), *one.environ().values()]
            mine = one.pid != os.getpid() and one.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if mine and any(str(project) in word for word in words):
            found.append(one)
    return found


def refuses(url: str) -> bool:
    place = (url.removeprefix("http://").partition(":")[0], int(url.rpartition(":")[2]))
    with socket.socket() as probe:
        return probe.connect_ex(place) != 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    util.find_spec("airflow") is None, reason="Airflow is not installed: make test installs it"
)
def test_a_project_goes_up_and_down(project: Path, start: Callable[..., Up]) -> None:
    for others in (project / "dags").glob("*.py"):
        others.unlink()
    (project / "dags" / "told.py").write_text(DAG)
    up = start()
    url = up.ready()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
    assert get(url, "/api/v2/monitor/health")["scheduler"]["status"] == "healthy"

    store = f"embedded:{project / '.percolator'}"
    with connect(store, "project") as db, db.transaction() as t:
        t.set("documents", b"a", "text", b"one two")

    # Read, and not paused, without anybody's doing.
    until(lambda: [one["dag_id"] for one in get(url, "/api/v2/dags")["dags"]] == ["told"], "no DAG is read")
    run = get(url, "/api/v2/dags/told/dagRuns", {"logical_date": None})["dag_run_id"]

    # Nothing that it has started can be reached from elsewhere.
    listening = [
        one.laddr.ip
        for child in up.children()
        for one in child.net_connections()
        if one.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]

    second = subprocess.run(
        [sys.executable, "-m", "percolator_core", "up", str(project)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert second.returncode == 1
    (line,) = second.stderr.splitlines()
    assert line == (
        f"error: `percolator up` already runs for {project}: open {url}, or stop it with Ctrl-C in its "
        f"terminal (process {up.process.pid})"
    )

    path = f"/api/v2/dags/told/dagRuns/{run}"
    until(lambda: get(url, path)["state"] == "success", "the DAG's run did not succeed")
    assert get(url, f"{path}/taskInstances/tell/xcomEntries/return_value")["value"] == store
    with connect(store, "project") as db:

        def counted() -> bool:
            with db.transaction() as t:
                return t.get("totals", b"two", "count") is not None

        until(counted, "no worker ran")

    server = int((project / ".percolator" / "redis.pid").read_text())
    started = up.children()
    assert len(started) >= 5
    os.killpg(up.process.pid, signal.SIGINT)
    code, found = up.end()
    assert code == 130, up.lines
    assert found["error"]["message"] == "interrupted; nothing is lost: `percolator up` starts it again"
    assert "Traceback" not in "".join(up.lines)
    # Airflow's processes write their titles over their variables, so that they are looked for one by one.
    assert psutil.wait_procs(started, timeout=5)[1] == []
    assert running(project) == []
    assert not psutil.pid_exists(server) or psutil.Process(server).status() == psutil.STATUS_ZOMBIE
    assert refuses(url)
    assert not (project / ".percolator" / "up" / "state.json").exists()


def test_sigterm_ends_it_in_order(project: Path, airflow: str, start: Callable[..., Up]) -> None:
    up = start(airflow)
    url = up.ready()
    assert not refuses(url)
    up.process.terminate()
    code, found = up.end()
    assert code == 0, up.lines
    assert found["url"] == url
    assert found["chains"] == ["project"]
    events = [json.loads(line)["event"] for line in up.lines]
    assert events == [
        "store ready",
        "worker started",
        "database ready",
        "airflow ready",
        "airflow stopped",
        "workers stopped",
    ]
    assert "worker stopped" in (project / ".percolator/up/worker-project.log").read_text()
    assert running(project) == []
    assert refuses(url)


def test_without_workers_on_a_port_of_choice(project: Path, airflow: str, start: Callable[..., Up]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, found = start(airflow, "--no-worker", "--port", str(port)).end()
    assert code == 2
    assert (
        found["error"]["message"]
        == f"port {port} is in use: name another --port, or leave it out to use a free one"
    )
    up = start(airflow, "--no-worker", "--port", str(port))
    assert up.ready() == f"http://127.0.0.1:{port}"
    assert not list((project / ".percolator/up").glob("worker-*"))
    up.process.terminate()
    assert up.end()[0] == 0


@pytest.mark.parametrize("part", ["db", "triggerer"])
def test_a_part_that_ends_by_itself(project: Path, airflow: str, start: Callable[..., Up], part: str) -> None:
    home = project / ".percolator/airflow"
    home.mkdir(parents=True)
    (home / f"break-{part}").touch()
    code, found = start(airflow, "--no-worker").end()
    assert code == 1
    name = "database" if part == "db" else part
    assert found["error"]["message"].startswith(
        f"{name} ended unexpectedly: error: the {part} is broken; fix"
    )
    assert running(project) == []


def test_a_killed_one_is_cleared_away_by_the_next(
    project: Path, airflow: str, start: Callable[..., Up]
) -> None:
    first = start(airflow)
    url = first.ready()
    first.process.kill()
    first.process.wait()
    assert running(project)
    second = start(airflow)
    second.ready()
    left = second.logged("ending processes of an earlier run")
    assert left is not None
    assert set(left["processes"]) == {*airflow_home.PARTS, "worker-project"}
    assert refuses(url)
    second.process.terminate()
    assert second.end()[0] == 0
    assert running(project) == []


def test_a_session_ends_as_a_whole(tmp_path: Path) -> None:
    # The child ends at once; what it started lives on in a process group of its own.
    script = "import subprocess; print(subprocess.Popen(['sleep', '600'], process_group=0).pid)"
    child = Child.start(
        "one", [sys.executable, "-c", script], tmp_path / "log", env=dict(os.environ), cwd=tmp_path
    )
    assert until(lambda: child.code == 0, "it did not end")
    assert child.lives()
    assert not await_end([child], 0.1)
    grandchild = psutil.Process(int((tmp_path / "log").read_text()))
    child.kill()
    assert not child.lives()
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


def test_what_is_no_process_of_ours_stays(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        assert Child.left_behind("one", other.pid, "1", tmp_path / "log") is None
        assert Child.left_behind("one", other.pid, "", tmp_path / "log") is None
        assert other.poll() is None
        other.kill()


def test_what_cannot_be_started(
    project: Path, tmp_path: Path, airflow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: str) -> str:
        ended = CliRunner().invoke(app, ["up", *arguments], env={"COLUMNS": "200"})
        assert ended.exit_code == 2
        return ended.stderr

    monkeypatch.setattr(airflow_home, "program", lambda: Path(airflow))
    assert "has no chain in NAME/chain.yaml or observers/NAME/chain.yaml: name a project's folder" in refused(
        str(tmp_path)
    )
    (project / "project/count.yaml").write_text("version: 1\nobserver: count\n")
    assert "count.yaml" in refused(str(project))
    monkeypatch.undo()
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert "needs Airflow: pip install 'percolator-core[airflow]'" in refused(str(project))


def test_settings_of_another_airflow_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://production/airflow")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "production")
    monkeypatch.setenv("AIRFLOW_HOME", "/production")
    monkeypatch.setenv("AIRFLOW_VAR_ONE", "1")
    made = environment(tmp_path / "home", tmp_path, "embedded:/state", 1234)
    assert [name for name, text in made.items() if "production" in text] == []
    assert made["AIRFLOW_VAR_ONE"] == "1"
    assert made["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert made["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:1234/execution/"


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("embedded:/a@b/c", {"host": "embedded:/a@b/c"}),
        ("redis://h:1/2", {"host": "redis://h:1/2"}),
        ("redis://me:p%40s@h:1/2", {"host": "redis://h:1/2", "login": "me", "password": "p@s"}),
        ("unix://:s@/run/s?db=1", {"host": "unix:///run/s?db=1", "login": "", "password": "s"}),
        (
            "redis+sentinel://u:p@h1:1,h2:2/service",
            {"host": "redis+sentinel://h1:1,h2:2/service", "login": "u", "password": "p"},
        ),
    ],
)
def test_the_connection_keeps_secrets_out_of_the_url(url: str, fields: dict[str, str]) -> None:
    assert connection(url) == {"conn_type": "percolator", **fields}
    from percolator_airflow.connection import store_connection

    absent = dict.fromkeys(("login", "password", "schema", "port", "extra"))
    given: Any = SimpleNamespace(conn_id="one", **absent | connection(url))
    assert str.__str__(store_connection(given).url) == url


def test_airflow_is_found_or_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="percolator worker"):
        airflow_home.program()
