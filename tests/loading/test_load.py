"""Loads, end to end, in this process and on a real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from percolator_core import Database, UnknownTable
from percolator_core.loading import LoadProgress, TooManyBadRecords, open_source
from tests.loading.loads import Loading, json_lines, site
from tests.spark.gate import eventually, held


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
    with pytest.raises(UnknownTable, match="There is no table 'others'"):
        loading(source, "others")
    maker = Maker()
    report = loading(source, "others", chain=maker)
    assert (maker.called, report.new) == (1, 1)


def many(path: Path, count: int) -> Path:
    return json_lines(path, [{"id": number, "v": "x" * 50} for number in range(count)])


def test_an_interrupted_load_goes_on_with_the_next(here: Loading, tmp_path: Path) -> None:
    """Ctrl-C, while a record waits for a lock. With Spark: tests/spark/test_load.py."""
    count = 3000
    path = many(tmp_path / "in.jsonl", count)

    def interrupt() -> None:
        eventually(lambda: here.db.snapshot().get("documents", "1500", "v"))
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    # The last record gets no further, so the load cannot end before it is interrupted.
    with held(here.url, here.db.namespace, "documents", str(count - 1), "v"):
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            here(open_source(path, key="id"))
        interrupter.join()
    before = len(here.rows())
    assert 1000 <= before < count
    report = here(open_source(path, key="id"))
    assert (report.unchanged, report.new) == (before, count - before)


LOADER = """
import sys
from percolator_core import connect
from percolator_core.loading import load, open_source
url, namespace, path, aside = sys.argv[1:]
with connect(url, namespace) as db:
    load(db, "documents", open_source(path, key="id"), aside=aside)
"""


def test_a_killed_load_is_carried_on_by_the_next(here: Loading, tmp_path: Path) -> None:
    """SIGKILL in the middle of a load."""
    count = 3000
    path = many(tmp_path / "in.jsonl", count)
    arguments = [here.url, here.db.namespace, str(path), str(here.aside)]
    # The last record gets no further, so the load cannot end.
    with held(here.url, here.db.namespace, "documents", str(count - 1), "v"):
        load = subprocess.Popen([sys.executable, "-c", LOADER, *arguments])
        eventually(lambda: here.db.snapshot().get("documents", "1500", "v"))
        assert load.poll() is None
        load.kill()
        load.wait()
    report = here(open_source(path, key="id"))
    assert report.new
    assert report.unchanged >= 1000
    assert report.new + report.unchanged == len(here.rows()) == count
    assert all(len(stamps) == 1 for stamps in here.versions().values())


def test_progress_is_shown_while_a_task_runs(here: Loading, tmp_path: Path) -> None:
    seen: list[LoadProgress] = []
    report = here(open_source(many(tmp_path / "in.jsonl", 5000), key="id"), progress=seen.append)
    assert (report.tasks, report.read) == (1, 5000)
    assert 0 < seen[0].read < 5000
    assert (seen[0].tasks_done, seen[-1].tasks_done, seen[-1].new) == (0, 1, 5000)
