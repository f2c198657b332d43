"""A database, and a subject that is monitored without a worker behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

import percolator_core
from percolator_core import Chain, Database
from percolator_core.monitoring import Subject
from percolator_core.monitoring.probe import Probe
from percolator_core.runtime.histogram import Histogram
from percolator_core.worker import Counts


@pytest.fixture(scope="session")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store for all tests that use a namespace of their own in it."""
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with percolator_core.connect(url, "keeper"):
        yield url


@pytest.fixture
def opened(store_url: str) -> Callable[[], Database]:
    """Opens one more connection to the test's namespace."""
    namespace = uuid4().hex
    return lambda: percolator_core.connect(store_url, namespace)


@pytest.fixture
def probe_of(opened: Callable[[], Database]) -> Iterator[Callable[[Chain], Probe]]:
    """Probe at the test's namespace; the last connection to a store stops it, so all are closed."""
    made: list[Probe] = []

    def make(chain: Chain) -> Probe:
        made.append(Probe(opened, chain))
        return made[-1]

    yield make
    for probe in made:
        probe.close()


@pytest.fixture
def db(opened: Callable[[], Database]) -> Iterator[Database]:
    with opened() as database:
        yield database


@dataclass
class State:
    """What the subject of a test says of itself."""

    chain: Chain
    counts: Counts = field(default_factory=Counts)
    begun: bool = True
    stalled: float = 0.0
    stopping: bool = False
    times: dict[str, Histogram] = field(default_factory=dict)

    def subject(self) -> Subject:
        return Subject(
            self.chain,
            "here",
            counts=lambda: self.counts,
            begun=lambda: self.begun,
            stalled=lambda: self.stalled,
            stopping=lambda: self.stopping,
            times=lambda: self.times,
        )
