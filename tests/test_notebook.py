"""Notebooks: tables, rows, chains and results as HTML that is escaped and of bounded size."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from percolator_core import Chain, Database, PrimaryKey, Table, TableDefinition, Worker, connect
from percolator_core.admin.status import status
from percolator_core.admin.trace import trace
from percolator_core.runtime.html import LONGEST_TEXT, MOST_COLUMNS, MOST_ROWS, html_table
from tests.chains import chain_of, put, watch
from tests.servers.plain import PATIENCE

EVIL = "</td><script>alert('$x$')</script>\x1b[1m&amp;"


class Page(Table, name="pages", notify_only=["seen"]):
    url: PrimaryKey[str]
    words: int | None = None
    body: bytes = b""


class Tables(HTMLParser):
    """The texts of the cells of all tables, by row; it fails for tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.notes: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self._open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] in {"td", "th"}:
            self.rows[-1][-1] += data
        else:
            self.notes.append(data)


def shown(it: object) -> Tables:
    return Tables(it._repr_html_())  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with connect(f"embedded:{tmp_path_factory.mktemp('store')}") as db:
        db.create_table(Page)
        db.create_table("raw", tablets=1)
        with db.transaction() as t:
            t.insert(Page(url=EVIL, body=b"\xff\0" * 5_000_000))
            for number in range(150):
                t.insert(Page(url=f"u{number:03}", words=number))
            t.set("raw", b"\xff", EVIL, b"value")
        yield db


def test_the_tables_of_a_database(pages: Database) -> None:
    assert shown(pages.tables()).rows == [
        ["table", "tablets", "key", "columns", "notify-only", "base"],
        ["pages", "16", "url", "url, words, body", "seen", ""],
        ["raw", "1", "row", "any", "", ""],
    ]
    assert isinstance(pages.tables(), list)


def test_the_columns_of_a_table(pages: Database) -> None:
    assert shown(pages.tables()[0]).rows[1:] == [
        ["url", "str", "key", "False"],
        ["words", "int", "", "True"],
        ["body", "bytes", "", "False"],
        ["seen", "", "notify-only", ""],
    ]
    assert shown(TableDefinition(EVIL)).tags <= {"div", "strong", "table", "thead", "tbody", "tr", "th"}


def test_rows_are_shown_and_stay_to_be_read(pages: Database) -> None:
    rows = pages.snapshot().select(Page)
    found = shown(rows)
    assert found.rows[0] == ["url", "words", "body"]
    assert found.rows[1][0] == EVIL.replace("\x1b", "\\x1b")
    assert found.rows[1][1] == "null"
    assert found.rows[1][2].startswith("\\xff\\x00")
    assert len(found.rows) == 1 + MOST_ROWS
    assert found.notes[-1] == f"only the first {MOST_ROWS} rows are shown"
    assert shown(rows).rows == found.rows
    assert [row.words for row in rows] == [None, *range(150)]
    assert "read them again" in shown(rows).notes[0]


def test_rows_are_iterators(pages: Database) -> None:
    rows = pages.snapshot().select(Page, columns=["url"])
    assert next(rows)["url"] == EVIL
    assert len(list(rows)) == 150
    assert next(rows, None) is None


def test_rows_without_a_model_and_of_raw_tables(pages: Database) -> None:
    assert shown(pages.snapshot().select("pages", columns=["words"], limit=2)).rows == [
        ["words"],
        ["null"],
        ["0"],
    ]
    raw = shown(pages.snapshot().scan("raw"))
    assert raw.rows == [["row", EVIL.replace("\x1b", "\\x1b")], ["\\xff", "value"]]
    assert not raw.tags & {"script"}


def test_a_row(pages: Database) -> None:
    assert shown(pages.snapshot().find(Page, url="u007")).rows == [
        ["url", "words", "body"],
        ["u007", "7", ""],
    ]


def test_the_size_is_bounded() -> None:
    names = [f"c{number}" + "x" * 1000 for number in range(200)]
    html = html_table(names, ([["&" * 10**6] * 200] * 1000), "t" * 10**6)
    assert len(html) < MOST_COLUMNS * (MOST_ROWS + 1) * (LONGEST_TEXT * len("&amp;") + 50)
    found = Tables(html)
    assert len(found.rows) == MOST_ROWS + 1
    assert found.notes[1:] == [
        f"only the first {MOST_ROWS} rows are shown",
        f"only the first {MOST_COLUMNS} of 200 columns are shown",
    ]


def test_no_colour_is_set_so_that_light_and_dark_notebooks_both_work(pages: Database) -> None:
    assert "color" not in pages.tables()._repr_html_()


def test_text_between_dollar_signs_is_no_mathematics(pages: Database) -> None:
    assert "tex2jax_ignore mathjax_ignore" in pages.tables()._repr_html_()


def the_chain() -> Chain:
    return chain_of(
        watch("o", lambda t, cell: t.set("sums", "a", "n", b"1"), "docs.text", writes=("sums.n",))
    )


def test_a_chain_is_its_graph_in_an_image(tmp_path: Path) -> None:
    html = the_chain()._repr_html_()
    assert html.startswith('<img alt="chain test: o" src="data:image/svg+xml;base64,')
    drawn = base64.b64decode(html.partition("base64,")[2].partition('"')[0]).decode()
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert "prefers-color-scheme:dark" in drawn
    assert 'class="ground"' in drawn


def test_a_very_large_chain_is_a_list() -> None:
    observers = [watch(f"o{n}", print, f"docs.c{n}", writes=(f"docs.d{n}",)) for n in range(2500)]
    found = shown(chain_of(*observers))
    assert found.rows[:2] == [
        ["observer", "mode", "observes", "writes"],
        ["o0", "strong", "docs.c0", "docs.d0"],
    ]
    assert len(found.rows) == 1 + MOST_ROWS


def test_results(tmp_path: Path) -> None:
    chain = the_chain()
    with connect(f"embedded:{tmp_path}") as db:
        chain.create_tables(db)
        put(db, "a", b"x")
        counts = shown(Worker(db, chain).run_until_idle(PATIENCE))
        assert counts.notes[0] == "Counts"
        assert [row[0] for row in counts.rows[-2:]] == ["", "o"]
        assert "ran" in counts.rows[-2]
        assert ["commits", "2"] in shown(db.metrics).rows
        collected = shown(db.collect_garbage(timedelta(0)))
        assert collected.notes == ["Collected", "locks"]
        found = shown(status(db, chain))
        assert {"Status", "store", "tables", "observers"} == set(found.notes)
        traced = shown(trace(db, chain, "docs", "a", change="all"))
        assert traced.notes[0] == "Trace"
