"""A connection that was idle is greeted again: whatever comes of that, replies go to those who asked."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from redis.connection import AbstractConnection

import percolator_core as percolator
from percolator_core import Database
from percolator_core.layout.records import MAX_TIMESTAMP
from percolator_core.store.connector import Connector
from percolator_core.store.pipeline import IDLE
from tests.servers.plain import Busy, Server

ROWS = [b"row %d" % number for number in range(8)]


class Greeting:
    """Greets as a connector does; the first time after it was armed, while the server is busy."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.armed = self.hung_up = False
        greet, busy = Connector.greet, Busy(server)

        def greet_busy(connector: Connector, connection: AbstractConnection) -> None:
            if self.armed and not self.hung_up:
                busy.begin()
                self.hung_up = True
                try:
                    greet(connector, connection)
                finally:
                    busy.end()
            greet(connector, connection)

        monkeypatch.setattr(Connector, "greet", greet_busy)


@pytest.fixture
def greeting(own: Server, monkeypatch: pytest.MonkeyPatch) -> Greeting:
    return Greeting(own, monkeypatch)


@pytest.fixture
def db(own: Server, greeting: Greeting) -> Iterator[Database]:
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
def test_a_busy_server_that_is_greeted_again(
    db: Database, greeting: Greeting, under_hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers BUSY to each part of the greeting: one answer must not be taken for all of them."""
    assert values(db, ROWS[:1], False) == ROWS[:1]
    greeting.armed = True
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 2 * IDLE)
    assert values(db, ROWS, under_hub) == ROWS
    assert greeting.hung_up
    assert db.timestamp() < MAX_TIMESTAMP
    assert values(db, ROWS, False) == ROWS
