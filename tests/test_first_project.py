"""The README's first project, tried by a stranger: by each way to run a chain, with and without __init__.py.

A project's packages may do without that file, as those of the README do, or have it, as those of
``percolator init`` do. Python goes other ways for the two, so whatever runs a chain is tried with both.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import percolator_core
from tests.cli.test_up import FAKE
from tests.stranger import Stranger, stranger_in
from tests.test_readme import README, blocks, write_project

LAYOUTS = {
    "without __init__.py": (),
    "with __init__.py": ("observers", "observers/words"),
    "with __init__.py below only": ("observers/words",),
}
PATIENT = 120.0
CLUSTER = "local-cluster[1,1,1024]"
"""A Spark whose executors share no files with the driver, as far as it knows."""

COMMANDS = [
    shlex.split(line, comments=True)
    for line in README.splitlines()
    if re.match(r"percolator \w+ observers/words", line)
]


NEIGHBOURS = """\
from .deep.lengths import length


def process(t, cell):
    from observers.words.deep import lengths

    assert lengths.length is length
    t.set("counts", cell.row, "words", length(t.get("documents", cell.row, "text")))
"""

ALONE = """\
import percolator_core

chain = percolator_core.Chain.load(".")
with percolator_core.connect("embedded:../../.percolator", "words") as db:
    percolator_core.Worker(db, chain).run_until_idle(60)
"""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    return stranger_in(tmp_path_factory.mktemp("stranger") / "env")


@dataclass(frozen=True)
class Project:
    """The project in ``folder``, and its store there."""

    folder: Path
    stranger: Stranger

    def run(self, *command: str) -> str:
        """What a command prints that succeeds."""
        done = self.stranger.run(self.folder, *command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def write(self, **texts: str) -> None:
        with percolator_core.connect(f"embedded:{self.folder}/.percolator", "words") as db:
            percolator_core.Chain.load(self.folder / "observers/words", import_functions=False).create_tables(
                db
            )
            with db.transaction() as t:
                for row, text in texts.items():
                    t.set("documents", row, "text", text.encode())

    def counts(self) -> dict[str, int]:
        with percolator_core.connect(f"embedded:{self.folder}/.percolator", "words") as db:
            found = db.snapshot().scan("counts", columns=["words"])
            return {row.decode(): int(cells["words"]) for row, cells in found}

    def runs_until_stopped(self, counted: dict[str, int], *command: str) -> tuple[str, str]:
        """What a command prints that runs until it is stopped, which happens once the words are counted."""
        process = subprocess.Popen(
            [str(self.stranger.bin / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.stranger.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: self.counts() == counted or process.poll() is not None, f"{command}")
        finally:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENT)
        assert process.returncode == 0, (out, err)
        assert self.counts() == counted
        return out, err


def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.fixture(params=list(LAYOUTS))
def project(request: pytest.FixtureRequest, tmp_path: Path, stranger: Stranger) -> Iterator[Project]:
    write_project(tmp_path / "project", *LAYOUTS[request.param])
    made = Project(tmp_path / "project", stranger)
    # Held, so that the server does not start and end with each command.
    with percolator_core.connect(f"embedded:{made.folder}/.percolator", "keeper"):
        yield made


def test_the_program_and_the_commands_of_the_readme(project: Project) -> None:
    ((_, program),) = blocks("run")
    ((_, printed),) = blocks("prints")
    assert project.run("python", "-c", program) == printed
    assert [command[1] for command in COMMANDS] == ["check", "worker", "status"]
    check, worker, status = COMMANDS
    assert "observers.words.count:process" in project.run(*check)
    project.write(short="bye", greeting="hello again")
    project.runs_until_stopped({"greeting": 2, "short": 1}, *worker)
    assert "words: idle" in project.run(*status)


def test_its_module_imports_its_neighbours_and_may_stand_alone(project: Project) -> None:
    words = project.folder / "observers/words"
    (words / "deep").mkdir()
    (words / "deep" / "lengths.py").write_text("def length(text):\n    return b'%d' % len(text.split())\n")
    (words / "alone.py").write_text((words / "count.py").read_text())
    (words / "count.py").write_text(NEIGHBOURS)
    project.write(one="a b")
    project.run("percolator", "drain", "observers/words")
    assert project.counts() == {"one": 2}
    declared = (words / "count.yaml").read_text()
    (words / "count.yaml").write_text(declared.replace("observers.words.count", "alone"))
    project.write(two="a b c")
    project.run("python", "-c", "import os\nos.chdir('observers/words')\n" + ALONE)
    assert project.counts() == {"one": 2, "two": 3}


def test_workers_in_several_processes_with_processes_of_their_own(project: Project) -> None:
    with (project.folder / "observers/words/count.yaml").open("a") as file:
        file.write("executor: processes\n")
    project.write(one="a b", two="a b c")
    command = ["percolator", "worker", "observers/words", "--processes", "2"]
    project.runs_until_stopped({"one": 2, "two": 3}, *command)


def test_airflows_tasks_enter_it_and_leave_it(project: Project) -> None:
    program = (
        "import sys\n"
        "from percolator_airflow.chains import ChainFolder\n"
        "before = list(sys.path)\n"
        "for _ in range(2):\n"
        "    with ChainFolder.of('observers/words').imported() as chain:\n"
        "        print(chain.observers['count'].function.__module__)\n"
        "print([name for name in sys.modules if name.startswith('observers')], sys.path == before)\n"
    )
    printed = "observers.words.count\nobservers.words.count\n[] True\n"
    assert project.run("python", "-c", program) == printed
    assert project.run("python", "-P", "-c", program) == printed


def test_up(project: Project, tmp_path: Path) -> None:
    """Airflow itself is in tests/airflow/test_end_to_end.py."""
    own = stranger_in(tmp_path / "environment")
    own.airflow.write_text(FAKE.format(python=sys.executable))
    project.write(one="a b")
    upped = Project(project.folder, own)
    _, err = upped.runs_until_stopped({"one": 2}, "percolator", "up", "--json")
    assert '"worker started"' in err


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("project", list(LAYOUTS)[:2], indirect=True)
def test_spark_loads_and_drains(project: Project) -> None:
    """Executors import from what travels to them, and in tests/airflow/test_end_to_end.py from the folder."""
    rows = [{"id": "one", "text": "a b"}, {"id": "two", "text": "a b c"}]
    (project.folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    load = ["texts.jsonl", "--table", "documents", "--key", "id", "--chain", "observers/words"]
    project.run("percolator", "load", *load, "--master", "local[2]")
    project.run("percolator", "drain", "observers/words", "--spark", "--master", CLUSTER, "--tasks", "2")
    assert project.counts() == {"one": 2, "two": 3}
