"""Ready-made parts: a chain does not load if an observer could not use them when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.observers.conftest import Project

CHAIN = """\
version: 1
chain: web
schemas: app.models
tables:
  queue: {notify_only: [added]}
  plain: {}
  exports: {}
"""
MODELS = """\
from percolator_core import PrimaryKey, Table

class Page(Table, name="pages", notify_only=["dirty"]):
    url: PrimaryKey[str]
    text: str = ""
    hits: int = 0

class Elsewhere(Table, name="elsewhere"):
    url: PrimaryKey[str]
    hits: int = 0
"""
PARTS = """\
from percolator_core.recipes import CombineQueue, Counter, ExportQueue, SecondaryIndex, SQLiteTable
from app.models import Page
from app.others import Elsewhere

hits = Counter("queue", Page.hits)
lost = Counter("nowhere", Page.hits)
deaf = Counter("plain", Page.hits)
foreign = Counter("queue", Elsewhere.hits)
raw = Counter("queue", ("pages", "hits"))
typed = Counter("pages", Page.hits)
exports = ExportQueue("exports")
index = SecondaryIndex("pages", "text", "plain")
table = SQLiteTable("pages.sqlite", Page)
"""
FUNCTIONS = """\
import functools

from app import parts
from app.parts import hits

def count(t, cell):
    hits.drain(t, cell)

def tell(t, cell):
    _tell(t, cell)

def _tell(t, cell):
    for key in "ab":
        (lambda: hits.add(t, key))()

def wrapped(function):
    @functools.wraps(function)
    def inner(t, cell): return function(t, cell)
    return inner

def lost(t, cell): parts.lost.add(t, "a")
def deaf(t, cell): parts.deaf.add(t, "a")
def foreign(t, cell): parts.foreign.drain(t, cell)
def raw(t, cell): parts.raw.drain(t, cell)
def typed(t, cell): parts.typed.add(t, "a")
def index(t, cell): parts.index.find(t, b"a")
def export(t, cell): parts.exports.export(t, cell, None)
@wrapped
def add(t, cell): parts.exports.add(t, b"", b"")
def ship(t, cell): parts.table.export(t, cell)
def other(t, cell):
    sink = parts.table
    return sink
"""

LOST = (
    "it.yaml:3: function: lost.add: the chain has no table 'nowhere'; declare it under 'tables', "
    "with notify_only: [added]"
)
FOREIGN = (
    "it.yaml:3: function: foreign.drain: Elsewhere is no table of the chain; import it in a module "
    "of 'schemas'"
)
EARLY = (
    "it.yaml:5: writes: table.export: would export values of pages before their commit; write them "
    "in another observer"
)

COUNT = "observe: queue.added\nmode: weak\nfeedback: true\nwrites: [queue.added, pages.hits]"


@pytest.fixture
def typed(project: Project) -> Project:
    (project.top / "app").mkdir()
    project.write("chain.yaml", CHAIN)
    models, _, _ = MODELS.partition("class Elsewhere")
    (project.top / "app" / "models.py").write_text(models)
    others = MODELS.replace("class Page", "class Other").replace('"pages"', '"others"')
    (project.top / "app" / "others.py").write_text(others)
    (project.top / "app" / "parts.py").write_text(PARTS)
    (project.top / "app" / "steps.py").write_text(FUNCTIONS)
    return project


def complaint(project: Project, function: str, rest: str) -> str:
    project.observer("it", rest, f"app.steps:{function}")
    return project.complaint()


def test_a_chain_whose_parts_have_what_they_need_loads(typed: Project) -> None:
    typed.observer("count", COUNT.replace("pages.hits", "pages.*"), "app.steps:count")
    typed.observer("tell", "observe: plain.text\nwrites: queue.added", "app.steps:tell")
    typed.observer("ship", "observe: [pages.text, pages.hits]", "app.steps:ship")
    typed.observer("other", "observe: pages.text\nwrites: pages.hits", "app.steps:other")
    assert set(typed.load().observers) == {"count", "tell", "ship", "other"}
    assert set(typed.load(import_functions=False).observers) == {"count", "tell", "ship", "other"}


@pytest.mark.parametrize(
    ("function", "rest", "expected"),
    [
        (
            "lost",
            "observe: plain.text",
            LOST,
        ),
        (
            "deaf",
            "observe: plain.text",
            "it.yaml:3: function: deaf.add: table 'plain' lacks the notify-only column 'added'; add it",
        ),
        (
            "foreign",
            COUNT,
            FOREIGN,
        ),
        (
            "raw",
            COUNT,
            "it.yaml:3: function: raw.drain: needs a raw table, and 'pages' is the typed table Page",
        ),
        (
            "index",
            "observe: plain.text",
            "it.yaml:3: function: index.find: needs a raw table, and 'pages' is the typed table Page",
        ),
        (
            "count",
            "observe: plain.text",
            "it.yaml:4: observe: hits.drain: is for an observer of queue.added",
        ),
        (
            "export",
            "observe: plain.text",
            "it.yaml:4: observe: exports.export: is for an observer of exports.last or exports.more",
        ),
        (
            "ship",
            "observe: plain.text",
            "it.yaml:4: observe: table.export: is for an observer of columns of pages",
        ),
        (
            "ship",
            "observe: pages.text\nwrites: pages.hits",
            EARLY,
        ),
    ],
)
def test_what_cannot_work_is_reported_with_the_line(
    typed: Project, function: str, rest: str, expected: str
) -> None:
    assert complaint(typed, function, rest) == expected


def test_a_raw_recipe_on_a_typed_table_is_reported_with_all_that_is_wrong(typed: Project) -> None:
    typed.observer("it", "observe: plain.text", "app.steps:typed")
    assert [line.partition("typed.add: ")[2] for line in typed.complaints()] == [
        "needs a raw table, and 'pages' is the typed table Page",
        "table 'pages' lacks the notify-only column 'added'; add it",
    ]


def test_an_undeclared_write_is_reported_if_an_observer_observes_the_column(typed: Project) -> None:
    typed.observer("count", COUNT, "app.steps:count")
    typed.observer("watch", "observe: pages.text")
    typed.observer("tell", "observe: plain.text\nwrites: queue.*", "app.steps:tell")
    assert [line.partition(": ")[2] for line in typed.complaints()] == [
        "writes: hits.drain: writes pages.text, which watch observes; declare it",
        "writes: hits.add: writes queue.added, which count observes; declare it",
    ]
    typed.observer("tell", "observe: plain.text\nwrites: queue.added", "app.steps:tell")
    typed.observer("count", COUNT.replace("pages.hits", "pages.*"), "app.steps:count")
    typed.load()


def test_a_call_inside_a_wrapped_function_is_found(typed: Project) -> None:
    typed.observer("it", "observe: plain.text", "app.steps:add")
    typed.observer("watch", "observe: [exports.last, exports.more]")
    expected = "it.yaml: writes: exports.add: writes exports.last, which watch observes; declare it"
    assert typed.complaint() == expected
