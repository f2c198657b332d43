"""A connection that was idle is greeted again: whatever comes of that, replies go to those who asked."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import percolator_core as percolator
from percolator_core import Database
from percolator_core.layout.records import MAX_TIMESTAMP
from percolator_core.store.pipeline import IDLE
from tests.servers.plain import Busy, Server

ROWS = [b"row %d" % number for number in range(8)]


@pytest.fixture
def db(own: Server) -> Iterator[Database]:
    with percolator.connect(own.unix, "ns", patience=60) as db:
        db.create_table("t")
        with db.transaction() as t:
            for row in ROWS:
                t.set("t", row, "v", row)
        yield db


def values(db: Database, rows: list[bytes], under_hub: bool) -> list[bytes | None]:
    if not under_hub:
        return [db.snapshot().get("t", row, "v") for row in rows]
    with db.concurrency(8) as executor:
        transactions = [db.begin() for _ in rows]
        assert list(executor.map(lambda t: t.get("t", ROWS[0], "v"), transactions)) == [ROWS[0]] * len(rows)
        time.sleep(IDLE * 1.2)  # what is tested is what an idle time brings
        return list(
            executor.map(lambda pair: pair[0].get("t", pair[1], "v"), zip(transactions, rows, strict=True))
        )


@pytest.mark.parametrize("under_hub", [False, True], ids=["blocking", "hub"])
def test_a_busy_server_that_is_greeted_again(own: Server, db: Database, under_hub: bool) -> None:
    """It answers BUSY to each part of the greeting: one answer must not be taken for all of them."""
    greet, busy = db.store._connector.greet, Busy(own)
    hung_up: list[bool] = []

    def greet_busy(connection: object) -> None:
        if not hung_up:
            busy.begin()
            hung_up.append(True)
            try:
                greet(connection)  # type: ignore[arg-type]
            finally:
                busy.end()
        greet(connection)  # type: ignore[arg-type]

    assert values(db, ROWS[:1], False) == ROWS[:1]
    db.store._connector.greet = greet_busy  # type: ignore[method-assign]
    for lines in db.store._pool:
        for pipeline in lines._pipelines.values():
            pipeline._greet = greet_busy
            pipeline._used_at -= 2 * IDLE
    assert values(db, ROWS, under_hub) == ROWS
    assert hung_up
    assert db.timestamp() < MAX_TIMESTAMP
    assert values(db, ROWS, False) == ROWS
