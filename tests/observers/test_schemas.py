"""Chains with typed tables: where the models are found, and what is checked of references to them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import pytest

from percolator_core.database import connect
from percolator_core.errors import ConfigurationError
from percolator_core.observers import Chain, ObserverTransaction, guards
from percolator_core.tables.model import Hash, PrimaryKey, Table, definition_of
from tests.observers.test_guard import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from percolator_core.transaction.transaction import Transaction
    from tests.observers.conftest import Project

CHAIN = "version: 1\nchain: web\nschemas: app.models\n"
MODELS = """\
from percolator_core import Hash, PrimaryKey, Table

class Common(Table):
    "Has no name, so it is no table."
    note: str | None = None

class Document(Common, name="documents", partition=[Hash("url", buckets=2)], notify_only=["dirty"]):
    url: PrimaryKey[str]
    contents: bytes | None = None
    page_rank: float = 0.0

Same = Document
"""
BAD = {
    "no_module": ("", "there is no module 'app.no_module'; did you mean 'app.models'?"),
    "broken": (
        "1 / 0",
        "importing 'app.broken' failed: ZeroDivisionError: division by zero; fix that module",
    ),
    "empty": (
        "from percolator_core import Table",
        (
            "module 'app.empty' has no table; write one, such as "
            "'class Document(Table, name=\"documents\")', or import it there"
        ),
    ),
    "keyless": (
        "from percolator_core import Table\nclass A(Table, name='a'):\n    x: int",
        (
            "importing 'app.keyless' failed: ConfigurationError: table 'a': no column is its key: declare "
            "one as PrimaryKey[…]; fix that module"
        ),
    ),
    "never": (
        (
            "from __future__ import annotations\nfrom percolator_core import PrimaryKey, Table\n"
            "class A(Table, name='a'):\n    x: PrimaryKey[Nothing]"
        ),
        "A of 'app.never': name 'Nothing' is not defined; fix that model",
    ),
    "dotted": (
        "from percolator_core import PrimaryKey, Table\nclass A(Table, name='a.b'):\n    x: PrimaryKey[int]",
        (
            "A of 'app.dotted' is the table 'a.b', which has a dot, so no observer could name it; rename it, "
            "for instance to 'a_b'"
        ),
    ),
    "twice": (
        (
            "from percolator_core import PrimaryKey, Table\nclass A(Table, name='a'):\n"
            "    x: PrimaryKey[int]\nclass B(Table, name='a'):\n    x: PrimaryKey[int]"
        ),
        "A and B of 'app.twice' are both the table 'a'; give one of them another name",
    ),
}
REFERENCES = {
    "unknown column": (
        "observe: documents.pagerank",
        "observe: Document, table 'documents', has no column 'pagerank'; did you mean 'page_rank'?",
    ),
    "unlike any column": (
        "observe: documents.contents\nreads: documents.zzz",
        (
            "reads: Document, table 'documents', has no column 'zzz'; it has note, url, contents, page_rank, "
            "dirty"
        ),
    ),
    "key observed": (
        "observe: documents.url",
        (
            "observe: documents.url is part of the key, which never changes; observe one of its other "
            "columns, such as note, contents, page_rank"
        ),
    ),
    "key written": (
        "observe: documents.contents\nwrites: [documents.url]",
        (
            "writes[0]: documents.url is part of the key, which never is written; leave it out: inserting "
            "a row writes its other columns"
        ),
    ),
    "strong on a notify-only column": (
        "observe: documents.dirty",
        "observe: documents.dirty is notify-only and wakes only weak observers; write mode: weak",
    ),
    "weak on an ordinary column": (
        "observe: documents.contents\nmode: weak",
        (
            "observe: a weak observer watches notify-only columns, and documents.contents is an ordinary "
            "one; did you mean 'documents.dirty'?"
        ),
    ),
    "unknown table": (
        "observe: documens.contents",
        "observe: table 'documens' is not declared in chain.yaml or its schemas; did you mean 'documents'?",
    ),
    "table unlike any": (
        "observe: shops.sold",
        "observe: table 'shops' is not declared in chain.yaml or its schemas; the chain has documents",
    ),
}


@pytest.fixture
def typed(project: Project) -> Project:
    app = project.top / "app"
    app.mkdir()
    (app / "__init__.py").write_text("")
    (app / "models.py").write_text(MODELS)
    project.write("chain.yaml", CHAIN)
    project.observer(
        "parse", "observe: documents.contents\nreads: documents.url\nwrites: documents.page_rank"
    )
    return project


def test_named_models_of_a_module_are_tables(typed: Project) -> None:
    chain = typed.load()
    assert [(table.name, table.tablets, table.key) for table in chain.tables] == [("documents", 2, ("url",))]
    assert chain.models == {"documents": sys.modules["app.models"].Document}
    assert chain.schemas == ("app.models",)


def test_typed_tables_beside_raw_ones_and_of_several_modules(typed: Project) -> None:
    (typed.top / "app" / "more.py").write_text("from app.models import *\nfrom app.links import Link\n")
    (typed.top / "app" / "links.py").write_text(
        "from percolator_core import PrimaryKey, Table\n"
        "class Link(Table, name='links'):\n    source: PrimaryKey[str]\n    target: PrimaryKey[str]\n"
    )
    typed.write(
        "chain.yaml", "version: 1\nchain: web\nschemas: [app.models, app.more]\ntables: {clusters: {}}\n"
    )
    assert [table.name for table in typed.load().tables] == ["clusters", "documents", "links"]


def test_models_are_found_from_the_current_directory(typed: Project) -> None:
    before = list(sys.path)
    typed.load()
    assert sys.path == [str(typed.top), *before]


@pytest.mark.parametrize(
    ("module", "text", "expected"), [(name, *rest) for name, rest in BAD.items()], ids=BAD
)
def test_a_bad_module_of_models_is_one_line(typed: Project, module: str, text: str, expected: str) -> None:
    if text:
        (typed.top / "app" / f"{module}.py").write_text(text)
    typed.write("chain.yaml", CHAIN.replace("app.models", f"[app.{module}]"))
    typed.observer("parse", "observe: documens.contents")  # not refused: nobody knows the tables
    assert typed.complaint().startswith(f"chain.yaml:3: schemas[0]: {expected}")


@pytest.mark.parametrize(("rest", "expected"), REFERENCES.values(), ids=REFERENCES)
def test_a_bad_reference_is_one_line(typed: Project, rest: str, expected: str) -> None:
    typed.observer("parse", rest)
    complaint = typed.complaint().removeprefix("parse.yaml:")
    assert complaint.partition(": ")[2] == expected


def test_a_weak_observer_of_a_model_without_notify_only_columns(typed: Project) -> None:
    (typed.top / "app" / "models.py").write_text(MODELS.replace(', notify_only=["dirty"]', ""))
    typed.observer("parse", "observe: documents.contents\nmode: weak")
    assert typed.complaint().endswith(
        "; add another one to notify_only of 'documents' in Document, or write mode: strong"
    )


def test_a_table_that_is_declared_twice(typed: Project) -> None:
    typed.write("chain.yaml", CHAIN + "tables: {documents: {}}\n")
    assert typed.complaint() == (
        "chain.yaml:3: schemas: table 'documents' of 'app.models' is declared under 'tables', too; "
        "remove one of the two"
    )
    (typed.top / "app" / "other.py").write_text(MODELS.replace("Document", "Page"))
    typed.write("chain.yaml", "version: 1\nchain: web\nschemas:\n  - app.models\n  - app.other\n")
    assert typed.complaint() == (
        "chain.yaml:5: schemas[1]: table 'documents' of 'app.other' is declared by Document of 'app.models', "
        "too; remove one of the two"
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("schemas: []", "expected a module such as schemas.webindex, or a list of them, not an empty list"),
        ("schemas: 7", "expected a module such as schemas.webindex, or a list of them, not a number (7)"),
        ("schemas: [a, a]", "'a' is named twice; remove one of the two"),
        (
            "schemas: app/it.py",
            "'app/it.py' is not a module's name; write for instance schemas.webindex",
        ),
    ],
)
def test_what_is_no_module(typed: Project, line: str, expected: str) -> None:
    typed.write("chain.yaml", f"version: 1\nchain: web\n{line}\n")
    assert typed.complaint().partition(": ")[2].partition(": ")[2] == expected


def test_a_chain_needs_tables_of_either_kind(typed: Project) -> None:
    typed.write("chain.yaml", "version: 1\nchain: web\n")
    assert typed.complaint() == "chain.yaml: tables: is missing; add 'tables: {documents: {tablets: 16}}'"
    typed.write("chain.yaml", CHAIN + "tables: {}\n")
    assert len(typed.load().tables) == 1


def test_without_functions_no_model_is_imported(typed: Project) -> None:
    (typed.top / "app" / "models.py").write_text("raise SystemExit")
    typed.write("chain.yaml", CHAIN + "tables: {clusters: {}}\n")
    typed.observer("parse", "observe: documents.anything\nwrites: documents.dirty")
    typed.observer("elect", "observe: documents.dirty\nmode: weak\nwrites: clusters.name")
    chain = typed.load(import_functions=False)
    assert [table.name for table in chain.tables] == ["clusters"]
    assert chain.graph.nodes["documents.dirty"]["notify_only"] is True
    assert chain.graph.nodes["documents.anything"]["notify_only"] is False
    assert not chain.models


def test_create_tables_makes_typed_ones(typed: Project, tmp_path: Path) -> None:
    chain = typed.load()
    with connect(f"embedded:{tmp_path / 'state'}") as db:
        chain.create_tables(db)
        chain.create_tables(db)
        (table,) = db.tables()
        assert table == definition_of(chain.models["documents"])
        with pytest.raises(ConfigurationError, match="load the chain with import_functions=True"):
            typed.load(import_functions=False).create_tables(db)


class Page(Table, name="pages", partition=[Hash("site", "path", buckets=2)], notify_only=["dirty"]):
    site: PrimaryKey[str]
    path: PrimaryKey[int]
    text: str | None = None
    words: int = 0
    title: str | None = None


def test_keys_and_row_keys_of_a_model() -> None:
    row = Page.row_key(site="a\0b", path=-3)
    assert Page.key_of(row) == {"site": "a\0b", "path": -3}
    with pytest.raises(TypeError, match=r"the key is \(site, path\), not \(site\)"):
        Page.row_key(site="a")
    with pytest.raises(TypeError, match="path: 'x' is no int"):
        Page.row_key(site="a", path="x")
    with pytest.raises(ValueError, match="is no key of this table"):
        Page.key_of(b"zzz")


@pytest.fixture
def under(project: Project) -> Callable[[str], tuple[Recorder, ObserverTransaction]]:
    """The transaction of an observer of pages.text that declares these writes; pages.words is observed."""

    def made(writes: str) -> tuple[Recorder, ObserverTransaction]:
        (project.top / "app.py").write_text(f"from {__name__} import Page\n")
        sys.modules.pop("app", None)
        project.write("chain.yaml", CHAIN.replace("app.models", "app"))
        project.observer("parse", f"observe: pages.text\nwrites: {writes}\nfeedback: true")
        project.observer("count", "observe: pages.words")
        project.observer("wake", "observe: pages.dirty\nmode: weak")
        recorder = Recorder()
        chain: Chain = project.load()
        return recorder, ObserverTransaction(cast("Transaction", recorder), guards(chain)["parse"])

    return made


REFUSED: dict[str, tuple[str, Callable[[ObserverTransaction], object], str]] = {
    "insert": ("[pages.text]", lambda t: t.insert(Page(site="a", path=1)), "pages.*"),
    "insert by values": ("[pages.words]", lambda t: t.insert("pages", site="a", path=1), "pages.*"),
    "remove": ("[pages.text]", lambda t: t.remove(Page, site="a", path=1), "pages.*"),
    "remove by name": ("[pages.text]", lambda t: t.remove("pages", site="a", path=1), "pages.*"),
    "upsert": ("[pages.words]", lambda t: t.upsert(Page(site="a", path=1, text="x")), "pages.text"),
    "upsert to null": ("[pages.words]", lambda t: t.upsert(Page(site="a", path=1, text=None)), "pages.text"),
    "a default of an upsert": (
        "[pages.text]",
        lambda t: t.upsert(Page(site="a", path=1, text="x")),
        "pages.words",
    ),
    "the same by values": (
        "[pages.text]",
        lambda t: t.upsert(Page, site="a", path=1, text="x"),
        "pages.words",
    ),
    "update": ("[pages.text]", lambda t: t.update(Page(site="a", path=1, words=2)), "pages.words"),
    "update by values": (
        "[pages.text]",
        lambda t: t.update("pages", site="a", path=1, words=2),
        "pages.words",
    ),
}


@pytest.mark.parametrize(("writes", "attempt", "mend"), REFUSED.values(), ids=REFUSED)
def test_undeclared_writes_to_observed_typed_columns_are_refused(
    under: Callable[[str], tuple[Recorder, ObserverTransaction]],
    writes: str,
    attempt: Callable[[ObserverTransaction], object],
    mend: str,
) -> None:
    recorder, t = under(writes)
    with pytest.raises(ConfigurationError, match="without declaring it") as raised:
        attempt(t)
    assert str(raised.value).endswith(f"add '{mend}' to writes in observers/web/parse.yaml")
    assert not recorder.calls


def test_declared_typed_writes_pass(under: Callable[[str], tuple[Recorder, ObserverTransaction]]) -> None:
    recorder, t = under("[pages.*]")
    page = Page(site="a", path=1)
    t.insert(page)
    t.upsert("pages", site="a", path=1, words=2)
    t.update(page)
    assert t.remove(Page, site="a", path=1) is True
    recorder2, t = under("[pages.text]")
    t.update(Page(site="a", path=1, text="x", title="unobserved"))
    t.upsert("pages", site="a", path=1, text="y")
    assert [call[0] for call in recorder.calls] == ["insert", "upsert", "update", "remove"]
    assert [call[0] for call in recorder2.calls] == ["update", "upsert"]
    with pytest.raises(TypeError, match="is no table"):
        t.insert(cast("Table", 7))
