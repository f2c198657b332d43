"""A database of its own for each test, and projects for worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import percolator_core
from percolator_core import Chain, Database

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store for all tests that use a namespace of their own in it."""
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with percolator_core.connect(url, "keeper"):
        yield url


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    return str(request.node.nodeid)[-150:]


@pytest.fixture
def db(store_url: str, namespace: str) -> Iterator[Database]:
    with percolator_core.connect(store_url, namespace, lock_ttl=1.0) as database:
        yield database


@pytest.fixture
def connect(store_url: str, namespace: str) -> Iterator[Callable[[], Database]]:
    """Connects once more to the database of the test."""
    made: list[Database] = []

    def make() -> Database:
        made.append(percolator_core.connect(store_url, namespace, lock_ttl=1.0))
        return made[-1]

    yield make
    for database in made:
        database.close()


@dataclass
class Project:
    """A chain in a folder, and processes that work on it."""

    folder: Path
    url: str
    namespace: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def write(self, code: str, tables: str, **observers: str) -> None:
        chain = self.folder / "chain"
        chain.mkdir()
        (self.folder / "steps.py").write_text(code)
        (chain / "chain.yaml").write_text(f"version: 1\nchain: test\ntables:\n{tables}")
        for name, rest in observers.items():
            (chain / f"{name}.yaml").write_text(
                f"version: 1\nobserver: {name}\nfunction: steps:{name}\n{rest}\n"
            )

    def chain(self) -> Chain:
        return Chain.load(self.folder / "chain", import_functions=False)

    def connect(self) -> Database:
        return percolator_core.connect(self.url, self.namespace, lock_ttl=1.0)

    def start(self, code: str) -> subprocess.Popen[bytes]:
        """A process that runs ``code``, with ``db`` and ``chain`` at hand."""
        begin = (
            "import percolator_core as p, signal, sys, time\n"
            f"db = p.connect({self.url!r}, {self.namespace!r}, lock_ttl=1.0)\n"
            "chain = p.Chain.load('chain')\n"
        )
        with (self.folder / "stderr").open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", begin + code],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.processes.append(process)
        return process

    def worker(self, before: str = "") -> subprocess.Popen[bytes]:
        """A worker in a process of its own, which runs the code ``before`` first."""
        return self.start(
            f"{before}w = p.Worker(db, chain)\nsignal.signal(signal.SIGTERM, lambda *_: w.stop())\n"
            "print('up', flush=True)\nw.run()\ndb.close()\n"
        )


@pytest.fixture
def project(tmp_path: Path, store_url: str, namespace: str) -> Iterator[Project]:
    made = Project(tmp_path, store_url, namespace)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()
