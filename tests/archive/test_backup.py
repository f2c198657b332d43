"""A restored namespace has the cells of the backup's time, and its observers continue their work."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import percolator_core as percolator
from percolator_core import (
    Cell,
    ConfigurationError,
    Database,
    Hash,
    Indexed,
    PercolatorError,
    PrimaryKey,
    Range,
    Table,
    Transaction,
    Unique,
    Worker,
)
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.status import status
from percolator_core.archive import cells as reading
from percolator_core.archive import files
from percolator_core.archive.backup import BackedUp
from percolator_core.base.location import Location
from percolator_core.layout.records import pack_version
from percolator_core.store import Store
from percolator_core.tables.verify import check_indexes
from tests.base.conftest import make_bucket
from tests.chains import chain_of, failed_of, put, running, watch
from tests.servers.plain import PATIENCE, commit_of, die, some_namespace


class User(Table, name="users", partition=[Hash("name", buckets=3)]):
    name: PrimaryKey[str]
    city: Indexed[str | None] = None
    email: Unique[str | None] = None
    age: int = 0


class Older(Table, name="users", partition=[Hash("name", buckets=3)]):
    name: PrimaryKey[str]
    city: Indexed[str | None] = None
    email: Unique[str | None] = None
    age: int = 0
    shoe: int = 44


class Event(Table, name="events", partition=[Range("at", splits=[100])]):
    at: PrimaryKey[int]
    what: bytes = b""


@pytest.fixture
def other(url: str) -> Iterator[Database]:
    """Another namespace, which is empty."""
    with percolator.connect(url, some_namespace()) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"file://{tmp_path}/backup"


def contents(db: Database, at: int | None = None) -> dict[str, Any]:
    """The definitions of a namespace's tables, and the cells with their commit timestamps."""
    snapshot = db.snapshot(at)
    found: dict[str, Any] = {}
    for definition in db.tables():
        handle = db.catalog.table(definition.name)
        rows: dict[bytes, Any] = {}
        columns = handle.columns if handle.is_typed else None
        for row, cells in snapshot.scan(definition.name):
            names = list(cells if columns is None else columns)
            versions = snapshot.versions(definition.name, row, [handle.encode(name) for name in names])
            rows[row] = {
                name: (one.commit_ts, one.value)
                for name, one in zip(names, versions, strict=True)
                if one is not None and one.value is not None
            }
        found[definition.name] = definition, rows
    return found


def filled(db: Database) -> None:
    db.create_table(User)
    db.create_table(Event)
    db.create_table("docs", tablets=4, notify_only=["ping"])
    with db.transaction() as t:
        for number in range(200):
            t.insert(
                User(
                    name=f"user {number}",
                    city=f"city {number % 7}",
                    email=f"{number}@example.org",
                    age=number,
                )
            )
            t.insert(Event(at=number, what=bytes([number])))
            t.set("docs", b"\xff%d" % number, f"ü{number % 3}", b"\x00" * (number % 5))
    with db.transaction() as t:
        for number in range(0, 200, 3):
            t.remove(User, name=f"user {number}")
            t.delete_row("docs", b"\xff%d" % number)
        for number in range(1, 200, 3):
            t.update(User, name=f"user {number}", email=None)


def test_everything_comes_back(db: Database, other: Database, folder: str) -> None:
    filled(db)
    db.add_column(Older, "shoe")
    db.rename_column("users", "age", "years")
    db.drop_column("users", "shoe")
    db.add_range(Event, 500)
    done = percolator.backup(db, folder)
    expected = contents(db, done.timestamp)
    filled_later = db.timestamp()
    with db.transaction() as t:
        t.set("docs", "later", "a", b"not in the backup")
        t.delete_row("docs", b"\xff1")
    found = percolator.restore(folder, other)
    assert (found.number, found.timestamp, found.tables) == (1, done.timestamp, 5)
    assert contents(other) == expected
    assert other.timestamp() > filled_later - 10_000_000
    assert other.timestamp() > done.timestamp
    assert check_indexes(other.snapshot(), "users") == []
    # It is a namespace like any other.
    with other.transaction() as t:
        assert t.find("users", name="user 1") is not None
        t.insert("users", name="new", email="new@example.org", years=1)
        t.set("docs", "new", "a", b"1")
    other.collect_garbage(timedelta(0))
    assert contents(other)["docs"][1].keys() == {*expected["docs"][1], b"new"}
    assert other.snapshot().find("users", name="user 1") is not None


def test_a_namespace_that_is_ahead_of_the_clock(db: Database, other: Database, folder: str) -> None:
    db.create_table("docs", tablets=1)
    ahead = db.timestamp() + 3_600_000_000
    db.store.one((b"HSET", db.store.keyspace.oracle, b"last", ahead, b"limit", ahead + 10_000_000))
    time = put(db, "a", b"1")
    assert time > ahead
    percolator.backup(db, folder)
    percolator.restore(folder, other)
    assert other.history("docs", "a", "text")[0].commit_ts == time
    assert put(other, "a", b"2") > time
    assert [one.value for one in other.history("docs", "a", "text")] == [b"2", b"1"]


def test_only_what_has_changed_is_written(db: Database, other: Database, folder: str) -> None:
    filled(db)
    first = percolator.backup(db, folder)
    # Three tablets of users and of each index, one of events that has rows, and docs.
    assert (first.number, first.written, first.shared) == (1, 3 * 3 + 2 + 4, 0)
    second = percolator.backup(db, folder)
    assert (second.number, second.written, second.shared) == (2, 0, first.written)
    assert second.timestamp > first.timestamp
    put(db, "a", b"1")
    third = percolator.backup(db, folder)
    assert (third.written, third.shared) == (1, first.written)
    with db.transaction() as t:
        t.delete("docs", "a", "text")
        t.delete_row("docs", b"\xff4")
    fourth = percolator.backup(db, folder)
    expected = contents(db, fourth.timestamp)
    # The versions since the fourth backup were collected: row sets with equal cells are shared.
    db.collect_garbage(timedelta(0))
    fifth = percolator.backup(db, folder)
    assert fifth.written <= 2
    assert fifth.shared >= first.written - 2
    percolator.restore(folder, other)
    assert contents(other) == expected == contents(db)


def test_each_of_many_backups_can_be_restored(db: Database, url: str, folder: str) -> None:
    filled(db)
    chance = random.Random(5)
    done: dict[int, Any] = {}
    for number in range(14):
        for _ in range(chance.randrange(4)):
            with db.transaction() as t:
                row = b"\xff%d" % chance.randrange(220)
                if chance.random() < 0.4:
                    t.delete_row("docs", row)
                else:
                    t.set("docs", row, "ü0", b"of %d" % number)
        if chance.random() < 0.2:
            db.collect_garbage(timedelta(0))
        found = percolator.backup(db, folder)
        done[found.number] = contents(db, found.timestamp)
    assert sorted(done) == list(range(1, 15))
    for number in (1, 6, 9, 12, 14):
        with percolator.connect(url, some_namespace()) as made:
            percolator.restore(folder, made, number=number)
            assert contents(made) == done[number]


def test_old_backups_are_removed_with_their_files(db: Database, other: Database, folder: str) -> None:
    filled(db)
    for number in range(12):
        put(db, b"row %d" % (number % 3), bytes(20_000 * number))
        percolator.backup(db, folder, keep=2)
    location = Location(folder)
    names = files.manifests(location)
    assert sorted(names.values()) == [11, 12]
    loaded = [files.load(location, name) for name in names]
    needed = {file for one in loaded if one for file in one.files}
    assert {name for name in location.names() if "/" in name} == needed
    percolator.restore(folder, other)
    assert contents(other) == contents(db)
    with pytest.raises(ConfigurationError, match="there is no backup 3"):
        percolator.restore(folder, other, number=3)
    with pytest.raises(ValueError, match="1 or more"):
        percolator.backup(db, folder, keep=0)


def test_a_commit_that_has_left_locks_is_in_the_backup(
    db: Database, other: Database, connect: Callable[[], Database], folder: str
) -> None:
    db.create_table("docs", tablets=4)
    victims = [connect(), connect()]
    for number, victim in enumerate(victims):
        victim.client.one_call_a_tablet = True
        t = victim.begin()
        assert t.start_timestamp
        for row in range(20):
            t.set("docs", f"{number} {row}", "text", b"x")
        commit = commit_of(t)
        time = commit.prewrite()
        if number:
            commit.commit_primary(time)
        die(victim)
    percolator.backup(db, folder)
    percolator.restore(folder, other)
    assert {row for row, _ in other.snapshot().scan("docs")} == {b"1 %d" % row for row in range(20)}


@pytest.mark.parametrize("into", ["store", "base"])
def test_tables_with_bases(db: Database, other: Database, folder: str, tmp_path: Path, into: str) -> None:
    filled(db)
    for table in ("users", "docs"):
        db.set_base(table, f"file://{tmp_path}/base")
        assert db.flush(table, everything=True).rows
    with db.transaction() as t:
        t.remove(User, name="user 1")
        t.update(User, name="user 2", age=1000)
        t.delete_row("docs", b"\xff1")
        t.set("docs", b"\xff2", "ü2", b"changed")
    done = percolator.backup(db, folder)
    again = percolator.backup(db, folder)
    assert again.written == 0
    at = db.snapshot(done.timestamp)
    bases = {} if into == "store" else {"users": f"file://{tmp_path}/new", "docs": f"{tmp_path}/new"}
    percolator.restore(folder, other, bases=bases)
    assert dict(other.snapshot().scan("docs")) == dict(at.scan("docs"))
    assert list(other.snapshot().select(User)) == list(at.select(User))
    assert check_indexes(other.snapshot(), "users") == []
    base = other.base("users")
    assert (base is None) is (into == "store")
    if base is not None:
        assert base.rows_in_base > 0
        assert base.rows_in_store == 0
    assert db.base("users") is not None
    db.compact("users")
    assert list(db.snapshot().select(User)) == list(other.snapshot().select(User))


# Observers.


def copied(t: Transaction, cell: Cell) -> None:
    """Count the runs, and write the value that was read, so that a missing or repeated run is visible."""
    text = t.get("docs", cell.row, "text")
    if text == b"boom":
        raise ValueError("boom")
    runs = int(t.get("sums", cell.row, "runs") or b"0")
    t.set("sums", cell.row, "runs", b"%d" % (runs + 1))
    if text is None:
        t.delete("sums", cell.row, "seen")
    else:
        t.set("sums", cell.row, "seen", text)
    t.notify("sums", "all", "dirty")


def total(t: Transaction, cell: Cell) -> None:
    found = [cells["runs"] for _, cells in t.scan("sums", columns=["runs"])]
    t.set("sums", "total", "sum", b"%d" % sum(map(int, found)))


CHAIN = chain_of(
    watch("copied", copied, "docs.text", writes=("sums.runs", "sums.seen", "sums.dirty")),
    watch("total", total, "sums.dirty", mode="weak", writes=("sums.sum",)),
)


def state(db: Database, at: int | None = None) -> tuple[dict[bytes, bytes], dict[bytes, Any]]:
    snapshot = db.snapshot(at)
    texts = {row: cells["text"] for row, cells in snapshot.scan("docs", columns=["text"])}
    sums = dict(snapshot.scan("sums"))
    return texts, sums


def is_continued(restored: Database, before: tuple[dict[bytes, bytes], dict[bytes, Any]]) -> None:
    """Run the chain, and assert that each change was processed exactly once, before the backup or now."""
    texts, sums = before
    Worker(restored, CHAIN).run_until_idle(timeout=PATIENCE)
    _, after = state(restored)
    for row in texts.keys() | (sums.keys() - {b"total"}):
        text, seen = texts.get(row), sums.get(row, {}).get("seen")
        more = int(after[row]["runs"]) - int(sums.get(row, {}).get("runs", b"0"))
        # If a text was written and deleted since the last run, that change is not visible here.
        assert more == (seen != text) or (more == 1 and text is None), row
        assert after[row].get("seen") == texts.get(row)
    # A backup that was made before the first write has no rows, and then there is no total.
    counted = int(after.get(b"total", {}).get("sum", b"0"))
    assert counted == sum(int(one["runs"]) for one in after.values() if "runs" in one)


def test_a_restored_chain_runs_nothing_twice_and_nothing_too_little(
    db: Database, other: Database, folder: str
) -> None:
    CHAIN.create_tables(db)
    worker = Worker(db, CHAIN)
    for number in range(30):
        put(db, b"%d" % number, b"first")
    worker.run_until_idle(timeout=PATIENCE)
    for number in range(10):
        put(db, b"%d" % number, b"second")
    with db.transaction() as t:
        for number in range(10, 15):
            t.delete("docs", b"%d" % number, "text")
    done = percolator.backup(db, folder)
    # The original chain runs before the backup is restored.
    worker.run_until_idle(timeout=PATIENCE)
    found = percolator.restore(folder, other)
    assert found.marks == 15
    assert state(other) == state(db, done.timestamp)
    before = state(other)
    put(other, b"20", b"third")
    is_continued(other, (before[0] | {b"20": b"third"}, before[1]))


def test_what_has_run_between_the_snapshot_and_its_reading_runs_again(
    db: Database, other: Database, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the marks are read, they are cleared; the acknowledgements show which cells were dirty."""
    from percolator_core.archive import backup as module

    CHAIN.create_tables(db)
    worker = Worker(db, CHAIN)
    put(db, b"old", b"1")
    worker.run_until_idle(timeout=PATIENCE)
    for number in range(30):
        put(db, b"%d" % number, b"x")
    with db.transaction() as t:
        t.notify("sums", "all", "dirty")
    real = reading.settle

    def settle(client: Any, at: int) -> None:
        real(client, at)
        worker.run_until_idle(timeout=PATIENCE)

    monkeypatch.setattr(module, "settle", settle)
    done = percolator.backup(db, folder)
    assert not status(db, CHAIN).observers[0].backlog
    found = percolator.restore(folder, other)
    assert found.marks >= 30
    is_continued(other, state(db, done.timestamp))


def test_backups_beside_workers_and_writers(db: Database, url: str, folder: str) -> None:
    """Each backup is consistent, although clients write and observers run."""
    CHAIN.create_tables(db)
    stop = threading.Event()
    chance = random.Random(3)

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            row = b"%d" % chance.randrange(40)
            with suppress(percolator.TransactionConflict), db.transaction() as t:
                if chance.random() < 0.2:
                    t.delete("docs", row, "text")
                else:
                    t.set("docs", row, "text", b"%d" % number)

    writer = threading.Thread(target=write)
    states: list[tuple[BackedUp, Any]] = []
    with running(db, CHAIN):
        writer.start()
        try:
            for _ in range(5):
                done = percolator.backup(db, folder)
                states.append((done, state(db, done.timestamp)))
        finally:
            stop.set()
            writer.join()
    for done, before in states:
        with percolator.connect(url, some_namespace()) as made:
            percolator.restore(folder, made, number=done.number)
            assert state(made) == before
            is_continued(made, before)


def write_on(db: Database, stop: threading.Event) -> None:
    chance, number = random.Random(4), 0
    while not stop.is_set():
        number += 1
        row = f"{chance.randrange(60)}"
        with suppress(percolator.TransactionConflict, percolator.SnapshotTooOld), db.transaction() as t:
            if chance.random() < 0.3:
                t.remove(User, name=row)
                t.delete_row("docs", row)
            else:
                t.upsert(User(name=row, city=f"{number % 5}", age=number))
                t.set("docs", row, f"c{number % 3}", b"%d" % number)


def maintain(db: Database, stop: threading.Event) -> None:
    while not stop.is_set():
        for table in ("users", "docs"):
            db.flush(table, everything=True)
        db.compact("docs")
        db.collect_garbage(timedelta(0))


def plain(db: Database, at: int | None = None) -> Any:
    snapshot = db.snapshot(at)
    return dict(snapshot.scan("docs")), list(snapshot.select(User))


def test_backups_and_publications_beside_a_maintainer(
    db: Database, url: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows move to the base, and versions are collected, while they are read."""
    from percolator_core.archive import backup as module

    db.create_table(User)
    db.create_table("docs", tablets=2)
    for table in ("users", "docs"):
        db.set_base(table, f"file://{tmp_path}/base")
    expected: dict[int, Any] = {}
    real = reading.settle

    def settle(client: Any, at: int) -> None:
        real(client, at)
        expected[at] = plain(db, at)  # the snapshot is pinned only now

    monkeypatch.setattr(module, "settle", settle)
    stop = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        begun = [threads.submit(work, db, stop) for work in (write_on, maintain)]
        try:
            done = []
            for _ in range(6):
                done.append(percolator.backup(db, folder))
                db.publish("users", str(tmp_path / "open"))
        finally:
            stop.set()
    for one_of_them in begun:
        one_of_them.result()
    assert DeltaTable(tmp_path / "open").version() == 5
    for one in done:
        with percolator.connect(url, some_namespace()) as made:
            percolator.restore(folder, made, number=one.number)
            assert plain(made) == expected[one.timestamp]
            assert check_indexes(made.snapshot(), "users") == []


def test_a_quarantine_comes_back(db: Database, other: Database, folder: str) -> None:
    CHAIN.create_tables(db)
    put(db, b"bad", b"boom")
    put(db, b"good", b"1")
    Worker(db, CHAIN).run_until_idle(timeout=PATIENCE)
    [failed] = failed_of(db, CHAIN)
    percolator.backup(db, folder)
    found = percolator.restore(folder, other)
    assert (found.marks, found.quarantined) == (1, 1)
    assert failed_of(other, CHAIN) == [failed]
    Worker(other, CHAIN).run_until_idle(timeout=PATIENCE)
    put(other, b"bad", b"mended")
    Worker(other, CHAIN).run_until_idle(timeout=PATIENCE)
    assert failed_of(other, CHAIN) == []
    assert state(other)[1][b"bad"] == {"runs": b"1", "seen": b"mended"}
    assert Quarantine(other, CHAIN).count() == {"copied": 0, "total": 0}


def test_writes_before_the_first_worker_are_observed(db: Database, other: Database, folder: str) -> None:
    CHAIN.create_tables(db)
    Worker(db, CHAIN).run_until_idle(timeout=PATIENCE)
    percolator.backup(db, folder)
    percolator.restore(folder, other)
    put(other, b"a", b"1")
    Worker(other, CHAIN).run_until_idle(timeout=PATIENCE)
    assert state(other)[1][b"a"] == {"runs": b"1", "seen": b"1"}


def test_after_a_restore_backups_go_on(db: Database, other: Database, url: str, folder: str) -> None:
    """They share no file with the other history, although its tables have the same names and versions."""
    CHAIN.create_tables(db)
    for number in range(200):
        put(db, b"%d" % number, random.Random(number).randbytes(500))
    percolator.backup(db, folder)
    percolator.restore(folder, other)
    put(db, b"b", b"of the old one")
    percolator.backup(db, folder)
    put(other, b"c", b"of the new one")
    percolator.backup(other, folder)
    with percolator.connect(url, some_namespace()) as made:
        percolator.restore(folder, made)
        assert state(made) == state(other)
        is_continued(made, state(other))


# Crashes, damage, and what is refused.


class Crash(BaseException):
    pass


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, call: int) -> Iterator[list[int]]:
    """The client dies at its ``call``-th request to the store, counted from 0."""
    left = [call]
    real = Store.exchange

    def counted(self: Store, *arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Crash
        return real(self, *arguments, **named)

    with monkeypatch.context() as changed:
        changed.setattr(Store, "exchange", counted)
        with suppress(Crash):
            yield left


def test_a_restore_that_dies_is_completed_by_the_next(
    db: Database, url: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CHAIN.create_tables(db)
    for number in range(40):
        put(db, b"%d" % number, b"x")
    Worker(db, CHAIN).run_until_idle(timeout=PATIENCE)
    put(db, b"1", b"y")
    percolator.backup(db, folder)
    before = state(db)
    crashed = 0
    for call in (*range(12), *range(12, 200, 9)):
        with percolator.connect(url, some_namespace()) as made:
            with crash_at(monkeypatch, call) as left:
                percolator.restore(folder, made)
            if left[0] >= 0:
                break
            crashed += 1
            if made.store.one((b"HEXISTS", made.store.keyspace.chain, b"restoring")):
                with pytest.raises(ConfigurationError, match="is being restored"):
                    Worker(made, CHAIN).run_until_idle(timeout=PATIENCE)
                with pytest.raises(ConfigurationError, match="is being restored"):
                    percolator.backup(made, folder)
                percolator.restore(folder, made)
            elif not made.tables():
                percolator.restore(folder, made)
            assert state(made) == before
            is_continued(made, before)
    assert crashed > 12


def test_a_backup_that_dies_leaves_the_last_one(
    db: Database, other: Database, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(db)
    first = percolator.backup(db, folder)
    before = contents(db, first.timestamp)
    put(db, "a", b"1")
    crashed = 0
    for call in range(0, 100, 3):
        with crash_at(monkeypatch, call) as left:
            percolator.backup(db, folder)
        if left[0] >= 0:
            break
        crashed += 1
        found = files.newest(Location(folder))
        assert found is not None
        assert found.number == 1
    assert crashed > 5
    percolator.restore(folder, other, number=1)
    assert contents(other) == before


def test_a_torn_manifest_is_none(db: Database, other: Database, folder: str, tmp_path: Path) -> None:
    db.create_table("docs", tablets=1)
    put(db, "a", b"1")
    percolator.backup(db, folder)
    put(db, "a", b"2")
    percolator.backup(db, folder)
    names = files.manifests(Location(folder))
    [second] = [tmp_path / "backup" / name for name, number in names.items() if number == 2]
    second.write_bytes(second.read_bytes()[:-7])
    third = percolator.backup(db, folder)
    assert third.number == 3
    next(
        tmp_path / "backup" / name for name, one in files.manifests(Location(folder)).items() if one == 3
    ).unlink()
    percolator.restore(folder, other)
    assert other.snapshot().get("docs", "a", "text") == b"1"


def test_damage_is_noticed(db: Database, url: str, folder: str, tmp_path: Path) -> None:
    CHAIN.create_tables(db)
    Worker(db, CHAIN).run_until_idle(timeout=PATIENCE)
    for number in range(50):
        put(db, b"%d" % number, b"text %d" % number)
    percolator.backup(db, folder)
    some = sorted(
        path for path in (tmp_path / "backup").rglob("*") if path.is_file() and path.parent.name == "1"
    )
    assert {path.name.partition("-")[0] for path in some} == {"rows", "marks"}
    chance = random.Random(1)
    for path in some:
        intact = path.read_bytes()
        for _ in range(4):
            place = chance.randrange(len(intact))
            path.write_bytes(
                intact[:place] + bytes([intact[place] ^ 1 << chance.randrange(8)]) + intact[place + 1 :]
            )
            is_damaged = pytest.raises(PercolatorError, match=r"is damaged.*restore an earlier one")
            with percolator.connect(url, some_namespace()) as made, is_damaged:
                percolator.restore(folder, made)
        path.unlink()
        is_missing = pytest.raises(PercolatorError, match="it is missing")
        with percolator.connect(url, some_namespace()) as made, is_missing:
            percolator.restore(folder, made)
        path.write_bytes(intact)
    with percolator.connect(url, some_namespace()) as made:
        percolator.restore(folder, made)


def test_each_byte_of_a_row_set_is_verified(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    lines = [(b"%d" % row, b"text", pack_version(row, row - 1, b"value")) for row in range(10, 40)]
    [found] = files.write_cells(location, "1", lines, {}).values()
    assert list(files.read_cells(location, files.TabletFiles((found,), ("",), 1))) == lines
    intact = location.read(found.file)
    assert files._is_intact(found, memoryview(intact))
    for place in range(len(intact)):
        content = intact[:place] + bytes([intact[place] ^ 4]) + intact[place + 1 :]
        assert not files._is_intact(found, memoryview(content)), place
    assert not files._is_intact(found, memoryview(intact[:-1]))


def test_what_is_refused(db: Database, other: Database, folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no backup at"):
        percolator.restore(folder, other)
    db.create_table("docs", tablets=1)
    percolator.backup(db, folder)
    with pytest.raises(ConfigurationError, match="is not empty"):
        percolator.restore(folder, db)
    with pytest.raises(ConfigurationError, match="the backup has no table 'dogs': it has docs"):
        percolator.restore(folder, other, bases={"dogs": str(tmp_path)})
    percolator.restore(folder, other)
    with pytest.raises(ConfigurationError, match="is not empty"):
        percolator.restore(folder, other)


def test_who_writes_during_a_restore_is_noticed(
    db: Database, other: Database, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_core.archive import restore as module

    db.create_table("docs", tablets=1)
    put(db, "a", b"1")
    percolator.backup(db, folder)
    real = module._Restore._verify

    def verify(self: Any, *arguments: Any) -> None:
        put(other, "b", b"1")
        real(self, *arguments)

    monkeypatch.setattr(module._Restore, "_verify", verify)
    with pytest.raises(PercolatorError, match="is not as in the backup"):
        percolator.restore(folder, other)


def test_a_backup_in_an_object_store(
    db: Database, other: Database, object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, query = make_bucket("bucket-of-backups", object_store, monkeypatch)
    url = f"s3://bucket-of-backups/{tmp_path.name}{query}"
    filled(db)
    percolator.backup(db, url)
    put(db, "a", b"1")
    assert percolator.backup(db, url, keep=1).written == 1
    percolator.restore(url, other)
    assert contents(other) == contents(db)


def test_every_kind_of_store(
    connect_to_every_kind: Callable[..., Database], tmp_path: Path, url: str
) -> None:
    db = connect_to_every_kind()
    CHAIN.create_tables(db)
    for number in range(20):
        put(db, b"%d" % number, b"x")
    Worker(db, CHAIN).run_until_idle(timeout=PATIENCE)
    put(db, b"1", b"y")
    assert db.publish("docs", str(tmp_path / "open")).rows == 20
    percolator.backup(db, str(tmp_path / "backup"))
    assert percolator.backup(db, str(tmp_path / "backup")).written == 0
    before = state(db)
    with percolator.connect(url, some_namespace()) as made:
        percolator.restore(str(tmp_path / "backup"), made)
        assert state(made) == before
        is_continued(made, before)
    for table in ("docs", "sums"):
        db.drop_table(table)
    percolator.restore(str(tmp_path / "backup"), db)
    assert state(db) == before
    is_continued(db, before)


def test_large_values_are_written_in_steps(
    db: Database, other: Database, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "FILE_BYTES", 1 << 20)
    db.create_table("docs", tablets=1)
    for number in range(30):
        put(db, b"%d" % number, bytes(300_000))
    with db.transaction() as t:
        for number in range(3000):
            t.set("docs", "wide", f"column {number}", b"x")
    done = percolator.backup(db, folder)
    assert 5 < done.written < 20
    seen: list[tuple[str, int, int]] = []
    found = percolator.restore(folder, other, progress=lambda *one: seen.append(one))
    assert (found.rows, found.cells) == (31, 3030)
    assert seen == [("docs", 1, 1)]
    assert contents(other) == contents(db)
