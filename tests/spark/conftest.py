"""One Spark and one embedded store for all tests of this folder; each test has a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from percolator_core import Database, connect
from percolator_core.spark import LoadReport, Source, load, spark_context

if TYPE_CHECKING:
    from pyspark import SparkContext


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkContext]:
    folder = tmp_path_factory.mktemp("spark")
    context = spark_context("tests", "local[2,4]", project=folder, log=folder / "spark.log")
    yield context
    context.stop()


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with connect(url):
        yield url


@dataclass
class Loading:
    """Loads into the table ``documents`` of one namespace."""

    db: Database
    url: str
    aside: Path
    context: SparkContext

    def __call__(self, source: Source, **arguments: Any) -> LoadReport:
        defaults: dict[str, Any] = {"context": self.context, "aside": self.aside}
        return load(self.url, self.db.namespace, "documents", source, **defaults | arguments)

    def rows(self) -> dict[bytes, dict[str, bytes]]:
        return dict(self.db.snapshot().scan("documents"))

    def versions(self) -> dict[tuple[bytes, str], list[int]]:
        """The commit timestamps of every cell."""
        cells = [(row, column) for row, columns in self.rows().items() for column in columns]
        with self.db.concurrency() as executor:
            histories = executor.map(lambda cell: self.db.history("documents", *cell), cells)
            return {
                cell: [version.commit_ts for version in history]
                for cell, history in zip(cells, histories, strict=True)
            }


@pytest.fixture
def loading(spark: SparkContext, url: str, tmp_path: Path) -> Iterator[Loading]:
    with connect(url, uuid4().hex) as db:
        db.create_table("documents", tablets=4, notify_only=["dirty"])
        yield Loading(db, url, tmp_path / "aside", spark)
