"""A collector, telemetry that sends to it, and the databases and projects of the tests of workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from percolator_core.telemetry import export
from tests.telemetry.collector import Collector
from tests.worker.conftest import connect, db, namespace, project, store_url

__all__ = ["connect", "db", "namespace", "project", "store_url"]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture
def on(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Telemetry of this process goes to the collector."""
    for name, value in collector.variables().items():
        monkeypatch.setenv(name, value)
    export._exports.clear()
    yield collector
    export._exports.clear()
