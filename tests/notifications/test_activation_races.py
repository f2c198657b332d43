"""Activations, creations and writes in every order: whatever commits after an activation is observed.

One schedule is one order in which the server executes the operations of a few clients. Of the orders that can
make a difference (`tests.transaction.schedules`) all are tried in which clients are held up a few times at
most; and one of them may stop for good before any of its operations. PERCOLATOR_ALL_SCHEDULES=1
tries the others, too.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Final

import pytest

from percolator_core import Database, TransactionConflict, UnknownTable
from percolator_core.catalog import catalog as catalog_module
from percolator_core.catalog.catalog import Tables
from percolator_core.layout.keys import Keyspace, acknowledgement, dirty_key, encode_mark, failed_key
from percolator_core.layout.records import unpack_version
from percolator_core.notifications.ack import acknowledge
from percolator_core.notifications.activation import Registration, activate
from percolator_core.notifications.dirty import DirtyIndex, Lease
from percolator_core.schema.definitions import Column, HashRule, TableDefinition
from percolator_core.transaction.transaction import Transaction
from percolator_torture.faults.plan import Operation
from percolator_torture.faults.stepper import Stepper
from percolator_torture.faults.store import FaultyDatabase
from percolator_torture.faults.store import connect as faulty_connect
from tests.servers.cluster import Cluster
from tests.servers.plain import Server, binaries, rows_apart, some_namespace, use_up_spares
from tests.transaction.schedules import Footprint, Move, Stepped, Tally, collide, explore, footprint

TABLETS: Final = 2
X, Y = rows_apart(2, TABLETS)
DOCS: Final = TableDefinition("docs", TABLETS)
SWITCHES: Final = 1_000 if os.environ.get("PERCOLATOR_ALL_SCHEDULES") else 2
"""Times that a client is held up for another one in a schedule, at most."""

TYPED: Final = TableDefinition(
    "typed",
    TABLETS,
    columns=(Column("number", "int"), Column("title", "str")),
    key=("number",),
    hashes=(HashRule(("number",), TABLETS),),
)
OBSERVED: Final = {("docs", "v"): ["look"]}
OTHER: Final = {("docs", "v"): ["other"]}
CHAIN, ROLLED = "the chain", "the chain of a rolling start"
"""Their digests."""

Connect = Callable[..., Database]
Program = Callable[["Client"], None]


class Client(Stepped):
    """A program of one client, held before each of its operations."""

    def __init__(self, db: FaultyDatabase, program: Program) -> None:
        self.db = db
        self.done = False
        """Whether the step has been executed that counts: the last one of an activation, a commit."""
        super().__init__(program, self)

    def note(self, operation: Operation, reply: object) -> None:
        (command,) = operation.commands
        committing = ("commit", "primary"), ("prewrite", "both")
        for name, role in committing:
            if operation.names == (name,) and role in command:
                self.done = self.done or (isinstance(reply, list) and reply[0] == b"committed")
        # What an activation writes last; of two, the second one counts.
        if operation.names == ("record_chain",) and "observers" in command and reply == b"recorded":
            pairs = pairwise(command)
            self.done = self.done or any(pair in {("digest", CHAIN), ("digest", ROLLED)} for pair in pairs)


# Programs.


def write(*, two_phase: bool) -> Program:
    """Write both cells. They are in two tablets, so in two phases the second one is locked for a while."""

    def program(client: Client) -> None:
        client.db.client.one_call_a_tablet = two_phase or client.db.client.store.clustered
        with suppress(TransactionConflict, UnknownTable), client.db.transaction() as t:
            t.set("docs", X, "v", b"1")
            t.set("docs", Y, "v", b"1")

    return program


def activation(
    observed: Mapping[tuple[str, str], list[str]], digest: str, *, rolling: bool = False
) -> Program:
    return lambda client: activate(client.db, observed, digest, rolling=rolling)


def create(client: Client) -> None:
    client.db.schema_changes.create(DOCS)


def make_again(client: Client) -> None:
    client.db.schema_changes.drop("docs")
    client.db.schema_changes.create(DOCS)


def away_and_back(client: Client) -> None:
    """The chain is replaced by another one, and comes back."""
    activate(client.db, {("docs", "w"): ["other"]}, "another")
    activate(client.db, OBSERVED, CHAIN)


def lease_all(dirty: DirtyIndex) -> list[Lease]:
    """All cells that are due, in an order that is the same each time."""
    random.seed(0)  # it decides at which tablet a claim begins
    return sorted(dirty.claim(10)[0], key=lambda lease: lease.row)


def run_once(client: Client) -> None:
    """As a worker does: lease, run, clear or give back."""
    dirty = DirtyIndex(client.db.client, OBSERVED)
    for lease in lease_all(dirty):
        run = Transaction(client.db.client)
        try:
            cell = acknowledge(run, lease, "strong")
            start_ts = run.start_timestamp
            if cell is not None:
                run.commit()
        except TransactionConflict:
            client.db.store.run(dirty.postpone(lease, 0, failed=False))
        else:
            client.db.store.run(dirty.clear(lease, "strong", start_ts))


def fail_once(client: Client) -> None:
    """As a worker does whose runs fail for the last time."""
    dirty = DirtyIndex(client.db.client, OBSERVED)
    for lease in lease_all(dirty):
        start_ts = client.db.timestamp()
        record = {"error": "", "traceback": "", "attempts": 1, "time": start_ts}
        client.db.store.run(dirty.quarantine(lease, "strong", start_ts, record))


@dataclass(frozen=True)
class Scene:
    """What is there at first, the clients' programs, and the observers of the written cells at the end.

    Those of ``always`` observe the write whenever it commits, those of ``later`` if it commits after the
    activation. The client named in ``mortal`` may stop for good before any of its operations. If nobody else
    writes, the judge does at the end.
    """

    programs: Mapping[str, Program]
    made: bool = True
    active: bool = False
    other_lives: bool = False
    always: tuple[str, ...] = ()
    later: tuple[str, ...] = ("look",)
    mortal: str = ""


def scenes(*, two_phase: bool) -> dict[str, Scene]:
    writer = write(two_phase=two_phase)
    first = activation(OBSERVED, CHAIN)
    return {
        "activation, write": Scene({"A": first, "W": writer}),
        "activation, write of who dies": Scene({"A": first, "W": writer}, mortal="W"),
        "activation, creation, write": Scene({"A": first, "C": create, "W": writer}, made=False),
        "activation, creation of who dies, write": Scene(
            {"A": first, "C": create, "W": writer}, made=False, mortal="C"
        ),
        "active, made again, write": Scene({"C": make_again, "W": writer}, active=True, always=("look",)),
        "active, activated again, made again": Scene(
            {"A": first, "C": make_again}, active=True, always=("look",)
        ),
        "active, activated again, made again, write": Scene(
            {"A": first, "C": make_again, "W": writer}, active=True, always=("look",)
        ),
        "active, activated again, write": Scene({"A": first, "W": writer}, active=True, always=("look",)),
        "taken out and put back, write": Scene({"A": away_and_back, "W": writer}, active=True),
        "rolling start, write": Scene(
            {"A": activation(OTHER, ROLLED, rolling=True), "W": writer},
            active=True,
            other_lives=True,
            always=("look",),
            later=("look", "other"),
        ),
        "rolling start, creation, write": Scene(
            {"A": activation(OTHER, ROLLED, rolling=True), "C": create, "W": writer},
            made=False,
            active=True,
            other_lives=True,
            always=("look",),
            later=("look", "other"),
        ),
        "end of a rolling start, creation": Scene(
            {"A": first, "C": create}, made=False, active=True, always=("look",)
        ),
        "write, run": Scene({"W": writer, "R": run_once}, active=True, always=("look",)),
        "write of who dies, run": Scene(
            {"W": writer, "R": run_once}, active=True, always=("look",), mortal="W"
        ),
        "activation, write, run": Scene({"A": first, "W": writer, "R": run_once}),
        "write, failing run": Scene({"W": writer, "R": fail_once}, active=True, always=("look",)),
    }


class World:
    """The clients of all schedules; each schedule finds the namespace as if nothing had been there."""

    def __init__(self, url: str) -> None:
        self.namespace = some_namespace()
        self.url = url
        self.judge = self._connect()
        self._clients: dict[str, FaultyDatabase] = {}

    def _connect(self) -> FaultyDatabase:
        return faulty_connect(self.url, self.namespace, lock_ttl=1e3, lock_wait=1e6)

    def client(self, name: str) -> FaultyDatabase:
        if name not in self._clients:
            self._clients[name] = self._connect()
        db = self._clients[name]
        db.mortal.revive()
        return db

    def begin(self, scene: Scene) -> None:
        store, keys = self.judge.store, Keyspace(self.namespace)
        store.call(
            *[(b"DEL", key) for key in (keys.catalog, keys.chain, keys.activating, keys.prefix + b"workers")]
        )
        for number in range(TABLETS):
            tag = keys.tag("docs", number)
            names = [b"meta", b"rows", b"locks"]
            names += [b"r:" + row for row in (X, Y)] + [b"v:" + row for row in (X, Y)]
            names += [kind + of for kind in (b"dirty:", b"tries:", b"failed:") for of in (b"look", b"other")]
            store.call(*[(b"DEL", tag + name) for name in names])
        for db in (self.judge, *self._clients.values()):
            self.forget(db)
        if scene.made:
            self.judge.schema_changes.create(DOCS)
        if scene.active:
            activate(self.judge, OBSERVED, CHAIN)
        if scene.other_lives:
            Registration(self.judge, CHAIN, "here")

    def forget(self, db: FaultyDatabase) -> None:
        """Have a client know nothing of any table."""
        db.catalog.handles = Tables(None, db.catalog._find)
        use_up_spares(db)

    def close(self) -> None:
        for db in (self.judge, *self._clients.values()):
            db.close()


@dataclass
class Schedule:
    """One order of the operations of a scene."""

    world: World
    scene: Scene
    tally: Tally
    crashed: bool = False
    late: bool = False
    """Whether the write was committed when the activation was over."""
    clients: dict[str, Client] = field(default_factory=dict)
    last: str = ""
    switches: int = 0

    def __post_init__(self) -> None:
        self.world.begin(self.scene)
        for name, program in self.scene.programs.items():
            self.clients[name] = Client(self.world.client(name), program)

    def moves(self) -> dict[Move, Footprint] | None:
        mortal = self.clients.get(self.scene.mortal)
        if mortal is not None and not self.crashed and mortal.stepper.done:
            return None  # it got away: that is a schedule of another scene
        going_on = self.clients.get(self.last)
        stays = self.switches >= SWITCHES and going_on is not None and going_on.next is not None
        found = {
            ("step", name): footprint(client.next)
            for name, client in self.clients.items()
            if client.next is not None and (not stays or name == self.last)
        }
        if mortal is not None and not self.crashed:
            found["crash", self.scene.mortal] = frozenset()
        if not found:
            # Who looked before the others were done looks again when time has passed.
            waiting = [name for name, client in self.clients.items() if client.blocked_by is not None]
            found = {("wake", name): frozenset() for name in waiting[:1]}
        return found

    def take(self, move: Move, touched: Footprint) -> None:
        what, name = move
        if what == "crash":
            self.crashed = True
            self.clients[name].stepper.abandon()
            self.clients[name].blocked_by = None
            self.clients[name].db.mortal.die()
            woken = [client for client in self.clients.values() if client.blocked_by is not None]
        elif what == "wake":
            woken = [self.clients[name]]
        else:
            last, self.last = self.last, name
            self.switches += name != last and last in self.clients and self.clients[last].next is not None
            was_active = self._is_active()
            was_committed = self._is_committed()
            self.clients[name].step()
            self.late = self.late or (was_active and not was_committed and self._is_committed())
            woken = [
                client
                for other, client in self.clients.items()
                if client.blocked_by is not None and other != name and collide(client.blocked_by, touched)
            ]
        for client in woken:
            client.wake()

    def _is_active(self) -> bool:
        return "A" in self.clients and self.clients["A"].done

    def _is_committed(self) -> bool:
        return "W" in self.clients and self.clients["W"].done

    def discard(self) -> None:
        for client in self.clients.values():
            client.stepper.abandon()

    def judge(self) -> None:
        db = self.world.judge
        self.world.forget(db)
        db.schema_changes.finish_all()
        db.resolve_locks(timedelta(0))
        if "W" not in self.clients:
            with db.transaction() as t:
                t.set("docs", X, "v", b"1")
                t.set("docs", Y, "v", b"1")
        needed = set(self.scene.always) | (set(self.scene.later) if self.late else set())
        assert needed <= self._seen(db, (X, Y)), self._seen(db, (X, Y))
        self.tally.count(("late" if self.late else "early", "committed" if self._is_committed() else "not"))

    def _seen(self, db: FaultyDatabase, rows: tuple[bytes, ...]) -> set[str]:
        """The observers that have a mark of each of the cells that hold something, or have observed it."""
        seen = {"look", "other"}
        entry = db.catalog.entry("docs")
        if entry is None:
            return seen
        handle = db.catalog.table("docs")
        for row in rows:
            tag = handle.tag(row)
            for observer in ("look", "other"):
                mark = encode_mark(b"v", row)
                newest, acked, score, failed = db.store.call(
                    (b"HGET", tag + b"r:" + row, b"cv"),
                    (b"HGET", tag + b"r:" + row, b"c" + acknowledgement(observer, b"v")),
                    (b"ZSCORE", dirty_key(tag, observer), mark),
                    (b"HGET", failed_key(tag, observer), mark),
                )
                ran = 0 if acked is None else unpack_version(acked).start_ts
                ran = ran if failed is None else max(ran, json.loads(failed)["time"])
                if newest is not None and score is None and ran < unpack_version(newest).commit_ts:
                    seen.discard(observer)
        return seen


def try_all(world: World, scene: Scene) -> Tally:
    tally = Tally()
    explore(lambda: Schedule(world, scene, tally), tally)
    return tally


@pytest.fixture(scope="module", params=["plain", "cluster"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    binary = next(iter(binaries().values()), None)
    if binary is None:
        pytest.skip("NOT TESTED: no redis-server on this machine")
    with ExitStack() as stack:
        if request.param == "cluster":
            url = stack.enter_context(Cluster(binaries().get("system", binary), 2, 0)).url
        else:
            url = stack.enter_context(closing(Server(binary))).unix
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(catalog_module, "LOOKED_AT_EVERY", math.inf)  # how long anything takes must not matter
        yield stack.enter_context(closing(World(url)))


@pytest.mark.slow
@pytest.mark.parametrize("two_phase", [False, True], ids=["one call", "two phases"])
@pytest.mark.parametrize("name", scenes(two_phase=True))
def test_in_every_order(world: World, name: str, two_phase: bool) -> None:
    if world.judge.store.clustered and not two_phase:
        pytest.skip("on a cluster every commit has two phases")
    tally = try_all(world, scenes(two_phase=two_phase)[name])
    print(f"{name}: {tally}")
    assert tally.schedules > 1


def test_a_table_that_is_made_again_during_an_activation_keeps_the_names_of_its_columns(
    connect: Connect,
) -> None:
    """The activation has listed the table before, in which the column had another name in the store."""
    db, other = connect(), connect()
    db.create_defined(TYPED)
    db.rename_column("typed", "title", "headline")
    faulty = faulty_connect(db.url, db.namespace)
    observed = {("typed", "headline"): ["look"]}
    stepper = Stepper(activate, faulty, observed, CHAIN)
    stepper.run(until=lambda point: point.operation is not None and point.operation.names == ("observe",))
    other.drop_table("typed")
    other.create_defined(TYPED.with_(columns=(TYPED.columns[0], Column("headline", "str"))))
    handle = other.catalog.table("typed")
    assert handle.encode("headline") == b"headline"
    registered = [(b"HGET", tag + b"meta", b"oheadline") for tag in handle.tags]
    while not stepper.done:
        # From its first write on, whatever the activation does.
        assert other.store.call(*registered) == [b"look"] * TABLETS
        stepper.step()
    stepper.result()
    assert other.store.call(*registered) == [b"look"] * TABLETS
    faulty.close()
