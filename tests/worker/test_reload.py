"""``worker --reload``: after a change of a file, the processes end their runs and start with the new code."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from percolator_core.crew import ReloadingCrew, supervisor
from percolator_core.crew import reload as reloading
from percolator_core.crew.reload import FileWatch
from tests.worker.conftest import ROOT, Project
from tests.worker.test_crew import Log, Running, log

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["log"]

FIRST = """\
import time
from percolator_core import observer

@observer("docs.text", writes="docs.n")
def count(t, cell):
    if cell.row == b"slow":
        open("began", "w").close()
        time.sleep(2)
    t.set("docs", cell.row, "n", b"first")
"""


@pytest.fixture
def watched(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    chain = project.folder / "chain"
    chain.mkdir()
    (chain / "chain.yaml").write_text(
        "version: 1\nchain: test\nobservers: steps\ntables:\n  docs: {tablets: 4}\n"
    )
    (project.folder / "steps.py").write_text(FIRST)
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(reloading, "_LOOK", 0.02)
    return project


class Reloading(Running):
    def __init__(self, project: Project, log: Log, processes: int = 2) -> None:
        super().__init__(project, log, processes)
        self.project = project
        self.crew = ReloadingCrew(
            project.chain(), project.url, project.namespace, processes, threads=1, reload=project.folder
        )

    def put(self, row: str) -> None:
        with self.project.connect() as db:
            self.project.chain().create_tables(db, rolling=True)
            with db.transaction() as t:
                t.set("docs", row, "text", b"it")

    def value(self, row: str) -> bytes | None:
        with self.project.connect() as db:
            return db.snapshot().get("docs", row, "n")

    def write(self, text: str) -> None:
        (self.project.folder / "steps.py").write_text(text)


def test_a_change_of_the_code_restarts_the_workers_and_no_run_is_lost(watched: Project, log: Log) -> None:
    with Reloading(watched, log) as running:
        running.await_starts(2)
        running.put("slow")
        running.until((watched.folder / "began").exists)
        before = set(running.crew.processes)
        running.write(FIRST.replace("first", "second"))
        running.await_starts(4)
        assert not before & set(running.crew.processes)
        assert running.value("slow") == b"first", "the run ended with the code that it began with"
        running.put("next")
        running.await_runs(2)
        assert running.value("next") == b"second"
    assert running.error is None
    assert [one.ending for one in running.crew.served] == ["exit code 0"] * 4
    (line,) = log.find("files changed")
    assert line["files"] == "steps.py"
    order = [line["event"].rpartition(" ")[2] for line in log.lines if line["event"].startswith("worker s")]
    assert order[:6] == ["started"] * 2 + ["stopped"] * 2 + ["started"] * 2


def test_a_new_observer_and_a_new_file_count_too(watched: Project, log: Log) -> None:
    with Reloading(watched, log, processes=1) as running:
        running.await_starts(1)
        (watched.folder / "chain" / "more.yaml").write_text(
            "version: 1\nobserver: more\nfunction: steps:more\nobserve: docs.n\nwrites: docs.m\n"
        )
        running.write(f"{FIRST}\ndef more(t, cell): t.set('docs', cell.row, 'm', b'more')\n")
        running.until(lambda: "more" in running.crew.counts.observers)
        running.put("a")
        running.until(lambda: running.crew.counts.observers["more"].ran == 1)


def test_a_mistake_is_reported_and_the_next_change_repairs_it(watched: Project, log: Log) -> None:
    with Reloading(watched, log) as running:
        running.await_starts(2)
        running.write(FIRST.replace("docs.text", "dogs.text"))
        running.until(lambda: log.find("cannot start"))
        running.until(lambda: not running.crew.processes)
        (line,) = log.find("cannot start")
        assert "steps.py:4: observe[0]: table 'dogs' is not declared" in line["error"]
        running.write(FIRST.replace("first", "third"))
        running.await_starts(4)
        running.put("a")
        running.await_runs(1)
        assert running.value("a") == b"third"
    assert running.error is None


def test_only_files_of_the_project_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "_LOOK", 0.0)
    for folder in (".git", "env", "__pycache__", "app"):
        (tmp_path / folder).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "app" / "old.py").touch()
    (tmp_path / "app" / "gone.yaml").touch()
    watch = FileWatch(tmp_path)
    assert watch.changed() == []
    for name in (".git/a.py", "env/a.py", "__pycache__/a.py", "app/data.csv"):
        (tmp_path / name).touch()
    assert watch.changed() == []
    (tmp_path / "app" / "new.sql").touch()
    (tmp_path / "app" / "gone.yaml").unlink()
    os.utime(tmp_path / "app" / "old.py", (1, 1))
    assert watch.changed() == ["app/gone.yaml", "app/new.sql", "app/old.py"]
    assert watch.changed() == []
