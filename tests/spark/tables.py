"""The table that the tests of the data source read and write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import pyarrow as pa
from pydantic import Field

from percolator_core import Database, Hash, PrimaryKey, Table
from percolator_core.spark.tables.fields import spark_schema
from percolator_core.spark.tables.options import write_options
from percolator_core.spark.tables.writing import WriteJob, begin_write, write_rows
from percolator_core.tables.arrow import arrow_schema
from percolator_core.tables.model import definition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Document(Table, name="documents", partition=[Hash("url", buckets=4)]):
    url: PrimaryKey[str]
    size: int = 0
    rank: float = 0.0
    text: str | None = None
    price: Annotated[Decimal, Field(max_digits=10, decimal_places=2)] = Decimal(0)
    at: datetime | None = None
    ref: UUID | None = None
    tags: list[str] = Field(default=[])


DEFINITION = definition_of(Document)


@dataclass
class Tables:
    """One namespace with the table ``documents``."""

    db: Database
    url: str

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.url, "namespace": self.db.namespace, "table": "documents"}

    def read(self, spark: SparkSession, **options: Any) -> DataFrame:
        return spark.read.format("percolator").options(**self.options, **options).load()

    def write(self, frame: DataFrame, **options: Any) -> None:
        frame.write.format("percolator").options(**self.options, **options).mode("append").save()

    def insert(self, *rows: Document) -> int:
        with self.db.transaction() as t:
            for row in rows:
                t.insert(row)
        assert t.commit_timestamp is not None
        return t.commit_timestamp

    def update(self, *rows: Document) -> int:
        with self.db.transaction() as t:
            for row in rows:
                t.update(row)
        assert t.commit_timestamp is not None
        return t.commit_timestamp

    def remove(self, *urls: str) -> None:
        with self.db.transaction() as t:
            for url in urls:
                t.remove(Document, url=url)

    def sizes(self) -> dict[str, int]:
        return {row.url: row.size for row in self.db.snapshot().select(Document)}

    def end_leases(self) -> None:
        """As if nothing of Spark's had stirred for long: it kills processes, whose tokens outlive them."""
        store = self.db.store
        for pin in store.one((b"ZRANGE", store.keyspace.pins, 0, -1)):
            owner = pin.partition(b":")[0]
            if owner != self.db.client.owner():
                store.one((b"DEL", self.db.client.token_of(owner)))

    def job(self, *columns: str, **options: str) -> WriteJob:
        schema = spark_schema(DEFINITION.by_name[name] for name in columns or DEFINITION.by_name)
        return begin_write(write_options({**self.options, **options}), schema)

    def run(self, job: WriteJob, rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
        """What one task does."""
        return dict(write_rows(job, batches(rows)).counts)


def batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    given = list(rows)
    schema = arrow_schema(DEFINITION.by_name[name] for name in given[0])
    for start in range(0, len(given), 100):
        yield pa.RecordBatch.from_pylist([dict(row) for row in given[start : start + 100]], schema=schema)


def whole(url: str, size: int = 0, **others: Any) -> dict[str, Any]:
    plain = {"rank": 0.0, "text": None, "price": Decimal(0), "at": None, "ref": None, "tags": "[]"}
    return {"url": url, "size": size, **plain, **others}
