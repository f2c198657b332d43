"""Every interleaving of two transactions on two cells, with one crash, over the real scripts.

What two transactions do, in which order the server executes their operations, where one of them dies or
sleeps beyond its time to live: all of it is tried. Nothing is random and no time is waited for, since the
server's clock is set. PERCOLATOR_ALL_SCHEDULES=1 tries every shape in every trouble, which takes long.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from percolator_core import Version
from percolator_core.layout.keys import Keyspace, tablet_of
from percolator_core.layout.records import unpack_version
from percolator_core.scripts import calls
from percolator_core.store.packing import Command
from percolator_torture.checker.check import check
from percolator_torture.faults.plan import ExactPlan, Kind, Operation
from percolator_torture.faults.store import FaultyDatabase, connect
from percolator_torture.histories.history import CellKey, History, TransactionRecord, Write
from percolator_torture.histories.marks import Mark, tag_value
from percolator_torture.histories.survey import read_final
from tests.clock import FakeClock
from tests.servers.plain import Server, binaries, some_namespace, stop_renewing, use_up_spares
from tests.transaction.actors import (
    Actor,
    Program,
    Resolver,
    blind,
    blind_backwards,
    delete_and_set,
    fixed,
    fixed_backwards,
    increment,
    increment_backwards,
    judge,
    overwrite_x,
    read_x_write_y,
    reader,
    set_and_delete,
    skew_x,
    skew_y,
)
from tests.transaction.schedules import CLOCK, Footprint, Move, Tally, collide, explore, footprint

SHORT_LIFE, LONG_LIFE = 600.0, 1e6
"""Times to live of the locks of A, which gets into trouble, and of B, which does not."""
BEYOND_SHORT_LIFE = 2 * SHORT_LIFE
ROWS_AT_ONCE = 400

SHAPES: dict[str, tuple[Program, Program | None]] = {
    "both read and write both": (increment, increment),
    "in opposite order": (increment, increment_backwards),
    "write skew": (skew_x, skew_y),
    "one reads what the other writes": (read_x_write_y, fixed),
    "a writer and a reader": (fixed, reader),
    "a writer that read and a reader": (increment, reader),
    "blind writes": (blind, blind),
    "blind writes in opposite order": (blind, blind_backwards),
    "fixed before the writes": (fixed, fixed_backwards),
    "set and delete of one cell": (set_and_delete, delete_and_set),
    "a deletion and a reader": (set_and_delete, reader),
    "a writer and a resolver": (fixed, None),
    "the primary overwritten": (fixed, overwrite_x),
}


@dataclass(frozen=True)
class Trouble:
    """What befalls A.

    ``crash``: it dies before any of its operations. ``time``: at any moment, though not before its death, so
    much time passes that its locks are outlived. ``token``: its liveness token outlives it, so that only time
    tells. ``late``: the request that it was about to send when it died is on its way, and is executed at any
    later moment. ``copy``: the n-th request to a script seems lost and is sent again; the first copy of it is
    executed at any later moment.
    """

    crash: bool = False
    time: bool = False
    token: bool = False
    late: bool = False
    copy: tuple[str, int] | None = None


TROUBLES = {
    "well": Trouble(),
    "slow": Trouble(time=True),
    "dead": Trouble(crash=True),
    "dead, last request late": Trouble(crash=True, late=True),
    "dead, token outlives": Trouble(crash=True, token=True, time=True),
    "first prewrite copied": Trouble(copy=("prewrite", 1)),
    "slow, first prewrite copied": Trouble(time=True, copy=("prewrite", 1)),
    "slow, second prewrite copied": Trouble(time=True, copy=("prewrite", 2)),
    "slow, commit copied": Trouble(time=True, copy=("commit", 1)),
}

ONE, TWO, TOGETHER = "one call", "two phases", "two phases in one tablet"
MIXED = "one call against two phases"

ALL = list(SHAPES)
# Those with few enough schedules that they can be tried in every trouble.
SMALL = [
    "write skew",
    "one reads what the other writes",
    "a writer and a reader",
    "a writer and a resolver",
    "the primary overwritten",
]
MOST = [
    *SMALL,
    "a deletion and a reader",
    "blind writes",
    "fixed before the writes",
    "set and delete of one cell",
]

TRIED: dict[tuple[str, str], tuple[list[str], int]] = {
    (ONE, "well"): (ALL, 100),
    (ONE, "dead"): (ALL, 100),
    (ONE, "dead, last request late"): (ALL, 200),
    (TWO, "well"): (ALL, 1500),
    (TWO, "slow"): (SMALL, 1500),
    (TWO, "dead"): (MOST, 1500),
    (TWO, "dead, last request late"): (SMALL, 700),
    (TWO, "dead, token outlives"): (SMALL, 400),
    (TWO, "slow, first prewrite copied"): (["write skew"], 300),
    (TWO, "slow, commit copied"): (["write skew"], 200),
    (MIXED, "first prewrite copied"): (["write skew", "fixed before the writes"], 500),
    (MIXED, "dead"): (SMALL, 100),
    (TOGETHER, "well"): (ALL, 300),
    (TOGETHER, "slow"): (SMALL, 600),
    (TOGETHER, "dead"): (MOST, 400),
    (TOGETHER, "dead, last request late"): (SMALL, 300),
}
"""Which shapes are tried how and in which trouble, and how many schedules that is at least."""

if os.environ.get("PERCOLATOR_ALL_SCHEDULES"):
    TRIED = {(mode, trouble): (ALL, 1) for mode in (ONE, TWO, TOGETHER) for trouble in TROUBLES}


class World:
    """The clients, their server's clock, cells for each schedule, and the history of all of them."""

    def __init__(self, url: str) -> None:
        namespace = some_namespace()
        self.clock = FakeClock(Keyspace(namespace))
        self.clients = {
            name: self._connect(url, namespace, SHORT_LIFE if name == "A" else LONG_LIFE)
            for name in ("A", "B", "judge")
        }
        self.judge = self.clients["judge"]
        self.judge.create_table("t", tablets=2)
        for db in self.clients.values():
            db.catalog.table("t")
        self.history = History()
        self._numbers = itertools.count(1)
        self._start: dict[bytes, bytes] = {}
        self._again: dict[bool, list[dict[str, bytes]]] = {False: [], True: []}
        self._fresh = self._fresh_rows()

    def _connect(self, url: str, namespace: str, lock_ttl: float) -> FaultyDatabase:
        db = connect(url, namespace, clock=self.clock, lock_ttl=lock_ttl, lock_wait=1e6)
        # How long anything takes must not matter: the token is there until the test takes it away.
        db.client.owner()
        stop_renewing(db)
        self.revive(db)
        return db

    def revive(self, db: FaultyDatabase) -> None:
        db.store.one((b"SET", db.client.token_of(db.client.owner()), b""))

    def kill(self, db: FaultyDatabase) -> None:
        db.store.one((b"DEL", db.client.token_of(db.client.owner())))

    def pass_time(self) -> None:
        self.clock.set_forward(self.judge.store, BEYOND_SHORT_LIFE)

    def mark(self, process: str) -> Mark:
        return Mark(process, next(self._numbers))

    def rows(self, *, together: bool) -> dict[str, bytes]:
        """Where the two cells are, each with a first version: in one tablet or in two."""
        if self._again[together]:
            return self._again[together].pop()
        x, y, beside_x = next(self._fresh)
        return {"x": x, "y": beside_x if together else y}

    def put_back(self, rows: dict[str, bytes], *, together: bool) -> None:
        """Make two cells what they were at first, as far as anybody can see."""
        tag_of = self.judge.catalog.table("t").tag
        commands: list[Command] = [(b"DEL", tag + b"locks") for tag in self.judge.catalog.table("t").tags]
        for row in rows.values():
            commands.append((b"DEL", tag_of(row) + b"v:" + row, tag_of(row) + b"r:" + row))
            commands.append((b"HSET", tag_of(row) + b"r:" + row, b"cv", self._start[row]))
        self.judge.store.call(*commands)
        self._again[together].append(rows)

    def _fresh_rows(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        numbers = (b"%d" % number for number in itertools.count())
        by_tablet: list[list[bytes]] = [[], []]
        tag_of = self.judge.catalog.table("t").tag
        while True:
            for row in itertools.islice(numbers, ROWS_AT_ONCE):
                by_tablet[tablet_of(row, 2)].append(row)
            rows = by_tablet[0] + by_tablet[1]
            mark, began = self.mark("load"), time.monotonic_ns()
            with self.judge.transaction() as t:
                for row in rows:
                    t.set("t", row, "v", tag_value(mark, b""))
            writes = tuple(Write(CellKey("t", row, "v")) for row in rows)
            self.history.add(
                TransactionRecord(
                    *mark[:2],
                    began,
                    time.monotonic_ns(),
                    t.start_timestamp,
                    t.commit_timestamp,
                    writes=writes,
                    blind=True,
                )
            )
            versions = self.judge.store.call(*[(b"HGET", tag_of(row) + b"r:" + row, b"cv") for row in rows])
            self._start.update(zip(rows, versions, strict=True))
            while len(by_tablet[0]) > 1 and by_tablet[1]:
                yield by_tablet[0].pop(), by_tablet[1].pop(), by_tablet[0].pop()

    def close(self) -> None:
        for db in self.clients.values():
            db.close()


@dataclass
class Schedule:
    """One run of two programs."""

    world: World
    programs: tuple[Program, Program | None]
    mode: str
    trouble: Trouble
    tally: Tally
    crashed: bool = False
    late: Operation | None = None
    time_passed: bool = False
    actors: dict[str, Actor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = self.world.rows(together=self.mode == TOGETHER)
        for name, program in zip("AB", self.programs, strict=True):
            db = self.world.clients[name]
            db.client.one_call_a_tablet = self.mode != ONE and (self.mode, name) != (MIXED, "A")
            use_up_spares(db)  # they last for a second, which is for nobody to measure here
            # What was missed in another schedule must not change the requests of this one.
            db.catalog.handles["t"].columns["v"].sparse = 1
            if name == "A" and self.trouble.copy is not None:
                script, nth = self.trouble.copy
                db.faulty.plan = ExactPlan().on(script, Kind.REQUEST_LOST, nth=nth)
            actor = Resolver if program is None else Actor
            self.actors[name] = actor(self.world.mark(name), db, program or blind, self.rows)

    # What the search needs.

    def moves(self) -> dict[Move, Footprint] | None:
        a = self.actors["A"]
        if self.trouble.crash and not self.crashed and a.stepper.done:
            return None  # it got away: that is a schedule without trouble
        found: dict[Move, Footprint] = {}
        for name, actor in self.actors.items():
            if actor.next is not None:
                found["step", name] = footprint(actor.next)
        if self.trouble.crash and not self.crashed:
            token = a.db.client.token_of(a.db.client.owner())
            found["crash", "A"] = frozenset() if self.trouble.token else frozenset({(token, True)})
        if self.late is not None:
            found["deliver", "A"] = footprint(self.late)
        # Whoever waits when nothing else can happen waits for time to pass.
        stuck = not found and any(actor.blocked_by is not None for actor in self.actors.values())
        in_time = self.trouble.time and not self.time_passed and self.crashed == self.trouble.crash
        if stuck or in_time:
            found["time", "clock"] = frozenset({(CLOCK, True)})
        return found

    def take(self, move: Move, touched: Footprint) -> None:
        what, name = move
        if what == "step":
            self.actors[name].step()
        elif what == "crash":
            self._crash(self.actors[name])
        elif what == "deliver":
            self._deliver(self.actors[name])
        else:
            self.time_passed = True
            self.world.pass_time()
        lost = self.actors["A"].db.faulty.happened
        if lost:
            self.late = lost.pop().operation
        for other, actor in self.actors.items():
            if actor.blocked_by is not None and other != name and collide(actor.blocked_by, touched):
                actor.wake()

    def discard(self) -> None:
        for actor in self.actors.values():
            actor.stepper.abandon()
        self._restore()
        self.world.put_back(self.rows, together=self.mode == TOGETHER)

    def judge(self) -> None:
        if self.crashed and self.trouble.token:
            self.world.pass_time()
        if self.tally.schedules % 4 == 0:
            self.world.judge.resolve_locks(timedelta(0))
        # Whatever stands in the cells is settled by whoever reads them.
        look = Actor(self.world.mark("judge"), self.world.judge, reader, self.rows)
        assert look.stepper.run(until=lambda point: point.when == "asleep") is None, "a lock is left"
        histories = self._histories()
        assert look.reads == {cell: versions[0].value for cell, versions in histories.items()}
        transactions = [actor for actor in self.actors.values() if not isinstance(actor, Resolver)]
        judge([*transactions, look], histories)
        for actor in (*transactions, look):
            self.world.history.add(actor.record())
        self.tally.count(tuple(actor.outcome + "+" * actor.committed for actor in transactions))
        self._restore()

    # Inside.

    def _crash(self, actor: Actor) -> None:
        self.crashed = True
        if self.trouble.late:
            self.late = actor.next
        actor.stepper.abandon()
        actor.blocked_by = None
        if not self.trouble.token:
            self.world.kill(actor.db)

    def _restore(self) -> None:
        self.actors["A"].db.faulty.plan = None
        if self.crashed:
            self.world.revive(self.actors["A"].db)

    def _deliver(self, actor: Actor) -> None:
        operation, self.late = self.late, None
        if operation is not None and operation.commands:
            (reply,) = self.world.judge.store.call(*operation.commands)
            actor.note(operation, reply)

    def _histories(self) -> dict[str, list[Version]]:
        """All versions of the cells, as they lie in the store; there is no lock any more."""
        store, table = self.world.judge.store, self.world.judge.catalog.table("t")
        packed = store.run_all([calls.history(table.tag(row), row, b"v", 100) for row in self.rows.values()])
        left, also_left = store.call(*[(b"ZCARD", tag + b"locks") for tag in table.tags])
        assert left == also_left == 0
        return {
            cell: [unpack_version(version) for version in versions]
            for cell, versions in zip(self.rows, packed, strict=True)
        }


@pytest.fixture(scope="module")
def plain_server() -> Iterator[Server]:
    servers = binaries()
    if not servers:
        pytest.skip("NOT TESTED: no redis-server on this machine")
    server = Server(servers.get("system") or next(iter(servers.values())))
    yield server
    server.close()


@pytest.fixture
def world(plain_server: Server) -> Iterator[World]:
    made = World(plain_server.unix)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "trouble"), TRIED)
def test_all_schedules(world: World, mode: str, trouble: str) -> None:
    shapes, least = TRIED[mode, trouble]
    total = Tally()
    for shape in shapes:
        tally = Tally()

        def start(shape: str = shape, tally: Tally = tally) -> Schedule:
            return Schedule(world, SHAPES[shape], mode, TROUBLES[trouble], tally)

        try:
            explore(start, tally)
        except BaseException as error:
            error.add_note(f"shape: {shape}")
            raise
        print(f"{mode}, {trouble}, {shape}: {tally}")
        total += tally
    print(f"{mode}, {trouble}: {total}")
    assert total.schedules >= least
    # The schedules were of all kinds.
    ends = {outcomes[0] for outcomes in total.outcomes}
    assert ends >= ({"unknown"} if TROUBLES[trouble].crash else {"ok+", "fail"})
    # Who dies after the decisive request is found out only where there is something left to do for others.
    assert "unknown+" in ends or not TROUBLES[trouble].crash or (mode != TWO and not TROUBLES[trouble].late)
    # And by another judge, all of them together.
    report = check(world.history, read_final(world.judge, ["t"]))
    assert report.ok, report
