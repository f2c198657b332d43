"""The export queue: committed changes only, in their order, each with effect once in a sink."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import percolator_core
from percolator_core import Cell, Chain, Database, TableDefinition, Transaction, Worker
from percolator_core.errors import ConfigurationError, TransactionConflict
from percolator_core.observers import Retry
from percolator_core.recipes import ExportQueue, Sink, SQLiteSink
from tests.chains import QUICK, chain_of, watch
from tests.flushing import flush
from tests.servers.plain import PATIENCE, commit_of, die, until

TABLES = (TableDefinition("exports", 2), TableDefinition("docs", 2))
WRITES = ("exports.more", "exports.done", "exports.payload")


class Recorder:
    """A sink that keeps every call, and what of it was news; ``during`` is called in the middle."""

    def __init__(self, during: Callable[[bytes, bytes], object] | None = None) -> None:
        self._lock = threading.Lock()
        self._during = during
        self._last: dict[bytes, int] = {}
        self.calls: list[tuple[bytes, int, bytes]] = []
        self.taken: defaultdict[bytes, list[bytes]] = defaultdict(list)

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        with self._lock:
            self.calls.append((key, sequence, payload))
        if self._during is not None:
            self._during(key, payload)
        with self._lock:
            if sequence > self._last.get(key, 0):
                self._last[key] = sequence
                self.taken[key].append(payload)

    def payloads(self, key: bytes = b"k") -> list[bytes]:
        """What it was called with, repeats included."""
        return [payload for found, _, payload in self.calls if found == key]


@pytest.fixture
def db(url: str, namespace: str) -> Iterator[Database]:
    with percolator_core.connect(url, namespace, lock_ttl=1.0) as database:
        for table in TABLES:
            database.create_table(table.name, table.tablets, table.notify_only)
        yield database


def shipping(queue: ExportQueue, sink: Sink, counts: list[int] | None = None, retry: Retry = QUICK) -> Chain:
    def ship(t: Transaction, cell: Cell) -> None:
        count = queue.export(t, cell, sink)
        if counts is not None:
            counts.append(count)

    observed = ("exports.last", "exports.more")
    settings = {"writes": WRITES, "feedback": True, "executor": "threads", "retry": retry}
    return chain_of(watch("ship", ship, *observed, **settings), tables=TABLES)  # type: ignore[arg-type]


def add(db: Database, queue: ExportQueue, key: str, *payloads: bytes) -> int:
    """Add items in one transaction; its commit timestamp."""

    def change(t: Transaction) -> Transaction:
        for payload in payloads:
            queue.add(t, key, payload)
        return t

    timestamp = db.run(change, 1000).commit_timestamp
    assert timestamp is not None
    return timestamp


def cell_of(key: bytes, column: str = "last") -> Cell:
    return Cell("exports", len(key).to_bytes(2, "big") + key, column, 0)


def left(db: Database) -> int:
    return sum(1 for _ in db.snapshot().scan("exports", columns=["payload"]))


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_changes_of_a_key_come_in_order_and_leave_the_queue(db: Database) -> None:
    queue, sink = ExportQueue("exports"), Recorder()
    chain = shipping(queue, sink)
    chain.create_tables(db)
    add(db, queue, "a", b"1", b"2")
    add(db, queue, "ab", b"other")
    add(db, queue, "a", b"3")
    assert [item.payload for item in queue.waiting(db.snapshot(), "a")] == [b"1", b"2", b"3"]
    assert [item.payload for item in queue.waiting(db.snapshot(), "a", 2)] == [b"1", b"2"]
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken == {b"a": [b"1", b"2", b"3"], b"ab": [b"other"]}
    assert left(db) == 0
    assert queue.waiting(db.snapshot(), "a") == []
    add(db, queue, "a", b"4")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken[b"a"] == [b"1", b"2", b"3", b"4"]
    assert len(sink.calls) == 5


def test_only_what_is_committed_is_exported(db: Database) -> None:
    queue, sink = ExportQueue("exports"), Recorder()
    chain = shipping(queue, sink)
    chain.create_tables(db)
    discarded, loser = db.begin(), db.begin()
    queue.add(discarded, "k", b"discarded")
    queue.add(loser, "k", b"lost")
    add(db, queue, "k", b"kept")
    discarded.rollback()
    with pytest.raises(TransactionConflict):
        loser.commit()
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.payloads() == [b"kept"]


def test_what_the_run_itself_adds_waits_for_its_commit(db: Database) -> None:
    queue, sink = ExportQueue("exports"), Recorder()
    chain = shipping(queue, sink)
    chain.create_tables(db)
    t = db.begin()
    queue.add(t, "k", b"1")
    assert queue.export(t, cell_of(b"k"), sink) == 0
    assert sink.calls == []
    t.commit()
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken == {b"k": [b"1"]}


def test_two_that_add_for_one_key_collide_and_others_do_not(db: Database) -> None:
    queue = ExportQueue("exports")
    one, other, elsewhere = db.begin(), db.begin(), db.begin()
    queue.add(one, "k", b"1")
    queue.add(other, "k", b"2")
    queue.add(elsewhere, "l", b"3")
    other.commit()
    elsewhere.commit()
    with pytest.raises(TransactionConflict):
        one.commit()


def test_an_export_and_an_add_for_its_key_do_not_collide(db: Database) -> None:
    queue, sink = ExportQueue("exports", most=1), Recorder()
    add(db, queue, "k", b"1", b"2")
    run, adding = db.begin(), db.begin()
    assert queue.export(run, cell_of(b"k"), sink) == 1
    queue.add(adding, "k", b"3")
    adding.commit()
    run.commit()
    assert [item.payload for item in queue.waiting(db.snapshot(), "k")] == [b"2", b"3"]


def test_sequences_rise_within_a_transaction_and_over_a_table_made_again(db: Database) -> None:
    queue = ExportQueue("exports")
    with db.transaction() as t:
        sequences = [queue.add(t, "k", b"") for _ in range(100)]
        assert sequences[0] == t.start_timestamp
    with db.transaction() as t:
        sequences.append(queue.add(t, "k", b""))
    db.drop_table("exports")
    db.create_table("exports", 2)
    with db.transaction() as t:
        sequences.append(queue.add(t, "k", b""))
    assert sequences == sorted(set(sequences))


def test_a_sequence_that_is_ahead_of_the_clock_is_exported_all_the_same(db: Database) -> None:
    # Many items of one transaction: their sequences lie above its start, and may above that of the next run.
    queue, sink = ExportQueue("exports", most=30), Recorder()
    chain = shipping(queue, sink)
    chain.create_tables(db)
    ahead = (db.timestamp() + 200_000).to_bytes(8, "big")
    with db.transaction() as t:
        t.set("exports", cell_of(b"k").row, "last", ahead)
        for number in numbers(50):
            queue.add(t, "k", number)
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.payloads() == numbers(50)


def test_four_writers_of_one_key_and_two_workers_keep_the_order_of_commits(
    db: Database, url: str, namespace: str
) -> None:
    queue = ExportQueue("exports", most=5)
    sink = Recorder()
    chain = shipping(queue, sink)
    chain.create_tables(db)
    written = threading.Event()

    def write(name: int) -> list[tuple[int, bytes]]:
        payloads = [b"%d-%d" % (name, number) for number in range(25)]
        with percolator_core.connect(url, namespace) as mine:
            return [(add(mine, queue, "k", payload), payload) for payload in payloads]

    def work() -> None:
        with percolator_core.connect(url, namespace) as mine:
            while not written.is_set():
                Worker(mine, chain).run_until_idle(PATIENCE)

    with ThreadPoolExecutor(6) as pool:
        workers = [pool.submit(work) for _ in range(2)]
        committed = sorted(item for items in pool.map(write, range(4)) for item in items)
        written.set()
        for worker in workers:
            worker.result()
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken[b"k"] == [payload for _, payload in committed]
    assert left(db) == 0


def test_a_call_is_repeated_after_a_failure_that_came_after_its_effect(db: Database) -> None:
    queue = ExportQueue("exports")
    failed: set[bytes] = set()
    sink = Recorder()

    class Failing:
        def take(self, key: bytes, sequence: int, payload: bytes) -> None:
            sink.take(key, sequence, payload)
            if payload not in failed:
                failed.add(payload)
                raise OSError("the answer was lost")

    chain = shipping(queue, Failing())
    chain.create_tables(db)
    add(db, queue, "k", *numbers(5))
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken[b"k"] == numbers(5)
    assert sorted(sink.payloads()) == sorted(numbers(5) * 2)
    assert counts.quarantined == 0


def test_a_run_that_conflicts_after_it_called_the_sink(db: Database) -> None:
    queue = ExportQueue("exports")
    meddled = threading.Event()

    def meddle(key: bytes, payload: bytes) -> None:
        # In the middle of the first run another one begins and commits.
        if not meddled.is_set():
            meddled.set()
            db.run(lambda t: queue.export(t, cell_of(key), sink))

    sink = Recorder(meddle)
    chain = shipping(queue, sink)
    chain.create_tables(db)
    add(db, queue, "k", b"1", b"2")
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    assert counts.observers["ship"].conflicts > 0
    assert sink.payloads() == [b"1", b"1", b"2", b"2"]
    assert sink.taken[b"k"] == [b"1", b"2"]
    assert left(db) == 0


def test_a_run_that_lags_does_not_bring_back_the_past(db: Database, tmp_path: Path) -> None:
    queue = ExportQueue("exports")
    with SQLiteSink(tmp_path / "sink") as sink:

        class Lagging:
            def take(self, key: bytes, sequence: int, payload: bytes) -> None:
                # While the call is on its way, another run exports the same item, and a newer one.
                db.run(lambda t: queue.export(t, cell_of(key), sink))
                add(db, queue, "k", b"new")
                db.run(lambda t: queue.export(t, cell_of(key), sink))
                sink.take(key, sequence, payload)

        add(db, queue, "k", b"old")
        late = db.begin()
        assert queue.export(late, cell_of(b"k"), Lagging()) == 1
        with pytest.raises(TransactionConflict):
            late.commit()
        found = sink.get("k")
        assert found is not None
        assert found[1] == b"new"
    assert left(db) == 0


@pytest.mark.parametrize("reached", ["sink", "prewrite", "primary"])
def test_a_run_whose_client_dies(db: Database, url: str, namespace: str, reached: str) -> None:
    queue, sink = ExportQueue("exports", most=2), Recorder()
    chain = shipping(queue, sink)
    chain.create_tables(db)
    add(db, queue, "k", b"1", b"2", b"3")
    with percolator_core.connect(url, namespace) as dying:
        dying.client.one_call_a_tablet = True
        t = dying.begin()
        assert queue.export(t, cell_of(b"k"), sink) == 2
        if reached != "sink":
            commit = commit_of(t)
            timestamp = commit.prewrite()
            if reached == "primary":
                commit.commit_primary(timestamp)
        die(dying)
        Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken[b"k"] == [b"1", b"2", b"3"]
    assert sink.payloads().count(b"1") == (1 if reached == "primary" else 2)
    assert left(db) == 0


@pytest.mark.parametrize("bound", [{"most": 7}, {"size": 10}, {"seconds": 1e-9}])
def test_a_backlog_is_taken_in_bounded_batches(db: Database, bound: dict[str, int]) -> None:
    queue, sink, counts = ExportQueue("exports", **bound), Recorder(), list[int]()
    chain = shipping(queue, sink, counts)
    chain.create_tables(db)
    items = [b"%02d" % number for number in range(40)]
    add(db, queue, "k", *items)
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken[b"k"] == items
    assert max(counts) == {"most": 7, "size": 5, "seconds": 1}[next(iter(bound))]
    assert left(db) == 0


def test_what_is_behind_an_item_that_fails_waits_in_quarantine(db: Database) -> None:
    queue = ExportQueue("exports")
    broken = threading.Event()
    broken.set()

    def refuse(key: bytes, payload: bytes) -> None:
        if payload == b"bad" and broken.is_set():
            raise ValueError("not that one")

    sink = Recorder(refuse)
    chain = shipping(queue, sink)
    chain.create_tables(db)
    add(db, queue, "k", b"1", b"bad", b"2")
    add(db, queue, "other", b"3")
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    assert counts.quarantined >= 1
    assert sink.taken == {b"k": [b"1"], b"other": [b"3"]}
    # Taken, and committed, before the failure: it is not given again with every attempt.
    assert sink.payloads().count(b"1") == 1
    assert [item.payload for item in queue.waiting(db.snapshot(), "k")] == [b"bad", b"2"]
    broken.clear()
    assert queue.notify_all(db) == 1
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken[b"k"] == [b"1", b"bad", b"2"]


def test_adding_does_not_cut_the_wait_after_a_failure_short(db: Database, url: str, namespace: str) -> None:
    queue = ExportQueue("exports")

    def refuse(key: bytes, payload: bytes) -> None:
        if key == b"k":
            raise OSError("away")

    sink = Recorder(refuse)
    chain = shipping(queue, sink, retry=Retry(attempts=3, backoff=60, max_backoff=60))
    chain.create_tables(db)
    with percolator_core.connect(url, namespace) as mine:
        worker = Worker(mine, chain)
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            add(db, queue, "k", b"0")
            until(lambda: worker.counts.observers and worker.counts.observers["ship"].failed == 1)
            for number in range(1, 6):
                add(db, queue, "k", b"more")
                add(db, queue, "other", b"")
                # The worker came by after the item for "k" was there.
                until(lambda number=number: len(sink.taken[b"other"]) == number)  # type: ignore[misc]
        finally:
            worker.stop()
            running.join()
    assert sink.payloads() == [b"0"]
    assert len(queue.waiting(db.snapshot(), "k")) == 6


def test_a_run_does_not_pass_what_was_exported(db: Database) -> None:
    queue, sink = ExportQueue("exports", most=2000), Recorder()
    add(db, queue, "k", *numbers(1500))
    assert db.run(lambda t: queue.export(t, cell_of(b"k"), sink)) == 1500
    add(db, queue, "k", b"new")
    with db.transaction() as t:
        assert queue.export(t, cell_of(b"k"), sink) == 1
        assert t.cost.scans == 2  # one step of each of two tablets


def test_items_of_a_time_without_an_observer(db: Database) -> None:
    queue, sink = ExportQueue("exports"), Recorder()
    for number in range(3):
        add(db, queue, f"k{number}", b"1", b"2")
    chain = shipping(queue, sink)
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.calls == []
    assert queue.notify_all(db) == 3
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken == {b"k%d" % number: [b"1", b"2"] for number in range(3)}
    assert queue.notify_all(db) == 0


def test_an_observer_adds_what_it_declares(db: Database) -> None:
    queue, sink = ExportQueue("exports"), Recorder()
    refused: list[str] = []

    def tell(t: Transaction, cell: Cell) -> None:
        queue.add(t, cell.row, t.get("docs", cell.row, "text") or b"")

    def silent(t: Transaction, cell: Cell) -> None:
        try:
            queue.add(t, cell.row, b"")
        except ConfigurationError as error:
            refused.append(str(error))

    ship = shipping(queue, sink).observers["ship"]
    chain = chain_of(
        watch("tell", tell, "docs.text", writes=("exports.last", "exports.payload")),
        watch("silent", silent, "docs.text"),
        ship,
        tables=TABLES,
    )
    chain.create_tables(db)
    for number in numbers(3):
        with db.transaction() as t:
            t.set("docs", "d", "text", number)
        Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.taken[b"d"] == numbers(3)
    assert len(refused) == 3
    assert "exports.last" in refused[0]


def test_what_cannot_be(db: Database) -> None:
    for wrong in ({"most": 0}, {"size": 0}, {"seconds": 0.0}, {"seconds": float("nan")}):
        with pytest.raises(ValueError, match="most and size are 1 or more and seconds is above 0"):
            ExportQueue("exports", **wrong)
    with pytest.raises(ValueError, match="at most 65000 bytes, not 65001"):
        ExportQueue("exports").add(db.begin(), bytes(65_001), b"")


def test_items_that_moved_to_the_base_are_exported_once_and_in_order(db: Database, tmp_path: Path) -> None:
    queue, sink = ExportQueue("exports", most=3), Recorder()
    chain = shipping(queue, sink)
    chain.create_tables(db)
    for turn in range(3):
        payloads = numbers(4 * (turn + 1))[4 * turn :]
        for payload in payloads:
            add(db, queue, "k", payload)
        # The cells that wait for the observer stay in the store, and the items may go.
        assert flush(db, "exports", tmp_path, observers=["ship"]) >= 4
        assert [item.payload for item in queue.waiting(db.snapshot(), "k")] == payloads
        Worker(db, chain).run_until_idle(PATIENCE)
        assert left(db) == 0
    assert sink.payloads() == numbers(12)
    flush(db, "exports", tmp_path, observers=["ship"])
    assert queue.notify_all(db) == 0
    add(db, queue, "k", b"last")
    Worker(db, chain).run_until_idle(PATIENCE)
    assert sink.payloads()[12:] == [b"last"]
