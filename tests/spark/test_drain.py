"""Draining with Spark: on threads, on executors of their own, with tasks that die, and interrupted."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from percolator_core import Chain, ConfigurationError, Database, PercolatorError, connect
from percolator_core.admin.status import backlog, status
from percolator_core.cli.app import app
from percolator_core.spark import DrainProgress, NotIdle, drain
from percolator_core.spark.drainer import DrainTask
from percolator_core.spark.java import is_on_this_machine
from percolator_core.spark.project import Project as Sent
from percolator_core.spark.project import imported_names, shares_files
from percolator_core.worker import Counts
from tests.servers.plain import PATIENCE
from tests.spark.gate import eventually, runs

if TYPE_CHECKING:
    from pyspark import SparkContext

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "chain/chain.yaml": """\
version: 1
chain: adding
tables:
  docs: {tablets: 4}
  sums: {tablets: 2}
""",
    "chain/first.yaml": """\
version: 1
observer: first
observe: docs.text
function: drain_steps.adding:first
writes: [docs.seen, sums.first]
retry: {attempts: 2, backoff: 10ms}
""",
    "chain/second.yaml": """\
version: 1
observer: second
observe: docs.seen
function: drain_steps.adding:second
writes: [sums.second]
""",
    "drain_steps/adding.py": """\
import os
import pathlib
import time

import drain_shared


def first(t, cell):
    text = t.get(cell.table, cell.row, cell.column).decode()
    word, _, folder = text.partition(" ")
    if word == "boom":
        raise ValueError("no such word")
    if word == "die" or (word == "once" and first_time(folder)):
        os._exit(1)
    if word == "slow":
        time.sleep(0.02)
    if word == "held":
        pathlib.Path(folder, "begun").write_text(str(os.getpid()))
        time.sleep(30)
    if word in ("where", "both"):
        pathlib.Path(folder, str(os.getpid())).write_text(__file__)
        time.sleep(0.01)
    while word == "both" and len(os.listdir(folder)) < 2:
        time.sleep(0.01)
    t.set(cell.table, cell.row, "seen", b"yes")
    add(t, cell, "first")


def second(t, cell):
    add(t, cell, "second")


def add(t, cell, column):
    shard = b"%d" % (cell.row[-1] % 8)
    t.set("sums", shard, column, b"%d" % (int(t.get("sums", shard, column) or 0) + drain_shared.STEP))


def first_time(folder):
    try:
        pathlib.Path(folder, "died").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
""",
    "drain_shared.py": "STEP = 1\n",
}
"""Counting is no idempotent step: a run lost or doubled would show in the sums."""


@dataclass
class Project:
    folder: Path
    db: Database
    url: str
    spark: SparkContext | None

    def put(self, count: int, text: str = "plain", prefix: str = "row") -> None:
        Chain.load("chain").create_tables(self.db)
        with self.db.transaction() as t:
            for number in range(count):
                t.set("docs", f"{prefix}-{number}", "text", text.encode())

    def drain(self, **arguments: Any) -> Counts:
        return drain(self.url, "chain", self.spark, namespace=self.db.namespace, **arguments)

    def sums(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for _, cells in self.db.snapshot().scan("sums"):
            found.update({column: int(value) for column, value in cells.items()})
        return dict(found)

    def cli(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        store = ["--url", self.url, "--namespace", self.db.namespace]
        result = CliRunner().invoke(app, ["drain", "chain", "--spark", "--json", *arguments, *store])
        return result.exit_code, json.loads(result.stdout)


def made(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def project(
    spark: SparkContext, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    monkeypatch.chdir(made(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with connect(url, uuid4().hex) as db:
        yield Project(tmp_path, db, url, spark)
    for name in [name for name in sys.modules if name.startswith("drain_s")]:
        del sys.modules[name]


@pytest.mark.spark
def test_a_chain_is_drained_and_counted(project: Project) -> None:
    project.put(200)
    project.put(1, "boom", "bad")
    seen: list[DrainProgress] = []
    counts = project.drain(progress=seen.append)
    assert project.sums() == {"first": 200, "second": 200}
    first, second = counts.observers["first"], counts.observers["second"]
    assert (first.ran, first.failed, first.quarantined, second.ran) == (200, 2, 1, 200)
    assert counts.seconds > 0
    assert seen
    assert seen[0].left > 0
    code, printed = project.cli("--tasks", "1", "--budget", "10m")
    assert (code, printed["total"]["ran"], set(printed["observers"])) == (0, 0, {"first", "second"})


@pytest.mark.spark
def test_some_observers_are_drained_and_the_others_are_left(project: Project) -> None:
    project.put(50)
    seen: list[DrainProgress] = []
    counts = project.drain(observers=["first"], progress=seen.append)
    assert {name: one.ran for name, one in counts.observers.items()} == {"first": 50}
    assert project.sums() == {"first": 50}
    assert backlog(project.db, Chain.load("chain")) == {"first": 0, "second": 50}
    assert seen[-1].left <= 50
    code, printed = project.cli("--observer", "second", "--tasks", "1")
    assert (code, printed["total"]["ran"], set(printed["observers"])) == (0, 50, {"second"})
    code, printed = project.cli("--observer", "third")
    assert (code, "no observer 'third': it has first, second" in printed["error"]["message"]) == (2, True)


@pytest.mark.spark
def test_changed_code_is_what_runs(project: Project) -> None:
    """Spark keeps its Python processes, and these keep modules."""
    project.put(3)
    project.drain()
    (project.folder / "drain_shared.py").write_text("STEP = 100\n")
    project.put(3)
    project.drain()
    assert project.sums() == {"first": 303, "second": 303}


@pytest.mark.spark
def test_a_task_that_dies_is_run_again(project: Project) -> None:
    project.put(100)
    project.put(1, f"once {project.folder}", "killer")
    counts = project.drain(tasks=2)
    assert (project.folder / "died").exists()
    assert project.sums() == {"first": 101, "second": 101}
    assert counts.observers["first"].ran <= 101


@pytest.mark.spark
def test_tasks_that_die_for_good_are_told_in_a_sentence(project: Project) -> None:
    project.put(8, "die")
    with pytest.raises(PercolatorError, match=r"Spark ended the drain: .*worker exited") as caught:
        project.drain(tasks=1, width=1)
    assert "\n" not in str(caught.value)


@pytest.mark.spark
def test_what_no_repetition_mends_is_told_as_it_is(project: Project) -> None:
    chain = Chain.load("chain")
    with (project.folder / "drain_steps" / "adding.py").open("a") as file:
        file.write("open(__file__ + '.tried', 'a').write('x')\nraise RuntimeError('not here')\n")
    with pytest.raises(ConfigurationError, match=r"importing 'drain_steps\.adding' failed: .* not here"):
        drain(project.db, chain, project.spark, tasks=1)
    tried = (project.folder / "drain_steps" / "adding.py.tried").read_text()
    assert len(tried) == len(chain.observers), "Spark repeated it"


@pytest.mark.spark
def test_a_budget_that_is_spent(project: Project) -> None:
    project.put(400, "slow")
    with pytest.raises(NotIdle, match="not idle in the given time") as caught:
        project.drain(budget=1)
    # A run that was broken off in its commit may have committed, and is not counted.
    assert caught.value.counts.observers["first"].ran <= project.sums().get("first", 0) < 400
    code, printed = project.cli("--timeout", "0")
    assert (code, printed["error"]["exit_code"], printed["error"]["total"]["ran"]) == (4, 4, 0)


@pytest.mark.spark
def test_an_interrupted_drain_finishes_its_runs(project: Project) -> None:
    project.put(400, "slow")

    def interrupt() -> None:
        eventually(lambda: project.sums().get("first"))
        os.kill(os.getpid(), signal.SIGTERM)

    with interrupted(interrupt):
        code, printed = project.cli("--width", "8")
        assert (code, printed["error"]["exit_code"]) == (130, 130)
        raise KeyboardInterrupt
    now = status(project.db, Chain.load("chain"))
    assert now.workers == (), "a worker was killed"
    assert 0 < now.observers[0].backlog == 400 - project.sums()["first"]


@pytest.mark.spark
def test_an_interrupted_drain_kills_what_does_not_end(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("percolator_core.spark.drainer._GRACE", 0.1)
    project.put(1, f"held {project.folder}")
    begun = project.folder / "begun"

    def interrupt() -> None:
        eventually(lambda: begun.exists() and begun.read_text())
        os.kill(os.getpid(), signal.SIGINT)

    with interrupted(interrupt):
        project.drain()
    eventually(lambda: not runs(int(begun.read_text())))
    assert project.sums() == {}


class interrupted:  # noqa: N801 - reads like a function
    """An interrupt comes, as Ctrl-C does, and leaves no job of Spark behind."""

    def __init__(self, interrupt: Any) -> None:
        self._thread = threading.Thread(target=interrupt)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        from pyspark import SparkContext

        self._thread.join()
        context = SparkContext._active_spark_context
        assert context is not None
        tracker = context.statusTracker()
        eventually(lambda: not tracker.getActiveJobsIds(), 30)  # it hears of a job's end some time later
        assert kind is KeyboardInterrupt
        return True


DRIVER = """
import json, sys
from percolator_core.spark import drain, spark_context
master, url, namespace, tasks, settings = sys.argv[1:]
context = spark_context(master=master, settings=json.loads(settings), log="spark.log")
counts = drain(url, "chain", namespace=namespace, tasks=int(tasks))
print(json.dumps({name: one.ran for name, one in counts.observers.items()}))
context.stop()
"""


def drive(project: Project, master: str, tasks: int, **settings: str) -> dict[str, int]:
    """Drains with a Spark of its own."""
    dotted = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    arguments = [master, project.url, project.db.namespace, str(tasks), json.dumps(dotted)]
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=150,
        check=False,
    )
    assert ended.returncode == 0, Path("spark.log").read_text()[-3000:]
    ran: dict[str, int] = json.loads(ended.stdout)
    return ran


@pytest.fixture
def apart(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project without the Spark of the other tests."""
    monkeypatch.chdir(made(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with connect(url, uuid4().hex) as db:
        yield Project(tmp_path, db, url, None)
    for name in [name for name in sys.modules if name.startswith("drain_s")]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.spark
def test_executors_of_their_own(apart: Project) -> None:
    """They share no folder with the driver, and import from the archive."""
    places = apart.folder / "places"
    places.mkdir()
    apart.put(50, f"where {places}")
    assert drive(apart, "local-cluster[2,1,1024]", tasks=4) == {"first": 50, "second": 50}
    assert apart.sums() == {"first": 50, "second": 50}
    files = [Path(path.read_text()) for path in places.iterdir()]
    assert files
    assert not any(path.is_relative_to(apart.folder / "drain_steps") for path in files)


def spark_class(folder: Path, name: str, host: str, *arguments: str) -> subprocess.Popen[str]:
    """A master or a worker of Spark, with its messages in a file."""
    from pyspark.find_spark_home import _find_spark_home

    command = [str(Path(_find_spark_home()) / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    with (folder / f"{name}.log").open("a") as log:
        return subprocess.Popen(
            [*command, "--host", host, "--port", "0", "--webui-port", "0", *arguments],
            cwd=folder,
            env=os.environ | {"SPARK_LOCAL_IP": host},
            stdout=log,
            stderr=log,
            text=True,
        )


@pytest.mark.slow
@pytest.mark.spark
def test_a_standalone_master_and_a_speculative_task(apart: Project) -> None:
    """Both copies of the only task work, each on a host of its own; the one that ends later is killed."""
    places = apart.folder / "places"
    places.mkdir()
    apart.put(200, f"both {places}")
    log = apart.folder / "master.Master.log"
    processes = [spark_class(apart.folder, "master.Master", "127.0.0.1")]
    try:
        eventually(lambda: "Starting Spark master at " in log.read_text())
        master = log.read_text().partition("Starting Spark master at ")[2].split()[0]
        assert master.startswith("spark://127.0.0.1:")
        for host in "127.0.0.1", "127.0.0.2":
            where = ["--work-dir", str(apart.folder / host), "--cores", "1", "--memory", "1g", master]
            processes.append(spark_class(apart.folder, "worker.Worker", host, *where))
        ran = drive(
            apart,
            master,
            tasks=1,
            speculation="true",
            speculation_interval="50ms",
            speculation_minTaskRuntime="50ms",
            speculation_task_duration_threshold="100ms",
        )
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(PATIENCE)
    assert apart.sums() == {"first": 200, "second": 200}
    assert len(list(places.iterdir())) == 2
    assert 0 < ran["first"] < 200


def test_what_travels(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "drain_shared.py").write_text("def f():\n    import lazily, json, missing, venv_here\n")
    (tmp_path / "lazily" / "deep").mkdir(parents=True)
    (tmp_path / "lazily" / "deep" / "one.py").write_text("from . import two\nimport drain_shared\nnot python")
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "data.py").touch()
    (tmp_path / "missing").mkdir()
    (tmp_path / "venv_here").mkdir()
    (tmp_path / "venv_here" / "pyvenv.cfg").touch()
    (tmp_path / "venv_here" / "x.py").touch()
    (tmp_path / "unused.py").touch()
    assert imported_names(tmp_path, ["drain_steps.adding:first"]) == ("drain_shared", "drain_steps", "lazily")
    assert imported_names(tmp_path, ["installed.elsewhere:f"]) == ()


class Elsewhere:
    """A Spark whose executors share no files with the driver, as far as the project asks it."""

    master = "spark://10.0.0.1:7077"

    def broadcast(self, archive: bytes) -> bytes:
        return archive


def test_views_travel_with_their_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "drain_views.py").write_text(
        "from percolator_core import view_function\n\n"
        "@view_function()\ndef twice(n: int) -> int:\n    return 2 * n\n"
    )
    (tmp_path / "drain_models.py").write_text(
        "from percolator_core import PrimaryKey, Table\n\n"
        "class Item(Table, name='items'):\n    id: PrimaryKey[int]\n    n: int = 0\n"
    )
    (tmp_path / "chain" / "views").mkdir()
    (tmp_path / "chain" / "views" / "doubled.sql").write_text(
        "CREATE VIEW doubled AS SELECT id, twice(n) AS n FROM items"
    )
    file = tmp_path / "chain" / "chain.yaml"
    file.write_text(f"{file.read_text()}schemas: drain_models\nviews: drain_views\n")
    try:
        project = Sent.of(Chain.load("chain"), tmp_path, Elsewhere())  # type: ignore[arg-type]
    finally:
        for name in [name for name in sys.modules if name.startswith("drain_")]:
            del sys.modules[name]
    with zipfile.ZipFile(io.BytesIO(project.archive)) as archive:  # type: ignore[arg-type]
        assert {"code/drain_views.py", "chain/views/doubled.sql"} <= set(archive.namelist())


def test_schemas_travel_that_no_observer_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "drain_models").mkdir()
    (tmp_path / "drain_models" / "shop.py").write_text(
        "import drain_money\nfrom percolator_core import PrimaryKey, Table\n"
        "class Item(Table, name='items'):\n    number: PrimaryKey[int]\n"
    )
    (tmp_path / "drain_money.py").touch()
    file = tmp_path / "chain" / "chain.yaml"
    file.write_text(f"{file.read_text()}schemas: drain_models.shop\n")
    try:
        project = Sent.of(Chain.load("chain"), tmp_path, Elsewhere())  # type: ignore[arg-type]
    finally:
        for name in [name for name in sys.modules if name.startswith("drain_")]:
            del sys.modules[name]
    assert project.names == ("drain_models", "drain_money", "drain_shared", "drain_steps")
    with zipfile.ZipFile(io.BytesIO(project.archive)) as archive:  # type: ignore[arg-type]
        assert {"code/drain_models/shop.py", "code/drain_money.py"} <= set(archive.namelist())


@pytest.mark.parametrize(
    ("master", "here", "shared"),
    [
        ("local", True, True),
        ("local[2,4]", True, True),
        ("local-cluster[2,1,1024]", True, False),
        ("spark://127.0.0.1:7077", True, False),
        ("spark://localhost:7077", True, False),
        ("spark://127.0.0.1.example.org:7077", False, False),
        ("spark://10.0.0.1:7077", False, False),
        ("yarn", False, False),
    ],
)
def test_masters(master: str, here: bool, shared: bool) -> None:
    assert (is_on_this_machine(master), shares_files(master)) == (here, shared)


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    for wrong in ({"tasks": 0}, {"width": 0}, {"threads": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            drain("embedded:x", "chain", **wrong)  # type: ignore[arg-type]
    result = CliRunner().invoke(app, ["drain", "chain", "--tasks", "2"])
    assert (result.exit_code, "need --spark" in result.stderr) == (2, True)
    result = CliRunner().invoke(app, ["drain", "chain", "--timeout", "2", "--budget", "1m"])
    assert (result.exit_code, "give only one" in result.stderr) == (2, True)


def task_of(db: Database, **settings: Any) -> DrainTask:
    nothing: dict[str, Any] = dict.fromkeys(("project", "counts", "tasks", "width", "threads", "driver"))
    known = {"connect": db.connect_arguments(), "tablets": 8, "host": socket.gethostname()}
    return DrainTask(**nothing | known | settings)


def test_every_tablet_is_looked_after_by_one_task(url: str) -> None:
    with connect(url, "n") as db:
        for tasks in 1, 3, 8, 11:
            task = task_of(db, tasks=tasks)
            assert sorted(one for number in range(tasks) for one in task.own(number)) == list(range(8))


def test_an_embedded_store_is_on_one_machine(url: str) -> None:
    """Elsewhere a task would start a store of its own in a folder of that name."""
    with connect(url, "n") as db:
        (end,) = task_of(db, host="elsewhere")(0, [0])
    assert end.ending == "refused"
    assert "embedded on elsewhere" in end.reason


def test_what_spark_took_along_need_not_be_taken_back() -> None:
    """Spark may end by itself; that must not hide why."""
    from py4j.protocol import Py4JError

    class Archive:
        def destroy(self) -> None:
            raise Py4JError("SparkEnv.get() is null")

    archive: Any = Archive()
    Sent("code", "chain", (), "digest", archive).leave()
