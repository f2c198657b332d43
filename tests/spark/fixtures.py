"""One Spark for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark import SparkContext


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkContext]:
    from percolator_core.spark import spark_context

    folder = tmp_path_factory.mktemp("spark")
    context = spark_context("tests", "local[2,4]", project=folder, log=folder / "spark.log")
    yield context
    context.stop()
