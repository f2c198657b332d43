"""The operators: their work, their messages, and their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from percolator_core.admin.status import backlog
from tests.airflow.project import CONN_ID, Project, project_with_store, set_connection
from tests.servers.plain import PATIENCE, free_port, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with project_with_store(tmp_path, monkeypatch) as words:
        yield words


def drain(words: Project, **arguments: Any) -> Any:
    from percolator_airflow import DrainOperator

    return DrainOperator(
        **{"task_id": "drain", "chain": words.chain, "conn_id": CONN_ID, "engine": "local", **arguments}
    )


class TestDrain:
    def test_runs_all_observers_and_tells_what_they_did(self, words: Project) -> None:
        here = Path.cwd()
        words.activate()
        words.put("a", "b", "boom")
        done = drain(words).execute({})
        assert {name: done[name] for name in ("ran", "failed", "quarantined", "left")} == {
            "ran": 4,
            "failed": 2,
            "quarantined": 1,
            "left": 0,
        }
        assert done["observers"]["second"]["ran"] == 2
        assert json.loads(json.dumps(done)) == done
        assert words.counted() == 2
        assert Path.cwd() == here
        assert not any(words.module in name for name in sys.modules)
        assert str(words.folder) not in sys.path

    def test_runs_the_named_ones_alone(self, words: Project) -> None:
        words.activate()
        words.put("a", "b")
        assert drain(words, observers=["first"]).execute({})["observers"].keys() == {"first"}
        with words.connect() as db:
            from percolator_airflow.chains import ChainFolder

            assert backlog(db, ChainFolder.of(words.chain).declared) == {"first": 0, "second": 2}

    def test_makes_the_tables_and_starts_no_spark_when_there_is_nothing_to_do(
        self, words: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("Spark was started")

        monkeypatch.setattr("percolator_core.spark.drainer.drain", refuse)
        assert drain(words, engine="spark").execute({})["ran"] == 0
        words.put("a")  # the tables are there, and the observers active
        assert drain(words).execute({})["ran"] == 2

    def test_an_idle_first_try_is_skipped_and_a_repeated_one_is_not(self, words: Project) -> None:
        from airflow.sdk.exceptions import AirflowSkipException

        words.activate()
        tries = [{"ti": SimpleNamespace(try_number=number)} for number in (1, 2)]
        with pytest.raises(AirflowSkipException, match="no cell waits for first, second"):
            drain(words, skip_idle=True).execute(tries[0])
        # The try before it may have run observers and failed at its end: their tables get an event.
        assert drain(words, skip_idle=True).execute(tries[1])["ran"] == 0

    def test_fails_when_its_budget_is_spent_and_the_next_try_carries_on(self, words: Project) -> None:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException

        words.activate()
        words.put("a")
        with pytest.raises(AirflowException, match=r"the budget of 0 s is spent after 0 runs: 1 cells") as e:
            drain(words, budget=0).execute({})
        assert not isinstance(e.value, AirflowFailException)
        assert drain(words).execute({})["ran"] == 2

    def test_a_budget_that_was_just_enough_is_enough(
        self, words: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from percolator_core import Worker

        to_the_end = Worker.run_until_idle

        def late(worker: Worker, timeout: float | None) -> Any:
            to_the_end(worker, timeout)
            raise TimeoutError("not idle in the given time")

        monkeypatch.setattr(Worker, "run_until_idle", late)
        words.activate()
        words.put("a")
        done = drain(words, budget=60).execute({})
        assert (done["ran"], done["left"]) == (2, 0)

    def test_takes_a_relative_folder_from_the_dags(self, words: Project, dags: Any) -> None:
        dags.write("mine/x.py", "")
        (dags.folder / "mine/chain").symlink_to(words.chain)
        dags.write(
            "mine/d.py",
            f"""
from airflow.sdk import DAG
from percolator_airflow import DrainOperator
with DAG("relative", schedule=None):
    DrainOperator(
        task_id="drain", chain="chain", project={str(words.folder)!r}, conn_id="words", engine="local"
    )
""",
        )
        assert dags.run(dags.load()["relative"]) == {"drain": "success"}

    @pytest.mark.spark
    def test_runs_in_spark(self, words: Project) -> None:
        words.activate()
        words.put("a", "b", "c")
        done = drain(words, engine="spark", master="local[2,4]", tasks=2).execute({})
        assert (done["ran"], done["left"]) == (6, 0)
        assert words.counted() == 3


class TestWhatIsWrong:
    """Each fails within seconds with one sentence; an error that a person must correct is not retried."""

    def failure(self, operator: Any, *, final: bool = True, limit: float = 30) -> str:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException

        began = time.monotonic()
        with pytest.raises(AirflowException) as caught:
            operator.execute({})
        assert time.monotonic() - began < limit
        assert isinstance(caught.value, AirflowFailException) == final
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        return str(caught.value)

    def test_connection_that_is_missing(self, words: Project) -> None:
        assert self.failure(drain(words, conn_id="nowhere")) == (
            "there is no connection 'nowhere': add one of the type percolator under Admin, Connections, or "
            "set AIRFLOW_CONN_NOWHERE"
        )

    def test_store_that_does_not_answer(self, words: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        set_connection(monkeypatch, host="127.0.0.1", port=free_port())
        assert "127.0.0.1" in self.failure(drain(words), final=False)

    def test_observer_that_is_not_there(self, words: Project) -> None:
        assert self.failure(drain(words, observers=["frist"])) == (
            "the chain 'words' has no observer 'frist': it has first, second"
        )

    def test_chain_that_does_not_validate(self, words: Project) -> None:
        path = Path(words.chain, "first.yaml")
        path.write_text(path.read_text().replace("docs.text", "dosc.text"))
        assert "dosc" in self.failure(drain(words))

    def test_function_that_cannot_be_imported(self, words: Project) -> None:
        (words.folder / words.module / "steps.py").write_text("import no_such_thing\n")
        assert "no_such_thing" in self.failure(drain(words))

    def test_spark_that_is_not_installed(self, words: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        from percolator_airflow import LoadOperator

        words.activate()
        words.put("a")
        (words.folder / "in.csv").write_text("id,text\na,b\n")
        monkeypatch.setitem(sys.modules, "pyspark", None)
        assert "pip install 'percolator-core[spark]'" in self.failure(drain(words, engine="spark"))
        load = LoadOperator(
            task_id="x", chain=words.chain, conn_id=CONN_ID, table="docs", sources="in.csv", key="id"
        )
        assert "pip install 'percolator-core[spark]'" in self.failure(load)

    @pytest.mark.parametrize("named_by", ["an argument", "a variable"])
    def test_master_that_does_not_answer(
        self, words: Project, monkeypatch: pytest.MonkeyPatch, named_by: str
    ) -> None:
        words.activate()
        words.put("a")
        master = f"spark://127.0.0.1:{free_port()}"
        if named_by == "a variable":
            monkeypatch.setenv("PERCOLATOR_SPARK_MASTER", master)
        arguments = {"master": master} if named_by == "an argument" else {}
        said = self.failure(drain(words, engine="spark", **arguments), final=False)
        assert said.startswith(f"no Spark master answers at {master}")

    def test_master_that_spark_does_not_know(self, words: Project) -> None:
        words.activate()
        words.put("a")
        assert self.failure(drain(words, engine="spark", master="yran")).startswith(
            "'yran' is not a Spark master: write local[*], "
        )

    @pytest.mark.parametrize("budget", ["soon", -1])
    def test_budget_that_cannot_be(self, words: Project, budget: Any) -> None:
        assert "budget is a number of seconds" in self.failure(drain(words, budget=budget))

    def test_table_that_is_not_declared(self, words: Project) -> None:
        from percolator_airflow import LoadOperator

        load = LoadOperator(task_id="load", chain=words.chain, conn_id=CONN_ID, table="dcos", sources="x.csv")
        assert self.failure(load) == "the chain 'words' declares no table 'dcos': it has docs, sums"

    def test_source_that_is_not_there(self, words: Project) -> None:
        from percolator_airflow import LoadOperator

        load = LoadOperator(task_id="load", chain=words.chain, conn_id=CONN_ID, table="docs", sources="x.csv")
        assert "'x.csv' does not exist" in self.failure(load)

    @pytest.mark.parametrize("tablets", ["docs", [["docs", "x"]], [["nowhere", 0]], [["docs", 99]]])
    def test_tablets_that_cannot_be(self, words: Project, tablets: Any) -> None:
        from percolator_airflow import CollectGarbageOperator, ResolveLocksOperator

        words.activate()
        for kind in (CollectGarbageOperator, ResolveLocksOperator):
            self.failure(kind(task_id="x", chain=words.chain, conn_id=CONN_ID, tablets=tablets))

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"engine": "flink"}, "spark or local"),
            ({"width": 0}, "width is 1 or more"),
            ({"tasks": 0}, "tasks"),
        ],
    )
    def test_arguments_are_refused_where_the_dag_is_written(
        self, words: Project, arguments: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(ValueError, match=said):
            drain(words, **arguments)


class TestCleaning:
    def test_garbage_of_all_tablets_in_parts(self, words: Project) -> None:
        from percolator_airflow import CollectGarbageOperator

        words.activate()
        for _ in range(3):
            words.put("a", "b", "c")
        kind: dict[str, Any] = {"chain": words.chain, "conn_id": CONN_ID, "keep": 0}
        parts = [[["docs", number]] for number in range(4)]
        done = [CollectGarbageOperator(task_id="x", tablets=part, **kind).execute({}) for part in parts]
        assert sum(one["versions"] for one in done) >= 6
        assert json.loads(json.dumps(done)) == done

    def test_bases_in_parts(self, words: Project) -> None:
        from percolator_airflow import MaintainBasesOperator

        words.activate()
        kind: dict[str, Any] = {"chain": words.chain, "conn_id": CONN_ID}
        assert MaintainBasesOperator(task_id="x", **kind).execute({}) == {}
        words.put("a", "b", "c")
        with words.connect() as db:
            db.set_base("sums", str(words.folder / "base"), cold_after=timedelta(0))
            with db.transaction() as t:
                t.set("sums", "a", "n", b"1")
        parts = [[["docs", number], ["sums", number]] for number in range(2)]
        done = [MaintainBasesOperator(task_id="x", tablets=part, **kind).execute({}) for part in parts]
        assert sum(one["sums"]["rows"] for one in done) == 1
        assert json.loads(json.dumps(done)) == done
        assert set(MaintainBasesOperator(task_id="x", **kind).execute({})) == {"sums"}

    def test_locks_of_the_dead(self, words: Project) -> None:
        from percolator_airflow import ResolveLocksOperator
        from percolator_core.admin.locks import locks
        from tests.servers.plain import commit_of, die

        words.activate()
        db = words.connect()
        transaction = db.begin()
        transaction.set("docs", "row", "text", b"x")
        commit_of(transaction).prewrite()
        die(db)
        with words.connect() as other:
            assert len(locks(other)) == 1
            operator = ResolveLocksOperator(task_id="x", chain=words.chain, conn_id=CONN_ID, older_than=0)
            assert operator.execute({}) == {"committed": 0, "rolled_back": 1, "live": 0}
            assert not locks(other)


class TestArchive:
    def test_each_run_publishes_a_version(self, words: Project, tmp_path: Path) -> None:
        from airflow.sdk.exceptions import AirflowException, AirflowFailException
        from deltalake import DeltaTable

        from percolator_airflow import PublishOperator

        words.activate()
        words.put("a", "b")
        place: dict[str, Any] = {"task_id": "x", "chain": words.chain, "conn_id": CONN_ID, "table": "docs"}
        folder = tmp_path / "open"
        first = PublishOperator(url=str(folder), **place).execute({})
        assert (first["version"], first["mode"], first["rows"]) == (0, "full", 2)
        assert json.loads(json.dumps(first)) == first
        words.put("a", "b", "c")
        # As templates render them.
        second = PublishOperator(url=str(folder), **place | {"keep": "86400"}).execute({})
        assert (second["version"], second["mode"]) == (1, "incremental")
        assert DeltaTable(folder).count() == 3
        with pytest.raises(AirflowFailException, match="keep is a number of seconds"):
            PublishOperator(url=str(folder), **place | {"keep": "a day"}).execute({})
        with pytest.raises(AirflowFailException, match="nothing"):
            PublishOperator(url=str(folder), **place | {"table": "nothing"}).execute({})
        folder.joinpath("x").write_bytes(b"")
        with pytest.raises(AirflowException, match="then publish again"):
            PublishOperator(url=str(folder / "x"), **place).execute({})

    def test_backups_of_a_namespace(self, words: Project, tmp_path: Path) -> None:
        from airflow.sdk.exceptions import AirflowFailException

        import percolator_core as percolator
        from percolator_airflow import BackupOperator

        words.activate()
        words.put("a", "b")
        place: dict[str, Any] = {"task_id": "x", "conn_id": CONN_ID, "url": str(tmp_path / "backup")}
        first = BackupOperator(chain=words.chain, **place).execute({})
        assert json.loads(json.dumps(first)) == first
        second = BackupOperator(namespace="words", **place | {"keep": "1"}).execute({})
        assert (second["number"], second["written"]) == (2, 0)
        assert second["shared"] == first["written"]
        with pytest.raises(AirflowFailException, match="keep is 1 or more, not 0"):
            BackupOperator(namespace="words", keep=0, **place).execute({})
        with words.connect("copy") as db:
            assert percolator.restore(place["url"], db).number == 2
            assert db.snapshot().get("docs", "row1", "text") == b"b"
            with pytest.raises(percolator.ConfigurationError, match="there is no backup 1"):
                percolator.restore(place["url"], db, number=1)


class TestLoad:
    @pytest.mark.parametrize(
        "engine", [{"engine": "local"}, pytest.param({"master": "local[2,4]"}, marks=pytest.mark.spark)]
    )
    def test_loads_and_puts_malformed_records_aside(
        self, words: Project, airflow_home: Path, engine: dict[str, str]
    ) -> None:
        from airflow.sdk.exceptions import AirflowFailException

        from percolator_airflow import LoadOperator

        (words.folder / "in.jsonl").write_text(
            '{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\nbad\n'
        )
        load: dict[str, Any] = {
            "task_id": "load",
            "chain": words.chain,
            "conn_id": CONN_ID,
            "table": "docs",
            "key": "id",
            "sources": "in.jsonl",
            **engine,
        }
        report = LoadOperator(**load).execute({})
        assert {name: report[name] for name in ("read", "new", "bad")} == {"read": 3, "new": 2, "bad": 1}
        assert Path(report["aside"]).parent == airflow_home / "percolator/aside/words"
        assert json.loads(json.dumps(report)) == report
        assert LoadOperator(**load).execute({})["unchanged"] == 2
        with pytest.raises(AirflowFailException, match="1 records are malformed and 0 are allowed"):
            LoadOperator(**load, max_bad=0).execute({})
        assert drain(words).execute({})["ran"] == 4


KILLED = """
import sys, signal, json
from percolator_airflow import DrainOperator

settings = {"chain": sys.argv[1], "engine": sys.argv[2], **json.loads(sys.argv[3])}
task = DrainOperator(task_id="drain", conn_id="words", **settings)
# Like Airflow's task runner.
signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
try:
    task.execute({})
except Exception as error:
    print(type(error).__name__, error)
else:
    print("not killed")
"""


class TestKilled:
    """SIGTERM: the runs under way are finished, the others wait for the next drain, and Spark is gone."""

    @pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
    def test_finishes_the_runs_under_way(self, words: Project, engine: str, tmp_path: Path) -> None:
        begun = tmp_path / "begun"
        begun.mkdir()
        words.activate()
        words.put(*[f"held {begun}"] * 12)
        settings: dict[str, Any] = {"width": 1, "observers": ["first"]}
        if engine == "spark":
            settings |= {"tasks": 2, "master": "local[2,4]"}
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, words.chain, engine, json.dumps(settings)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"},
            start_new_session=True,
        )
        try:
            until(lambda: any(begun.iterdir()), 300)
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
            process.wait()
        assert "AirflowException the task was killed: committed runs stay" in said
        with words.connect() as db:
            done = {row for row, _ in db.snapshot().scan("docs", columns=["seen"])}
        assert 1 <= len(done) < 12
        assert {path.name.encode() for path in begun.iterdir()} == done
        # Java ran in the session of the process, and has ended.
        until(lambda: not _members(process.pid))


def _members(session: int) -> list[int]:
    import psutil

    found = []
    for one in psutil.process_iter():
        try:
            if os.getsid(one.pid) == session and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
        except (OSError, psutil.Error):
            continue
    return found


def executors_of(task: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the running executors of a task's Spark."""
    found = []
    for one in psutil.Process(task.pid).children(recursive=True):
        with suppress(psutil.Error):  # others come and go
            if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()):
                found.append(one)
    return found


@pytest.mark.slow
@pytest.mark.spark
def test_an_executor_of_spark_that_is_killed_loses_and_doubles_nothing(
    words: Project, tmp_path: Path
) -> None:
    """The operator is in a process of its own, and so is each of its two executors."""
    begun = tmp_path / "begun"
    begun.mkdir()
    words.activate()
    words.put(*[f"held {begun}" if number % 5 == 0 else "plain" for number in range(40)])
    arguments = {"chain": words.chain, "conn_id": CONN_ID, "master": "local-cluster[2,1,1024]", "tasks": 4}
    code = "from percolator_airflow import DrainOperator\n"
    code += f"DrainOperator(task_id='drain', **{arguments}).execute({{}})"
    with (tmp_path / "output").open("w") as output:
        task = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=output, stderr=output)
    try:
        until(lambda: any(begun.iterdir()) or task.poll() is not None, 300)
        until(lambda: len(executors_of(task)) == 2 or task.poll() is not None, 300)
        executors = executors_of(task)
        assert len(executors) == 2, (tmp_path / "output").read_text()[-3000:]
        executors[0].kill()
        assert task.wait(300) == 0, (tmp_path / "output").read_text()[-3000:]
    finally:
        task.kill()
        task.wait()
    assert words.counted() == 40
