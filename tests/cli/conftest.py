"""A small project, a store for all tests, and the command line, run in this process or in one of its own."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer
from typer.testing import CliRunner

from percolator_core import Chain, Database, connect

ROOT = Path(__file__).resolve().parents[2]

FILES = {
    "chain/chain.yaml": """\
version: 1
chain: words
tables:
  docs: {tablets: 4}
  words: {tablets: 2, notify_only: [dirty]}
""",
    "chain/split.yaml": """\
version: 1
observer: split
observe: docs.text
function: cli_steps:split
writes: [words.count, words.dirty]
retry: {attempts: 1}
""",
    "chain/total.yaml": """\
version: 1
observer: total
observe: words.dirty
mode: weak
function: cli_steps:total
writes: [words.total]
""",
    "cli_steps.py": """\
import pathlib
import time

def split(t, cell):
    text = t.get(cell.table, cell.row, cell.column)
    if text == b"boom":
        raise ValueError("no such word")
    if text == b"slow":
        time.sleep(1)
    if text == b"held":
        pathlib.Path("begun").touch()
        until = time.monotonic() + 60
        while not pathlib.Path("go").exists() and time.monotonic() < until:
            time.sleep(0.005)
    t.set("words", cell.row, "count", str(len((text or b"").split())).encode())
    t.notify("words", b"all", "dirty")

def total(t, cell):
    found = sum(int(cells["count"]) for _, cells in t.scan("words", columns=["count"]))
    t.set("words", b"sum", "total", str(found).encode())
""",
}


@dataclass
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one error line."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        return lines[0].removeprefix("error: ")


@dataclass
class Project:
    """The project's folder, which is the current one, and a namespace of its own in the store."""

    folder: Path
    url: str
    namespace: str
    program: str = "percolator_core"
    """The package whose command line is run."""

    def __call__(self, *arguments: str, store: bool = True) -> Ended:
        """Run a command in this process."""
        environment = self.environment() if store else {}
        result = CliRunner().invoke(self._app, list(arguments), env={"COLUMNS": "200", **environment})
        return Ended(result.exit_code, result.stdout, result.stderr)

    def ok(self, *arguments: str) -> Ended:
        ended = self(*arguments)
        assert ended.code == 0, ended.err
        return ended

    def start(
        self, *arguments: str, text: bool = True, variables: Mapping[str, str] | None = None
    ) -> subprocess.Popen[Any]:
        """Start a command in a process of its own."""
        environment = {**os.environ, **self.environment(), "PYTHONPATH": str(ROOT), **(variables or {})}
        command = [sys.executable, "-m", self.program, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=text, env=environment, cwd=self.folder
        )

    def run(self, *arguments: str, timeout: float = 60) -> Ended:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=timeout)
        return Ended(process.returncode, out, err)

    @property
    def _app(self) -> typer.Typer:
        module = (
            "percolator_core.cli.app" if self.program == "percolator_core" else f"{self.program}.__main__"
        )
        made: typer.Typer = importlib.import_module(module).app
        return made

    def environment(self) -> dict[str, str]:
        return {"PERCOLATOR_URL": self.url, "PERCOLATOR_NAMESPACE": self.namespace}

    def connect(self) -> Database:
        return connect(self.url, self.namespace)

    def put(self, **documents: str) -> None:
        """Activate the chain and write documents by row key."""
        with self.connect() as db:
            Chain.load("chain").create_tables(db)
            with db.transaction() as t:
                for row, text in documents.items():
                    t.set("docs", row, "text", text.encode())

    def stop(
        self, process: subprocess.Popen[str], number: int = signal.SIGTERM, timeout: float = 30
    ) -> Ended:
        """Send a signal and wait for the end."""
        process.send_signal(number)
        return self.end_of(process, timeout)

    def end_of(self, process: subprocess.Popen[str], timeout: float = 30) -> Ended:
        """Wait for the end."""
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return Ended(process.returncode, out, err)

    def stop_in_a_run(self, process: subprocess.Popen[str], number: int = signal.SIGTERM) -> Ended:
        """Send a signal while an observer works on a text that says ``held``, and wait for the end."""
        until = time.monotonic() + 60
        while not (self.folder / "begun").exists() and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(number)
        (self.folder / "go").touch()  # only now: the signal is there before the run is over
        return self.end_of(process, 60)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with connect(url, "holds-the-server-open"):
        yield url


@pytest.fixture
def project(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Project(tmp_path, url, uuid4().hex)
    sys.modules.pop("cli_steps", None)


@pytest.fixture
def webindex(project: Project) -> Project:
    """The same project, with the command line of the web index."""
    return replace(project, program="observers.webindex")
