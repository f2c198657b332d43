"""The counter: nobody conflicts, and every snapshot's value is exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import percolator_core
from percolator_core import Cell, Chain, Database, TableDefinition, Transaction, Worker
from percolator_core.recipes import Counter
from tests.chains import chain_of, watch
from tests.servers.plain import PATIENCE

TABLES = (TableDefinition("hits", 1, ("added",)), TableDefinition("pages", 2), TableDefinition("visits", 2))
WRITES = ("hits.added", "hits.value", "pages.hits")


@pytest.fixture
def db(url: str, namespace: str) -> Iterator[Database]:
    with percolator_core.connect(url, namespace) as database:
        for table in TABLES:
            database.create_table(table.name, table.tablets, table.notify_only)
        yield database


def counting(counter: Counter) -> Chain:
    def count(t: Transaction, cell: Cell) -> None:
        counter.drain(t, cell)

    watched = watch("count", count, "hits.added", writes=WRITES, mode="weak", feedback=True)
    return chain_of(watched, tables=TABLES)


def hits(**settings: int) -> Counter:
    return Counter("hits", ("pages", "hits"), **settings)


def test_what_is_added_counts_before_it_is_folded_and_after(db: Database) -> None:
    counter = hits()
    chain = counting(counter)
    chain.create_tables(db)
    assert counter.value(db.snapshot(), "k") == 0
    with db.transaction() as t:
        counter.add(t, "k")
        counter.add(t, "k", 10**20)
        counter.add(t, "k", -3)
        counter.add(t, b"kk", 5)
        assert counter.value(t, "k") == 10**20 - 2
    before = db.snapshot()
    assert db.snapshot().get("pages", "k", "hits") is None
    assert counter.value(before, b"k") == 10**20 - 2
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("pages", "k", "hits") == b"%d" % (10**20 - 2)
    assert counter.value(db.snapshot(), "k") == 10**20 - 2
    assert counter.value(before, "k") == 10**20 - 2
    with db.transaction() as t:
        counter.add(t, "k", 2 - 10**20)
    assert counter.value(db.snapshot(), "k") == 0
    Worker(db, chain).run_until_idle(PATIENCE)
    assert counter.value(db.snapshot(), "k") == 0
    assert counter.value(db.snapshot(), "kk") == 5


def test_adding_and_reading_conflict_with_nobody(db: Database) -> None:
    counter = hits()
    chain = counting(counter)
    chain.create_tables(db)
    with db.transaction() as t:
        counter.add(t, "k")
    one, other = db.begin(), db.begin()
    for t in (one, other):
        assert counter.value(t, "k") == 1
        counter.add(t, "k", 10)
    Worker(db, chain).run_until_idle(PATIENCE)
    other.commit()
    one.commit()
    assert counter.value(db.snapshot(), "k") == 21


def test_what_is_rolled_back_does_not_count(db: Database) -> None:
    t = db.begin()
    hits().add(t, "k")
    t.rollback()
    assert hits().value(db.snapshot(), "k") == 0


def test_every_snapshot_is_exact_while_many_add_and_workers_fold(
    db: Database, url: str, namespace: str
) -> None:
    counter = hits(most=7)
    chain = counting(counter)
    chain.create_tables(db)
    written = threading.Event()

    def visit(mine: Database, name: str, number: int) -> None:
        # The visit and its count are one transaction, so a snapshot that sees one sees the other.
        with mine.transaction() as t:
            t.set("visits", f"{name}-{number}", "seen", b"")
            counter.add(t, "k", 2)
            if number % 10 == 0:
                counter.add(t, "other", number)

    def write(name: str) -> None:
        with percolator_core.connect(url, namespace) as mine, mine.concurrency(8) as executor:
            for number in range(100):
                executor.submit(visit, mine, name, number)

    def work() -> None:
        with percolator_core.connect(url, namespace) as mine:
            while not written.is_set():
                Worker(mine, chain).run_until_idle(PATIENCE)

    def look() -> list[int]:
        seen = []
        while not written.is_set():
            snapshot = db.snapshot()
            value = counter.value(snapshot, "k")
            assert value == 2 * sum(1 for _ in snapshot.scan("visits"))
            seen.append(value)
        return seen

    with ThreadPoolExecutor(6) as pool:
        looking = pool.submit(look)
        working = [pool.submit(work) for _ in range(2)]
        list(pool.map(write, ("a", "b", "c")))
        written.set()
        for worker in working:
            worker.result()
        seen = looking.result()
        assert seen
        assert seen == sorted(seen)
    assert counter.value(db.snapshot(), "k") == 600
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("pages", "k", "hits") == b"600"
    assert db.snapshot().get("pages", "other", "hits") == b"1350"
    assert not list(db.snapshot().scan("hits"))


def test_increments_of_a_time_without_an_observer(db: Database) -> None:
    counter = hits()
    with db.transaction() as t:
        counter.add(t, "k", 3)
    chain = counting(counter)
    chain.create_tables(db)
    assert counter.notify_all(db) == 1
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("pages", "k", "hits") == b"3"
    assert counter.notify_all(db) == 0


def test_what_cannot_be(db: Database) -> None:
    with pytest.raises(TypeError, match="changed by an int, not float"):
        hits().add(db.begin(), "k", 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="most is 1 or more"):
        hits(most=0)
