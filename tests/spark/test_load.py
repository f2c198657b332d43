"""Loads with Spark: tasks and drivers that are killed, interrupted or late. The rest is in tests/loading."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Database, connect
from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.loading.put_aside import PutAside
from percolator_core.loading.task import LoadTask
from percolator_core.spark import open_source
from percolator_core.spark.attempts import FRESH, Attempt, Attempts
from percolator_core.spark.job import plain_error
from tests.loading.loads import json_lines
from tests.servers.plain import PATIENCE
from tests.spark.gate import eventually, held

if TYPE_CHECKING:
    from pyspark import SparkContext

    from tests.loading.loads import Loading

pytestmark = pytest.mark.spark


def test_a_killed_worker_loses_nothing(loading: Loading, tmp_path: Path) -> None:
    """SIGKILL to the Python worker in the middle of its task: Spark runs the task again."""
    count = 12_000
    path = json_lines(tmp_path / "in.jsonl", [{"id": number, "v": "x" * 50} for number in range(count)])
    killed: list[int] = []

    def kill() -> None:
        wait_for_rows(loading.db, 1000)
        for worker in python_workers():
            os.kill(worker, signal.SIGKILL)
            killed.append(worker)

    killer = threading.Thread(target=kill)
    killer.start()
    report = loading(open_source(path, key="id"))
    killer.join()
    assert killed
    assert report.read == report.new + report.unchanged == count
    assert report.unchanged >= 1000
    assert len(loading.rows()) == count
    assert all(len(stamps) == 1 for stamps in loading.versions().values())
    assert loading(open_source(path, key="id")).unchanged == count


def python_workers() -> list[int]:
    """The processes that the daemons of this process's Spark have forked."""
    parents = {}
    daemons = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                    daemons.add(int(entry.name))
            except OSError:
                continue

    def is_ours(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == os.getpid():
                return True
        return False

    return [pid for pid in daemons if parents[pid] in daemons and is_ours(pid)]


def test_an_interrupted_load_stops_its_tasks(loading: Loading, tmp_path: Path) -> None:
    """Ctrl-C: no task goes on behind the caller's back, and Spark can be used again."""
    count = 20_000
    path = json_lines(tmp_path / "in.jsonl", [{"id": number, "v": "x" * 50} for number in range(count)])

    def interrupt() -> None:
        eventually(lambda: loading.db.snapshot().get("documents", "500", "v"))
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    # The last record gets no further, so the load cannot end before it is interrupted.
    with held(loading.url, loading.db.namespace, "documents", str(count - 1), "v"):
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            loading(open_source(path, key="id"))
        interrupter.join()
    before = len(loading.rows())
    assert before < count
    # Spark's lists are kept by a thread that hears of each end later; and it looks for tasks that are to be
    # killed every two seconds.
    tracker = spark_of(loading).statusTracker()
    eventually(lambda: not tracker.getActiveJobsIds())
    eventually(lambda: not any(one.numRunningTasks() for one in executors(loading)))
    report = loading(open_source(path, key="id"))
    assert (report.unchanged, report.new) == (before, count - before)


def test_a_task_whose_driver_is_gone_writes_nothing(
    loading: Loading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may leave Python at work in a task that it has cancelled; the driver's token ends it."""
    monkeypatch.setattr("percolator_core.spark.attempts.TOKEN_LIFE", 0.01)
    task = one_task(loading, json_lines(tmp_path / "in.jsonl", [{"id": "a", "v": "x"}]), b"the driver")
    with pytest.raises(PercolatorError, match="its driver has died"):
        task()
    assert loading.rows() == {}


def one_task(loading: Loading, path: Path, driver: bytes) -> Callable[[], object]:
    """A load of one task, without Spark; one transaction at a time."""
    source = open_source(path, key="id").into(loading.db.catalog.table("documents"))
    put_aside = PutAside.for_load(loading.aside, "documents")
    task = LoadTask("documents", source.reader(), put_aside, None, 1, False)

    def run() -> object:
        with connect(loading.url, loading.db.namespace) as db:
            check = Attempt(db, "documents", driver).check
            splits = [split for splits in source.tasks(1) for split in splits]
            return task.run(db, 0, splits, Counter(), check=check)

    return run


@contextmanager
def driven(loading: Loading) -> Iterator[Attempts]:
    """The driver's half of a load."""
    with connect(loading.url, loading.db.namespace) as db:
        yield Attempts(db, "documents")


def test_a_task_in_the_midst_of_a_batch_stops_with_its_load(loading: Loading, tmp_path: Path) -> None:
    """No record of the batch is written once the load has ended, not even the one that waits for a lock."""
    path = json_lines(tmp_path / "in.jsonl", [{"id": number, "v": "x"} for number in range(100, 400)])
    with driven(loading) as attempts, ThreadPoolExecutor(1) as pool:
        task = one_task(loading, path, attempts.driver)
        with held(loading.url, loading.db.namespace, "documents", "200", "v"):
            running = pool.submit(task)
            eventually(lambda: loading.db.snapshot().get("documents", "199", "v"))
            time.sleep(2 * FRESH)
            attempts.withdraw()
        with pytest.raises(PercolatorError, match="the load has ended"):
            running.result()
    assert len(loading.rows()) == 100


def test_a_load_ends_behind_its_tasks(loading: Loading) -> None:
    """Also one that Spark knows nothing of any more; but a task of another load is not waited for."""
    place = loading.url, loading.db.namespace
    with driven(loading) as other, driven(loading) as attempts, connect(*place) as elsewhere:
        goes_on = Attempt(elsewhere, "documents", other.driver)
        with ThreadPoolExecutor(1) as pool:
            with connect(*place) as at_work:
                wanted = Attempt(at_work, "documents", attempts.driver)
                wanted.check()
                ending = pool.submit(attempts.end)
                time.sleep(2 * FRESH)
                assert not ending.done()
                with pytest.raises(PercolatorError, match="the load has ended"):
                    wanted.check()
            ending.result(PATIENCE)
        goes_on.check()


def test_a_load_does_not_wait_for_ever(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task that lives on has no commit under way after a while: it waits for its input, or a lock."""
    monkeypatch.setattr("percolator_core.spark.attempts.TOKEN_LIFE", 1.5)
    with driven(loading) as attempts, connect(loading.url, loading.db.namespace) as at_work:
        Attempt(at_work, "documents", attempts.driver)
        attempts.end()
    assert "waiting until tasks of the load have ended" in capsys.readouterr().err


def test_what_killed_tasks_and_drivers_leave_is_cleared_away(loading: Loading) -> None:
    store = loading.db.store
    store.one((b"HSET", store.keyspace.tag("documents", 0) + b"attempts", b"a task", b"its driver"))
    with driven(loading) as attempts:
        attempts.end()
    assert store.one((b"HGETALL", store.keyspace.tag("documents", 0) + b"attempts")) == []


def spark_of(loading: Loading) -> SparkContext:
    assert loading.context is not None
    return loading.context


def executors(loading: Loading) -> list[Any]:
    """What Spark knows of its executors."""
    tracker = spark_of(loading)._jsc.sc().statusTracker()
    return list(tracker.getExecutorInfos())


LOADER = """
import sys
from percolator_core.spark import load, open_source
url, namespace, path, aside = sys.argv[1:]
load(url, namespace, "documents", open_source(path, key="id"), master="local[2]", aside=aside)
"""


@pytest.mark.slow
def test_a_killed_load_is_carried_on_by_the_next(loading: Loading, tmp_path: Path) -> None:
    """SIGKILL to the driver in the middle of a load."""
    count = 10_000
    path = json_lines(tmp_path / "in.jsonl", [{"id": number, "v": "x" * 50} for number in range(count)])
    arguments = [loading.url, loading.db.namespace, str(path), str(loading.aside)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    # The last record gets no further, so the load cannot end.
    with held(loading.url, loading.db.namespace, "documents", str(count - 1), "v"):
        driver = subprocess.Popen([sys.executable, "-c", LOADER, *arguments], env=environment)
        # Batches are loaded one after another, and the first one has this record.
        eventually(lambda: loading.db.snapshot().get("documents", "1999", "v"))
        assert driver.poll() is None
        driver.kill()
        driver.wait()
    report = loading(open_source(path, key="id"))
    assert (report.read, report.new + report.unchanged) == (count, count)
    assert report.new
    assert report.unchanged >= 1000
    assert len(loading.rows()) == count
    assert all(len(stamps) == 1 for stamps in loading.versions().values())


def wait_for_rows(db: Database, count: int) -> None:
    eventually(lambda: sum(1 for _ in db.snapshot().scan("documents", limit=count)) >= count)


def test_errors_of_tasks_come_out_plain() -> None:
    text = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed\n"
        '  File "x.py", line 1, in f\n'
        "percolator_core.errors.StoreUnavailable: redis://h:1 does not answer: start it\n\n"
        "\tat org.apache.spark.api.python\n"
    )
    assert isinstance(plain_error(RuntimeError(text)), StoreUnavailable)
    assert str(plain_error(RuntimeError(text))) == "redis://h:1 does not answer: start it"
    other = plain_error(RuntimeError("x\nValueError: odd\n"))
    assert type(other) is PercolatorError
    assert "ValueError: odd" in str(other)
    stopped = RuntimeError(
        "An error occurred while calling None.Call.\n"
        ": java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\n"
        "This stopped SparkContext was created at:\n"
    )
    assert str(plain_error(stopped, "drain")).startswith("Spark ended before the drain did")
