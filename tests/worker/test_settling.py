"""A change waits while observers run that lead to its observer, but not for ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from percolator_core import Cell, Chain, Database, Transaction
from percolator_core.layout.keys import dirty_key, encode_mark
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers.graph import leading_to
from tests.chains import chain_of, dirty_of, put, running, watch
from tests.servers.plain import PATIENCE, until


def two(feed: Callable[[Any, Any], object], add: Callable[[Any, Any], object], settle: float) -> Chain:
    """``feed`` runs in a thread and leads to the weak observer ``add``."""
    return chain_of(
        watch("feed", feed, "docs.text", writes=("sums.dirty",), executor="threads"),
        watch("add", add, "sums.dirty", mode="weak", settle=settle),
    )


@pytest.mark.parametrize("settle", [0.0, 3600.0])
def test_a_change_waits_while_an_observer_runs_that_leads_to_it(
    db: Database, monkeypatch: pytest.MonkeyPatch, settle: float
) -> None:
    order: list[str] = []
    claims = threading.Semaphore(0)
    claim = DirtyIndex.claim

    def counted(dirty: DirtyIndex, *args: Any, **settings: Any) -> Any:
        claimed = claim(dirty, *args, **settings)
        if order:
            claims.release()
        return claimed

    def feed(t: Transaction, cell: Cell) -> None:
        order.append("begin")
        with db.transaction() as other:
            other.notify("sums", "all", "dirty")
        for _ in range(20):
            assert claims.acquire(timeout=PATIENCE)
        order.append("end")

    monkeypatch.setattr(DirtyIndex, "claim", counted)
    chain = two(feed, lambda t, cell: order.append("add"), settle)
    chain.create_tables(db)
    put(db, "a", b"1")
    with running(db, chain):
        until(lambda: {"end", "add"} <= set(order))
    assert order == (["begin", "end", "add"] if settle else ["begin", "add", "end"])


def test_the_wait_has_an_end(db: Database) -> None:
    added = threading.Event()
    seen: list[bool] = []

    def feed(t: Transaction, cell: Cell) -> None:
        with db.transaction() as other:
            other.notify("sums", "all", "dirty")
        seen.append(added.wait(PATIENCE))

    chain = two(feed, lambda t, cell: added.set(), 0.05)
    chain.create_tables(db)
    put(db, "a", b"1")
    with running(db, chain):
        until(lambda: seen)
    assert seen == [True]


def test_a_mark_is_due_after_its_wait(db: Database) -> None:
    chain = two(lambda t, cell: None, lambda t, cell: None, 60.0)
    chain.create_tables(db)
    with db.transaction() as t:
        t.set("docs", "a", "text", b"1")
        t.notify("sums", "all", "dirty")
    dirty = dirty_of(db, chain)
    leases, next_due = dirty.claim(10, waits={"add": 60.0})
    assert [lease.observer for lease in leases] == ["feed"]
    assert 0 < (next_due or 0) <= 60
    db.client.store.run_all([dirty.postpone(lease, 0, failed=False) for lease in leases])
    leases, next_due = dirty.claim(10)
    assert {lease.observer for lease in leases} == {"feed", "add"}
    assert next_due is None


def test_a_mark_that_has_waited_takes_no_newer_mark_along(db: Database) -> None:
    chain = two(lambda t, cell: None, lambda t, cell: None, 60.0)
    chain.create_tables(db)
    tag_of = db.catalog.table("sums").tag
    new = [row for row in (b"new %d" % number for number in range(20)) if tag_of(row) == tag_of(b"old")]
    assert new
    with db.transaction() as t:
        for row in (b"old", *new):
            t.notify("sums", row, "dirty")
    db.store.one((b"ZADD", dirty_key(tag_of(b"old"), "add"), b"XX", b"2", encode_mark(b"dirty", b"old")))
    leases, _ = dirty_of(db, chain).claim(10, waits={"add": 60.0})
    assert [lease.row for lease in leases] == [b"old"]


def test_observers_of_a_loop_do_not_wait_for_each_other() -> None:
    nothing = lambda t, cell: None  # noqa: E731
    graph = chain_of(
        watch("first", nothing, "docs.text", writes=("docs.words",)),
        watch("one", nothing, "docs.words", writes=("docs.more",)),
        watch("other", nothing, "docs.more", writes=("docs.words", "docs.end"), feedback=True),
        watch("last", nothing, "docs.end"),
    ).graph
    assert leading_to(graph) == {
        "first": set(),
        "one": {"first"},
        "other": {"first"},
        "last": {"first", "one", "other"},
    }


def test_the_observers_of_a_long_chain_are_found_in_linear_time() -> None:
    def calls(length: int) -> int:
        nothing = lambda t, cell: None  # noqa: E731
        chain = chain_of(
            *(watch(f"o{i}", nothing, f"docs.c{i}", writes=(f"docs.c{i + 1}",)) for i in range(length))
        )
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        try:
            found = leading_to(chain.graph)
        finally:
            sys.setprofile(None)
        assert len(found[f"o{length - 1}"]) == length - 1
        return counted

    calls(2)  # networkx compiles its functions at their first calls
    assert calls(100) < 3 * calls(50)
