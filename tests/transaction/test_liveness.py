"""The liveness token of a client: it stands as long as the client lives, and is gone when it has closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from percolator_core import Database
from percolator_core.runtime import process
from tests.servers.plain import PATIENCE, Faults, until

Connect = Callable[..., Database]


@pytest.fixture(autouse=True)
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("percolator_core.transaction.client.TOKEN_LIFE", 3.0)


def test_a_late_renewal_does_not_bring_the_token_back(connect: Connect, db: Database) -> None:
    """It is under way when the client closes, and comes to the server after the token was taken away."""
    mine = connect()
    token = mine.client.token_of(mine.client.owner())
    renewer = mine.client.lives[process.pid].renewer
    faults, under_way, go_on = Faults(mine), threading.Event(), threading.Event()
    mine.store.one((b"PING",))  # opens the connection on which the token is taken away

    def wait() -> None:
        under_way.set()
        assert go_on.wait(PATIENCE)

    faults.plan.append((token, wait))
    assert under_way.wait(PATIENCE)
    mine.close()
    assert not db.store.one((b"EXISTS", token))
    go_on.set()
    renewer.join(PATIENCE)
    assert not db.store.one((b"EXISTS", token))


def test_a_lost_token_is_made_again(connect: Connect, db: Database) -> None:
    """As after a failover, or a pause that outlasted it."""
    mine = connect()
    token = mine.client.token_of(mine.client.owner())
    db.store.one((b"DEL", token))
    until(lambda: db.store.one((b"EXISTS", token)))
    mine.close()
    until(lambda: not db.store.one((b"EXISTS", token)), 1)
