"""A server that comes back without its newest writes: who began before builds on nothing that is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from percolator_core import Database, TransactionAborted
from tests.core.servers import hang_up

Connect = Callable[..., Database]


def fail_over(db: Database, *lost: bytes) -> None:
    """As if another server had taken over, without some fields of the row ``a``."""
    db.store.one((b"HSET", db.store.keyspace.oracle, b"server", b"another"))
    tag = db.catalog.table("t").tag(b"a")
    if lost:
        db.store.one((b"HDEL", tag + b"r:a", *lost))
    hang_up(db)


@pytest.fixture
def filled(db: Database, two_phase: bool) -> Database:
    db.client.one_call_a_tablet = False
    with db.transaction() as t:
        t.set("t", b"a", "v", b"1")
        t.set("t", b"b", "v", b"1")
    return db


def many(t: object, db: Database, two_phase: bool) -> None:
    """Further writes, so that the write set needs more than one call."""
    if two_phase:
        for number in range(1500):
            t.set("t", b"more %d" % number, "v", b"1")  # type: ignore[attr-defined]


def test_what_read_a_lost_write_is_refused(filled: Database, two_phase: bool) -> None:
    t = filled.begin()
    assert t.get("t", b"a", "v") == b"1"
    fail_over(filled, b"cv")
    t.set("t", b"b", "v", b"2")
    many(t, filled, two_phase)
    with pytest.raises(TransactionAborted) as refused:
        t.commit()
    assert refused.value.reason == "failed over"
    assert not list(filled.locks())
    with filled.transaction() as again:
        assert again.get("t", b"b", "v") == b"1"


def test_run_runs_it_again(filled: Database, two_phase: bool) -> None:
    seen = []

    def work(t: object) -> None:
        seen.append(t.get("t", b"a", "v"))  # type: ignore[attr-defined]
        if len(seen) == 1:
            fail_over(filled, b"cv")
        t.set("t", b"b", "v", b"2")  # type: ignore[attr-defined]
        many(t, filled, two_phase)

    filled.run(work)
    assert seen == [b"1", None]


def test_what_read_nothing_is_not_refused(filled: Database, two_phase: bool) -> None:
    for _ in range(3):
        with filled.transaction() as t:
            t.set("t", b"a", "v", b"3")  # leaves a spare start timestamp
            many(t, filled, two_phase)
        fail_over(filled)
    with filled.transaction() as t:
        t.set("t", b"a", "v", b"4")


def test_after_an_orderly_restart_nobody_is_refused(filled: Database) -> None:
    t = filled.begin()
    assert t.get("t", b"a", "v") == b"1"
    hang_up(filled)
    t.set("t", b"b", "v", b"2")
    t.commit()
