"""A store for each file of tests, and a namespace for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
def connect(url: str) -> Iterator[Callable[[], Database]]:
    """Connects to one fresh namespace, once for each call; all is closed in the end."""
    namespace = some_namespace()
    made: list[Database] = []

    def make() -> Database:
        made.append(percolator_core.connect(url, namespace))
        return made[-1]

    yield make
    for db in made:
        db.close()


@pytest.fixture
def db(connect: Callable[[], Database]) -> Database:
    return connect()
