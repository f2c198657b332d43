"""The program of docs/how-to/kafka.md for Spark, on a stream of files with Kafka's columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession

from percolator_core import PrimaryKey, Table, connect
from tests.site.pages import blocks

if TYPE_CHECKING:
    from pyspark import SparkContext


class Thing(Table, name="things"):
    id: PrimaryKey[int]
    name: str | None = None


@pytest.mark.spark
def test_a_stream_of_records_becomes_rows(spark: SparkContext, tmp_path: Path) -> None:
    session = SparkSession(spark)
    names: dict[str, Any] = {}
    exec([block.text for block in blocks("how-to/kafka.md") if block.language == "python"][2], names)
    (tmp_path / "records").mkdir()
    url = f"embedded:{tmp_path / 'store'}"

    def pour(number: int, *records: tuple[str, str | None]) -> None:
        lines = [
            json.dumps({"key": key, "value": value, "partition": 0, "offset": offset})
            for offset, (key, value) in enumerate(records, 10 * number)
        ]
        (tmp_path / "records" / f"{number}.json").write_text("\n".join(lines))
        schema = "key string, value string, partition int, offset long"
        stream = session.readStream.schema(schema).json(str(tmp_path / "records"))
        query = names["pour"](stream, url, str(tmp_path / "checkpoint"))
        query.awaitTermination()

    def value(number: int, name: str) -> str:
        return json.dumps({"id": number, "name": name})

    with connect(url, "shop") as db:
        db.create_table(Thing)
        pour(0, ("1", value(1, "old")), ("2", value(2, "two")), ("1", value(1, "one")), ("3", None))
        assert [(one.id, one.name) for one in db.snapshot().select(Thing)] == [(1, "one"), (2, "two")]
        pour(1, ("2", value(2, "three")), ("1", None), ("4", value(4, "four")), ("4", None))
        assert [(one.id, one.name) for one in db.snapshot().select(Thing)] == [(2, "three")]
