"""Spark's own Parquet reader reads a published version by the list of its files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from percolator_core import Database, Hash, PrimaryKey, Table, connect
from tests.servers.plain import some_namespace

if TYPE_CHECKING:
    from pyspark import SparkContext


class Item(Table, name="items", partition=[Hash("id", buckets=3)]):
    id: PrimaryKey[int]
    name: str | None = None
    price: float = 0.0


def put(db: Database, *numbers: int, price: float) -> None:
    with db.transaction() as t:
        for number in numbers:
            t.upsert(Item(id=number, name=None if number % 3 else f"ü{number}", price=price))


@pytest.mark.spark
def test_spark_reads_what_a_snapshot_reads(spark: SparkContext, url: str, tmp_path: Path) -> None:
    session = SparkSession(spark)
    with connect(url, some_namespace()) as db:
        db.create_table(Item)
        put(db, *range(100), price=1.0)
        done = [db.publish(Item, str(tmp_path))]
        put(db, *range(90, 120), price=2.0)
        with db.transaction() as t:
            t.remove(Item, id=5)
        done.append(db.publish(Item, str(tmp_path)))
        for one in done:
            files = DeltaTable(tmp_path, version=one.version).file_uris()
            found = sorted(tuple(row) for row in session.read.parquet(*files).collect())
            expected = db.snapshot(one.timestamp).to_arrow(Item).sort_by("id").to_pylist()
            assert found == [tuple(row.values()) for row in expected]
