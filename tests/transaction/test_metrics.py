"""The counters: they add up, and a round trip is what the store saw."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from typing import Any

import pytest

from percolator_core import Database, TransactionConflict
from percolator_core.transaction.metrics import FOLD, NAMES, Cost, Tally
from tests.transaction.phases import X, Y, Z


@pytest.fixture
def exchanges(db: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of commands of each exchange that was waited for."""
    found: list[int] = []
    real = db.store.exchange
    db.catalog.refresh()
    db.client.catalog.due = math.inf

    def exchange(commands: Any, *args: Any, **settings: Any) -> Any:
        found.append(len(commands))
        return real(commands, *args, **settings)

    monkeypatch.setattr(db.store, "exchange", exchange)
    return found


def test_a_round_trip_is_what_the_store_saw(db: Database, two_phase: bool, exchanges: list[int]) -> None:
    db.client.one_call_a_tablet = two_phase
    with db.transaction() as t:
        t.get("t", X, "a")
        t.get("t", X, "a")
        t.get("t", Y, "a")
        t.get_row("t", Z, ["a", "b", "c"])
        t.get_many([("t", X, "b"), ("t", Y, "b")])
        list(t.scan("t"))
        t.set("t", X, "a", b"1")
        t.set("t", Y, "a", b"1")
    assert t.cost.round_trips == len(exchanges)
    assert t.cost == Cost(
        round_trips=7 if two_phase else 6,
        requests=4,
        operations=8,
        sent=5,
        cached=1,
        scans=16,
    )


def test_transactions_that_read_nothing(db: Database, exchanges: list[int]) -> None:
    with db.transaction() as t:
        assert t.start_timestamp
    assert (t.cost.round_trips, len(exchanges)) == (1, 1)
    with db.transaction() as t:
        t.notify("t", X, "ping")
    assert (t.cost.round_trips, len(exchanges)) == (2, 3)


def test_the_database_adds_up_what_has_ended(db: Database) -> None:
    before = db.metrics
    with db.transaction() as t:
        t.set("t", X, "a", b"1")
    with db.transaction() as t:
        t.get("t", X, "a")
        t.get("t", X, "a")
    t = db.begin()
    t.get("t", X, "b")
    assert db.metrics.transactions == before.transactions + 2
    t.rollback()
    t.rollback()
    one, other = db.begin(), db.begin()
    for each in (one, other):
        each.get("t", X, "a")
        each.set("t", X, "a", b"2")
    one.commit()
    with pytest.raises(TransactionConflict):
        other.commit()
    other.rollback()
    now = db.metrics
    assert now.transactions == before.transactions + 5
    assert now.commits == before.commits + 3
    assert now.operations == 5
    assert now.cached == now.saved == 1
    assert now.unused == 0


def test_snapshots_are_not_counted(db: Database) -> None:
    before = db.metrics
    db.snapshot().get("t", X, "a")
    assert db.metrics == before


def test_all_threads_count() -> None:
    tally = Tally()
    one = Cost(*range(1, 10))

    def count(_: int) -> None:
        for _ in range(3000):
            tally.ended.append((True, astuple(one)))
            if len(tally.ended) >= FOLD:
                tally.fold()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    found = tally.metrics()
    assert (found.transactions, found.commits) == (12_000, 12_000)
    assert tuple(getattr(found, name) for name in NAMES) == tuple(12_000 * number for number in astuple(one))
