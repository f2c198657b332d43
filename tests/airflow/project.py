"""A small project with a chain, a store, and a connection to the store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from percolator_core import Database, Worker, connect
from tests.servers.plain import PATIENCE

CONN_ID = "words"

FILES = {
    "observers/words/chain.yaml": """\
version: 1
chain: words
tables:
  docs: {tablets: 4}
  sums: {tablets: 2}
""",
    "observers/words/first.yaml": """\
version: 1
observer: first
observe: docs.text
function: MODULE.steps:first
writes: [docs.seen]
retry: {attempts: 2, backoff: 10ms}
""",
    "observers/words/second.yaml": """\
version: 1
observer: second
observe: docs.seen
function: MODULE.steps:second
writes: [sums.count]
""",
    "MODULE/steps.py": """\
import pathlib
import time


def first(t, cell):
    word, _, rest = t.get(cell.table, cell.row, cell.column).decode().partition(" ")
    if word == "boom":
        raise ValueError("no such word")
    if word == "held":
        pathlib.Path(rest, cell.row.decode()).touch()
        time.sleep(1)
    t.set(cell.table, cell.row, "seen", b"yes")


def second(t, cell):
    before = int(t.get("sums", b"all", "count") or 0)
    t.set("sums", b"all", "count", str(before + 1).encode())
""",
}


@dataclass
class Project:
    """A project and its store. Each project has a module of another name, because imports are cached."""

    folder: Path
    url: str
    module: str

    @property
    def chain(self) -> str:
        return str(self.folder / "observers/words")

    def connect(self, namespace: str = "words") -> Database:
        return connect(self.url, namespace)

    def put(self, *texts: str) -> None:
        with self.connect() as db:
            for number, text in enumerate(texts):
                with db.transaction() as t:
                    t.set("docs", f"row{number}", "text", text.encode())

    def activate(self) -> None:
        """Create the tables and activate the observers, like a drain."""
        from percolator_airflow.chains import ChainFolder

        with ChainFolder.of(self.chain).imported() as chain, self.connect() as db:
            chain.create_tables(db)

    def drain(self) -> None:
        from percolator_airflow.chains import ChainFolder

        with ChainFolder.of(self.chain).imported() as chain, self.connect() as db:
            Worker(db, chain).run_until_idle(PATIENCE)

    def counted(self) -> int:
        with self.connect() as db:
            return int(db.snapshot().get("sums", b"all", "count") or 0)


def make_project(folder: Path, url: str) -> Project:
    module = f"m{uuid4().hex[:8]}"
    for name, text in FILES.items():
        path = folder / name.replace("MODULE", module)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("MODULE", module), encoding="utf-8")
    return Project(folder, url, module)


@contextmanager
def project_with_store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project, and its store behind the connection `CONN_ID`."""
    url = f"embedded:{folder}/store"
    set_connection(monkeypatch, host=url)
    with connect(url) as keeper:  # the server would start for each task
        told = keeper.store.one((b"INFO", b"server")).decode()
        yield make_project(folder / "project", url)
    # The server still waits for a client that a test left behind as dead.
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(told.partition("process_id:")[2].split()[0])).kill()


def set_connection(monkeypatch: pytest.MonkeyPatch, conn_id: str = CONN_ID, **fields: Any) -> None:
    """Return a connection in the form of Airflow's environment variables."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "percolator", **fields}))
