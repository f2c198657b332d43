"""The bases of tables in chain.yaml."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from percolator_core import Database, connect
from tests.observers.conftest import Project

CHAIN = """\
version: 1
chain: web
tables:
  documents: {tablets: 4, base: {location: "file:base", cold_after: 2d, memory: 200MB}}
  links: {}
"""

TYPED = """\
version: 1
chain: web
schemas: app.models
tables:
  documents: {base: {location: "file:base"}}
"""

MODELS = """\
from percolator_core import Hash, PrimaryKey, Table

class Document(Table, name="documents", partition=[Hash("url", buckets=2)]):
    url: PrimaryKey[str]
    contents: bytes | None = None
"""


@pytest.fixture
def based(project: Project) -> Project:
    project.write("chain.yaml", CHAIN)
    project.observer("parse", "observe: documents.contents")
    return project


def rule_of(db: Database) -> tuple[str, int | None, int | None]:
    rule = db.catalog.table("documents").definition.base
    assert rule is not None
    return rule.location, rule.cold_after, rule.memory


def test_a_table_gets_the_base_of_its_declaration(based: Project, tmp_path: Path) -> None:
    folder = (based.top / based.folder).resolve()
    with connect(f"embedded:{tmp_path / 'state'}") as db:
        based.load().create_tables(db)
        assert rule_of(db) == (f"file://{folder}/base", 2 * 86_400_000_000, 200_000_000)
        assert db.base("links") is None
        before = db.catalog.table("documents")
        based.load().create_tables(db)
        db.catalog.refresh()
        assert db.catalog.table("documents") is before
        with db.transaction() as t:
            t.set("documents", "a", "contents", b"1")
        db.flush("documents", everything=True)
        based.write("chain.yaml", CHAIN.replace("2d", "1h").replace(", memory: 200MB", ""))
        based.load().create_tables(db)
        assert rule_of(db) == (f"file://{folder}/base", 3_600_000_000, None)
        assert db.snapshot().get("documents", "a", "contents") == b"1"


def test_a_base_that_the_chain_does_not_declare_stays(based: Project, tmp_path: Path) -> None:
    with connect(f"embedded:{tmp_path / 'state'}") as db:
        based.load().create_tables(db)
        db.set_base("links", str(tmp_path / "links"), cold_after=timedelta(hours=1))
        based.write("chain.yaml", "version: 1\nchain: web\ntables: {documents: {tablets: 4}, links: {}}\n")
        based.load().create_tables(db)
        assert db.base("links") is not None
        assert db.base("documents") is not None


def test_a_typed_table_has_an_entry_with_nothing_but_its_base(project: Project, tmp_path: Path) -> None:
    (project.top / "app").mkdir()
    (project.top / "app" / "__init__.py").write_text("")
    (project.top / "app" / "models.py").write_text(MODELS)
    project.write("chain.yaml", TYPED)
    project.observer("parse", "observe: documents.contents")
    assert [table.name for table in project.load(import_functions=False).tables] == []
    with connect(f"embedded:{tmp_path / 'state'}") as db:
        project.load().create_tables(db)
        assert db.catalog.table("documents").is_typed
        assert db.base("documents") is not None
    project.write("chain.yaml", TYPED.replace("{base", "{tablets: 2, base"))
    [complaint] = project.complaints()
    assert "table 'documents' of 'app.models' is declared under 'tables', too" in complaint


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("{}", "tables.documents.base.location: is missing"),
        ("{location: x, memory: 5}", "tables.documents.base.memory: expected a size such as 512MB or 4GiB"),
        ("{location: x, memory: 5 MB}", "tables.documents.base.memory: '5 MB' is not a size"),
        ("{location: x, memory: 0B}", "tables.documents.base.memory: '0B' is out of range"),
        ("{location: x, cold_after: 1}", "tables.documents.base.cold_after: expected a length"),
        ("{location: x, cold: 1h}", "tables.documents.base.cold: is not a known key"),
    ],
)
def test_a_bad_base_is_one_line(project: Project, base: str, expected: str) -> None:
    project.write("chain.yaml", f"version: 1\nchain: web\ntables:\n  documents: {{base: {base}}}\n")
    project.observer("parse", "observe: documents.contents")
    [complaint] = project.complaints()
    assert complaint.startswith(f"observers/web/chain.yaml:4: {expected}")
