"""What the tasks of a read are, and what each brings; without a Spark that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from percolator_core import Database, Hash, Indexed, PrimaryKey, Table, connect
from percolator_core.spark.tables import reading
from percolator_core.spark.tables.options import read_options
from percolator_core.spark.tables.reading import Share
from percolator_core.spark.tables.source import TableSource
from tests.flushing import flush

ROWS = 2000
GROUPS = 200


class Event(Table, name="events", partition=[Hash("number", buckets=4)]):
    number: PrimaryKey[int]
    group: Indexed[int]
    text: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, str]]:
    url = f"embedded:{tmp_path_factory.mktemp('shares')}"
    with connect(url, uuid4().hex) as db:
        db.create_table(Event)
        for first in range(0, ROWS, 200):
            with db.transaction() as t:
                for number in range(first, first + 200):
                    t.upsert(Event(number=number, group=number % GROUPS, text="x" * 10))
        yield db, url


def read(place: tuple[Database, str], **options: str) -> tuple[list[Share], list[pa.RecordBatch]]:
    db, url = place
    source = TableSource({"url": url, "namespace": db.namespace, "table": "events", **options})
    reader = reading.TableReader(read_options(source.options), source.schema())
    shares = [share for share in reader.partitions() if isinstance(share, Share)]
    return shares, [batch for share in shares for batch in reader.read(share)]


def numbers(batches: list[pa.RecordBatch]) -> list[int]:
    return sorted(number for batch in batches for number in batch.column("number").to_pylist())


def test_an_index_finds_rows_with_less_work(place: tuple[Database, str]) -> None:
    shares, found = read(place, filter="group = 7")
    assert [share.by_index for share in shares] == [True]
    assert numbers(found) == list(range(7, ROWS, GROUPS))
    # To all rows an index is no way.
    shares, found = read(place, filter="group >= 0")
    assert not any(share.by_index for share in shares)
    assert len(shares) == 4
    assert numbers(found) == list(range(ROWS))


def test_an_index_is_read_as_of_the_snapshot(place: tuple[Database, str]) -> None:
    db, _ = place
    before = db.timestamp()
    with db.transaction() as t:
        t.update(Event, number=8, group=7)
    try:
        _, found = read(place, filter="group = 7", at=str(before))
        assert numbers(found) == list(range(7, ROWS, GROUPS))
        shares, found = read(place, filter="group = 7")
        assert shares[0].by_index
        assert numbers(found) == sorted([8, *range(7, ROWS, GROUPS)])
    finally:
        with db.transaction() as t:
            t.update(Event, number=8, group=8)


def test_small_batches_are_joined(place: tuple[Database, str], monkeypatch: pytest.MonkeyPatch) -> None:
    shares, found = read(place, partitions="1")
    assert len(shares) == len(found) == 1
    assert found[0].num_rows == ROWS
    monkeypatch.setattr(reading, "_BATCH_ROWS", 100)
    _, found = read(place, partitions="1")
    assert len(found) > 3
    assert numbers(found) == list(range(ROWS))
    monkeypatch.setattr(reading, "_BATCH_ROWS", 10 * ROWS)
    monkeypatch.setattr(reading, "_BATCH_BYTES", 1)
    _, found = read(place, partitions="1")
    assert len(found) > 3
    assert numbers(found) == list(range(ROWS))


@pytest.fixture
def above(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[tuple[Database, str]]:
    """Of the even numbers, the base has all but some that have changed, or were removed, or are new."""
    url = f"embedded:{tmp_path_factory.mktemp('above')}"
    with connect(url, uuid4().hex) as db:
        db.create_table(Event)
        with db.transaction() as t:
            for number in range(0, 4000, 2):
                t.upsert(Event(number=number, group=number % GROUPS, text="cold"))
        for table in ("events", "events(group)"):
            assert flush(db, table, tmp_path) == 2000
        with db.transaction() as t:
            for number in range(0, 40, 2):
                t.update(Event, number=number, text="warm")
                t.remove(Event, number=number + 100)
                t.insert(Event(number=number + 1, group=7, text="hot"))
        yield db, url


@pytest.mark.parametrize("partitions", ["1", "4"])
def test_rows_of_a_base_are_read(
    above: tuple[Database, str], partitions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BATCH_ROWS", 300)
    shares, found = read(above, partitions=partitions)
    assert len(shares) == int(partitions)
    rows = {row["number"]: row["text"] for batch in found for row in batch.to_pylist()}
    gone = set(range(100, 140, 2))
    assert rows == {
        number: "warm" if number < 40 else "cold" for number in range(0, 4000, 2) if number not in gone
    } | dict.fromkeys(range(1, 40, 2), "hot")
    assert max(batch.num_rows for batch in found) <= 300
    _, found = read(above, filter="text = 'warm' or number = 2000 or number = 102", columns="number")
    assert numbers(found) == [*range(0, 40, 2), 2000]
    before = above[0].timestamp()
    with above[0].transaction() as t:
        t.remove(Event, number=2000)
    _, found = read(above, filter="number = 2000", at=str(before))
    assert numbers(found) == [2000]


def test_an_index_that_has_a_base_is_weighed_and_read(above: tuple[Database, str]) -> None:
    db, _ = above
    whole = [(tag, b"", None) for tag in db.catalog.table("events").tags]
    assert sum(db.snapshot().count_rows(whole)) >= 2000
    _, found = read(above, filter="group = 8")
    expected = [number for number in range(0, 4000, 2) if number % GROUPS == 8 and not 100 <= number < 140]
    assert numbers(found) == expected
    plan = db.snapshot().explain(Event, Event.number >= 0)
    assert "index" not in plan
    assert [row.number for row in db.snapshot().select(Event, Event.group == 7)] == sorted(range(1, 40, 2))
