"""The commands read a chain whose observers are Python functions as they read one of YAML files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from percolator_airflow.chains import ChainFolder
from percolator_core.ui.source import find_source

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Project

CHAIN = "version: 1\nchain: words\nobservers: cli_steps\ntables:\n  docs: {tablets: 4}\n"
WATCH = '''\
import os
from percolator_core import observer

@observer("docs.text", writes="docs.by", executor="processes", timeout="30s")
def work(t, cell):
    """Say who did it."""
    t.set("docs", cell.row, "by", b"%d" % os.getpid())

@observer("docs.by", writes="docs.seen")
def see(t, cell):
    t.set("docs", cell.row, "seen", t.get("docs", cell.row, "by"))
'''


@pytest.fixture
def python(project: Project) -> Project:
    for file in (project.folder / "chain").glob("*.yaml"):
        file.unlink()
    (project.folder / "chain" / "chain.yaml").write_text(CHAIN)
    (project.folder / "cli_steps.py").write_text(WATCH)
    return project


def test_check_and_graph_show_them(python: Project) -> None:
    found = python.ok("check", "chain", "--json").json
    assert found["generations"] == [["work"], ["see"]]
    (see, work) = found["observers"]
    assert (work["file"], work["function"]) == ("cli_steps.py", "cli_steps:work")
    assert work["description"] == "Say who did it."
    assert see["writes"] == ["docs.seen"]
    assert "docs.by" in python.ok("graph", "chain", "--format", "mermaid").out
    source = find_source("cli_steps:see", python.folder / "chain")
    assert source.text.startswith('@observer("docs.by"')


def test_check_names_the_file_and_the_line(python: Project) -> None:
    (python.folder / "cli_steps.py").write_text(WATCH.replace('"docs.by", writes', '"dogs.by", writes'))
    ended = python("check", "chain")
    assert ended.code == 2
    assert "cli_steps.py:9: observe[0]: table 'dogs' is not declared" in ended.error


def test_a_process_of_the_executor_finds_its_function(python: Project) -> None:
    python.ok("drain", "chain")
    with python.connect() as db:
        with db.transaction() as t:
            t.set("docs", "a", "text", b"it")
        python.ok("drain", "chain")
        by = db.snapshot().get("docs", "a", "by")
        assert by is not None
        assert int(by) != os.getpid()
        assert db.snapshot().get("docs", "a", "seen") == by


def test_a_scheduler_reads_the_chain_from_another_folder(
    python: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = ChainFolder.of(python.folder / "chain")
    assert (list(found.declared.observers), found.project) == (["see", "work"], python.folder)
    with found.imported() as chain:
        assert chain.observers["see"].function.__module__ == "cli_steps"
