"""``percolator init``: each project that it makes works as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from percolator_core import Chain
from percolator_core.cli.init import Kind, module_name, write_project
from percolator_core.errors import ConfigurationError
from tests.stranger import stranger_in

if TYPE_CHECKING:
    from tests.cli.conftest import Project

ROOT = Path(__file__).resolve().parents[2]

OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation", "--no-warn-script-location")

KINDS: tuple[Kind, ...] = get_args(Kind)

TESTS = {"typed": 5, "html": 6, "words": 3}
"""The number of tests of each project."""

SHOWN = {"typed": "income  10.25", "html": "/guide/water.html  Water  links: 2", "words": "count  2"}
"""A line of the result, after the project's data was loaded."""


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


@pytest.mark.parametrize("kind", KINDS)
def test_the_projects_own_tests_pass(kind: Kind, project: Project) -> None:
    ended = project.ok("init", "made", "--template", kind)
    assert "files are in made" in ended.out
    tested = run(project.folder / "made", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert f"{TESTS[kind]} passed" in tested.stdout, tested.stdout + tested.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_of_the_readme_work(kind: Kind, project: Project) -> None:
    made = project.folder / "made"
    write_project(made, kind)
    commands = [
        line.strip().partition("#")[0].split()
        for line in (made / "README.md").read_text().splitlines()
        if line.startswith(("    percolator ", "    python "))
    ]
    assert [command[1] for command in commands if command[0] == "percolator"] == [
        *("check", "load", "drain", *(["scan"] if kind != "html" else []), "status", "schema")
    ]
    for program, *arguments in commands:
        start = ["-m", "percolator_core"] if program == "percolator" else []
        ended = run(made, *start, *arguments)
        assert ended.returncode == 0, (arguments, ended.stderr)
        if program == "python" or arguments[0] == "scan":
            assert SHOWN[kind] in ended.stdout
    assert (made / ".percolator").is_dir()


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_what_a_project_has(kind: Kind, project: Project) -> None:
    files = project.ok("init", "coffee-shop", "--template", kind, "--json").json["files"]
    made = project.folder / "coffee-shop"
    assert {
        *("README.md", ".gitignore", ".dockerignore", "Dockerfile", "compose.yaml", "pyproject.toml"),
        *("dags/coffee_shop.py", "coffee_shop/chain.yaml", "tests/test_coffee_shop.py"),
    } < set(files)
    assert sorted(files) == sorted(
        str(path.relative_to(made))
        for path in made.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    for path in files:
        text = (made / path).read_text()
        assert "$module" not in text, path
        assert "MODULE" not in text + path, path


@pytest.mark.parametrize("kind", KINDS)
def test_the_image_runs_the_projects_chain(kind: Kind, project: Project) -> None:
    made = project.folder / "coffee"
    write_project(made, kind)
    services = yaml.safe_load((made / "compose.yaml").read_text())["services"]
    assert services["worker"]["command"][:3] == ["percolator", "worker", "coffee"]
    loaded = services["load"]["command"]
    assert f"    {' '.join(loaded)}" in (made / "README.md").read_text().splitlines()
    copied = [
        word
        for line in (made / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ")
        for word in line.split()[1:-1]
    ]
    assert {"coffee", "pyproject.toml", "wheels"} <= set(copied)
    assert all((made / path).exists() for path in copied)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_accept_the_declarations_and_know_the_columns(kind: Kind, project: Project) -> None:
    made = project.folder / "made"
    write_project(made, kind)
    for path in sorted((made / "made").glob("*.yaml")):
        first = path.read_text().splitlines()[0]
        schema = path.parent / first.removeprefix("# yaml-language-server: $schema=")
        assert schema.resolve().parent == made / "schemas"
        declared = yaml.safe_load(path.read_text())
        check: Any = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
        check.validate(declared)
        if path.name == "chain.yaml":
            continue
        assert not check.is_valid({**declared, "observe": "nowhere.column"})
        assert check.is_valid({**declared, "reads": ["shops.income" if kind == "typed" else "documents.any"]})
        assert kind == "words" or not check.is_valid({**declared, "reads": ["shops.incme", "pages.txt"]})


def test_a_new_project_is_installed_and_passes_its_tests(tmp_path: Path) -> None:
    stranger = stranger_in(tmp_path / "env")
    made = tmp_path / "coffee"
    for folder, command in (
        (tmp_path, ("percolator", "init", "coffee")),
        # No index is asked: the build backend and pytest are those of this environment.
        (made, ("python", "-m", "pip", "install", *OFFLINE, "-e", ".[dev]")),
        (made, ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")),
        (tmp_path, ("python", "-c", "import coffee.tables")),
    ):
        done = stranger.run(folder, *command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_one_observer_is_strong_and_one_is_weak(project: Project) -> None:
    write_project(project.folder / "made", "words")
    chain = Chain.load(project.folder / "made" / "made", import_functions=False)
    assert {name: observer.mode for name, observer in chain.observers.items()} == {
        "count": "strong",
        "total": "weak",
    }


@pytest.mark.parametrize("name", ["Ünïcode name", "$dollar {brace}", "UPPER_case.v2", "7 up", "tests"])
def test_any_name_of_a_folder_will_do(project: Project, name: str) -> None:
    made = project.folder / name
    write_project(made)
    assert (made / "README.md").read_text().splitlines()[0] == f"# {name}"
    assert run(made, "-m", "percolator_core", "check", module_name(name)).returncode == 0


@pytest.mark.parametrize(
    ("name", "module"),
    [
        *[("coffee", "coffee"), ("Coffee Shop", "coffee_shop"), ("7-up", "project_7_up"), ("…", "project")],
        *[
            ("tests", "tests_chain"),
            ("class", "class_chain"),
            ("json", "json_chain"),
            ("numpy", "numpy_chain"),
        ],
    ],
)
def test_the_package_has_a_name_that_nothing_else_has(name: str, module: str) -> None:
    assert module_name(name) == module


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
