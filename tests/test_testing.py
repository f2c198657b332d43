"""`percolator_core.testing`: as a user's project sees it, with the library as its wheel has it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from percolator_core import Chain, Database
from percolator_core.testing import ObserverFailed, run_until_idle
from tests.chains import chain_of, put, watch
from tests.servers.plain import until
from tests.site.pages import blocks
from tests.stranger import Stranger, stranger_in

pytest_plugins = ["percolator_core.testing"]

ISOLATED = """\
import os

import pytest
from percolator_core import connect


@pytest.mark.parametrize("turn", [1, 2])
def test_no_test_sees_the_data_of_another_one(percolator_db, turn):
    assert percolator_db.tables() == []
    percolator_db.create_table("documents")


def test_the_store_is_private(percolator_store):
    assert percolator_store.startswith("embedded:/")
    with connect(percolator_store, "mine") as db:
        assert db.tables() == []
        print("PID", db.store.server_info().raw["process_id"])
"""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    return stranger_in(tmp_path_factory.mktemp("stranger") / "env")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project of the page, in a folder of its own."""
    for block in blocks("how-to/test.md"):
        if block.file is not None:
            (tmp_path / block.file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block.file).write_text(block.text)
    return tmp_path


def test_a_users_test_has_ten_lines_and_passes(stranger: Stranger, project: Path) -> None:
    lines = [line for line in (project / "test_words.py").read_text().splitlines()[1:] if line]
    assert len(lines) <= 10
    done = stranger.run(project, "python", "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_each_test_has_a_namespace_of_its_own_in_a_store_that_ends(stranger: Stranger, project: Path) -> None:
    (project / "test_words.py").write_text(ISOLATED)
    done = stranger.run(
        project, "python", "-m", "pytest", "-q", "-s", "-W", "error", "-p", "no:cacheprovider"
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
    pid = done.stdout.partition("PID ")[2].split()[0]
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_an_observer_that_raises_fails_the_test_with_its_traceback(stranger: Stranger, project: Path) -> None:
    code = project / "observers" / "words" / "count.py"
    code.write_text("def process(t, cell):\n    raise LookupError('no such word')\n")
    done = stranger.run(project, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 1
    assert "ObserverFailed: observer count failed on documents.text of row b'a':" in done.stdout
    assert "LookupError: no such word" in done.stdout
    assert "count.py" in done.stdout


def test_a_chain_may_be_given_by_its_folder(
    percolator_db: Database, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [str(project), *sys.path])
    for name in [name for name in sys.modules if name.split(".")[0] == "observers"]:
        monkeypatch.delitem(sys.modules, name)
    Chain.load("observers/words").create_tables(percolator_db)
    put(percolator_db, "a", b"one two", "documents")
    assert run_until_idle(percolator_db, Path("observers/words")).ran == 1
    assert percolator_db.snapshot().get("counts", "a", "words") == b"2"


def failing_chain(times: int) -> tuple[Chain, list[bytes]]:
    """A chain whose observer fails that many times."""
    calls: list[bytes] = []

    def fail(t: object, cell: object) -> None:
        calls.append(b"")
        if len(calls) <= times:
            raise LookupError("not yet")

    return chain_of(watch("o", fail, "docs.text")), calls


def test_failures_are_not_retried(percolator_db: Database) -> None:
    chain, calls = failing_chain(2)
    chain.create_tables(percolator_db)
    put(percolator_db, "a", b"x")
    with pytest.raises(ObserverFailed) as raised:
        run_until_idle(percolator_db, chain)
    assert len(calls) == 1
    assert [(cell.observer, cell.row) for cell in raised.value.cells] == [("o", b"a")]
    assert isinstance(raised.value, AssertionError)
    assert run_until_idle(percolator_db, chain, fail=False).ran == 0


def test_failures_are_retried_as_declared_if_that_is_wanted(percolator_db: Database) -> None:
    chain, calls = failing_chain(2)
    chain.create_tables(percolator_db)
    put(percolator_db, "a", b"x")
    assert run_until_idle(percolator_db, chain, attempts=None).ran == 1
    assert len(calls) == 3
