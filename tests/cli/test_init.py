"""``percolator init``: the project that it makes works as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from percolator_core import Chain
from percolator_core.cli.init import write_project
from percolator_core.errors import ConfigurationError
from percolator_core.observers.schema import schemas

if TYPE_CHECKING:
    from tests.cli.conftest import Project

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python command in a project, as its user would."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERCOLATOR")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def test_the_projects_own_tests_pass(project: Project) -> None:
    ended = project.ok("init", "made")
    assert "files are in made" in ended.out
    tested = run(project.folder / "made", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert "3 passed" in tested.stdout, tested.stdout + tested.stderr


def test_the_projects_chain_is_checked_and_drained(project: Project) -> None:
    project.ok("init", "made")
    made = project.folder / "made"
    checked = run(made, "-m", "percolator_core", "check", "observers/words")
    assert checked.returncode == 0, checked.stderr
    drained = run(made, "-m", "percolator_core", "drain", "observers/words")
    assert drained.returncode == 0, drained.stderr
    assert (made / ".percolator").is_dir()


@pytest.mark.spark
@pytest.mark.slow
def test_the_commands_of_the_readme_work(project: Project) -> None:
    project.ok("init", "made")
    made = project.folder / "made"
    commands = [
        line.strip().partition("#")[0].split()[1:]
        for line in (made / "README.md").read_text().splitlines()
        if line.startswith("    percolator ")
    ]
    assert [command[0] for command in commands] == ["check", "load", "drain", "scan", "status"]
    for command in commands:
        ended = run(made, "-m", "percolator_core", *command)
        assert ended.returncode == 0, (command, ended.stderr)
        if command[0] == "scan":
            assert "quick" in ended.stdout


def test_it_has_what_a_project_has(project: Project) -> None:
    files = project.ok("init", "made", "--json").json["files"]
    assert {"README.md", ".gitignore", "pyproject.toml", "dags/words.py", "tests/test_words.py"} < set(files)
    made = project.folder / "made"
    assert sorted(files) == sorted(
        str(path.relative_to(made))
        for path in made.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    for name, text in schemas().items():
        assert (made / "schemas" / name).read_text() == text


def test_each_declaration_names_its_schema(project: Project) -> None:
    made = project.folder / "made"
    write_project(made)
    declarations = sorted((made / "observers" / "words").glob("*.yaml"))
    assert len(declarations) == 3
    for path in declarations:
        first = path.read_text().splitlines()[0]
        schema = first.removeprefix("# yaml-language-server: $schema=")
        assert (path.parent / schema).resolve() == made / "schemas" / Path(schema).name
        assert (path.parent / schema).is_file()


def test_one_observer_is_strong_and_one_is_weak(project: Project) -> None:
    write_project(project.folder / "made")
    chain = Chain.load(project.folder / "made" / "observers" / "words", import_functions=False)
    assert {name: observer.mode for name, observer in chain.observers.items()} == {
        "count": "strong",
        "total": "weak",
    }


@pytest.mark.parametrize("name", ["Ünïcode name", "$dollar {brace}", "UPPER_case.v2"])
def test_any_name_of_a_folder_will_do(project: Project, name: str) -> None:
    made = project.folder / name
    write_project(made)
    assert (made / "README.md").read_text().splitlines()[0] == f"# {name}"
    assert run(made, "-m", "percolator_core", "check", "observers/words").returncode == 0


def test_an_empty_folder_is_taken(project: Project) -> None:
    (project.folder / "empty").mkdir()
    project.ok("init", "empty")
    assert (project.folder / "empty" / "README.md").exists()


@pytest.mark.parametrize("kind", ["with a file", "a file", "hidden"])
def test_what_is_there_is_not_touched(project: Project, kind: str) -> None:
    target = project.folder / "taken"
    if kind == "a file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / (".git" if kind == "hidden" else "mine.txt")).write_text("mine")
    ended = project("init", "taken")
    assert ended.code == 2
    assert ended.error == "taken is not empty: name a new folder, so that none of your files is overwritten."
    assert target.is_file() or len(list(target.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_one_sentence(project: Project) -> None:
    (project.folder / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_project(project.folder / "file" / "below")
