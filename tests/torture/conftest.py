"""A server and databases for histories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import percolator_core as percolator
from tests.servers.plain import Server, binaries, some_namespace

BINARIES = binaries()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A plain server, the newest there is."""
    if not BINARIES:
        pytest.skip("NOT TESTED: no redis-server on this machine")
    server = Server(next(iter(BINARIES.values())))
    yield server
    server.close()


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., percolator.Database]]:
    """Connects to one fresh namespace; what it made is closed in the end."""
    namespace = some_namespace()
    made: list[percolator.Database] = []

    def make(**settings: Any) -> percolator.Database:
        made.append(percolator.connect(server.unix, namespace, **settings))
        return made[-1]

    yield make
    for db in made:
        db.close()


@pytest.fixture
def db(connect: Callable[..., percolator.Database]) -> percolator.Database:
    """A database with a table ``t`` of 16 tablets."""
    db = connect()
    db.create_table("t")
    return db


@pytest.fixture(params=[False, True], ids=["one-call", "two-phase"])
def two_phase(request: pytest.FixtureRequest) -> bool:
    """Whether a script covers a single tablet only, as on a cluster, so that commits have two phases."""
    found: bool = request.param
    return found
