"""A published version has the rows of a snapshot at its timestamp, for every reader."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

import percolator_core as percolator
from percolator_core import (
    ConfigurationError,
    Database,
    Hash,
    Indexed,
    PercolatorError,
    PrimaryKey,
    StoreUnavailable,
    Table,
    UnknownTable,
)
from percolator_core.archive import delta, publication
from percolator_core.archive.publication import Published
from tests.base.conftest import make_bucket
from tests.servers.plain import commit_of, die


class Item(Table, name="items", partition=[Hash("shop", "id", buckets=3)]):
    shop: PrimaryKey[str]
    id: PrimaryKey[int]
    name: Indexed[str | None] = None
    price: float = 0.0
    seen: datetime | None = None
    day: date | None = None
    blob: bytes | None = None
    sold: bool = False


class Wider(Table, name="items", partition=[Hash("shop", "id", buckets=3)]):
    shop: PrimaryKey[str]
    id: PrimaryKey[int]
    name: Indexed[str | None] = None
    price: float = 0.0
    seen: datetime | None = None
    day: date | None = None
    blob: bytes | None = None
    sold: bool = False
    weight: int = 7


def item(number: int, **values: Any) -> Item:
    return Item(
        shop=f"shop {number % 5}",
        id=number,
        name=None if number % 4 == 0 else f'näme "{number}"',
        price=number / 7,
        seen=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=number),
        day=date(2026, 1, 1 + number % 28),
        blob=bytes([number % 256]) * (number % 4),
        **values,
    )


def put(db: Database, *items: Table) -> None:
    with db.transaction() as t:
        for one in items:
            t.upsert(one)


def remove(db: Database, *numbers: int) -> None:
    with db.transaction() as t:
        for number in numbers:
            assert t.remove("items", shop=f"shop {number % 5}", id=number)


def rows(table: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def published(folder: Path, version: int | None = None) -> pa.Table:
    """The rows of the files that the log names for a version."""
    found = DeltaTable(folder, version=version)
    files = [parquet.read_table(one) for one in found.file_uris()]
    return pa.concat_tables(files) if files else pa.schema(found.schema().to_arrow()).empty_table()


def is_as_of(db: Database, done: Published, folder: Path, table: type[Table] | str = Item) -> bool:
    found, expected = published(folder, done.version), db.snapshot(done.timestamp).to_arrow(table)
    assert found.schema.names == expected.schema.names
    # deltalake's own reader, which pandas, Polars and DuckDB use.
    assert rows(DeltaTable(folder, version=done.version).to_pyarrow_table()) == rows(expected)
    assert rows(found) == rows(expected)
    return True


@pytest.fixture
def items(db: Database) -> Database:
    db.create_table(Item)
    put(db, *map(item, range(300)))
    return db


def test_a_version_has_the_rows_of_its_timestamp(items: Database, tmp_path: Path) -> None:
    first = items.publish("items", f"file://{tmp_path}/open")
    assert (first.version, first.mode, first.rows) == (0, "full", 300)
    put(items, *(item(number, sold=True) for number in range(0, 300, 9)), item(1000))
    remove(items, 1, 2, 3)
    put(items, item(3, sold=True))
    second = items.publish(Item, str(tmp_path / "open"))
    assert (second.version, second.mode, second.reason) == (1, "incremental", "")
    assert second.rows == 34 + 1 + 3
    assert second.timestamp > first.timestamp
    assert is_as_of(items, second, tmp_path / "open")
    assert is_as_of(items, first, tmp_path / "open")
    about = DeltaTable(tmp_path / "open").history(1)[0]
    assert about["percolator.timestamp"] == str(second.timestamp)
    assert about["percolator.table"] == "items"


def test_the_types_of_the_columns_are_those_of_arrow(items: Database, tmp_path: Path) -> None:
    items.publish("items", str(tmp_path / "open"))
    expected = items.snapshot().to_arrow(Item).schema
    assert [(one.name, one.type) for one in published(tmp_path / "open").schema] == [
        (one.name, one.type) for one in expected
    ]


def test_nothing_changed_is_a_version_of_a_later_time(items: Database, tmp_path: Path) -> None:
    first = items.publish("items", str(tmp_path / "open"))
    second = items.publish("items", str(tmp_path / "open"))
    assert (second.version, second.mode, second.rows) == (1, "incremental", 0)
    assert second.timestamp > first.timestamp
    assert DeltaTable(tmp_path / "open").file_uris() == DeltaTable(tmp_path / "open", 0).file_uris()
    remove(items, *range(300))
    third = items.publish("items", str(tmp_path / "open"))
    assert third.rows == 300
    assert is_as_of(items, third, tmp_path / "open")
    put(items, item(5))
    assert is_as_of(items, items.publish("items", str(tmp_path / "open")), tmp_path / "open")


def test_random_changes(items: Database, tmp_path: Path) -> None:
    chance = random.Random(7)
    for _ in range(8):
        for _ in range(chance.randrange(30)):
            number = chance.randrange(400)
            with items.transaction() as t:
                if chance.random() < 0.4:
                    t.remove(Item, shop=f"shop {number % 5}", id=number)
                else:
                    t.upsert(item(number, sold=chance.random() < 0.5))
        if chance.random() < 0.3:
            items.collect_garbage(timedelta(0))
        assert is_as_of(items, items.publish("items", str(tmp_path / "open")), tmp_path / "open")


def test_collected_versions_need_all_rows_again(items: Database, tmp_path: Path) -> None:
    items.publish("items", str(tmp_path / "open"))
    remove(items, 1)
    items.collect_garbage(timedelta(0))
    done = items.publish("items", str(tmp_path / "open"))
    assert (done.mode, done.rows) == ("full", 299)
    assert "garbage collection" in done.reason
    assert is_as_of(items, done, tmp_path / "open")


def test_a_changed_schema_is_a_full_version(items: Database, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    first = items.publish("items", str(folder))
    items.add_column(Wider, "weight")
    put(items, Wider(shop="shop 1", id=1, weight=9))
    done = items.publish("items", str(folder))
    assert (done.mode, done.reason) == ("full", "the columns of the table have changed")
    assert is_as_of(items, done, folder, Wider)
    items.rename_column("items", "weight", "mass")
    done = items.publish("items", str(folder))
    assert done.mode == "full"
    assert is_as_of(items, done, folder, "items")
    items.drop_column("items", "mass")
    done = items.publish("items", str(folder))
    assert done.mode == "full"
    assert is_as_of(items, done, folder)
    assert published(folder, first.version).schema.names == published(folder).schema.names
    assert items.publish("items", str(folder)).mode == "incremental"


def test_a_table_of_the_same_name_is_another_one(items: Database, tmp_path: Path) -> None:
    items.publish("items", str(tmp_path / "open"))
    items.drop_table("items")
    items.create_table(Item)
    put(items, item(1))
    done = items.publish("items", str(tmp_path / "open"))
    assert (done.mode, done.rows) == ("full", 1)
    assert is_as_of(items, done, tmp_path / "open")


def test_the_timestamp_of_another_namespace_means_nothing(items: Database, url: str, tmp_path: Path) -> None:
    """A copy of a table is published to the URL of the original, after a publication of the original."""
    with percolator.connect(url, f"{items.namespace} copy") as other:
        other.create_table(Item)
        put(other, item(1), item(2))
        items.publish("items", str(tmp_path / "open"))
        done = other.publish("items", str(tmp_path / "open"))
        assert done.mode == "full"
        assert is_as_of(other, done, tmp_path / "open")


def test_commits_that_a_failover_has_lost_are_not_in_the_next_version(
    items: Database, tmp_path: Path
) -> None:
    items.publish("items", str(tmp_path / "open"))
    # As after a failover to a replica without a commit: the store has neither the row nor a deletion of it.
    handle = items.catalog.table("items")
    row = next(row for row, _ in items.snapshot().scan("items"))
    items.store.one((b"DEL", handle.row_key(row)))
    items.store.one((b"ZREM", handle.tag(row) + b"rows", row))
    items.store.one((b"HSET", items.store.keyspace.oracle, b"floor", items.timestamp()))
    done = items.publish("items", str(tmp_path / "open"))
    assert (done.mode, done.rows) == ("full", 299)
    assert "failover" in done.reason


def test_a_base_below_the_table(items: Database, tmp_path: Path) -> None:
    items.set_base("items", f"file://{tmp_path}/base")
    assert items.flush("items", everything=True).rows == 300
    put(items, item(7, sold=True), item(500))
    done = items.publish("items", str(tmp_path / "open"))
    assert is_as_of(items, done, tmp_path / "open")
    put(items, item(8, sold=True), item(501))
    remove(items, 9, 500)
    done = items.publish("items", str(tmp_path / "open"))
    assert (done.mode, done.rows) == ("incremental", 4)
    assert is_as_of(items, done, tmp_path / "open")


def test_a_commit_that_has_left_locks_is_in_the_version(
    items: Database, connect: Callable[[], Database], tmp_path: Path
) -> None:
    """Its client dies after it has committed the primary, and before the other cells."""
    items.publish("items", str(tmp_path / "open"))
    victim = connect()
    victim.client.one_call_a_tablet = True
    t = victim.begin()
    assert t.start_timestamp
    for number in range(20):
        t.upsert(item(number, sold=True))
    commit = commit_of(t)
    commit.commit_primary(commit.prewrite())
    die(victim)
    done = items.publish("items", str(tmp_path / "open"))
    assert (done.mode, done.rows) == ("incremental", 20)
    assert is_as_of(items, done, tmp_path / "open")
    assert sum(row["sold"] for row in published(tmp_path / "open").to_pylist()) == 20


# Raw tables.


def cells(table: pa.Table) -> list[Any]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def expected_cells(db: Database, at: int) -> list[Any]:
    zero = datetime(1970, 1, 1, tzinfo=UTC)
    return sorted(
        (row, column, zero + timedelta(microseconds=db.history("raw", row, column)[-1].commit_ts), value)
        for row, found in db.snapshot(at).scan("raw")
        for column, value in found.items()
    )


@pytest.mark.parametrize("with_base", [False, True])
def test_a_raw_table_is_published_cell_by_cell(db: Database, tmp_path: Path, with_base: bool) -> None:
    db.create_table("raw", tablets=2)
    with db.transaction() as t:
        for number in range(50):
            t.set("raw", f"row {number}", "a", b"%d" % number)
            t.set("raw", f"row {number}", "ü", b"")
    first = db.publish("raw", str(tmp_path / "open"))
    assert (first.mode, first.rows) == ("full", 100)
    assert cells(published(tmp_path / "open")) == expected_cells(db, first.timestamp)
    times = dict.fromkeys(cells(published(tmp_path / "open")))
    if with_base:
        db.set_base("raw", f"file://{tmp_path}/base")
        assert db.flush("raw", everything=True).rows == 50
        again = db.publish("raw", str(tmp_path / "other"))
        assert dict.fromkeys(cells(published(tmp_path / "other"))) == times
        assert db.publish("raw", str(tmp_path / "open")).mode == "full"
        assert again.rows == 100
    with db.transaction() as t:
        t.delete("raw", "row 3", "a")
        t.set("raw", "row 4", "b", b"new")
        t.delete_row("raw", "row 5")
    done = db.publish("raw", str(tmp_path / "open"))
    assert (done.mode, done.rows) == ("incremental", 4)
    found = {(row, column): value for row, column, _, value in cells(published(tmp_path / "open"))}
    assert found == {
        (row, column): value
        for row, some in db.snapshot(done.timestamp).scan("raw")
        for column, value in some.items()
    }


# Crashes and other publishers.


@contextmanager
def crash_while_reading(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    real = publication._Publication._counted

    def counted(self: Any, batches: Any) -> Any:
        for number, batch in enumerate(real(self, batches)):
            if number == after:
                raise RuntimeError("the process died")
            yield batch
        raise RuntimeError("the process died")

    with monkeypatch.context() as patch:
        patch.setattr(publication._Publication, "_counted", counted)
        with pytest.raises(RuntimeError, match="the process died"):
            yield


@pytest.mark.parametrize("after", [0, 1, 99])
def test_a_publication_that_dies_leaves_the_last_version(
    items: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    folder = tmp_path / "open"
    with crash_while_reading(monkeypatch, after):
        items.publish("items", str(folder))
    first = items.publish("items", str(folder))
    assert is_as_of(items, first, folder)
    put(items, *(item(number, sold=True) for number in range(0, 300, 2)))
    before = published(folder)
    with crash_while_reading(monkeypatch, after):
        items.publish("items", str(folder))
    assert DeltaTable(folder).version() == first.version
    assert rows(published(folder)) == rows(before)
    done = items.publish("items", str(folder))
    assert done.mode == "incremental"
    assert is_as_of(items, done, folder)


PUBLISHER = """
import sys
import percolator_core as percolator
db = percolator.connect(sys.argv[1], sys.argv[2])
print("begun", flush=True)
while True:
    db.publish("items", sys.argv[3])
"""


def test_publishers_that_are_killed(items: Database, url: str, tmp_path: Path) -> None:
    """They are killed while they read, write files, or commit."""
    folder, chance = tmp_path / "open", random.Random(1)
    for round_ in range(8):
        arguments = [sys.executable, "-c", PUBLISHER, url, items.namespace, str(folder)]
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            for _ in range(20):
                put(items, item(chance.randrange(400), sold=round_ % 2 == 0))
            # A random time, so that the kills come at different steps.
            child.wait(chance.random() / 3)
        except subprocess.TimeoutExpired:
            pass
        finally:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()
        if DeltaTable.is_deltatable(str(folder)):
            last = DeltaTable(folder).history(1)[0]["percolator.timestamp"]
            assert rows(published(folder)) == rows(items.snapshot(int(last)).to_arrow(Item))
        assert is_as_of(items, items.publish("items", str(folder)), folder)


def test_old_files_are_removed_after_their_time(items: Database, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    items.publish("items", str(folder))
    orphan = folder / "part-00000-of-a-dead-writer.parquet"
    orphan.write_bytes(b"?")
    os.utime(orphan, (1, 1))
    done = items.publish("items", str(folder), keep=timedelta(days=1))
    assert not orphan.exists()
    assert done.mode == "incremental"
    assert is_as_of(items, done, folder)


def test_of_two_publishers_neither_undoes_the_other(
    items: Database, connect: Callable[[], Database], tmp_path: Path
) -> None:
    folder = tmp_path / "open"
    others = [items, connect()]

    def publish(number: int) -> Published:
        put(items, item(number, sold=True))
        return others[number % 2].publish("items", str(folder))

    with ThreadPoolExecutor(2) as pool:
        done = sorted(pool.map(publish, range(12)), key=lambda one: one.version)
    assert [one.version for one in done] == list(range(12))
    assert [one.timestamp for one in done] == sorted(one.timestamp for one in done)
    assert all(is_as_of(items, one, folder) for one in done)


def test_a_publisher_that_is_always_second_gives_up(
    items: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(self: Any, begun: float) -> Any:
        raise delta.Overtaken

    monkeypatch.setattr(publication._Publication, "run", overtaken)
    monkeypatch.setattr(publication, "_PAUSE", 0)
    with pytest.raises(PercolatorError, match="let one process publish it"):
        items.publish("items", str(tmp_path / "open"))


# Locations, and refusals.


def test_a_version_in_an_object_store(
    items: Database, object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, options = make_bucket("bucket-of-versions", object_store, monkeypatch)
    url = f"s3://bucket-of-versions/{tmp_path.name}"
    items.publish("items", url + options)
    remove(items, 1, 2)
    put(items, item(3, sold=True))
    done = items.publish("items", url + options)
    assert (done.version, done.mode) == (1, "incremental")
    table = DeltaTable(url, storage_options=delta.uri_and_options(url + options)[1])
    files = [parquet.read_table(one.removeprefix("s3://"), filesystem=store) for one in table.file_uris()]
    assert rows(pa.concat_tables(files)) == rows(items.snapshot(done.timestamp).to_arrow(Item))
    with pytest.raises(StoreUnavailable, match=r"cannot .* the published table"):
        items.publish("items", f"s3://no-such-bucket/x{options}")


def test_what_cannot_be_published_is_said(
    items: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownTable):
        items.publish("nothing", str(tmp_path))
    for url in ("file:///", "s3://"):
        with pytest.raises(ConfigurationError, match="use file:///FOLDER"):
            items.publish("items", url)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigurationError, match="pip install deltalake"):
        items.publish("items", str(tmp_path))


def test_progress_counts_rows(items: Database, tmp_path: Path) -> None:
    seen: list[int] = []
    items.publish("items", str(tmp_path / "open"), progress=seen.append)
    assert seen[-1] == 300
    assert seen == sorted(seen)
