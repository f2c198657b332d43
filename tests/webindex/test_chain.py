from __future__ import annotations

import random
import threading
from itertools import pairwise

import pytest

import percolator_core as percolator
from observers.webindex.definitions import DAMPING, MAX_HOPS
from observers.webindex.export import rebuild
from observers.webindex.search import search
from percolator_core import Worker
from tests.servers.plain import PATIENCE
from tests.webindex.conftest import WebIndex, page, random_document

A, B, C, D, E = (f"http://example.com/{name}" for name in "abcde")


def test_a_page_becomes_searchable(web: WebIndex) -> None:
    web.load({A: page("Percolation theory", [B]), B: page("Coffee")})
    assert set(web.settled()) == {A, B}
    assert [result.url for result in search("percolation", index=web.index)] == [A]
    assert web.rank(B) > web.rank(A)


def test_change_and_deletion(web: WebIndex) -> None:
    web.load({A: page("first", [B, C]), B: page("target")})
    web.settled()
    web.load({A: page("second", [C])})
    entries = web.settled()
    assert entries[A].title == "second"
    assert entries[B].anchors == ()
    web.remove(A)
    assert set(web.settled()) == {B}
    web.remove(B)
    assert web.settled() == {}
    for table in ("pages", "links", "pointers", "clusters", "serving"):
        assert list(web.db.snapshot().scan(table)) == []
    assert list(web.index.postings()) == []


def test_the_same_document_written_again_wakes_nobody_else(web: WebIndex) -> None:
    web.load({A: page("text", [B]), B: page("other")})
    web.settled()
    web.load({A: page("text", [B])})
    ran = web.settle()
    assert ran.pop("document_processor") in (1, 2)
    assert not any(ran.values())


def test_only_the_highest_ranked_duplicate_is_shown_with_the_links_of_all(web: WebIndex) -> None:
    web.load({A: page("same"), B: page("same"), C: page("links to a", [A]), D: page("links to b", [B])})
    web.load({E: page("links to b too", [B])})
    entries = web.settled()
    assert B in entries
    assert A not in entries
    assert entries[B].anchors == ("a", "b")
    assert entries[B].duplicates == (A,)
    web.load({D: page("no more"), E: page("links to a", [A])})
    entries = web.settled()
    assert A in entries
    assert B not in entries
    assert entries[A].anchors == ("a",)
    assert [result.url for result in search("same", index=web.index)] == [A]
    web.remove(A)
    entries = web.settled()
    assert entries[B].anchors == ("a",) or entries[B].anchors == ()


def test_redirects_carry_links_and_rank(web: WebIndex) -> None:
    web.load({A: page("goal"), C: page("links to the redirect", [B])})
    web.redirect(B, A)
    entries = web.settled()
    assert set(entries) == {A, C}
    assert entries[A].anchors == ("b",)
    assert entries[A].duplicates == (B,)
    assert web.rank(A) > 1 - DAMPING + 0.05


def test_a_redirect_to_a_page_that_comes_later_and_goes_again(web: WebIndex) -> None:
    web.redirect(A, B)
    web.redirect(B, C)
    assert web.settled() == {}
    web.load({C: page("late")})
    assert web.settled()[C].duplicates == (A, B)
    web.redirect(B, D)
    assert web.settled()[C].duplicates == ()
    web.remove(C)
    assert web.settled() == {}


def test_redirects_in_a_circle_and_in_a_long_row(web: WebIndex) -> None:
    web.redirect(A, B)
    web.redirect(B, C)
    web.redirect(C, A)
    assert web.settled() == {}
    web.load({C: page("way out", canonical=A)})
    assert web.settled()[C].duplicates == (A, B)
    steps = [f"http://example.com/step{number}" for number in range(MAX_HOPS + 4)]
    for here, there in pairwise(steps):
        web.redirect(here, there)
    web.load({steps[-1]: page("end")})
    assert len(web.settled()[steps[-1]].duplicates) == MAX_HOPS


def test_a_declared_canonical_counts_only_if_known(web: WebIndex) -> None:
    web.load({A: page("print version", canonical=B)})
    assert set(web.settled()) == {A}
    web.load({B: page("real version"), C: page("x", [B]), D: page("y", [B])})
    entries = web.settled()
    assert A not in entries
    assert entries[B].duplicates == (A,)
    # The member's contents change; the cluster stays.
    web.load({A: page("print version 2", canonical=B)})
    assert web.settled()[B].title == "real version"


def test_pages_that_are_not_to_be_shown(web: WebIndex) -> None:
    web.load({A: page("hidden", [B], noindex=True), B: page("seen"), C: b"%PDF-1.7 junk", D: b""})
    entries = web.settled()
    assert set(entries) == {B}
    assert entries[B].anchors == ("b",)


def test_rows_that_are_no_pages_are_left_alone(web: WebIndex) -> None:
    with web.db.transaction() as t:
        for row in (b"\xff\xfe", b"a\0b", b"line\nbreak"):
            t.set("documents", row, "contents", page("x").encode())
        t.set("documents", "an opaque key", "contents", page("y", [A]).encode())
    assert set(web.settled()) == {"an opaque key"}


def test_rank_comes_to_rest_on_a_hub(web: WebIndex) -> None:
    leaves = [f"http://example.com/leaf{number}" for number in range(150)]
    web.load({A: page("hub", leaves)} | {leaf: page(leaf, [A, B]) for leaf in leaves})
    web.load({B: page("also linked by all")})
    entries = web.settled()
    assert entries[A].rank > 20 * entries[leaves[0]].rank
    web.remove(*leaves[:100])
    web.settled()


def test_a_lost_index_is_rebuilt(web: WebIndex) -> None:
    web.load({A: page("text"), B: page("other", [A])})
    web.settled()
    web.index.clear()
    assert {violation.invariant for violation in web.violations()} == {"posting"}
    with web.db.snapshot() as snapshot:
        assert rebuild(snapshot, web.index) == 2
    assert web.violations() == []


def mutate(web: WebIndex, rng: random.Random, urls: list[str]) -> None:
    url = rng.choice(urls)
    match rng.randrange(6):
        case 0:
            web.remove(url)
        case 1:
            web.redirect(url, rng.choice(urls))
        case _:
            web.load({url: random_document(rng, urls)})


@pytest.mark.parametrize("seed", range(4))
def test_random_changes(web: WebIndex, seed: int) -> None:
    rng = random.Random(seed)
    urls = [f"http://example.com/{number}" for number in range(14)]
    for _ in range(6):
        for _ in range(rng.randrange(1, 25)):
            mutate(web, rng, urls)
        web.settled()


@pytest.mark.parametrize("seed", range(2))
def test_random_changes_under_two_workers(web: WebIndex, store_url: str, seed: int) -> None:
    rng = random.Random(seed)
    urls = [f"http://example.com/{number}" for number in range(10)]
    failures: list[BaseException] = []
    written = threading.Event()

    def work() -> None:
        try:
            with percolator.connect(store_url, namespace=web.db.namespace) as db:
                while True:
                    last = written.is_set()
                    Worker(db, web.chain, width=16).run_until_idle(timeout=PATIENCE)
                    if last:
                        break
        except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(60):
        mutate(web, rng, urls)
    written.set()
    for worker in workers:
        worker.join()
    assert failures == []
    web.settled()
