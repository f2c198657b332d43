"""Each column of a document wakes the chain: the loader writes only the cells that differ."""

from __future__ import annotations

import random

import pytest

from observers.webindex import document_processor
from percolator_core import Cell, Transaction, TransactionConflict
from percolator_core.loading.records import Origin, Record
from percolator_core.loading.transactions import merge
from percolator_core.observers.guard import ObserverTransaction, guards
from schemas.webindex import Content, Pointer
from tests.webindex.conftest import WebIndex, page, random_document

A, B, C = (f"http://example.com/{name}" for name in "abc")
HTML = page("written in hypertext", [B]).encode()


def load(web: WebIndex, url: str, **cells: bytes | None) -> str:
    """Write one record like a load; other columns stay."""
    outcome = merge(web.db, "documents", Record(url.encode(), dict(cells), Origin("test", "row", 0)))
    assert isinstance(outcome, str)
    return outcome


def pointer(web: WebIndex, url: str) -> Pointer:
    value = web.db.snapshot().get("pages", url, "pointer")
    assert value is not None
    return Pointer.decode(value)


def title(web: WebIndex, url: str) -> str:
    value = web.db.snapshot().get("contents", url, "content")
    assert value is not None
    return Content.decode(value).title


@pytest.fixture
def crawled(web: WebIndex) -> WebIndex:
    for url in (A, B, C):
        load(web, url, contents=HTML + url.encode(), content_type=b"text/html", redirect=None)
    assert set(web.settled()) == {A, B, C}
    return web


def test_only_the_redirect_changes_and_goes(crawled: WebIndex) -> None:
    assert load(crawled, A, contents=HTML + A.encode(), redirect=B.encode()) == "changed"
    assert crawled.settled()[B].duplicates == (A,)
    assert pointer(crawled, A).next == B
    assert load(crawled, A, contents=HTML + A.encode(), redirect=C.encode()) == "changed"
    assert crawled.settled()[C].duplicates == (A,)
    assert load(crawled, A, contents=HTML + A.encode(), redirect=None) == "changed"
    assert set(crawled.settled()) == {A, B, C}
    assert pointer(crawled, A).next is None


def test_only_the_content_type_changes_and_goes(crawled: WebIndex) -> None:
    assert title(crawled, A) == "written in hypertext"
    assert load(crawled, A, contents=HTML + A.encode(), content_type=b"text/plain") == "changed"
    assert set(crawled.settled()) == {A, B, C}
    assert title(crawled, A) != "written in hypertext"
    assert load(crawled, A, contents=HTML + A.encode(), content_type=None) == "changed"
    crawled.settled()
    assert title(crawled, A) == "written in hypertext"


def test_an_unchanged_document_wakes_nobody(crawled: WebIndex) -> None:
    assert load(crawled, A, contents=HTML + A.encode(), content_type=b"text/html") == "unchanged"
    assert not any(crawled.settle().values())


def test_a_change_of_one_column_takes_one_run_and_of_two_at_most_two(crawled: WebIndex) -> None:
    load(crawled, A, contents=b"<p>other", content_type=b"text/html")
    assert crawled.settle()["document_processor"] == 1
    load(crawled, A, contents=b"<p>third", content_type=b"text/html; charset=utf-8")
    assert crawled.settle()["document_processor"] == 2
    assert crawled.violations() == []


def run_of(web: WebIndex, column: str) -> Transaction:
    """Return a concurrent run that stays open, without an acknowledgement that could conflict."""
    version = web.db.history("documents", A, column)[0]
    transaction = web.db.begin()
    t = ObserverTransaction(transaction, guards(web.chain)["document_processor"])
    document_processor.process(t, Cell("documents", A.encode(), column, version.commit_ts))
    return transaction


def test_a_run_with_an_older_view_loses_although_the_document_changed_back(crawled: WebIndex) -> None:
    load(crawled, A, redirect=B.encode())
    crawled.settled()
    load(crawled, A, contents=b"<p>seen by the first run alone", redirect=None)
    first = run_of(crawled, "contents")
    load(crawled, A, redirect=B.encode())
    # The document is the same as the parsed one, but this run must not end early.
    second = run_of(crawled, "redirect")
    second.commit()
    with pytest.raises(TransactionConflict):
        first.commit()
    assert crawled.settled()[B].duplicates == (A,)


def test_a_change_that_was_seen_already_is_passed_over(crawled: WebIndex) -> None:
    written = crawled.db.history("pages", A, "parsed")
    run_of(crawled, "content_type").commit()
    assert crawled.db.history("pages", A, "parsed") == written


@pytest.mark.parametrize("seed", range(3))
def test_random_columns(web: WebIndex, seed: int) -> None:
    rng = random.Random(seed)
    urls = [f"http://example.com/{number}" for number in range(8)]
    for _ in range(6):
        for _ in range(rng.randrange(1, 20)):
            cells: dict[str, bytes | None] = {
                "contents": rng.choice([None, b"", random_document(rng, urls).encode()]),
                "content_type": rng.choice([None, b"text/html", b"text/plain", b"image/png"]),
                "redirect": rng.choice([None, None, rng.choice(urls).encode()]),
            }
            chosen = rng.sample(sorted(cells), rng.randrange(1, 4))
            load(web, rng.choice(urls), **{column: cells[column] for column in chosen})
        web.settled()
