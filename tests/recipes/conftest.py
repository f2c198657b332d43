"""A store for each file of tests, and a namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import percolator_core
from percolator_core import Database
from tests.servers.plain import some_namespace


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = f"embedded:{tmp_path_factory.mktemp('store')}"
    with percolator_core.connect(made, "keeper"):
        yield made


@pytest.fixture
def namespace() -> str:
    return some_namespace()


@pytest.fixture
def db(url: str, namespace: str) -> Iterator[Database]:
    with percolator_core.connect(url, namespace) as database:
        yield database
