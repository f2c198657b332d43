"""A project with one small chain of plain functions, its DAG file, and its store."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from percolator_core import Chain, Database, connect
from tests.airflow.running import Dags

CHAIN = """\
version: 1
chain: shop
tables:
  docs: {tablets: 4}
  sums: {tablets: 2}
"""
OBSERVERS = {
    "split": "observe: docs.text\nwrites: docs.words\nretry: {attempts: 1}",
    "total": "observe: docs.words\nwrites: [sums.n, sums.left]",
    "countdown": "observe: sums.left\nwrites: [sums.left, sums.rounds]\nfeedback: true",
}
FUNCTIONS = """\
def split(t, cell):
    text = t.get("docs", cell.row, "text") or b""
    if text == b"bad":
        raise ValueError("no such text")
    t.set("docs", cell.row, "words", b"%d" % len(text.split()))


def total(t, cell):
    words = t.get("docs", cell.row, "words")
    t.set("sums", cell.row, "n", words)
    t.set("sums", cell.row, "left", words)


def countdown(t, cell):
    left = int(t.get("sums", cell.row, "left"))
    if left:
        t.set("sums", cell.row, "left", b"%d" % (left - 1))
        rounds = int(t.get("sums", cell.row, "rounds") or 0)
        t.set("sums", cell.row, "rounds", b"%d" % (rounds + 1))
"""
DAG_FILE = """\
from percolator_airflow import chain_dags

globals().update(chain_dags({chain!r}, connection="store", {arguments}))
"""


@dataclass
class Shop:
    """A project with one chain, a DAG file for it, and its store."""

    top: Path
    dags: Dags
    url: str

    @property
    def folder(self) -> Path:
        return self.top / "observers" / "shop"

    def declare(self, block: str = "") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "chain.yaml").write_text(CHAIN + textwrap.dedent(block))
        for name, text in OBSERVERS.items():
            (self.folder / f"{name}.yaml").write_text(
                f"version: 1\nobserver: {name}\nfunction: steps:{name}\n{text}\n"
            )
        (self.top / "steps.py").write_text(FUNCTIONS)

    def load(self, arguments: str = "observe={'engine': 'local', 'watch': False}") -> dict[str, Any]:
        text = DAG_FILE.format(chain=str(self.folder), arguments=arguments)
        self.dags.write("shop.py", text)
        return self.dags.load()

    def connect(self) -> Database:
        return connect(self.url, "shop")

    def chain(self) -> Chain:
        return Chain.load(self.folder, import_functions=False)

    def put(self, **rows: bytes) -> None:
        with self.connect() as db:
            self.chain().create_tables(db)
            with db.transaction() as t:
                for row, text in rows.items():
                    t.set("docs", row, "text", text)

    def cells(self, table: str = "sums") -> dict[bytes, dict[str, bytes]]:
        with self.connect() as db:
            return dict(db.snapshot().scan(table))
