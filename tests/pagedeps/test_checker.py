"""The checker reports each invariant that a test breaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from observers.pagedeps.rows import Edge, row
from percolator_core import Transaction
from schemas.pagedeps import Facts, Made, Parsed
from tests.pagedeps.conftest import Tracker, page, sheet


@pytest.fixture
def sound(tracker: Tracker) -> Tracker:
    tracker.resources({"a.css": sheet("i.png"), "i.png": "1"})
    tracker.pages({"1": page("a.css", "none.png")})
    tracker.settled()
    return tracker


def read(t: Transaction, table: str, key: str, column: str) -> bytes:
    value = t.get(table, key, column)
    assert value is not None
    return value


def wrong_snapshot(t: Transaction) -> None:
    t.set("pages", "1", "snapshot", b"other")


def lost_snapshot(t: Transaction) -> None:
    t.delete("pages", "1", "snapshot")


def orphan_snapshot(t: Transaction) -> None:
    t.set("pages", "ghost", "snapshot", b"")


def orphan_made(t: Transaction) -> None:
    t.set("pages", "ghost", "made", b"{}")


def lost_made(t: Transaction) -> None:
    t.delete("pages", "1", "made")


def wrong_made(t: Transaction) -> None:
    made = Made.decode(read(t, "pages", "1", "made"))
    t.set("pages", "1", "made", made.model_copy(update={"resources": {"i.png": None}}).encode())


def wrong_parsed(t: Transaction) -> None:
    parsed = Parsed.decode(read(t, "pages", "1", "parsed"))
    t.set("pages", "1", "parsed", parsed.model_copy(update={"references": ()}).encode())


def lost_entry(t: Transaction) -> None:
    t.delete("dependents", row(Edge(b"none.png", "page", b"1")), "reference")


def lost_import(t: Transaction) -> None:
    t.delete("dependents", row(Edge(b"i.png", "style", b"a.css")), "reference")


def orphan_entry(t: Transaction) -> None:
    t.set("dependents", row(Edge(b"i.png", "page", b"1")), "reference", b"")


def no_entry(t: Transaction) -> None:
    t.set("dependents", "i.png", "reference", b"")


def wrong_facts(t: Transaction) -> None:
    facts = Facts.decode(read(t, "resources", "i.png", "facts"))
    t.set("resources", "i.png", "facts", facts.model_copy(update={"digest": "0"}).encode())


def unreadable_facts(t: Transaction) -> None:
    t.set("resources", "i.png", "facts", b"{}")


def newer_facts(t: Transaction) -> None:
    facts = Facts.decode(read(t, "resources", "i.png", "facts"))
    t.set("resources", "i.png", "facts", facts.model_copy(update={"version": facts.version + 1}).encode())


def wrong_embedding(t: Transaction) -> None:
    t.set("resources", "i.png", "embedding", b"data:,")


def wrong_reach(t: Transaction) -> None:
    t.set("resources", "a.css", "reach", b"0")


def left_position(t: Transaction) -> None:
    t.set("resources", "i.png", "position", b"")


@pytest.mark.parametrize(
    ("harm", "invariant"),
    [
        (wrong_snapshot, "page"),
        (lost_snapshot, "page"),
        (orphan_snapshot, "page"),
        (orphan_made, "orphan"),
        (lost_made, "made"),
        (wrong_made, "made"),
        (wrong_parsed, "page"),
        (lost_entry, "index"),
        (lost_import, "index"),
        (orphan_entry, "orphan"),
        (no_entry, "orphan"),
        (wrong_facts, "facts"),
        (unreadable_facts, "facts"),
        (newer_facts, "reach"),
        (wrong_embedding, "facts"),
        (wrong_reach, "reach"),
        (left_position, "orphan"),
    ],
)
def test_the_checker_finds(sound: Tracker, harm: Callable[[Transaction], None], invariant: str) -> None:
    assert sound.violations() == []
    with sound.db.transaction() as t:
        harm(t)
    assert invariant in {violation.invariant for violation in sound.violations()}


def test_a_needless_render_is_found(sound: Tracker) -> None:
    with sound.db.transaction() as t:
        made = Made.decode(read(t, "pages", "1", "made"))
        t.set("pages", "1", "made", made.model_copy(update={"renders": 2}).encode())
    assert [str(violation) for violation in sound.violations()] == ["needless: 1: render 2"]
