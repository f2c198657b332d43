"""One embedded store for all tests of this folder; each test has a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from percolator_core import connect
from tests.loading.loads import Loading

if TYPE_CHECKING:
    from pyspark import SparkContext


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with connect(url):
        yield url


@pytest.fixture
def loading(spark: SparkContext, url: str, tmp_path: Path) -> Iterator[Loading]:
    with connect(url, uuid4().hex) as db:
        db.create_table("documents", tablets=4, notify_only=["dirty"])
        yield Loading(db, url, tmp_path / "aside", spark)
