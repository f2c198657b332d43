"""An observed table is dropped and made again: it is observed from its first write, and no worker ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Cell, ConfigurationError, TableDefinition, UnknownTable, Worker
from percolator_core.base.changes import BaseChanges
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.maintenance.locks import Locks
from percolator_core.notifications.activation import activate, active, live_workers
from percolator_core.notifications.dirty import DirtyIndex
from percolator_core.transaction.client import Client
from percolator_core.worker import housekeeping
from percolator_core.worker.attempt import Admission
from percolator_core.worker.housekeeping import Stranded
from tests.chains import Seen, chain_of, dirty_of, put, running, watch
from tests.maintenance.test_schema_change import DOCS, write
from tests.servers.plain import PATIENCE, rows_apart, until

if TYPE_CHECKING:
    from percolator_core import Database, Transaction
    from percolator_core.notifications.dirty import Lease

    Connect = Callable[[], Database]


@pytest.mark.parametrize("settings", [{}, {"strategy": "partitioned"}], ids=["random", "partitioned"])
@pytest.mark.parametrize("tablets", [1, 4, 32])
def test_a_worker_finds_the_table_that_was_made_again(
    db: Database, connect: Connect, settings: dict[str, Any], tablets: int
) -> None:
    seen = Seen()
    chain = chain_of(watch("look", seen, "docs.text"))
    other = connect()
    with running(db, chain, **settings):
        put(other, "before", b"1")
        until(lambda: seen.rows == [b"before"])
        other.drop_table("docs")
        other.create_table("docs", tablets)
        rows = rows_apart(tablets, tablets)
        for row in rows:
            put(other, row, b"1")
        until(lambda: len(seen.rows) == 1 + tablets)
        assert sorted(seen.rows[1:]) == sorted(rows)


def test_the_next_worker_sees_what_was_written_before_it_began(db: Database, connect: Connect) -> None:
    seen = Seen()
    chain = chain_of(watch("look", seen, "docs.text"), watch("hear", seen, "sums.dirty", mode="weak"))
    Worker(db, chain).run_until_idle(PATIENCE)
    other = connect()
    for table in chain.tables:
        other.drop_table(table.name)
        other.create_table(table.name, table.tablets + 1, table.notify_only)
    put(other, "a", b"1")
    with other.transaction() as t:
        t.notify("sums", "b", "dirty")
    assert dirty_of(other, chain).backlog() == {"look": 1, "hear": 1}
    with pytest.raises(ConfigurationError, match="exists with 5 tablets"):
        Worker(db, chain).run_until_idle(PATIENCE)


def test_a_worker_waits_for_a_table_that_is_missing(
    db: Database, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "LEASE", 0.05)
    seen, also = Seen(), Seen()
    chain = chain_of(
        watch("look", seen, "docs.text"),
        watch("also", also, "sums.n", executor="threads"),
        watch("hear", also, "sums.dirty", mode="weak"),
    )
    other = connect()
    with running(db, chain, strategy="partitioned") as worker:
        other.drop_table("docs")
        # Those that are there are looked at all the same, also if they get other tablets.
        other.drop_table("sums")
        other.create_table("sums", 8, ["dirty"])
        for row in rows_apart(8, 8):
            put(other, row, b"1", "sums", "n")
        until(lambda: len(also.rows) == 8)
        turned = time.monotonic() - worker.stalled()
        until(lambda: time.monotonic() - worker.stalled() > turned + 0.2)
        other.create_table("docs", 4)
        put(other, "a", b"1")
        until(lambda: seen.rows == [b"a"])


def test_a_worker_that_begins_while_a_table_is_missing(db: Database, connect: Connect) -> None:
    """Somebody drops it right after the worker has made it."""
    seen = Seen()
    chain = chain_of(watch("look", seen, "docs.text"), watch("hear", seen, "sums.dirty", mode="weak"))
    chain.create_tables(db)
    other = connect()
    other.drop_table("docs")
    other.drop_table("sums")
    db.client.catalog.handles.clear()
    dirty = dirty_of(db, chain)
    assert dirty.tablets == 0
    assert dirty.claim(10) == ([], None)
    assert dirty.backlog() == {}
    Stranded(db, chain.observed).roll_forward(0)
    other.create_table("docs", 2)
    put(other, "a", b"1")
    until(lambda: dirty.claim(10)[0])


class MadeAgain:
    """A chain of one observer, whose table is dropped, and perhaps made again, once it has a dirty cell."""

    def __init__(self, db: Database, other: Database, mode: str) -> None:
        self.db, self.other = db, other
        self.table, self.column = ("docs", "text") if mode == "strong" else ("pings", "dirty")
        self.notify_only = () if mode == "strong" else ("dirty",)
        self.meanwhile: Callable[[], None] | None = None
        self.rows: list[bytes] = []
        tables = (TableDefinition(self.table, 4, self.notify_only), TableDefinition("sums", 4))
        observer = watch("look", self.look, f"{self.table}.{self.column}", mode=mode)
        self.chain = chain_of(observer, tables=tables)
        self.chain.create_tables(db)
        self.change()

    def look(self, t: Transaction, cell: Cell) -> None:
        self.rows.append(cell.row)
        self.once()
        t.set("sums", "result", "n", b"1")

    def once(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def change(self) -> None:
        with self.other.transaction() as t:
            if self.notify_only:
                t.notify(self.table, "row", self.column)
            else:
                t.set(self.table, "row", self.column, b"1")

    def make_again(self) -> None:
        self.other.drop_table(self.table)
        self.other.create_table(self.table, 4, self.notify_only)

    def work(self) -> tuple[int, int, int]:
        counts = Worker(self.db, self.chain).run_until_idle(PATIENCE).observers["look"]
        return counts.ran, counts.failed, counts.quarantined


@pytest.mark.parametrize("mode", ["strong", "weak"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_table_is_made_again_during_a_run(
    db: Database, connect: Connect, mode: str, made_again: bool
) -> None:
    scene = MadeAgain(db, connect(), mode)
    scene.meanwhile = scene.make_again if made_again else lambda: scene.other.drop_table(scene.table)
    assert scene.work() == (0, 0, 0)
    assert scene.rows == [b"row"]
    assert db.snapshot().get("sums", "result", "n") is None
    if made_again:
        scene.change()
        assert scene.work() == (1, 0, 0)


@pytest.mark.parametrize("mode", ["strong", "weak"])
@pytest.mark.parametrize("made_again", [False, True])
def test_a_table_is_made_again_between_a_lease_and_its_run(
    db: Database, connect: Connect, mode: str, made_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker knows the new table by then, and so it would commit the run."""
    scene = MadeAgain(db, connect(), mode)
    admits = Admission.admits

    def make_again() -> None:
        if made_again:
            scene.make_again()
        else:
            scene.other.drop_table(scene.table)
        db.client.catalog.entries()

    def admits_late(self: Admission, lease: Lease) -> bool:
        scene.once()
        return admits(self, lease)

    scene.meanwhile = make_again
    monkeypatch.setattr(Admission, "admits", admits_late)
    assert scene.work() == (0, 0, 0)
    assert scene.rows == []
    if made_again:
        scene.change()
        assert scene.work() == (1, 0, 0)


def test_no_mark_of_the_table_before_is_left(db: Database, connect: Connect) -> None:
    """Also of an observer that was registered while the table was being dropped."""
    other = connect()
    db.create_table("docs", 4)
    observed = {("docs", "text"): ["look"]}

    class Activating(SchemaChanges):
        def steps(self, entry: Any) -> Iterator[str]:
            for step in super().steps(entry):
                if step == "settle":
                    for tag in handle.tags:
                        other.store.one((b"HSET", tag + b"meta", b"otext", b"look"))
                        other.store.one((b"ZADD", tag + b"dirty:look", 2, b"\x00\x04textold"))
                        other.store.one((b"HSET", tag + b"failed:look", b"\x00\x04textold", b"{}"))
                yield step

    handle = other.catalog.table("docs")
    Activating(db.client, Locks(db.client), BaseChanges(db.client)).drop("docs")
    left = [key for tag in handle.tags for key in other.store.one((b"KEYS", b"*")) if key.startswith(tag)]
    assert sorted(left) == sorted(tag + b"meta" for tag in handle.tags)
    assert other.store.call(*[(b"HKEYS", key) for key in left]) == [[b"gone"]] * len(handle.tags)
    activate(db, observed, "digest")
    other.create_table("docs", 4)
    assert DirtyIndex(other.client, observed).backlog() == {"look": 0}


def test_a_rename_and_a_table_made_again_are_seen_by_their_names(db: Database, connect: Connect) -> None:
    other = connect()
    observed = {("docs", "title"): ["look"]}
    db.create_defined(DOCS)
    activate(db, observed, "digest")
    db.rename_column("docs", "title", "headline")
    write(other, "a", 1, headline=b"new", rank=b"r")
    index = DirtyIndex(other.client, observed)
    assert index.backlog() == {"look": 1}
    # The chain names a column; the table that is made again has it under its own stored name.
    db.drop_table("docs")
    db.create_defined(DOCS)
    write(other, "a", 1, title=b"new", rank=b"r")
    until(lambda: index.backlog() == {"look": 1})


@pytest.mark.parametrize("executor", ["hub", "threads"])
def test_a_worker_goes_on_after_a_rename(
    db: Database, connect: Connect, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is to end a rolling start then: its chain has the name that was."""
    monkeypatch.setattr(housekeeping, "LEASE", 0.1)
    seen, other = Seen(), connect()
    before = chain_of(watch("old", Seen(), "docs.rank"), tables=())
    after = chain_of(watch("look", seen, "docs.title", executor=executor), tables=())
    db.create_defined(DOCS)
    old = Worker(connect(), before)
    thread = threading.Thread(target=old.run, daemon=True)
    thread.start()
    until(lambda: live_workers(db) and active(db.client).digest == before.digest)
    with running(db, after, rolling=True) as worker:
        other.rename_column("docs", "title", "headline")
        old.stop()
        thread.join(PATIENCE)
        turned = time.monotonic() - worker.stalled()
        until(lambda: time.monotonic() - worker.stalled() > turned + 0.3)
        write(other, "a", 1, headline=b"new", rank=b"r")
        until(lambda: len(seen.rows) == 1)


def test_nothing_is_known_of_tables_that_no_chain_observes(db: Database) -> None:
    assert Client.observed_columns(db.client) == {}
    activate(db, {("docs", "text"): ["look", "see"], ("sums", "n"): ["see"]}, "digest")
    assert db.client.observed_columns() == {"docs": {"text": ["look", "see"]}, "sums": {"n": ["see"]}}
    with pytest.raises(UnknownTable):
        db.catalog.table("docs")
    db.create_table("docs", 2)
    put(db, "a", b"1")
    assert DirtyIndex(db.client, {("docs", "text"): ["look", "see"]}).backlog() == {"look": 1, "see": 1}
    activate(db, {("sums", "n"): ["see"]}, "another")
    assert db.client.observed_columns() == {"sums": {"n": ["see"]}}
