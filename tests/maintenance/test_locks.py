"""Locks are listed and settled a bounded step at a time: by few round trips, and without their values."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from percolator_core import Database
from percolator_core.admin.locks import locks
from percolator_core.maintenance.garbage_collection import GarbageCollector
from percolator_core.maintenance.locks import Locks, ResolvedLocks
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call
from percolator_core.store import Store
from percolator_core.store.packing import Command
from percolator_core.transaction.commit import Commit
from tests.servers.fixtures import Connect
from tests.servers.plain import commit_of, die, rows_apart
from tests.transaction.test_growth import keys_with, put

NOTHING = timedelta(0)
MEBIBYTE = 1 << 20
PING = b"ping"


class Watched:
    """Counts the round trips of a database, and the bytes that its server sends during them."""

    def __init__(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.db = db
        self.round_trips = 0
        self.scripts: Counter[str] = Counter()
        db.client.catalog.due = math.inf
        exchange, command = db.store.exchange, db.store.command

        def counted(commands: Any, *args: Any, **settings: Any) -> Any:
            self.round_trips += 1
            return exchange(commands, *args, **settings)

        def named(call: Call[Any]) -> Command:
            self.scripts[call[0]] += 1
            return command(call)

        monkeypatch.setattr(db.store, "exchange", counted)
        monkeypatch.setattr(db.store, "command", named)

    def during(self, action: Callable[[], object]) -> tuple[int, int]:
        """Round trips of the action, and bytes that came."""
        self.scripts.clear()
        before = self._sent()
        self.round_trips = 0
        action()
        trips = self.round_trips
        return trips, self._sent() - before

    def _sent(self) -> int:
        return int(
            self.db.store.ask(self.db.store.endpoints()[0], (b"INFO", b"stats"))
            .split(b"total_net_output_bytes:")[1]
            .split(b"\r\n")[0]
        )


@pytest.fixture
def watched(db: Database, monkeypatch: pytest.MonkeyPatch) -> Watched:
    db.create_table("one", tablets=1)
    return Watched(db, monkeypatch)


def two_phase(connect: Connect, **settings: Any) -> Database:
    client = connect(**settings)
    client.client.one_call_a_tablet = True
    return client


def prewritten(client: Database, *cells: tuple[str, bytes, bytes | None]) -> tuple[Commit, int]:
    """A transaction whose locks stand; its commit, to be carried on, and its commit timestamp.

    A cell is table, row and the value of the column ``v``, or None to delete it; or a notification, where
    the value is `PING`.
    """
    t = client.begin()
    assert t.start_timestamp
    for table, row, value in cells:
        if value is PING:
            t.notify(table, row, "ping")
        elif value is None:
            t.delete(table, row, "v")
        else:
            t.set(table, row, "v", value)
    commit = commit_of(t)
    return commit, commit.prewrite()


def test_locks_of_large_values_are_listed_and_settled_without_them(
    connect: Connect, watched: Watched
) -> None:
    """In steps of a few MiB, since a script has to read each lock as a whole."""
    db, victim = watched.db, two_phase(connect)
    cells = [("one", b"%d" % number, bytes(MEBIBYTE)) for number in range(20)]
    commit, commit_ts = prewritten(victim, *cells)
    for look in (lambda: list(db.locks()), lambda: locks(db), lambda: db.resolve_locks(NOTHING)):
        trips, received = watched.during(look)
        assert trips <= 16
        assert received < 64 << 10
        assert 4 <= watched.scripts["held"] <= 6
    commit.commit_primary(commit_ts)
    die(victim)
    trips, received = watched.during(lambda: db.resolve_locks(NOTHING))
    assert trips <= 20
    assert received < 64 << 10
    assert not list(db.locks())
    assert db.snapshot().get("one", b"7", "v") == bytes(MEBIBYTE)


@pytest.mark.parametrize("is_committed", [False, True])
def test_round_trips_are_by_the_step_and_not_by_the_lock(
    connect: Connect, watched: Watched, is_committed: bool
) -> None:
    victim = two_phase(connect)
    commit, commit_ts = prewritten(victim, *[("one", b"%d" % number, b"x") for number in range(4_000)])
    if is_committed:
        commit.commit_primary(commit_ts)
    die(victim)
    found = ResolvedLocks()

    def resolve() -> None:
        nonlocal found
        found = watched.db.resolve_locks(NOTHING)

    trips, _ = watched.during(resolve)
    assert trips <= 40
    assert watched.scripts["resolve_primary"] <= 2
    if is_committed:
        assert found == ResolvedLocks(committed=3_000)  # the others' call was the primary's
    else:  # the primary's own lock goes with the decision, maybe before the walk has come by
        assert found in (ResolvedLocks(rolled_back=3_999), ResolvedLocks(rolled_back=4_000))
    assert not list(watched.db.locks())
    assert watched.db.snapshot().get("one", b"7", "v") == (b"x" if is_committed else None)


def test_many_dead_transactions_are_asked_about_together(connect: Connect, watched: Watched) -> None:
    victims = [two_phase(connect) for _ in range(3)]
    for number in range(300):
        prewritten(victims[number % 3], ("t", b"a%d" % number, b"x"), ("t", b"b%d" % number, b"x"))
    for victim in victims:
        die(victim)
    trips, _ = watched.during(lambda: watched.db.resolve_locks(NOTHING))
    assert trips <= 16 * 6
    assert watched.scripts["resolve_primary"] <= 2 * 300
    assert not list(watched.db.locks())


def test_tablets_without_locks_cost_nothing_of_their_own(db: Database, watched: Watched) -> None:
    db.create_table("many", tablets=400)
    for action in (
        lambda: db.resolve_locks(NOTHING),
        lambda: list(db.locks()),
        lambda: Locks(db.client).settle(lambda lock: True),
        lambda: locks(db),
    ):
        trips, _ = watched.during(action)
        assert trips <= 5


def test_pins_of_the_dead_are_forgotten_in_a_batch(connect: Connect, watched: Watched) -> None:
    db, dead, alive = watched.db, connect(), connect()
    for client in (dead, alive):
        for _ in range(30):
            client.snapshot().__enter__()
    die(dead)
    pinned: list[int] = []
    trips, _ = watched.during(lambda: pinned.extend(GarbageCollector(db.client).pins()))
    assert trips <= 3
    assert len(pinned) == 30
    assert db.store.one((b"ZCARD", db.store.keyspace.pins)) == 30
    assert keys_with(db, b"}pins")


def test_what_stands_in_one_tablet_is_settled_by_the_fate_of_each(connect_to_every_kind: Connect) -> None:
    """Writes, deletions and notifications of transactions that are committed, dead and alive, in one step."""
    db = connect_to_every_kind(lock_wait=0.2)
    db.create_table("t", tablets=1, notify_only=["ping"])
    db.create_table("u", tablets=3)
    chance = random.Random(7)
    for number in range(120):
        put(db, b"%d" % number, b"old")
    dead, living = two_phase(connect_to_every_kind), two_phase(connect_to_every_kind, lock_ttl=60)
    rows = iter(chance.sample(range(120), 120))
    expected: dict[bytes, bytes | None] = {b"%d" % number: b"old" for number in range(120)}
    fates: Counter[str] = Counter()
    carried_on: list[tuple[Commit, int]] = []
    after: dict[bytes, bytes | None] = {}
    for fate in chance.sample(["committed", "rolled back", "live"] * 8, 24):
        mine = [b"%d" % number for number in itertools.islice(rows, 5)]
        news: dict[bytes, bytes | None] = {row: chance.choice([None, b"new"]) for row in mine[:4]}

        cells = [("t", row, value) for row, value in news.items()]
        pings = ("t", b"shared", PING), ("t", mine[4], PING)
        client = living if fate == "live" else dead
        commit, commit_ts = prewritten(client, ("u", mine[4], b"primary"), *cells, *pings)
        if fate == "committed":
            commit.commit_primary(commit_ts)
            expected |= news
        elif fate == "live":
            carried_on.append((commit, commit_ts))
            after |= news
        fates[fate] += 6
    die(dead)
    found = Locks(db.client).resolve(0, [("t", 0)])
    assert found == ResolvedLocks(fates["committed"], fates["rolled back"], fates["live"])
    # The primaries of the dead were rolled back on the way; those of the living stand.
    assert len(list(db.locks())) == fates["live"] + len(carried_on)
    for commit, commit_ts in carried_on:
        commit.commit_secondaries(commit.commit_primary(commit_ts))
    living.store.one((b"PING",))
    db.resolve_locks(NOTHING)
    expected |= after
    assert not list(db.locks())
    assert {row: db.snapshot().get("t", row, "v") for row in expected} == expected


class BeforeSettling:
    """A store: when locks have been found, and before they are judged, something else happens once."""

    run = Store.run

    def __init__(self, db: Database, happens: Callable[[], object]) -> None:
        self._store = db.store
        self._happens: Callable[[], object] | None = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def one(self, command: Any) -> Any:
        reply = self._store.one(command)
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return reply


@pytest.mark.parametrize("what", ["commits", "refreshes", "gives way to another"])
def test_a_lock_that_changes_once_it_was_found(connect: Connect, db: Database, what: str) -> None:
    put(db, b"row", b"old")
    db.create_table("one", tablets=1)
    client = two_phase(connect, lock_ttl=0.001 if what == "refreshes" else 60)
    commit, commit_ts = prewritten(client, ("one", b"a", b"1"), ("t", b"row", b"1"))
    found_locks = Locks(db.client)

    def interfere() -> None:
        commit.commit_secondaries(commit.commit_primary(commit_ts))
        client.store.one((b"PING",))
        if what == "gives way to another":
            prewritten(client, ("one", b"a", b"2"), ("t", b"row", b"2"))

    def refresh() -> None:
        primary, store = commit.primary, client.store
        assert store.run(calls.refresh(primary.tag, commit.start_ts, primary.row, primary.column))
        # As if its time to live were long.
        key = primary.tag + b"r:" + primary.row
        lock = store.one((b"HGET", key, b"lv"))
        store.one((b"HSET", key, b"lv", lock[:16] + (60_000).to_bytes(4, "big") + lock[20:]))

    found_locks.store = BeforeSettling(db, refresh if what == "refreshes" else interfere)  # type: ignore[assignment]
    found = found_locks.resolve(
        0, [("one", 0), ("t", db.catalog.table("t").tags.index(db.catalog.table("t").tag(b"row")))]
    )
    if what == "refreshes":
        assert found == ResolvedLocks(live=2)
        commit.commit_secondaries(commit.commit_primary(commit_ts))
        client.store.one((b"PING",))
    left = [lock.start_ts for lock in db.locks()]
    if what == "gives way to another":
        assert len(left) == 2
        assert commit.start_ts not in left
        die(client)
    else:
        assert left == []
    assert db.snapshot().get("t", b"row", "v") == b"1"


def test_locks_come_oldest_first_and_no_more_than_asked_for(connect: Connect, db: Database) -> None:
    db.create_table("one", tablets=1)
    client = two_phase(connect)
    for number in range(12):
        prewritten(client, ("one", b"%d" % (number * 7 % 12), b"x"), ("t", b"%d" % number, b"x"))
    listed = [lock for lock in db.locks() if lock.table == "one"]
    assert [lock.row for lock in listed] == [b"%d" % (number * 7 % 12) for number in range(12)]
    assert [lock.wall for lock in listed] == sorted(lock.wall for lock in listed)
    assert [lock for lock in db.locks(limit=5) if lock.table == "one"] == listed[:5]
    assert [lock.row for lock in locks(db, 3)] == [
        lock.row for lock in sorted(db.locks(), key=lambda one: one.wall)[:3]
    ]


def test_a_lock_that_stays_is_counted_once_while_others_go(connect: Connect, db: Database) -> None:
    """The index shrinks under the walk, which then may come by an entry twice."""
    db.create_table("one", tablets=1)
    dead, living = two_phase(connect), two_phase(connect)
    for number in range(40):
        prewritten(living, ("one", b"live%d" % number, b"x"))
    prewritten(dead, *[("one", b"%d" % number, b"x") for number in range(5_000)])
    die(dead)
    assert db.resolve_locks(NOTHING).live == 40


def test_a_writer_clears_the_locks_of_one_dead_client_away_together(
    connect: Connect, watched: Watched
) -> None:
    """In all tablets that it writes to, each of which is a call of its own."""
    db, victim = watched.db, two_phase(connect)
    db.client.one_call_a_tablet = True
    cells = [("t", row, b"x") for row in rows_apart(16)]
    prewritten(victim, *cells)
    die(victim)
    t = db.begin()
    for table, row, _ in cells:
        t.set(table, row, "v", b"mine")
    trips, _ = watched.during(t.commit)
    assert trips <= 10
    assert db.snapshot().get("t", cells[-1][1], "v") == b"mine"
