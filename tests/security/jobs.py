"""The jobs that each role of docs/how-to/secure.md has to be able to do, from beginning to end.

A job gets a way to connect as its role, and a helper with all rights, who sets the scene and looks at what
came of it. It fails with an error when anything that the role needs is refused, also what nobody waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import redis

from percolator_core import Cell, Database, LockTimeout, Transaction, TransactionConflict, Worker, connect
from percolator_core.admin.demand import demand
from percolator_core.admin.locks import locks
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.rerun import rerun
from percolator_core.admin.samples import record, samples
from percolator_core.admin.status import status, tablets
from percolator_core.admin.trace import trace
from percolator_core.notifications.activation import activate
from percolator_core.notifications.counts import run_counts
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.observers import Chain, Observer, Retry
from percolator_core.schema.definitions import TableDefinition, to_json
from percolator_core.scripts import calls
from percolator_core.worker import Counts
from percolator_core.worker.housekeeping import Stranded
from tests.chains import chain_of, watch
from tests.security import typed, viewed
from tests.servers.plain import Server, commit_of, die, rows_apart, until

TABLES: Final = (TableDefinition("docs", 2), TableDefinition("sums", 2, ("dirty",)))
FIRST, SECOND = rows_apart(2, 2)
"""Two rows in different tablets."""


def refusals(server: Server) -> list[str]:
    """Commands, keys and channels that the server has refused since the log was emptied."""
    with server.client() as client:
        found = [entry[b"object"].decode() for entry in client.execute_command("ACL", "LOG")]
    # redis-py sends its name with CLIENT SETINFO and ignores a refusal.
    return [what for what in found if not what.startswith("client")]


@dataclass
class Scene:
    """A server, a namespace in it, and a helper with all rights."""

    server: Server
    namespace: str
    helper: Database
    role: str
    """The URL of the role under test."""

    patience: float = 20.0
    """Seconds for which a request is repeated; waiting for something ends at a refusal."""
    opened: list[Database] = field(default_factory=list)

    def connect(self, **settings: Any) -> Database:
        """A connection as the role under test."""
        db = connect(self.role, self.namespace, **{"patience": self.patience, **settings})
        self.opened.append(db)
        return db

    @contextmanager
    def raw(self) -> Iterator[redis.Redis]:
        with self.server.client() as client:
            yield client

    def key(self, name: bytes) -> bytes:
        return self.helper.store.keyspace.prefix + name

    def forget(self) -> None:
        """Do to a client what a restart does: the scripts and all connections are gone."""
        with self.raw() as client:
            client.script_flush()
            client.hdel(self.key(b"oracle"), "server")
            client.client_kill_filter(_type="normal", skipme=True)

    def put(self, row: bytes, value: bytes, table: str = "docs", column: str = "text") -> None:
        with self.helper.transaction() as t:
            t.set(table, row, column, value)

    def abandon(self, *, committed: bool, column: str = "text") -> None:
        """Leave the locks of a client that died, before or after its commit."""
        other = connect(self.server.unix, self.namespace)
        other.client.one_call_a_tablet = True
        t = other.begin()
        assert t.start_timestamp
        t.set("docs", FIRST, column, b"abandoned")
        t.set("docs", SECOND, column, b"abandoned")
        commit = commit_of(t)
        commit_ts = commit.prewrite()
        if committed:
            commit.commit_primary(commit_ts)
        die(other)
        other.close()

    def no_locks(self) -> bool:
        return list(self.helper.locks()) == []

    def until(self, condition: Callable[[], bool]) -> None:
        came = False

        def over() -> bool:
            nonlocal came
            came = condition()
            return came or bool(refusals(self.server))

        until(over)
        assert came, "something was refused"

    def run(self, db: Database, chain: Chain) -> Counts:
        """Run a worker until it is idle."""
        for _ in range(40):
            try:
                return Worker(db, chain, width=4).run_until_idle(0.5)
            except TimeoutError:
                assert not refusals(self.server), "something was refused"
        raise AssertionError("the worker did not become idle")

    def end(self) -> None:
        for db in self.opened:
            db.close()


def reader(scene: Scene) -> None:
    """Read as of now and of the past, cells, rows, ranges and histories, also while somebody commits."""
    for table in TABLES:
        scene.helper.create_table(table.name, table.tablets, table.notify_only)
    for value in (b"old", b"new"):
        scene.put(FIRST, value)
        scene.put(SECOND, value)
        if value == b"old":
            past = scene.helper.timestamp()
    scene.put(FIRST, b"x", column="other")
    db = scene.connect(lock_wait=0.05)
    assert [table.name for table in db.tables()] == ["docs", "sums"]
    before = typed.fill(scene.helper)

    def read() -> None:
        _read(db, past)
        typed.read(db, before)
        typed.look_back(db, before)

    read()
    with db.snapshot() as pinned:
        assert pinned.get("docs", FIRST, "text") == b"new"
        with scene.raw() as client:
            assert client.zcard(scene.key(b"pins")) == 1
    with scene.raw() as client:
        assert client.zcard(scene.key(b"pins")) == 0
    # A live writer is waited for, and what it wrote is read once it has committed.
    scene.helper.client.one_call_a_tablet = True
    t = scene.helper.begin()
    t.set("docs", FIRST, "text", b"newer")
    t.set("docs", SECOND, "text", b"newer")
    assert t.start_timestamp
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    with pytest.raises(LockTimeout):
        db.snapshot().get("docs", FIRST, "text")
    commit.roll_back()
    assert commit_ts
    scene.until(scene.no_locks)
    scene.forget()
    read()
    owner = db.client.owner()
    db.close()
    with scene.raw() as client:
        assert not client.keys(scene.key(b"client:") + owner + b"*")


def _read(db: Database, past: int) -> None:
    now, then = db.snapshot(), db.snapshot(past)
    assert now.get("docs", FIRST, "text") == b"new"
    assert now.get_row("docs", FIRST) == {"text": b"new", "other": b"x"}
    assert now.get_row("docs", FIRST, ["other"]) == {"other": b"x"}
    assert then.get("docs", FIRST, "text") == b"old"
    assert then.get("docs", FIRST, "other") is None
    for reverse in (False, True):
        assert {row for row, _ in now.scan("docs", reverse=reverse)} == {FIRST, SECOND}
        assert [cells for _, cells in then.scan("docs", columns=["text"], reverse=reverse)] == [
            {"text": b"old"}
        ] * 2
    assert [version.value for version in db.history("docs", FIRST, "text")] == [b"new", b"old"]


def _chain() -> Chain:
    def total(t: Transaction, cell: Cell) -> None:
        t.set("sums", cell.row, "length", b"%d" % len(t.get("docs", cell.row, "text") or b""))
        t.notify("sums", cell.row, "dirty")

    def weak(t: Transaction, cell: Cell) -> None:
        t.set("sums", cell.row, "seen", t.get("sums", cell.row, "length") or b"")

    def fails(t: Transaction, cell: Cell) -> None:
        raise ValueError("it always does")

    quick = Retry(attempts=2, backoff=0.001, max_backoff=0.001)
    observers: tuple[Observer, ...] = (
        watch("total", total, "docs.text", writes=("sums.length", "sums.dirty")),
        watch("weak", weak, "sums.dirty", writes=("sums.seen",), mode="weak"),
        watch("fails", fails, "docs.bad", retry=quick),
    )
    return chain_of(*observers, tables=TABLES)


def worker(scene: Scene) -> None:
    """Make the chain's tables, run its observers, write in transactions of every kind, and clean up."""
    chain = _chain()
    with scene.raw() as client:
        # A worker that died without a word.
        client.hset(scene.key(b"workers"), "dead:1", '{"digest": "x", "where": "there", "since": 1}')
    db = scene.connect(lock_ttl=5.0)
    chain.create_tables(db)
    # Another version of the chain had one observer more.
    more = {**chain.observed, ("docs", "other"): ("retired",)}
    activate(scene.helper, more, "another digest")
    scene.put(FIRST, b"four")
    scene.put(SECOND, b"x", column="bad")
    scene.put(SECOND, b"x", column="other")
    with db.concurrency() as tasks:
        tasks.submit(_write, db, b"by a task").result()
    _transactions(scene, db)
    before = typed.fill(db)
    typed.write(db)
    typed.read(db, before)
    typed.look_back(db, before)
    typed.mend(db)
    scene.until(scene.no_locks)
    _run(scene, db, chain)
    _trace_and_rerun(db, chain)
    with TemporaryDirectory() as folder:
        assert [db.publish("docs", folder).mode for _ in range(2)] == ["full", "incremental"]
    scene.run(db, chain)
    _leases(scene, db, chain)
    for committed in (True, False):
        scene.abandon(committed=committed, column="text")
        with db.transaction() as t:
            t.set("docs", SECOND, "text", b"over it")
            t.set("docs", FIRST, "text", b"over it")
    scene.abandon(committed=True)
    Stranded(db, chain.observed).roll_forward(0)
    scene.abandon(committed=False)
    assert db.snapshot().get("docs", SECOND, "text") == b"abandoned"
    assert dict(db.snapshot().scan("docs"))[FIRST]["text"] == b"abandoned"
    _read_all(db)
    scene.forget()
    _read_all(db)
    _carries_on(scene, db)
    with db.transaction() as t:
        t.set("docs", FIRST, "text", b"at last")
    scene.until(scene.no_locks)
    scene.run(db, chain)
    viewed.keep(db, scene.run)
    owner = db.client.owner()
    db.close()
    with scene.raw() as client:
        assert not client.exists(db.client.token_of(owner))
        assert not client.hlen(scene.key(b"workers"))


def _write(db: Database, value: bytes) -> None:
    with db.transaction() as t:
        t.set("docs", b"task", "text", value)


def _read_all(db: Database) -> None:
    past = db.timestamp()
    for snapshot in (db.snapshot(), db.snapshot(past)):
        snapshot.get("docs", FIRST, "text")
        list(snapshot.scan("docs"))
        list(snapshot.scan("docs", columns=["text"], reverse=True))
    assert db.history("docs", FIRST, "text")
    with db.snapshot() as pinned:
        pinned.get("docs", FIRST, "text")


def _carries_on(scene: Scene, db: Database) -> None:
    """A change of a table that another client left when its tablets were fenced."""
    changes = scene.helper.schema_changes
    entry = scene.helper.catalog.entry("docs")
    assert entry is not None
    held = changes.begin(entry, {"kind": "define", "definition": to_json(entry.definition)})
    assert held is not None
    next(changes.steps(held))
    db.run(lambda t: t.set("docs", FIRST, "text", b"new"))
    found = scene.helper.catalog.entry("docs")
    assert found is not None
    assert found.pending is None


def _transactions(scene: Scene, db: Database) -> None:
    """In one call and in two phases; overwritten, deleted, refused, refreshed, and rolled back."""
    for one_call_a_tablet in (False, True):
        db.client.one_call_a_tablet = one_call_a_tablet
        for value in (b"one", b"other"):
            with db.transaction() as t:
                t.set("docs", FIRST, "text", value)
                t.set("docs", SECOND, "text", value)
                t.notify("sums", FIRST, "dirty")
        with db.transaction() as t:
            t.delete("docs", FIRST, "text")
        with pytest.raises(TransactionConflict), db.transaction() as t:  # noqa: PT012
            t.get("docs", FIRST, "text")
            scene.put(SECOND, b"before you")
            t.set("docs", FIRST, "text", b"late")
            t.set("docs", SECOND, "text", b"late")
    scene.until(scene.no_locks)
    t = db.begin()
    assert t.start_timestamp
    t.set("docs", FIRST, "text", b"long")
    t.set("docs", SECOND, "text", b"long")
    commit = commit_of(t)
    commit_ts = commit.prewrite()
    primary = commit.primary
    assert db.store.run(calls.refresh(primary.tag, commit.start_ts, primary.row, primary.column))
    commit.commit_secondaries(commit.commit_primary(commit_ts))
    scene.until(scene.no_locks)
    db.client.one_call_a_tablet = False


def _run(scene: Scene, db: Database, chain: Chain) -> None:
    """Until idle, then for a while: a call must wake the worker."""
    scene.run(db, chain)
    assert sum(Quarantine(scene.helper, chain).count().values()) == 1
    assert "weak" in run_counts(scene.helper), "the worker could not tell what it did"
    assert not db.active_observers() & {"retired"}
    found = db.snapshot()
    assert found.get("sums", SECOND, "seen") == found.get("sums", SECOND, "length") == b"4"
    subscription = db.store.subscription()
    subscription.listen()
    with scene.raw() as client:
        assert client.pubsub_numpat(), "the worker is not subscribed"
    with db.transaction() as t:
        t.set("docs", b"wake", "text", b"up")
    scene.until(lambda: bool(subscription.heard()))
    subscription.close()
    scene.run(db, chain)


def _trace_and_rerun(db: Database, chain: Chain) -> None:
    """Trace a row, and its cells again: of a strong observer, and of a weak one."""
    assert {run.observer for run in trace(db, chain, "docs", SECOND, change="all").runs} >= {"total"}
    for observer in ("total", "weak"):
        assert rerun(db, chain, observer, ["row>=''"]).marked
    assert trace(db, chain, "docs", SECOND, "text").waiting


def _leases(scene: Scene, db: Database, chain: Chain) -> None:
    index = DirtyIndex(db.client, chain.observed)
    with db.transaction() as t:
        t.set("docs", b"leased", "text", b"up")
    leases, _ = index.claim(1)
    index.renew(leases)
    assert db.store.run(index.postpone(leases[0], 0, failed=False)) == 0
    assert sum(index.backlog().values()) == 1
    scene.run(db, chain)


def maintenance(scene: Scene) -> None:
    """Make, change and drop tables, resolve locks, collect garbage, look at the quarantine and empty it."""
    db = scene.connect()
    for table in TABLES:
        db.create_table(table.name, table.tablets, table.notify_only)
    chain = _chain()
    chain.create_tables(scene.helper)
    scene.put(FIRST, b"older")
    scene.put(FIRST, b"old")
    with scene.helper.snapshot():
        scene.put(FIRST, b"new")
        scene.put(SECOND, b"new")
        # The newest version is above the safe point, and the oldest is not seen by anybody.
        assert db.collect_garbage(timedelta(0)).versions == 1
    with scene.helper.transaction() as t:
        t.delete("docs", FIRST, "text")
    scene.put(SECOND, b"x", column="bad")
    scene.run(scene.helper, chain)
    _trace_and_rerun(db, chain)
    scene.run(scene.helper, chain)
    for committed in (True, False):
        scene.abandon(committed=committed)
        assert db.resolve_locks(timedelta(0)).live == 0
        assert scene.no_locks()
    scene.abandon(committed=False)
    assert len(locks(db)) == 2
    assert sum(tablet.locks for tablet in tablets(db, "docs", chain)) == 2
    held = locks(db)[0]
    assert db.resolve_lock(held.table, held.row, held.column, held.start_timestamp) == "rolled back"
    with scene.raw() as client:
        client.zadd(scene.key(b"pins"), {"dead:pin": 1})
        client.hset(scene.key(b"workers"), "dead:1", '{"digest": "x", "where": "there", "since": 1}')
    scene.forget()
    assert db.collect_garbage(timedelta(0)).safe_point
    found = status(db, chain)
    assert demand(db, chain).backlog == found.backlog
    assert found.failed == 1
    assert not found.workers
    record(db, found, 60)
    assert [sample.memory > 0 for sample in samples(db)] == [True]
    quarantine = Quarantine(db, chain)
    assert [cell.column for cell in quarantine.cells()] == ["bad"]
    assert quarantine.page(1) == (quarantine.find("docs", SECOND), None)
    heard = scene.helper.store.subscription()
    heard.listen()
    assert quarantine.retry() == 1
    scene.until(lambda: bool(heard.heard()))
    heard.close()
    scene.run(scene.helper, chain)
    assert quarantine.discard(quarantine.cells()) == 1
    assert db.active_observers()
    assert db.snapshot().get("docs", SECOND, "text")
    typed.read(db, typed.fill(db))
    typed.change(db)
    _bases(db)
    for table in TABLES:
        db.drop_table(table.name)
    assert db.tables() == []
    with scene.raw() as client:
        # What is left says that the tables are gone.
        left = client.keys(b"{" + scene.key(b"")[1:-1] + b":*")
        assert all(client.hkeys(key) == [b"gone"] for key in left)
    db.close()


def _bases(db: Database) -> None:
    """Give a table a base, move rows there, move the base, and take it away again."""
    with TemporaryDirectory() as folder:
        db.set_base("docs", f"{folder}/one", memory=1)
        db.flush("docs", everything=True)
        db.compact("docs")
        before = dict(db.snapshot().scan("docs"))
        db.set_base("docs", f"{folder}/two")
        db.flush("docs")
        db.set_base("docs", None)
        assert dict(db.snapshot().scan("docs")) == before
        db.set_base("docs", f"{folder}/one")
        db.drop_table("docs")
        db.create_table("docs", 2)


JOBS: Final[dict[str, Callable[[Scene], None]]] = {
    "reader": reader,
    "worker": worker,
    "maintenance": maintenance,
}
