"""The command ``search`` over a serving index."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.text import Text

from observers.webindex.index import Posting, ServingIndex
from observers.webindex.search import Result
from observers.webindex.search_command import result_text

if TYPE_CHECKING:
    from tests.cli.conftest import Project

PAGES = {
    "doc://a/redis.html": ("Redis", "An in-memory store with Lua scripts.", 3.0),
    "doc://a/lua.html": ("Lua", "A small language, embedded in many programs, a store of data too.", 1.0),
    "doc://a/empty.html": ("", "Only a text about scripts.", 0.5),
}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    path = tmp_path / "index" / "serving.db"
    made = ServingIndex(path)
    for url, (title, text, rank) in PAGES.items():
        made.put(Posting(f"url:{url}", url, title, "", text, "f", rank, 1), version=1)
    made.close()
    return path


def test_results_have_place_title_url_and_snippet(webindex: Project, index: Path) -> None:
    lines = webindex.ok("search", "store", "--index", str(index)).out.splitlines()
    assert [line.rstrip() for line in lines] == [
        "  1 Redis",
        "    doc://a/redis.html",
        "    An in-memory store with Lua scripts.",
        "  2 Lua",
        "    doc://a/lua.html",
        "    A small language, embedded in many programs, a store of data too.",
    ]


def test_words_need_no_quotes_and_a_page_without_title_shows_its_url(webindex: Project, index: Path) -> None:
    out = webindex.ok("search", "only", "scripts", "--index", str(index)).out
    assert out.splitlines()[0] == "  1 doc://a/empty.html"


def test_json_has_scores_and_marked_snippets(webindex: Project, index: Path) -> None:
    found = webindex.ok("search", "lua store", "--limit", "1", "--index", str(index), "--json").json
    assert found["query"] == "lua store"
    (result,) = found["results"]
    assert result["url"] == "doc://a/lua.html" or result["url"] == "doc://a/redis.html"
    assert "**store**" in result["snippet"]
    assert result["score"] > 0


def test_nothing_found_is_no_failure(webindex: Project, index: Path) -> None:
    assert "Nothing is found" in webindex.ok("search", "zebra", "--index", str(index)).out
    assert webindex.ok("search", "zebra", "--index", str(index), "--json").json["results"] == []


@pytest.mark.parametrize("query", ['"', "a AND (", "title:*", "'; drop table words", "-- NEAR"])
def test_any_text_is_a_query(webindex: Project, index: Path, query: str) -> None:
    webindex.ok("search", "--index", str(index), "--", query)


def test_the_index_of_the_demo_is_found(webindex: Project, index: Path) -> None:
    demo = webindex.folder / ".percolator" / "demo"
    demo.mkdir(parents=True)
    index.rename(demo / "serving.db")
    assert "doc://a/lua.html" in webindex.ok("search", "language").out


def test_a_missing_index_is_one_sentence_and_none_is_made(webindex: Project) -> None:
    ended = webindex("search", "x", "--index", "nowhere.db")
    assert ended.code == 3
    assert ended.error.startswith("There is no index at nowhere.db: build one with `")
    assert not Path("nowhere.db").exists()


def test_a_result_fits_its_width() -> None:
    long = Result("doc://a/" + "u" * 200, "t" * 200, "s" * 100 + " **found** " + "s" * 100, 1.0, 1.0, 12_345)
    lines = result_text(12, long, 80).plain.splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)


def test_duplicates_are_counted() -> None:
    alone, copied = (Result("doc://a/", "T", "", 1.0, 1.0, size) for size in (1, 3))
    assert result_text(1, alone).plain.splitlines()[1] == "    doc://a/"
    assert result_text(1, copied).plain.splitlines()[1] == "    doc://a/  and 2 more like it"


def test_a_found_word_is_not_cut_off() -> None:
    text = result_text(1, Result("doc://a/", "T", "…" + "before " * 30 + "**found** after", 1.0, 1.0, 1), 80)
    assert "found after" in text.plain.splitlines()[2]
    assert "found" in [
        text.plain[span.start : span.end] for span in text.spans if "yellow" in str(span.style)
    ]


def test_found_words_stand_out() -> None:
    text = result_text(1, Result("doc://a/", "T", "one **two** three", 1.0, 1.0, 1))
    assert text.plain.endswith("one two three")
    marked = [text.plain[span.start : span.end] for span in text.spans if "yellow" in str(span.style)]
    assert marked == ["two"]
    assert isinstance(text, Text)
