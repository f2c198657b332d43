from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observers.webindex.index import KEEP_REMOVED, Posting, ServingIndex, close_indexes, open_index
from observers.webindex.search import search
from percolator_core import ConfigurationError


@pytest.fixture
def index(tmp_path: Path) -> Iterator[ServingIndex]:
    index = ServingIndex(tmp_path / "deep" / "serving.db")
    yield index
    index.close()


def posting(
    name: str, text: str = "", *, title: str = "", anchors: str = "", rank: float = 1.0, size: int = 1
) -> Posting:
    return Posting(
        f"content:{name}",
        f"http://example.com/{name}.html",
        title,
        anchors,
        text,
        f"{name}{hash(text)}",
        rank,
        size,
    )


def found(index: ServingIndex, query: str) -> list[str]:
    return [result.url.rpartition("/")[2].removesuffix(".html") for result in search(query, index=index)]


def test_names_come_before_mentions(index: ServingIndex) -> None:
    index.put(posting("essay", "vacuum " * 50 + "and more", title="On cleaning"), 1)
    index.put(posting("sql-vacuum", "It cleans tables.", title="VACUUM", anchors="VACUUM\nsee also"), 1)
    index.put(posting("other", "nothing to see"), 1)
    assert found(index, "vacuum") == ["sql-vacuum", "essay"]


def test_rank_decides_between_equals(index: ServingIndex) -> None:
    index.put(posting("a", "some words here", rank=0.2), 1)
    index.put(posting("b", "some words here", rank=9.0), 1)
    index.put(posting("c", "quite different text", rank=99.0), 1)
    assert found(index, "words") == ["b", "a"]


def test_all_words_or_else_any(index: ServingIndex) -> None:
    index.put(posting("both", "alpha and beta"), 1)
    index.put(posting("one", "alpha only"), 1)
    assert found(index, "alpha beta") == ["both"]
    assert sorted(found(index, "alpha gamma")) == ["both", "one"]
    assert found(index, "delta") == []


def test_stems_and_accents(index: ServingIndex) -> None:
    index.put(posting("a", "routine vacuuming of the café"), 1)
    assert found(index, "VACUUM cafe") == ["a"]
    assert found(index, "routi") == []


def test_snippets_mark_the_words(index: ServingIndex) -> None:
    index.put(posting("a", "before " * 40 + "the needle is here " + "after " * 40), 1)
    [result] = search("needle", index=index)
    assert "the **needle** is" in result.snippet
    assert len(result.snippet) < 250


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "'",
        '""',
        "*",
        "a*",
        "(",
        ")",
        "^a",
        "-a",
        "a:b",
        "title:a",
        "NEAR(a b)",
        "a AND",
        "OR",
        "NOT a",
        "{a}",
        "a + b",
        ";",
        "\0",
        "",
        "  ",
        "--",
        "é",
        "%",
        "a\\",
    ],
)
def test_nothing_is_syntax(index: ServingIndex, query: str) -> None:
    index.put(posting("a", "a b and or not near title é"), 1)
    assert len(search(query, index=index)) <= 1


@given(st.text(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_query(index: ServingIndex, query: str) -> None:
    index.put(posting("a", "some text"), 1)
    search(query, index=index)


def test_a_text_is_found_by_its_own_words(index: ServingIndex) -> None:
    index.put(posting("a", "asyncio.create_task(coro) isn't C++ but snake_case"), 1)
    for query in ("asyncio.create_task", "create_task(", "isn't", "C++", "snake_case", "create task"):
        assert found(index, query) == ["a"], query


def test_limits(index: ServingIndex) -> None:
    for number in range(30):
        index.put(posting(f"p{number}", "common"), 1)
    assert len(search("common", 7, index=index)) == 7
    assert search("common", 0, index=index) == []
    assert len(search("common " * 1000, 3, index=index)) == 3


def test_only_newer_versions_count(index: ServingIndex) -> None:
    assert index.put(posting("a", "second"), 20)
    assert not index.put(posting("a", "first"), 10)
    assert found(index, "second") == ["a"]
    assert not index.remove("content:a", 15)
    assert index.remove("content:a", 30)
    assert not index.put(posting("a", "late"), 25)
    assert found(index, "late") == []
    assert index.put(posting("a", "again"), 40)
    assert found(index, "again") == ["a"]
    assert index.intact()
    assert index.orphans() == []


def test_a_new_rank_leaves_the_words_alone(index: ServingIndex) -> None:
    index.put(posting("a", "words", rank=1.0), 1)
    before = index.query("SELECT rowid, * FROM words", ())
    assert index.refresh(posting("a", "words", rank=2.0, size=5), 2)
    assert index.query("SELECT rowid, * FROM words", ()) == before
    assert [(p.rank, p.size) for p in index.postings()] == [(2.0, 5)]
    assert index.refresh(posting("a", "words", rank=1.5), 1)
    assert [(p.rank, p.size) for p in index.postings()] == [(2.0, 5)]
    assert not index.refresh(posting("a", "words", title="new"), 3)
    assert not index.refresh(posting("b"), 3)


def test_an_index_of_an_older_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "serving.db"
    with closing(sqlite3.connect(path)) as old:
        old.execute("CREATE TABLE postings (id INTEGER PRIMARY KEY, key TEXT, version INTEGER, url TEXT)")
    with pytest.raises(ConfigurationError, match="older version of the web index: remove it"):
        ServingIndex(path)


def test_versions_of_removed_postings_are_forgotten_in_time(index: ServingIndex) -> None:
    index.remove("content:old", 1)
    index.remove("content:new", 2 + KEEP_REMOVED)
    assert index.query("SELECT key FROM postings", ()) == [("content:new",)]


def test_two_writers_take_turns(tmp_path: Path) -> None:
    one, other = ServingIndex(tmp_path / "s.db"), ServingIndex(tmp_path / "s.db")
    for number in range(20):
        (one if number % 2 else other).put(posting(f"p{number}", "common"), number + 1)
    assert len(list(one.postings())) == len(list(other.postings())) == 20
    one.close()
    other.close()


def test_an_index_that_was_removed_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "serving.db"
    first = open_index(path)
    assert open_index(path) is first
    for name in ("serving.db", "serving.db-wal", "serving.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    again = open_index(path)
    assert again is not first
    assert path.exists()
    close_indexes()
