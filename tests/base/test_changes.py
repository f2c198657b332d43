"""A table gets a base, moves it and loses it while clients work, and a crash at any step does no harm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from percolator_core import (
    ConfigurationError,
    Database,
    Hash,
    Indexed,
    PrimaryKey,
    Range,
    SnapshotTooOld,
    Table,
    UnknownTable,
)
from percolator_core.base import changes
from percolator_core.base import manifest as manifests
from percolator_core.base.changes import BaseChanges, reference_of
from percolator_core.base.location import Location
from percolator_core.layout.keys import SAFE_POINT, meta_key
from percolator_core.layout.records import Version
from percolator_core.scripts import calls
from percolator_core.store import Store


class Crash(Exception):
    pass


class Items(Table, name="items", partition=[Hash("id", buckets=2)]):
    id: PrimaryKey[int]
    name: str | None = None
    price: int = 0


class Wide(Table, name="items", partition=[Hash("id", buckets=2)]):
    id: PrimaryKey[int]
    name: str | None = None
    price: int = 0
    stock: int = 7


class Named(Table, name="items", partition=[Hash("id", buckets=2)]):
    id: PrimaryKey[int]
    title: str | None = None
    price: int = 0


class Indexes(Table, name="indexed", partition=[Hash("id", buckets=2)]):
    id: PrimaryKey[int]
    price: Indexed[int] = 0


class Pages(Table, name="pages", partition=[Range("site", ["m"])]):
    site: PrimaryKey[str]
    title: str = ""


class Deep(Table, name="deep", partition=[Range("page", [10])]):
    site: PrimaryKey[str]
    page: PrimaryKey[int]


def put(db: Database, row: str, column: str, value: bytes | None) -> None:
    with db.transaction() as t:
        if value is None:
            t.delete("raw", row, column)
        else:
            t.set("raw", row, column, value)


def rows(db: Database, table: str = "raw") -> list[Any]:
    return list(db.snapshot().scan(table))


def files(location: Path) -> list[str]:
    return Location(str(location)).names()


def forget_grace(db: Database) -> None:
    """Make it an hour later for the folders that tables have left."""
    key = db.store.keyspace.folders
    for field in db.store.one((b"HKEYS", key)):
        db.store.call((b"HSET", key, field, 1))


@contextmanager
def crash_at(monkeypatch: pytest.MonkeyPatch, script: str, after: int) -> Iterator[None]:
    """The client dies when it is about to call a script once more than ``after`` times."""
    left = [after]
    command = Store.command

    def counted(self: Store, call: Any) -> Any:
        if call[0] == script:
            left[0] -= 1
            if left[0] < 0:
                raise Crash
        return command(self, call)

    with monkeypatch.context() as changed:
        changed.setattr(Store, "command", counted)
        yield


@pytest.fixture
def raw(db: Database, tmp_path: Path) -> Database:
    """A database with a raw table that has a base, and 40 cells in it."""
    db.create_table("raw", tablets=2)
    db.set_base("raw", str(tmp_path / "one"))
    for number in range(20):
        for column in "ab":
            put(db, f"r{number:02}", column, b"%d" % number)
    assert db.flush("raw", everything=True).rows == 20
    return db


def test_a_table_gets_a_base_and_loses_it(raw: Database) -> None:
    before, history = rows(raw), raw.history("raw", "r03", "a")
    figures = raw.base("raw")
    assert figures is not None
    assert (figures.rows_in_store, figures.rows_in_base, figures.height) == (0, 40, 1)
    raw.set_base("raw", None)
    assert raw.base("raw") is None
    assert all(not reference_of(raw.store, tag) for tag in raw.catalog.table("raw").tags)
    assert rows(raw) == before
    [version] = raw.history("raw", "r03", "a")
    assert (version.commit_ts, version.value) == (history[0].commit_ts, b"3")
    raw.set_base("raw", None)


def test_nothing_is_changed_where_files_cannot_be_written(db: Database, tmp_path: Path) -> None:
    db.create_table("raw", tablets=2)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is no usable location"):
        db.set_base("raw", str(tmp_path / "file"))
    assert db.base("raw") is None
    with pytest.raises(UnknownTable):
        db.set_base("nothing", str(tmp_path))
    with pytest.raises(ConfigurationError, match="has no base"):
        db.flush("raw")
    with pytest.raises(ValueError, match="leave them out"):
        db.set_base("raw", None, memory=1)
    with pytest.raises(ValueError, match="1 or more"):
        db.set_base("raw", str(tmp_path), memory=0)
    assert files(tmp_path) == ["file"]


def test_a_base_may_be_in_an_object_store(db: Database, location: Location) -> None:
    db.create_table("raw", tablets=1)
    put(db, "a", "v", b"1")
    db.set_base("raw", location.url)
    assert db.flush("raw", everything=True).rows == 1
    assert rows(db) == [(b"a", {"v": b"1"})]
    db.drop_table("raw")
    assert location.names() == []


def test_a_relative_location_does_not_depend_on_the_current_directory(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.create_table("raw", tablets=1)
    monkeypatch.chdir(tmp_path)
    db.set_base("raw", "file:base")
    put(db, "a", "v", b"1")
    db.flush("raw", everything=True)
    monkeypatch.chdir("/")
    assert rows(db) == [(b"a", {"v": b"1"})]
    assert files(tmp_path / "base")


def test_another_policy_moves_no_file(raw: Database, tmp_path: Path) -> None:
    before = files(tmp_path / "one")
    references = [reference_of(raw.store, tag) for tag in raw.catalog.table("raw").tags]
    raw.set_base("raw", str(tmp_path / "one"), cold_after=timedelta(hours=1), memory=1000)
    rule = raw.catalog.table("raw").definition.base
    assert rule is not None
    assert (rule.cold_after, rule.memory) == (3_600_000_000, 1000)
    assert files(tmp_path / "one") == before
    assert [reference_of(raw.store, tag) for tag in raw.catalog.table("raw").tags] == references
    assert raw.store.one((b"HGETALL", raw.store.keyspace.folders)) == []


def test_a_base_moves_to_another_location(raw: Database, tmp_path: Path) -> None:
    put(raw, "r01", "a", b"new")
    put(raw, "r02", "a", None)
    raw.flush("raw", everything=True)
    before = rows(raw)
    raw.set_base("raw", str(tmp_path / "two"))
    assert rows(raw) == before
    # A reader may have found a tablet at the old location, so the files stay for a while.
    raw.flush("raw")
    assert files(tmp_path / "one")
    forget_grace(raw)
    assert BaseChanges(raw.client).remove_abandoned(oldest_pin=0) == 0
    raw.flush("raw")
    assert files(tmp_path / "one") == []
    raw.client.bases.cache.forget(lambda _: False)
    assert rows(raw) == before
    put(raw, "r05", "a", b"new")
    assert raw.flush("raw", everything=True).rows == 1
    assert dict(rows(raw))[b"r05"] == {"a": b"new", "b": b"5"}


@pytest.mark.parametrize(
    ("script", "after"), [("restore", 0), ("restore", 3), ("leave_base", 0), ("leave_base", 1)]
)
def test_a_crash_while_rows_move_back_does_no_harm(
    raw: Database, monkeypatch: pytest.MonkeyPatch, script: str, after: int
) -> None:
    monkeypatch.setattr(changes, "_STEP_CELLS", 5)
    before = rows(raw)
    with crash_at(monkeypatch, script, after), suppress(Crash):
        raw.set_base("raw", None)
    assert rows(raw) == before
    put(raw, "r01", "a", None)
    put(raw, "r02", "a", b"new")
    after_writes = rows(raw)
    assert after_writes != before
    # Another client finishes the change.
    raw.flush("raw")
    assert all(not reference_of(raw.store, tag) for tag in raw.catalog.table("raw").tags)
    assert rows(raw) == after_writes
    entry = raw.catalog.entry("raw")
    assert entry is not None
    assert entry.left == ()


@pytest.mark.parametrize("after", [0, 1])
def test_a_crash_while_a_base_moves_does_no_harm(
    raw: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = rows(raw)
    with crash_at(monkeypatch, "publish_base", after), suppress(Crash):
        raw.set_base("raw", str(tmp_path / "two"))
    assert rows(raw) == before
    put(raw, "r01", "a", b"new")
    # A flush first brings each tablet to its new place.
    assert raw.flush("raw", everything=True).rows == 1
    assert dict(rows(raw))[b"r01"] == {"a": b"new", "b": b"1"}
    forget_grace(raw)
    raw.flush("raw")
    assert files(tmp_path / "one") == []
    raw.client.bases.cache.forget(lambda _: False)
    assert len(rows(raw)) == 20


def test_files_of_a_tablet_that_could_not_move_stay(raw: Database, tmp_path: Path) -> None:
    """A failover may have lost the safe point of a tablet."""
    tag = raw.catalog.table("raw").tags[0]
    before = rows(raw)
    safe = raw.store.one((b"HGET", meta_key(tag), SAFE_POINT))
    raw.store.call((b"HSET", meta_key(tag), SAFE_POINT, 1))
    raw.set_base("raw", str(tmp_path / "two"))
    entry = raw.catalog.entry("raw")
    assert entry is not None
    assert len(entry.left) == 1
    assert raw.store.one((b"HGETALL", raw.store.keyspace.folders)) == []
    raw.store.call((b"HSET", meta_key(tag), SAFE_POINT, safe))
    assert rows(raw) == before
    raw.flush("raw", everything=True)
    forget_grace(raw)
    raw.flush("raw")
    assert files(tmp_path / "one") == []
    raw.client.bases.cache.forget(lambda _: False)
    assert rows(raw) == before


def test_two_clients_that_move_a_base_write_files_of_their_own(
    raw: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that comes late, and dies, has not touched the files that are valid already."""
    put(raw, "r01", "a", b"new")
    raw.flush("raw", everything=True)
    with crash_at(monkeypatch, "publish_base", 0), suppress(Crash):
        raw.set_base("raw", str(tmp_path / "two"))
    first = {name: (tmp_path / "two" / name).stat().st_mtime_ns for name in files(tmp_path / "two")}
    raw.set_base("raw", str(tmp_path / "two"))
    assert first
    assert {name: (tmp_path / "two" / name).stat().st_mtime_ns for name in first} == first
    reference = reference_of(raw.store, raw.catalog.table("raw").tags[0])
    url, name = manifests.split_reference(reference)
    assert manifests.load(Location(url), name).files.isdisjoint(first)


def test_a_base_that_is_taken_away_and_given_again_at_once(
    raw: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(raw)
    with crash_at(monkeypatch, "restore", 1), suppress(Crash):
        raw.set_base("raw", None)
    raw.set_base("raw", str(tmp_path / "two"))
    forget_grace(raw)
    raw.flush("raw", everything=True)
    assert files(tmp_path / "one") == []
    raw.client.bases.cache.forget(lambda _: False)
    assert rows(raw) == before


def test_what_the_store_has_is_newer_than_what_moves_back(raw: Database) -> None:
    put(raw, "r01", "a", b"new")
    put(raw, "r02", "a", None)
    before = rows(raw)
    raw.set_base("raw", None)
    assert rows(raw) == before
    assert [one.value for one in raw.history("raw", "r01", "a")] == [b"new"]


def test_a_typed_row_that_was_removed_does_not_move_back(db: Database, tmp_path: Path) -> None:
    db.create_table(Items)
    db.set_base(Items, str(tmp_path))
    with db.transaction() as t:
        for number in range(4):
            t.insert(Items(id=number, name="n", price=number))
    db.flush(Items, everything=True)
    with db.transaction() as t:
        t.remove(Items, id=1)
        t.update(Items, id=2, price=9)
    db.set_base(Items, None)
    found = {one: db.snapshot().find(Items, id=one) for one in range(4)}
    assert found[1] is None
    assert found[2] == Items(id=2, name="n", price=9)
    assert found[3] == Items(id=3, name="n", price=3)
    # No cell of the removed row came back, either: a part of it would be found under a new row.
    with db.transaction() as t:
        t.upsert(Items(id=1, price=5))
    assert db.snapshot().find(Items, id=1) == Items(id=1, price=5)
    db.collect_garbage(timedelta(0))
    assert db.snapshot().find(Items, id=1) == Items(id=1, price=5)


def test_a_snapshot_from_before_is_refused_once_the_base_is_gone(raw: Database) -> None:
    """It may have asked the store before the row came back, and the tablet for its base after that."""
    before = raw.snapshot()
    assert before.get("raw", "r01", "a") == b"1"
    raw.set_base("raw", None)
    # What it finds in the store is right; that a cell is missing is no answer.
    assert before.get("raw", "r02", "a") == b"2"
    with pytest.raises(SnapshotTooOld):
        before.get("raw", "r02", "c")


def test_a_late_eviction_takes_nothing_that_moves_back(
    raw: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = raw.catalog.table("raw")
    tag, row = handle.tag(b"r01"), b"r01"
    reference, at = reference_of(raw.store, tag), raw.snapshot().start_timestamp
    with crash_at(monkeypatch, "leave_base", 0), suppress(Crash):
        raw.set_base("raw", None)
    numbers = [number for number, one in enumerate(handle.tags) if one == tag]
    assert BaseChanges(raw.client).settle_tablet(raw.catalog.table("raw"), numbers[0])
    call = calls.evict(tag, reference, handle.version, at, b"", [], [row, 0])
    assert raw.store.run(call) is None
    assert raw.snapshot().get("raw", row, "a") == b"1"


def test_an_eviction_between_the_steps_takes_nothing(raw: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A maintainer that works by the definition before is refused while the rows move back."""
    handle = raw.catalog.table("raw")
    tag = handle.tag(b"r01")
    reference, at = reference_of(raw.store, tag), raw.snapshot().start_timestamp
    with crash_at(monkeypatch, "leave_base", 0), suppress(Crash):
        raw.set_base("raw", None)
    every = [part for n in range(20) if handle.tag(row := b"r%02d" % n) == tag for part in (row, 0)]
    assert raw.store.run(calls.evict(tag, reference, handle.version, at, b"", [], every)) is None


def test_writers_go_on_while_a_base_comes_moves_and_goes(raw: Database, tmp_path: Path) -> None:
    stop, counts, failed = threading.Event(), [0], []

    def count() -> None:
        def add(t: Any) -> None:
            for column in "ab":
                t.set("raw", "r03", column, b"%d" % (int(t.get("raw", "r03", column)) + 1))

        try:
            while not stop.is_set():
                raw.run(add, attempts=100)
                counts[0] += 1
        except Exception as error:  # noqa: BLE001 - reported below
            failed.append(error)

    thread = threading.Thread(target=count)
    thread.start()
    for number in range(3):
        raw.flush("raw", everything=True)
        raw.set_base("raw", str(tmp_path / f"place-{number}"))
        raw.flush("raw", everything=True)
        raw.set_base("raw", None)
        raw.set_base("raw", str(tmp_path / "again"))
    stop.set()
    thread.join()
    assert not failed
    expected = b"%d" % (3 + counts[0])
    assert dict(rows(raw))[b"r03"] == {"a": expected, "b": expected}


def test_a_dropped_table_leaves_no_file(raw: Database, tmp_path: Path) -> None:
    assert files(tmp_path / "one")
    raw.drop_table("raw")
    assert files(tmp_path / "one") == []
    raw.create_table("raw", tablets=2)
    assert rows(raw) == []
    assert raw.base("raw") is None


def test_files_of_a_dropped_table_that_a_crash_has_left_are_removed_later(
    raw: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: BaseChanges, oldest_pin: float = 0) -> int:
        raise Crash

    with monkeypatch.context() as changed, suppress(Crash):
        changed.setattr(BaseChanges, "remove_abandoned", die)
        raw.drop_table("raw")
    assert files(tmp_path / "one")
    raw.create_table("other", tablets=1)
    raw.set_base("other", str(tmp_path / "two"))
    raw.flush("other")
    assert files(tmp_path / "one") == []
    # Once more, for a maintainer of the dropped table that was slow; then nothing is recorded any more.
    forget_grace(raw)
    raw.flush("other")
    assert raw.store.one((b"HGETALL", raw.store.keyspace.folders)) == []


def test_a_folder_that_a_table_has_is_never_removed(raw: Database, tmp_path: Path) -> None:
    rule = raw.catalog.table("raw").definition.base
    assert rule is not None
    maintainer = BaseChanges(raw.client)
    maintainer.abandon([rule.place], at_once=True)
    before = files(tmp_path / "one")
    assert before
    assert maintainer.remove_abandoned() == 0
    assert files(tmp_path / "one") == before


def test_the_same_definition_without_a_base_agrees(db: Database, tmp_path: Path) -> None:
    db.create_table(Items)
    db.create_table("raw", tablets=2)
    for table in (Items, "raw"):
        db.set_base(table, str(tmp_path))
    db.create_table(Items)
    db.create_table("raw", tablets=2)
    assert db.base(Items) is not None
    assert db.base("raw") is not None


@pytest.fixture
def items(db: Database, tmp_path: Path) -> Database:
    """A database with a typed table, half of whose rows are in its base."""
    db.create_table(Items)
    db.set_base(Items, str(tmp_path))
    with db.transaction() as t:
        for number in range(10):
            t.insert(Items(id=number, name=f"n{number}", price=number))
    db.flush(Items, everything=True)
    with db.transaction() as t:
        for number in range(5):
            t.update(Items, id=number, price=-1)
    return db


def price(number: int) -> int:
    return -1 if number < 5 else number


def test_a_column_is_added_above_a_base(items: Database) -> None:
    items.add_column(Wide, "stock")
    for _ in range(2):
        for number in range(10):
            found = items.snapshot().find(Wide, id=number)
            assert found == Wide(id=number, name=f"n{number}", price=price(number), stock=7)
        items.flush(Wide, everything=True)
    with items.transaction() as t:
        t.update(Wide, id=7, stock=0)
    items.flush(Wide, everything=True)
    items.compact(Wide)
    found = items.snapshot().find(Wide, id=7)
    assert found is not None
    assert found.stock == 0


def test_a_column_is_renamed_above_a_base(items: Database) -> None:
    items.rename_column(Items, "name", "title")
    for _ in range(2):
        for number in range(10):
            found = items.snapshot().find(Named, id=number)
            assert found == Named(id=number, title=f"n{number}", price=price(number))
        items.flush(Named, everything=True)
        items.compact(Named)


def test_a_dropped_column_does_not_come_back_from_the_base(items: Database) -> None:
    items.drop_column(Items, "name")
    items.add_column(Items, "name")
    for step in (lambda: None, lambda: items.flush(Items, everything=True), lambda: items.compact(Items)):
        step()
        for number in range(10):
            assert items.snapshot().find(Items, id=number) == Items(id=number, price=price(number))
    items.set_base(Items, None)
    assert items.snapshot().find(Items, id=7) == Items(id=7, price=7)


def test_an_index_may_have_a_base_too(db: Database, tmp_path: Path) -> None:
    db.create_table(Indexes)
    index = next(one.name for one in db.tables() if one.index_of)
    db.set_base(index, str(tmp_path))
    with db.transaction() as t:
        for number in range(10):
            t.insert(Indexes(id=number, price=number % 3))
    db.flush(index, everything=True)
    with db.transaction() as t:
        t.update(Indexes, id=1, price=9)
        t.remove(Indexes, id=4)

    def of_price(wanted: int) -> list[int]:
        return sorted(one.id for one in db.snapshot().select(Indexes, where=Indexes.price == wanted))

    for _ in range(2):
        assert (of_price(0), of_price(1), of_price(9)) == ([0, 3, 6, 9], [7], [1])
        db.flush(index, everything=True)
    db.drop_table(Indexes)
    assert files(tmp_path) == []


def test_a_range_is_added_beside_a_base(db: Database, tmp_path: Path) -> None:
    db.create_table(Pages)
    db.set_base(Pages, str(tmp_path))
    with db.transaction() as t:
        for site in "acnp":
            t.insert(Pages(site=site, title=site))
    db.flush(Pages, everything=True)
    # All rows of this range are in the base, on both sides.
    for split in ("b", "o"):
        with pytest.raises(ConfigurationError, match="would move rows"):
            db.add_range(Pages, split)
    db.add_range(Pages, "t")
    with db.transaction() as t:
        t.insert(Pages(site="z", title="z"))
    assert db.flush(Pages, everything=True).rows == 1
    assert [db.snapshot().find(Pages, site=site) for site in "acnpz"] == [
        Pages(site=site, title=site) for site in "acnpz"
    ]
    assert len(rows(db, "pages")) == 5


def test_a_range_of_a_later_column_of_the_key_is_added_beside_a_base(db: Database, tmp_path: Path) -> None:
    db.create_table(Deep)
    db.set_base(Deep, str(tmp_path))
    with db.transaction() as t:
        for page in (1, 5, 12):
            t.insert(Deep(site="s", page=page))
    db.flush(Deep, everything=True)
    with pytest.raises(ConfigurationError, match="would move rows"):
        db.add_range(Deep, 3)
    db.add_range(Deep, 20)
    db.add_range(Deep, 7)
    for page in (1, 5, 12):
        assert db.snapshot().find(Deep, site="s", page=page) is not None


def test_the_history_of_a_cell_that_moved_back_begins_with_its_commit(raw: Database) -> None:
    [before] = raw.history("raw", "r04", "b")
    raw.set_base("raw", None)
    put(raw, "r04", "b", b"new")
    newest, oldest = raw.history("raw", "r04", "b")
    assert newest.value == b"new"
    assert oldest == Version(before.commit_ts, before.commit_ts, b"4")


def test_every_kind_of_store_has_tables_with_a_base(connect_to_every_kind: Any, tmp_path: Path) -> None:
    db = connect_to_every_kind()
    db.create_table("raw", tablets=4)
    db.set_base("raw", str(tmp_path / "one"), cold_after=timedelta(0))
    for number in range(20):
        put(db, f"{number}", "v", b"1")
    before = rows(db)
    assert db.flush("raw").rows == 20
    put(db, "1", "v", b"2")
    assert db.flush("raw").rows == 1
    db.compact("raw")
    db.set_base("raw", str(tmp_path / "two"))
    found = db.base("raw")
    assert found is not None
    assert (found.rows_in_store, found.rows_in_base, found.height) == (0, 20, 1)
    db.set_base("raw", None)
    assert rows(db) == [(row, {"v": b"2"} if row == b"1" else cells) for row, cells in before]
