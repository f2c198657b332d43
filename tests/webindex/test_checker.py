"""The checker reports each invariant that a test breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from observers.webindex.rows import pair
from percolator_core import Transaction
from schemas.webindex import Anchors, Entry, Pointer, Standing
from tests.webindex.conftest import WebIndex, page

A, B, C, D = (f"http://example.com/{name}" for name in "abcd")
GHOST = "http://example.com/ghost"


@pytest.fixture
def sound(web: WebIndex) -> WebIndex:
    web.load({A: page("same", [C]), B: page("same", [C]), C: page("index", [A, B]), D: page("to b", [B])})
    web.redirect("http://example.com/old", A)
    web.settled()
    return web


def cluster_of(t: Transaction, url: str) -> bytes:
    key = t.get("pages", url, "cluster")
    assert key is not None
    return key


def change_entry(t: Transaction, **changes: object) -> None:
    key = cluster_of(t, A)
    value = t.get("serving", key, "entry")
    assert value is not None
    t.set("serving", key, "entry", Entry.decode(value).model_copy(update=changes).encode())


def wrong_fingerprint(t: Transaction) -> None:
    t.set("pages", A, "pointer", Pointer(fingerprint="0" * 32, indexable=True).encode())


def wrong_text(t: Transaction) -> None:
    t.set("contents", A, "content", b'{"title":"same","text":"other"}')


def lost_page(t: Transaction) -> None:
    t.delete_row("pages", D)


def orphan_page(t: Transaction) -> None:
    t.set("pages", GHOST, "rank", Standing(rank=1, share=0).encode())


def lost_document(t: Transaction) -> None:
    t.delete_row("documents", D)


def lost_link(t: Transaction) -> None:
    t.delete("links", pair(C.encode(), A.encode()), "anchors")


def orphan_link(t: Transaction) -> None:
    t.set("links", pair(C.encode(), GHOST.encode()), "anchors", b"[]")


def wrong_anchor(t: Transaction) -> None:
    t.set("links", pair(C.encode(), A.encode()), "anchors", Anchors(("other",)).encode())


def wrong_inverted(t: Transaction) -> None:
    t.set("pages", C, "anchors", Anchors(("other",)).encode())


def lost_pointer(t: Transaction) -> None:
    t.delete("pointers", pair(A.encode(), b"http://example.com/old"), "source")


def lost_member(t: Transaction) -> None:
    t.delete("clusters", pair(cluster_of(t, B), B.encode()), "member")


def member_of_two(t: Transaction) -> None:
    t.set("clusters", pair(cluster_of(t, A), D.encode()), "member", b"")


def wrong_cluster(t: Transaction) -> None:
    t.set("pages", B, "cluster", b"url:" + B.encode())


def wrong_rank(t: Transaction) -> None:
    t.set("pages", C, "rank", Standing(rank=50, share=50 * 0.85 / 2).encode())


def wrong_share(t: Transaction) -> None:
    value = t.get("pages", C, "rank")
    assert value is not None
    t.set("pages", C, "rank", Standing(rank=Standing.decode(value).rank, share=0.0).encode())


def unreadable_rank(t: Transaction) -> None:
    t.set("pages", C, "rank", b"{}")


def wrong_canonical(t: Transaction) -> None:
    value = t.get("serving", cluster_of(t, A), "entry")
    assert value is not None
    change_entry(t, url=B if Entry.decode(value).url == A else A)


def wrong_anchors(t: Transaction) -> None:
    change_entry(t, anchors=())


def lost_entry(t: Transaction) -> None:
    t.delete_row("serving", cluster_of(t, A))


def orphan_entry(t: Transaction) -> None:
    t.set("serving", b"url:" + GHOST.encode(), "entry", b"{}")


@pytest.mark.parametrize(
    ("damage", "invariant"),
    [
        (wrong_fingerprint, "fingerprint"),
        (wrong_text, "contents"),
        (lost_page, "page"),
        (orphan_page, "orphan"),
        (lost_document, "orphan"),
        (lost_link, "links"),
        (orphan_link, "orphan"),
        (wrong_anchor, "links"),
        (wrong_inverted, "inverted links"),
        (lost_pointer, "pointers"),
        (lost_member, "clusters"),
        (member_of_two, "orphan"),
        (wrong_cluster, "clusters"),
        (wrong_rank, "rank"),
        (wrong_share, "share"),
        (unreadable_rank, "rank"),
        (wrong_canonical, "serving"),
        (wrong_anchors, "serving"),
        (lost_entry, "serving"),
        (orphan_entry, "orphan"),
    ],
)
def test_damaged_tables(sound: WebIndex, damage: Callable[[Transaction], None], invariant: str) -> None:
    with sound.db.transaction() as t:
        damage(t)
    assert invariant in {violation.invariant for violation in sound.violations()}


@pytest.mark.parametrize(
    ("statement", "invariant"),
    [
        ("DELETE FROM words WHERE rowid = 1", "posting"),
        ("DELETE FROM postings WHERE id = 1", "orphan"),
        ("UPDATE postings SET rank = 7", "posting"),
        ("UPDATE postings SET url = 'http://example.com/x' WHERE id = 1", "canonical"),
        ("UPDATE postings SET url = (SELECT url FROM postings WHERE id = 1)", "duplicate in index"),
        ("UPDATE words SET text = 'other' WHERE rowid = 1", "posting"),
        ("UPDATE words SET anchors = 'click here' WHERE rowid = 1", "posting"),
        ("INSERT INTO postings (key, version, url, fingerprint) VALUES ('url:x', 1, 'x', '')", "orphan"),
        ("UPDATE postings SET size = size + 1", "posting"),
        ("UPDATE words_content SET c3 = 'behind its back'", "posting"),
    ],
)
def test_damaged_index(sound: WebIndex, statement: str, invariant: str) -> None:
    sound.index.query(statement, ())
    found = sound.violations()
    assert invariant in {violation.invariant for violation in found}
    assert all(str(violation) for violation in found)
