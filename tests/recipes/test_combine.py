"""The combine queue: no conflicts, nothing lost and nothing twice, bounded runs."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

import percolator_core
from percolator_core import Cell, Chain, Database, TableDefinition, Transaction, Worker
from percolator_core.errors import ConfigurationError, TransactionConflict, UnknownColumn
from percolator_core.recipes import CombineQueue
from tests.chains import chain_of, dirty_of, watch
from tests.servers.plain import PATIENCE, commit_of, die

TABLES = (TableDefinition("queue", 2, ("added",)), TableDefinition("sums", 4))
WRITES = ("queue.added", "queue.value", "sums.n")


def concatenate(old: bytes | None, items: Sequence[bytes]) -> bytes:
    return b"".join([old or b"", *items])


def add_up(old: bytes | None, items: Sequence[bytes]) -> bytes | None:
    total = int(old or 0) + sum(map(int, items))
    return b"%d" % total if total else None


@pytest.fixture
def db(url: str, namespace: str) -> Iterator[Database]:
    with percolator_core.connect(url, namespace, lock_ttl=1.0) as database:
        for table in TABLES:
            database.create_table(table.name, table.tablets, table.notify_only)
        yield database


def draining(queue: CombineQueue, drained: list[int] | None = None) -> Chain:
    def drain(t: Transaction, cell: Cell) -> None:
        count = queue.drain(t, cell)
        if drained is not None:
            drained.append(count)

    watched = watch("drain", drain, "queue.added", writes=WRITES, mode="weak", feedback=True)
    return chain_of(watched, tables=TABLES)


def queue_of(fold: object = add_up, **settings: int) -> CombineQueue:
    return CombineQueue("queue", ("sums", "n"), fold, **settings)  # type: ignore[arg-type]


def add(db: Database, queue: CombineQueue, key: str, *values: bytes) -> None:
    with db.transaction() as t:
        for value in values:
            queue.add(t, key, value)


def test_items_are_folded_in_order_and_gone(db: Database) -> None:
    queue = queue_of(concatenate)
    chain = draining(queue)
    chain.create_tables(db)
    add(db, queue, "a", b"1", b"2")
    add(db, queue, "b", b"other")
    add(db, queue, "a", b"3")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") == b"123"
    assert db.snapshot().get("sums", "b", "n") == b"other"
    assert not list(db.snapshot().scan("queue"))
    add(db, queue, "a", b"4")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") == b"1234"


def test_a_fold_to_nothing_deletes_the_cell(db: Database) -> None:
    queue = queue_of()
    chain = draining(queue)
    chain.create_tables(db)
    add(db, queue, "a", b"5")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") == b"5"
    add(db, queue, "a", b"-5")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") is None


def test_keys_that_begin_alike_are_apart(db: Database) -> None:
    queue = queue_of()
    chain = draining(queue)
    chain.create_tables(db)
    keys = [b"", b"a", b"a\0", b"a\0\0\0\0\0\0\0\0", b"ab", struct.pack(">H", 1) + b"a"]
    for number, key in enumerate(keys, 1):
        with db.transaction() as t:
            queue.add(t, key, b"%d" % number)
    Worker(db, chain).run_until_idle(PATIENCE)
    assert {row: cells["n"] for row, cells in db.snapshot().scan("sums")} == {
        key: b"%d" % number for number, key in enumerate(keys, 1)
    }


@pytest.mark.parametrize("most", [1, 7, 40, 512])
def test_a_run_takes_a_bounded_number(db: Database, most: int) -> None:
    queue = queue_of(concatenate, most=most)
    drained: list[int] = []
    chain = draining(queue, drained)
    chain.create_tables(db)
    add(db, queue, "a", *[b"%d," % number for number in range(40)])
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") == b"".join(b"%d," % number for number in range(40))
    assert max(drained) == min(most, 40)
    # A run that lost against another is repeated, so its items may be counted more than once.
    assert sum(drained) >= 40
    assert not list(db.snapshot().scan("queue"))


def test_a_run_takes_a_bounded_size(db: Database) -> None:
    queue = queue_of(lambda old, items: b"%d" % (int(old or 0) + len(items)))
    drained: list[int] = []
    chain = draining(queue, drained)
    chain.create_tables(db)
    add(db, queue, "a", *[bytes(3 << 20)] * 4)
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") == b"4"
    assert max(drained) == 2


def test_adding_never_conflicts(db: Database) -> None:
    queue = queue_of()
    one, other = db.begin(), db.begin()
    queue.add(one, "a", b"1")
    queue.add(other, "a", b"2")
    other.commit()
    one.commit()
    chain = draining(queue)
    chain.create_tables(db)
    with db.transaction() as t:
        queue.add(t, "a", b"3")
    Worker(db, chain).run_until_idle(PATIENCE)


def test_an_item_that_commits_after_a_later_one_was_drained_is_not_lost(db: Database) -> None:
    queue = queue_of()
    chain = draining(queue)
    chain.create_tables(db)
    late = db.begin()
    queue.add(late, "a", b"1")
    for _ in range(3):
        add(db, queue, "a", b"10")
        Worker(db, chain).run_until_idle(PATIENCE)
    late.commit()
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") == b"31"


def test_two_drains_of_the_same_items_collide(db: Database) -> None:
    queue = queue_of()
    chain = draining(queue)
    chain.create_tables(db)
    add(db, queue, "a", b"1")
    leases, _ = dirty_of(db, chain).claim(10)
    cell = Cell("queue", leases[0].row, "added", 0)
    one, other = db.begin(), db.begin()
    assert queue.drain(one, cell) == queue.drain(other, cell) == 1
    one.commit()
    with pytest.raises(TransactionConflict):
        other.commit()
    assert db.snapshot().get("sums", "a", "n") == b"1"


@pytest.mark.parametrize("committed", [False, True])
def test_a_drain_that_dies_while_it_commits(db: Database, url: str, namespace: str, committed: bool) -> None:
    queue = queue_of()
    chain = draining(queue)
    chain.create_tables(db)
    add(db, queue, "a", b"1", b"2")
    with percolator_core.connect(url, namespace) as dying:
        dying.client.one_call_a_tablet = True
        leases, _ = dirty_of(dying, chain).claim(10, lease=0.05)
        t = dying.begin()
        assert queue.drain(t, Cell("queue", leases[0].row, "added", 0)) == 2
        commit = commit_of(t)
        timestamp = commit.prewrite()
        if committed:
            commit.commit_primary(timestamp)
        die(dying)
        Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") == b"3"
    assert not list(db.snapshot().scan("queue"))


@pytest.mark.parametrize("two_phases", [False, True])
def test_many_writers_and_several_workers(db: Database, url: str, namespace: str, two_phases: bool) -> None:
    queue = queue_of(most=16)
    chain = draining(queue)
    chain.create_tables(db)
    keys = ("hot", "hot", "hot", "a", "b")
    written = threading.Event()

    def write() -> None:
        with percolator_core.connect(url, namespace) as mine:
            mine.client.one_call_a_tablet = two_phases
            with mine.concurrency(16) as executor:
                for number in range(200):
                    executor.submit(add, mine, queue, keys[number % 5], b"1", b"2")

    def work() -> None:
        with percolator_core.connect(url, namespace) as mine:
            mine.client.one_call_a_tablet = two_phases
            while not written.is_set():
                Worker(mine, chain).run_until_idle(PATIENCE)

    writers = [threading.Thread(target=write) for _ in range(2)]
    workers = [threading.Thread(target=work) for _ in range(2)]
    for thread in writers + workers:
        thread.start()
    for thread in writers:
        thread.join()
    written.set()
    for thread in workers:
        thread.join()
    Worker(db, chain).run_until_idle(PATIENCE)
    found = {row: int(cells["n"]) for row, cells in db.snapshot().scan("sums")}
    assert found == {b"hot": 720, b"a": 240, b"b": 240}
    assert not list(db.snapshot().scan("queue"))


def test_drained_rows_are_garbage(db: Database) -> None:
    queue = queue_of()
    chain = draining(queue)
    chain.create_tables(db)
    add(db, queue, "a", b"1")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.collect_garbage(timedelta(0)).versions > 0
    add(db, queue, "a", b"1")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "a", "n") == b"2"


def test_what_cannot_be(db: Database) -> None:
    with pytest.raises(ValueError, match="most is 1 or more"):
        queue_of(most=0)
    t = db.begin()
    with pytest.raises(ValueError, match="at most 65000 bytes, not 65001"):
        queue_of().add(t, bytes(65_001), b"")
    with pytest.raises(UnknownColumn):
        CombineQueue("sums", ("sums", "n"), add_up).add(t, "a", b"1")


def test_an_observer_declares_the_queue(db: Database) -> None:
    queue = queue_of()
    refused: list[str] = []

    def deposit(t: Transaction, cell: Cell) -> None:
        try:
            queue.add(t, "a", b"1")
        except ConfigurationError as error:
            refused.append(str(error))

    def drain(t: Transaction, cell: Cell) -> None:
        queue.drain(t, cell)

    docs = TableDefinition("docs", 1)
    chain = chain_of(
        watch("deposit", deposit, "docs.text"),
        watch("drain", drain, "queue.added", writes=WRITES, mode="weak", feedback=True),
        tables=(*TABLES, docs),
    )
    chain.create_tables(db)
    with db.transaction() as t:
        t.set("docs", "d", "text", b"")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert len(refused) == 1
    assert "queue.added" in refused[0]


def test_two_queues_on_one_table_in_one_transaction(db: Database) -> None:
    chain = draining(queue_of())
    chain.create_tables(db)
    with db.transaction() as t:
        queue_of().add(t, "k", b"1")
        queue_of().add(t, "k", b"2")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "k", "n") == b"3"


def test_items_of_a_time_without_an_observer(db: Database) -> None:
    queue = queue_of()
    for number in range(3):
        add(db, queue, f"k{number}", b"1", b"2")
    chain = draining(queue)
    worker = Worker(db, chain)
    worker.run_until_idle(PATIENCE)
    assert db.snapshot().get("sums", "k1", "n") is None
    assert queue.notify_all(db) == 3
    worker.run_until_idle(PATIENCE)
    assert [db.snapshot().get("sums", f"k{number}", "n") for number in range(3)] == [b"3"] * 3
    assert queue.notify_all(db) == 0


def test_what_waits_is_seen_until_it_is_folded(db: Database) -> None:
    queue = queue_of(concatenate, most=2)
    chain = draining(queue)
    chain.create_tables(db)
    add(db, queue, "a", b"1", b"2", b"3")
    add(db, queue, "aa", b"other")
    before = db.snapshot()
    assert list(queue.waiting(before, "a")) == [b"1", b"2", b"3"]
    with db.transaction() as t:
        row = next(row for row, _ in t.scan("queue"))
        queue.drain(t, Cell("queue", row[:-16], "added", 0))
        # Its own changes are seen, too: two are folded, and one was added.
        queue.add(t, "a", b"4")
        assert list(queue.waiting(t, "a")) == [b"3", b"4"]
        assert t.get("sums", "a", "n") == b"12"
    Worker(db, chain).run_until_idle(PATIENCE)
    assert list(queue.waiting(db.snapshot(), "a")) == []
    assert list(queue.waiting(before, "a")) == [b"1", b"2", b"3"]
