"""A server's clock that is set back: what became dirty before is observed, not an hour later."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from percolator_core import Cell, Database, Transaction, Worker
from percolator_core.layout.keys import Keyspace
from percolator_core.notifications.dirty import DirtyIndex
from tests.chains import chain_of, put, watch
from tests.clock import FakeClock, connect_with_clock
from tests.servers.plain import PATIENCE

HOUR = 3600.0


def copy(t: Transaction, cell: Cell) -> None:
    t.set("sums", cell.row, "copy", t.get(cell.table, cell.row, cell.column) or b"")


CHAIN = chain_of(watch("copy", copy, "docs.text", writes=("sums.copy",)))


@pytest.fixture
def clock(namespace: str) -> FakeClock:
    return FakeClock(Keyspace(namespace))


@pytest.fixture
def db(store_url: str, namespace: str, clock: FakeClock) -> Iterator[Database]:
    with connect_with_clock(store_url, Keyspace(namespace), clock, lock_ttl=1.0) as database:
        CHAIN.create_tables(database)
        Worker(database, CHAIN).run_until_idle(timeout=PATIENCE)  # registers the observer
        yield database


def copies(db: Database) -> dict[bytes, bytes]:
    with db.transaction() as t:
        return {row: cells["copy"] for row, cells in t.scan("sums")}


def test_marks_from_before(db: Database, clock: FakeClock) -> None:
    put(db, "before", b"1")
    clock.set_back(db.store, HOUR)
    put(db, "after", b"2")
    Worker(db, CHAIN).run_until_idle(timeout=PATIENCE)
    assert copies(db) == {b"before": b"1", b"after": b"2"}


def test_leases_of_a_dead_worker_from_before(db: Database, clock: FakeClock) -> None:
    put(db, "row", b"1")
    dirty = DirtyIndex(db.client, CHAIN.observed, longest_delay=1)
    leases, _ = dirty.claim(10)
    assert [lease.row for lease in leases] == [b"row"]
    assert dirty.claim(10)[0] == []
    clock.set_back(db.store, HOUR)
    Worker(db, CHAIN).run_until_idle(timeout=PATIENCE)
    assert copies(db) == {b"row": b"1"}


def test_marks_far_ahead_are_not_starved_by_new_ones(db: Database, clock: FakeClock) -> None:
    for number in range(20):
        put(db, b"before %d" % number, b"1")
    clock.set_back(db.store, HOUR)
    dirty = DirtyIndex(db.client, CHAIN.observed, longest_delay=1)
    seen: set[bytes] = set()
    for number in range(60):
        put(db, b"after %d" % number, b"2")
        leases, _ = dirty.claim(1)
        seen.update(lease.row for lease in leases)
    assert seen >= {b"before %d" % number for number in range(20)}


def test_a_retry_that_was_put_off_keeps_its_delay(db: Database) -> None:
    put(db, "row", b"1")
    dirty = DirtyIndex(db.client, CHAIN.observed, longest_delay=30)
    (lease,), _ = dirty.claim(1)
    db.store.run(dirty.postpone(lease, 30, failed=True))
    leases, due = dirty.claim(1)
    assert not leases
    assert due is not None
    assert 25 < due <= 30


def test_a_lease_that_waited_for_the_server_is_not_taken_for_one_from_before(db: Database) -> None:
    put(db, "row", b"1")
    dirty = DirtyIndex(db.client, CHAIN.observed, longest_delay=0.001)
    (lease,), _ = dirty.claim(1)
    lease.renewed -= 1.0  # as if the server had been asked a second before it answered
    dirty.renew([lease])
    assert dirty.claim(1)[0] == []


def test_a_lock_from_before(db: Database, clock: FakeClock) -> None:
    """A live writer's lock is not taken for one that lasts another hour."""
    from tests.servers.plain import commit_of

    other = db.begin()
    other.set("docs", "locked", "text", b"1")
    db.client.one_call_a_tablet = True
    commit_of(other).prewrite()
    clock.set_back(db.store, HOUR)
    assert db.begin().get("docs", "locked", "text") is None


def test_locks_from_before_are_resolved(db: Database, clock: FakeClock) -> None:
    from tests.servers.plain import commit_of

    other = db.begin()
    other.set("docs", "locked", "text", b"1")
    db.client.one_call_a_tablet = True
    commit_of(other).prewrite()
    clock.set_back(db.store, HOUR)
    assert db.resolve_locks(timedelta(seconds=30)).rolled_back == 1
    assert not list(db.locks())
