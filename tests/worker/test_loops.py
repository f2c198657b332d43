"""In a loop of observers, the cells with the most changes run first."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from percolator_core import Cell, Chain, Database, TableDefinition, Transaction
from percolator_core.layout.keys import dirty_key, encode_mark
from percolator_core.notifications.dirty import Lease
from percolator_core.observers import ObserverTransaction, guards
from percolator_core.observers.graph import loop_columns
from percolator_core.worker.executors import slots_of
from tests.chains import chain_of, dirty_of, running, watch

SECOND = 1_000_000


def nothing(t: Transaction, cell: Cell) -> None:
    pass


def loop(order: Literal["oldest", "most_notified"] = "most_notified") -> Chain:
    """``rank`` and ``announce`` wake each other; ``load`` leads to them, and they lead to ``serve``."""
    return chain_of(
        watch("load", nothing, "pages.text", writes=("pages.links",)),
        watch(
            "rank",
            nothing,
            "pages.links",
            mode="weak",
            feedback=True,
            order=order,
            writes=("pages.rank", "pages.show"),
        ),
        watch("stats", nothing, "pages.links", mode="weak"),
        watch("announce", nothing, "pages.rank", writes=("pages.links",)),
        watch("serve", nothing, "pages.show", mode="weak"),
        tables=(TableDefinition("pages", 1, ("links", "show")),),
    )


def activated(db: Database, **settings: Any) -> Chain:
    """The chain, active in the store, without a worker."""
    chain = loop(**settings)
    chain.create_tables(db)
    with running(db, chain) as worker:
        worker.stop()
    return chain


def score(db: Database, row: bytes, observer: str = "rank", column: bytes = b"links") -> float:
    tag = db.client.catalog.table("pages").tag(row)
    found = db.store.one((b"ZSCORE", dirty_key(tag, observer), encode_mark(column, row)))
    return float(found)


def notify(db: Database, chain: Chain, observer: str, row: str, column: str, *, how: str = "alone") -> None:
    """Notify as a run of the observer does."""
    db.client.one_call_a_tablet = how == "two phases"
    with db.transaction() as t:
        ObserverTransaction(t, guards(chain)[observer]).notify("pages", row, column)
        if how != "alone":
            t.set("pages", row, "other", b"1")


@pytest.mark.parametrize("how", ["alone", "with a write", "two phases"])
def test_a_notification_in_the_loop_moves_a_mark_ahead(db: Database, how: str) -> None:
    chain = activated(db)
    for row in ("a", "b"):
        notify(db, chain, "load", row, "links", how=how)
    first, other = score(db, b"a"), score(db, b"b")
    notify(db, chain, "load", "a", "links", how=how)
    assert score(db, b"a") == first
    for times in (1, 2, 3):
        notify(db, chain, "announce", "b", "links", how=how)
        assert score(db, b"b") == other - times * SECOND
    leases, _ = dirty_of(db, chain).claim(4)
    assert [lease.row for lease in leases if lease.observer == "rank"] == [b"b", b"a"]
    # Each of them is leased; a notification then asks for another run, and moves nothing.
    leased = score(db, b"b")
    notify(db, chain, "announce", "b", "links", how=how)
    assert score(db, b"b") == leased + 1


def test_no_mark_is_moved_by_more_than_a_minute(db: Database) -> None:
    chain = activated(db)
    notify(db, chain, "load", "a", "links")
    begin = score(db, b"a")
    for _ in range(70):
        notify(db, chain, "announce", "a", "links")
    assert begin - 60 * SECOND <= score(db, b"a") < begin - 50 * SECOND


def test_outside_the_loop_no_mark_moves(db: Database) -> None:
    chain = activated(db)
    notify(db, chain, "rank", "a", "show")
    begin = score(db, b"a", "serve", b"show")
    notify(db, chain, "rank", "a", "show")
    assert score(db, b"a", "serve", b"show") == begin


def test_the_marks_of_other_observers_do_not_move(db: Database) -> None:
    chain = activated(db)
    notify(db, chain, "load", "a", "links")
    begin = score(db, b"a", "stats")
    notify(db, chain, "announce", "a", "links")
    assert score(db, b"a", "stats") == begin
    assert score(db, b"a", "rank") < begin


def test_without_an_order_no_mark_moves(db: Database) -> None:
    chain = activated(db, order="oldest")
    notify(db, chain, "load", "a", "links")
    begin = score(db, b"a")
    notify(db, chain, "announce", "a", "links")
    assert score(db, b"a") == begin


def test_a_mark_that_waits_after_a_failure_is_not_moved(db: Database) -> None:
    chain = activated(db)
    notify(db, chain, "load", "a", "links")
    dirty = dirty_of(db, chain)
    leases, _ = dirty.claim(2)
    [lease] = [lease for lease in leases if lease.observer == "rank"]
    db.store.run(dirty.postpone(lease, 30.0, failed=True))
    begin = score(db, b"a")
    notify(db, chain, "announce", "a", "links")
    assert score(db, b"a") == begin


def test_the_columns_of_a_loop() -> None:
    both = frozenset({"pages.links", "pages.rank"})
    none: frozenset[str] = frozenset()
    found = loop_columns(loop().graph)
    assert found == {"load": none, "rank": both, "announce": both, "serve": none, "stats": none}


def test_few_runs_of_an_observer_of_a_loop_are_under_way(db: Database) -> None:
    chain = loop()
    chain.create_tables(db)
    slots = slots_of(db, chain, "hub", 256, frozenset(chain.observers))
    for name in chain.observers:
        for _ in range(1000):
            lease = Lease(name, "pages", b"{ns:pages:0}", b"a", b"rank", 0, 0, 1, 1, 0.0)
            slots.begin(lease)
            slots.end(lease, 0)
    limits = slots.limits()
    assert limits["rank"] == 64
    assert limits["announce"] == limits["load"] == limits["serve"] == limits["stats"] > 64
