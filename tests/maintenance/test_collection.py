"""Garbage collection beside everything else, and beside another one: it drops only what it has resolved."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest

from percolator_core import Database, SnapshotTooOld, TransactionConflict
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.maintenance.locks import Locks
from percolator_core.scripts import calls
from percolator_core.store import Store
from percolator_core.store.packing import Command
from tests.clock import FakeClock, connect_with_clock
from tests.servers.plain import PATIENCE, commit_of, die, rows_apart, sha_of
from tests.transaction.crash import Connect, Interrupted
from tests.transaction.test_growth import put, size_of

HOT, COOL = rows_apart(2)
NOTHING = timedelta(0)


@pytest.mark.parametrize("finish", [False, True], ids=["the second stops", "the second goes on"])
def test_two_collectors_drop_only_what_each_has_resolved(
    connect: Connect, db: Database, finish: bool
) -> None:
    """A second one raises the safe point while the first drops: the locks in between are not resolved yet."""
    writer = connect()
    writer.client.one_call_a_tablet = True
    first, second = GarbageCollector(db.client), GarbageCollector(connect().client)

    def interfere() -> None:
        t = writer.begin()
        t.set("t", HOT, "v", b"whole")
        t.set("t", COOL, "v", b"whole")
        commit = commit_of(t)
        commit.commit_primary(commit.prewrite())
        die(writer)
        put(db, HOT, b"next")
        safe = db.timestamp()
        tags = db.catalog.table("t").tags
        db.store.run_all([calls.raise_safe_point(tag, safe) for tag in tags])

    first.store = Interrupted(db, "collect", interfere)  # type: ignore[assignment]
    first.collect(0.0)
    if finish:
        second.collect(0.0)
    assert db.snapshot().get("t", COOL, "v") == b"whole"


def test_new_locks_below_the_safe_point_are_refused_before_the_old_ones_are_resolved(
    connect: Connect, db: Database
) -> None:
    """Else one could appear behind the back of the collector, and be judged by what it drops."""
    writer = connect()
    writer.client.one_call_a_tablet = True
    put(db, HOT, b"old")
    t = writer.begin()
    t.set("t", HOT, "v", b"new")
    t.set("t", COOL, "v", b"new")
    commit = commit_of(t)
    refused: list[BaseException] = []

    def late() -> None:
        try:
            commit.commit_primary(commit.prewrite())
        except SnapshotTooOld as error:
            refused.append(error)

    collector = GarbageCollector(db.client)
    collector.store = Interrupted(db, "collect", late)  # type: ignore[assignment]
    collector.collect(0.0)
    assert refused
    with db.transaction() as reader:
        assert (reader.get("t", HOT, "v"), reader.get("t", COOL, "v")) == (b"old", None)


ACCOUNTS = [b"account %d" % number for number in range(20)]
TOTAL = 100 * len(ACCOUNTS)


class Crew:
    """Threads, each with a database of its own, that work until the first of them fails or all are done."""

    def __init__(self, seed: int) -> None:
        self.done = threading.Event()
        self.errors: list[BaseException] = []
        self._seed = seed
        self._threads: list[threading.Thread] = []

    def hire(self, db: Database, work: Callable[[Database, random.Random], None]) -> threading.Thread:
        chance = random.Random(self._seed + len(self._threads))

        def run() -> None:
            try:
                work(db, chance)
            except BaseException as error:  # noqa: BLE001 - raised by the main thread
                self.errors.append(error)
                self.done.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def dismiss(self) -> None:
        self.done.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert self.errors == []
        assert not any(thread.is_alive() for thread in self._threads)


def test_nothing_is_lost_while_two_collect_and_others_read_and_write(
    connect: Connect, db: Database, two_phase: bool
) -> None:
    """A bank: some clients leave their secondaries to others, whom the collectors must not confuse."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    crew = Crew(seed)
    with db.transaction() as t:
        for account in ACCOUNTS:
            t.set("t", account, "v", b"100")

    def connected() -> Database:
        mine = connect(lock_wait=20)
        mine.client.one_call_a_tablet = two_phase
        return mine

    def collect(mine: Database, chance: random.Random) -> None:
        while not crew.done.is_set():
            mine.collect_garbage(timedelta(milliseconds=chance.choice([0, 0, 5, 20])))
            mine.store.sleep(chance.uniform(0, 0.01))

    def read(mine: Database, chance: random.Random) -> None:
        while not crew.done.is_set():
            try:
                found = list(mine.snapshot().scan("t"))
            except SnapshotTooOld:
                continue
            assert [row for row, _ in found] == sorted(ACCOUNTS)
            assert sum(int(cells["v"]) for _, cells in found) == TOTAL

    for work in (collect, collect, read):
        crew.hire(connected(), work)
    for writer in [crew.hire(connected(), transfers) for _ in range(2)]:
        writer.join(PATIENCE)
    crew.dismiss()
    db.resolve_locks(NOTHING)
    db.collect_garbage(NOTHING)
    found = dict(db.snapshot().scan("t"))
    assert sum(int(cells["v"]) for cells in found.values()) == TOTAL
    assert {size_of(db, account).versions for account in ACCOUNTS} == {0}
    assert {size_of(db, account).fields for account in ACCOUNTS} == {1}


def transfers(db: Database, chance: random.Random) -> None:
    left = 150
    while left:
        one, other = chance.sample(ACCOUNTS, 2)
        t = db.begin()
        try:
            values = t.get_many([("t", one, "v"), ("t", other, "v")])
            t.set("t", one, "v", b"%d" % (int(values[0] or b"") - 1))
            t.set("t", other, "v", b"%d" % (int(values[1] or b"") + 1))
            if db.client.one_call_a_tablet and chance.random() < 0.3:
                commit = commit_of(t)
                commit.commit_primary(commit.prewrite())
            else:
                t.commit()
        except (TransactionConflict, SnapshotTooOld):
            continue
        left -= 1


def test_a_clock_that_jumps_ahead_forgets_no_deletion_unnoticed(connect: Connect, db: Database) -> None:
    """The server's clock decides what is garbage: by it a snapshot is old that is young by the client's."""
    clock = FakeClock(db.store.keyspace)
    with connect_with_clock(db.store.url, db.store.keyspace, clock) as timed:
        put(timed, HOT, b"here")
        past, knowing = timed.begin(), timed.begin()
        assert past.start_timestamp
        assert knowing.get("t", HOT, "v") == b"here"
        with timed.transaction() as t:
            t.delete("t", HOT, "v")
        clock.set_forward(timed.store, 900)
        put(timed, COOL, b"tells the client what time it is")
        timed.collect_garbage(NOTHING)
        assert timed.snapshot().get("t", HOT, "v") is None
        with pytest.raises(SnapshotTooOld):
            past.get("t", HOT, "v")
        assert knowing.get("t", HOT, "v") == b"here"  # what was read once is kept, and true


def test_no_lock_is_missed_while_others_come_and_go(connect: Connect, db: Database) -> None:
    """Locks that vanish while the collector goes through them must not hide one that stays."""
    db.create_table("one", tablets=1)
    put(db, HOT, b"0")
    with db.transaction() as t:
        t.set("one", b"zz", "v", b"0")
    writer, bulk = connect(), connect()
    for other in (writer, bulk):
        other.client.one_call_a_tablet = True
    stranded = writer.begin()
    stranded.set("t", HOT, "v", b"whole")
    stranded.set("one", b"zz", "v", b"whole")
    commit = commit_of(stranded)
    commit.commit_primary(commit.prewrite())
    die(writer)
    put(db, HOT, b"next")
    safe = db.timestamp()
    many = bulk.begin()
    for number in range(900):
        many.set("one", b"r%d" % number, "v", b"1")
    many.start_timestamp  # noqa: B018 - fixes the snapshot
    others = commit_of(many)
    commit_ts = others.prewrite()
    tag = db.catalog.table("one").tags[0]
    # The others' locks come first, as after a clock was set back.
    locks = db.store.one((b"ZRANGE", tag + b"locks", b"0", b"-1"))
    stays = max(locks, key=lambda mark: mark.endswith(b"zz"))
    db.store.one((b"ZADD", tag + b"locks", b"%d" % db.timestamp(), stays))
    locks = Locks(db.client)
    pages: list[object] = []
    sha = sha_of(db.store, "held")

    class BetweenPages:
        """The store, in which the others' locks go before the second page of the lock index is read."""

        run, run_all = Store.run, Store.run_all

        def __getattr__(self, name: str) -> object:
            return getattr(db.store, name)

        def one(self, command: Command) -> object:
            if command[:2] == (b"EVALSHA", sha) and command[3] == tag and len(command) == 7:
                pages.append(command)
                if len(pages) == 2:
                    others.commit_secondaries(others.commit_primary(commit_ts))
                    bulk.store.one((b"PING",))  # what was sent before has been executed
            return db.store.one(command)

    locks.store = BetweenPages()  # type: ignore[assignment]
    locks.settle(lambda lock: lock.start_ts <= safe)
    assert len(pages) >= 2
    assert not list(db.locks())
    assert db.snapshot().get("one", b"zz", "v") == b"whole"
