"""Loads, end to end, on a real Spark and a real store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from percolator_core import Database, UnknownTable, connect
from percolator_core.errors import PercolatorError, StoreUnavailable
from percolator_core.spark import LoadProgress, TooManyBadRecords, open_source
from percolator_core.spark.job import plain_error
from percolator_core.spark.loading.attempts import FRESH, Attempt, Attempts
from percolator_core.spark.loading.put_aside import PutAside
from percolator_core.spark.loading.task import LoadTask
from tests.spark.gate import eventually, held

if TYPE_CHECKING:
    from tests.spark.conftest import Loading

pytestmark = pytest.mark.spark


def site(folder: Path, pages: dict[str, str]) -> Path:
    for name, text in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def json_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_unchanged_page_is_not_written_again(loading: Loading, tmp_path: Path) -> None:
    pages = {f"{number}.html": f"<p>page {number}" for number in range(300)}
    folder = site(tmp_path / "site", pages)
    source = open_source(folder, base_url="http://e.org/")
    seen: list[LoadProgress] = []
    first = loading(source, progress=seen.append)
    assert (first.read, first.new, first.files, first.bad, first.aside) == (300, 300, 300, 0, None)
    assert (seen[-1].tasks_done, seen[-1].read) == (first.tasks, 300)
    assert loading.rows()[b"http://e.org/7.html"] == {"contents": b"<p>page 7", "content_type": b"text/html"}
    versions = loading.versions()

    second = loading(source)
    assert (second.unchanged, second.new, second.changed) == (300, 0, 0)
    assert loading.versions() == versions

    site(folder, {"7.html": "<p>another", "new/x.md": "# new"})
    third = loading(open_source(folder, base_url="http://e.org/"))
    assert (third.unchanged, third.new, third.changed) == (299, 1, 1)
    changed = {cell for cell, stamps in loading.versions().items() if stamps != versions.get(cell)}
    assert changed == {
        (b"http://e.org/7.html", "contents"),
        (b"http://e.org/new/x.md", "contents"),
        (b"http://e.org/new/x.md", "content_type"),
    }


def test_missing_rows_are_deleted_only_below_the_prefix(loading: Loading, tmp_path: Path) -> None:
    folder = site(tmp_path / "site", {f"{number}.html": "x" for number in range(5)})
    loading(open_source(folder, base_url="http://e.org/"))
    with loading.db.transaction() as t:
        t.set("documents", "http://f.org/", "contents", b"elsewhere")
        t.set("documents", "http://e.org/3.html", "fingerprint", b"an observer's")
        t.set("documents", "http://e.org/only", "fingerprint", b"an observer's")
    (folder / "2.html").unlink()
    (folder / "3.html").unlink()
    report = loading(open_source(folder, base_url="http://e.org/"), delete_missing="http://e.org/")
    assert (report.deleted, report.unchanged, report.kept_back) == (2, 3, None)
    rows = loading.rows()
    assert b"http://e.org/2.html" not in rows
    assert rows[b"http://e.org/3.html"] == {"fingerprint": b"an observer's"}
    assert rows[b"http://f.org/"] == {"contents": b"elsewhere"}
    assert len(rows) == 6


def test_nothing_is_deleted_when_a_record_may_be_among_the_illegible(
    loading: Loading, tmp_path: Path
) -> None:
    path = json_lines(tmp_path / "in.jsonl", [{"id": "a", "v": 1}, {"id": "b", "v": 1}])
    loading(open_source(path, key="id"))
    path.write_text('{"id": "a", "v": 1}\n{"id": "b", "v"')
    report = loading(open_source(path, key="id"), delete_missing=b"")
    assert (report.deleted, report.bad) == (0, 1)
    assert report.kept_back
    # A record whose key is legible is not missing.
    path.write_text('{"id": "b", "v": "\\ud800"}\n')
    report = loading(open_source(path, key="id"), delete_missing=b"")
    assert (report.deleted, report.bad, report.kept_back) == (0, 1, None)  # no column was loaded at all
    path.write_text('{"id": "b", "v": "\\ud800"}\n{"id": "c", "v": 3}\n')
    report = loading(open_source(path, key="id"), delete_missing=b"")
    assert (report.deleted, report.new) == (1, 1)
    assert set(loading.rows()) == {b"b", b"c"}


def test_null_deletes_a_cell_and_an_absent_field_leaves_it(loading: Loading, tmp_path: Path) -> None:
    path = json_lines(tmp_path / "in.jsonl", [{"id": "a", "x": 1, "y": 2}])
    loading(open_source(path, key="id"))
    json_lines(path, [{"id": "a", "x": None}, {"id": "b", "x": None}, {"id": "c"}])
    report = loading(open_source(path, key="id"))
    assert (report.changed, report.unchanged) == (1, 2)
    assert loading.rows() == {b"a": {"y": b"2"}}


def test_keys_of_any_bytes(loading: Loading, tmp_path: Path) -> None:
    keys = [bytes([first, second]) for first in range(0, 256, 5) for second in range(0, 256, 5)]
    table = pa.table({"k": pa.array(keys, pa.binary()), "v": pa.array(keys, pa.binary())})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=500)
    report = loading(open_source(tmp_path, key="k"))
    assert report.new == len(keys)
    assert loading.rows() == {key: {"v": key} for key in keys}
    assert loading(open_source(tmp_path, key="k")).unchanged == len(keys)


def test_the_last_of_several_records_with_one_key_counts(loading: Loading, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,v\na,1\nb,1\na,2\n")
    for expected in ("new", "unchanged"):
        report = loading(open_source(path, key="id"))
        assert (report.read, report.repeated, getattr(report, expected)) == (3, 1, 2)
    assert loading.rows() == {b"a": {"v": b"2"}, b"b": {"v": b"1"}}


def test_malformed_records_are_put_aside(loading: Loading, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        rows = [{"id": f"{number}.{row}", "v": row} for row in range(50)]
        json_lines(folder / f"{number}.jsonl", rows)
        with (folder / f"{number}.jsonl").open("a") as file:
            file.write("{broken\n" + json.dumps({"id": f"notify {number}", "dirty": 1}) + "\n")
    report = loading(open_source(folder, key="id"))
    assert (report.read, report.new, report.bad) == (156, 150, 6)
    assert report.aside is not None
    assert report.aside.parent == loading.aside
    assert [path.name for path in loading.aside.iterdir()] == [report.aside.name]
    found = [json.loads(line) for line in report.aside.read_text().splitlines()]
    assert {(Path(item["file"]).name, item["reason"].split(":")[0]) for item in found} == {
        (f"{number}.jsonl", reason)
        for number in range(3)
        for reason in ("not JSON", "documents.dirty is notify-only and holds no data")
    }
    assert {item["head"] for item in found} == {"{broken\n", ""}
    assert report.to_json()["aside"] == str(report.aside)


def test_too_many_malformed_records_stop_the_load(loading: Loading, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.jsonl").write_text("nonsense\n" * 2000)
    with pytest.raises(TooManyBadRecords, match="records are malformed and 10 are allowed") as caught:
        loading(open_source(folder, key="id"), max_bad=10)
    report = caught.value.report
    assert 10 < report.bad < 8000
    assert report.aside is not None
    assert report.aside.exists()
    assert loading(open_source(folder, key="id"), max_bad=8000).bad == 8000


class Maker:
    def __init__(self) -> None:
        self.called = 0

    def create_tables(self, db: Database) -> None:
        self.called += 1
        db.create_table("others")


def test_tables_of_a_chain(loading: Loading, tmp_path: Path) -> None:
    path = json_lines(tmp_path / "in.jsonl", [{"id": "a", "v": 1}])
    source = open_source(path, key="id")
    from percolator_core.spark import load

    with pytest.raises(UnknownTable, match="There is no table 'others'"):
        load(loading.url, loading.db.namespace, "others", source, context=loading.context)
    maker = Maker()
    report = load(loading.url, loading.db.namespace, "others", source, context=loading.context, chain=maker)
    assert (maker.called, report.new) == (1, 1)


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
    eventually(lambda: not loading.context.statusTracker().getActiveJobsIds())
    eventually(lambda: not any(one.numRunningTasks() for one in executors(loading)))
    report = loading(open_source(path, key="id"))
    assert (report.unchanged, report.new) == (before, count - before)


def test_a_task_whose_driver_is_gone_writes_nothing(
    loading: Loading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may leave Python at work in a task that it has cancelled; the driver's token ends it."""
    monkeypatch.setattr("percolator_core.spark.loading.attempts.TOKEN_LIFE", 0.01)
    task = one_task(loading, json_lines(tmp_path / "in.jsonl", [{"id": "a", "v": "x"}]), b"the driver")
    with pytest.raises(PercolatorError, match="its driver has died"):
        task()
    assert loading.rows() == {}


def one_task(loading: Loading, path: Path, driver: bytes) -> Callable[[], object]:
    """A load of one task, without Spark; one transaction at a time."""
    source = open_source(path, key="id").into(loading.db.catalog.table("documents"))
    put_aside = PutAside.for_load(loading.aside, "documents")
    task = LoadTask(driver, "documents", source.reader(), put_aside, None, 1, False)

    def run() -> object:
        with connect(loading.url, loading.db.namespace) as db:
            return task.run(db, 0, [split for splits in source.tasks(1) for split in splits])

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
            ending.result(10)
        goes_on.check()


def test_a_load_does_not_wait_for_ever(
    loading: Loading, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task that lives on has no commit under way after a while: it waits for its input, or a lock."""
    monkeypatch.setattr("percolator_core.spark.loading.attempts.TOKEN_LIFE", 1.5)
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


def executors(loading: Loading) -> list[Any]:
    """What Spark knows of its executors."""
    tracker = loading.context._jsc.sc().statusTracker()
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
        # Batches are loaded one after another: with this record, three batches of 512 before it.
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
