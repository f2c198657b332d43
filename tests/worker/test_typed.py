"""Chains whose tables are typed: observers find and write rows as instances of models."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Chain, Database, Worker
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODELS = """\
from percolator_core import Hash, PrimaryKey, Table

class Document(Table, name="documents", partition=[Hash("site", buckets=4)], notify_only=["dirty"]):
    site: PrimaryKey[str]
    path: PrimaryKey[int]
    text: str | None = None
    words: int = 0

class Site(Table, name="sites"):
    name: PrimaryKey[str]
    words: int = 0
"""
STEPS = """\
from typed_models import Document, Site

def count(t, cell):
    found = t.find(Document, **Document.key_of(cell.row))
    if found is None:
        return
    assert cell.row == Document.row_key(site=found.site, path=found.path)
    found.words = len((found.text or "").split())
    t.update(found)
    t.notify("documents", Document.row_key(site=found.site, path=0), "dirty")

def total(t, cell):
    site = Document.key_of(cell.row)["site"]
    words = sum(one.words for one in t.select(Document, where=Document.site == site))
    t.upsert(Site(name=site, words=words))

def undeclared(t, cell):
    t.insert(Document(site="new", path=1))
"""
OBSERVERS = {
    "count": "observe: documents.text\nwrites: [documents.words, documents.dirty]",
    "total": "observe: documents.dirty\nmode: weak\nwrites: sites.words",
}


class Typed:
    """A chain of typed tables in the current directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "chain").mkdir()
        (folder / "chain" / "chain.yaml").write_text("version: 1\nchain: typed\nschemas: typed_models\n")
        self.write(MODELS, STEPS, OBSERVERS)

    def write(self, models: str, steps: str, observers: dict[str, str]) -> None:
        (self.folder / "typed_models.py").write_text(models)
        (self.folder / "typed_steps.py").write_text(steps)
        for name, rest in observers.items():
            head = f"version: 1\nobserver: {name}\nfunction: typed_steps:{name}\nretry: {{attempts: 1}}\n"
            (self.folder / "chain" / f"{name}.yaml").write_text(head + rest + "\n")
        forget()

    def load(self) -> tuple[Chain, Any]:
        """The chain, and the module of its models."""
        return Chain.load("chain"), importlib.import_module("typed_models")


def forget() -> None:
    sys.modules.pop("typed_models", None)
    sys.modules.pop("typed_steps", None)


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Typed]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Typed(tmp_path)
    forget()


def test_observers_of_typed_columns_find_and_write_rows(db: Database, typed: Typed) -> None:
    chain, models = typed.load()
    chain.create_tables(db)
    with db.transaction() as t:
        t.insert(models.Document(site="a", path=1, text="to be or not"))
        t.insert(models.Document(site="a", path=2, text="to be"))
        t.insert(models.Document(site="b", path=1))
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    assert counts.observers["count"].ran == 2  # a null text is no cell
    snapshot = db.snapshot()
    assert snapshot.find(models.Document, site="a", path=1).words == 4
    assert [(one.name, one.words) for one in snapshot.select(models.Site)] == [("a", 6)]
    with db.transaction() as t:
        t.update(models.Document(site="a", path=1, text="to"))
        t.remove(models.Document, site="a", path=2)
    assert Worker(db, chain).run_until_idle(PATIENCE).observers["count"].ran == 2
    assert db.snapshot().find(models.Site, name="a").words == 1


def test_an_undeclared_typed_write_is_refused(db: Database, typed: Typed) -> None:
    typed.write(MODELS, STEPS, {"undeclared": "observe: sites.words"})
    chain, models = typed.load()
    chain.create_tables(db)
    with db.transaction() as t:
        t.insert(models.Site(name="a", words=1))
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    assert counts.observers["undeclared"].quarantined == 1
    assert db.snapshot().find(models.Document, site="new", path=1) is None


def test_a_renamed_column_still_wakes_its_observers(db: Database, typed: Typed) -> None:
    chain, models = typed.load()
    chain.create_tables(db)
    with db.transaction() as t:
        t.insert(models.Document(site="a", path=1, text="to be"))
    Worker(db, chain).run_until_idle(PATIENCE)
    with db.transaction() as t:
        t.insert(models.Document(site="a", path=2, text="or not to be"))  # observed after the rename
    db.rename_column(models.Document, "text", "body")
    typed.write(
        MODELS.replace("text:", "body:"),
        STEPS.replace("found.text", "found.body").replace(
            "    found =", "    assert cell.column == 'body'\n    found ="
        ),
        {"count": OBSERVERS["count"].replace(".text", ".body")},
    )
    chain, models = typed.load()
    chain.create_tables(db)
    assert Worker(db, chain).run_until_idle(PATIENCE).observers["count"].ran == 1
    with db.transaction() as t:
        t.update(models.Document(site="a", path=1, body="be"))
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    assert (counts.observers["count"].ran, counts.observers["count"].failed) == (1, 0)
    assert db.snapshot().find(models.Site, name="a").words == 5


def test_a_change_of_the_table_is_no_failure_of_the_run(db: Database, typed: Typed) -> None:
    """A run that was begun by the old definition is run again, and does not use up its attempts."""
    changed = (
        "def changed(t, cell):\n    import typed_models\n    typed_models.meanwhile()\n    count(t, cell)\n"
    )
    steps = f"{STEPS}\n{changed}"
    typed.write(MODELS, steps, {"changed": OBSERVERS["count"]})
    (typed.folder / "chain" / "count.yaml").unlink()
    (typed.folder / "chain" / "total.yaml").unlink()
    chain, models = typed.load()
    chain.create_tables(db)
    ways = [
        lambda: db.rename_column("documents", "words", "count"),
        lambda: db.rename_column("documents", "count", "words"),
    ]

    def meanwhile() -> None:
        while ways:
            ways.pop(0)()

    models.meanwhile = meanwhile
    with db.transaction() as t:
        t.insert(models.Document(site="a", path=1, text="to be"))
    counts = Worker(db, chain).run_until_idle(PATIENCE).observers["changed"]
    assert (counts.ran, counts.failed, counts.quarantined, counts.conflicts) == (1, 0, 0, 1)
    assert db.snapshot().find(models.Document, site="a", path=1).words == 2
