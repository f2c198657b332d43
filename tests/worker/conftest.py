"""A database of its own for each test, chains made of plain functions, and projects for worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import percolator_core
from percolator_core import Chain, Database, TableDefinition
from percolator_core.dirty import DirtyIndex
from percolator_core.observers import Observer, Retry
from percolator_core.observers.chain import digest_of
from percolator_core.observers.graph import build_graph, observed_columns
from tests.cli.conftest import interruptible  # noqa: F401 - a fixture for all tests here

ROOT = Path(__file__).parents[2]
TABLES = (TableDefinition("docs", 4), TableDefinition("sums", 4, ("dirty",)))
QUICK = Retry(attempts=3, backoff=0.005, max_backoff=0.02)


def watch(
    name: str,
    function: Callable[[Any, Any], object],
    *observe: str,
    writes: tuple[str, ...] = (),
    **settings: Any,
) -> Observer:
    """An observer of ``table.column`` …"""

    def columns(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        return tuple((table, column) for table, _, column in (each.partition(".") for each in names))

    settings.setdefault("retry", QUICK)
    return Observer(
        name, Path(f"{name}.yaml"), function, "steps:it", columns(observe), writes=columns(writes), **settings
    )


def chain_of(*observers: Observer, tables: tuple[TableDefinition, ...] = TABLES) -> Chain:
    by_name = {observer.name: observer for observer in observers}
    graph = build_graph("test", tables, by_name)
    return Chain("test", Path(), tables, by_name, graph, observed_columns(observers), digest_of(by_name))


def put(db: Database, row: str | bytes, value: bytes, table: str = "docs", column: str = "text") -> int:
    with db.transaction() as t:
        t.set(table, row, column, value)
    assert t.commit_timestamp is not None
    return t.commit_timestamp


def dirty_of(db: Database, chain: Chain) -> DirtyIndex:
    return DirtyIndex(db.client, chain.observed)


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)


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

    def worker(self) -> subprocess.Popen[bytes]:
        return self.start(
            "w = p.Worker(db, chain)\nsignal.signal(signal.SIGTERM, lambda *_: w.stop())\n"
            "print('up', flush=True)\nw.run()\ndb.close()\n"
        )


@pytest.fixture
def project(tmp_path: Path, store_url: str, namespace: str) -> Iterator[Project]:
    made = Project(tmp_path, store_url, namespace)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()
