"""Metrics by OTLP have the names and the values of the text for Prometheus."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from percolator_core import ConfigurationError, Worker, telemetry
from percolator_core.monitoring.exposition import Exposition
from percolator_core.monitoring.probe import Probe
from percolator_core.runtime.histogram import BOUNDS, Histogram
from tests.chains import chain_of, put, watch
from tests.monitoring.conftest import State
from tests.servers.plain import PATIENCE, until
from tests.telemetry.collector import plain
from tests.worker.conftest import ROOT, Project

if TYPE_CHECKING:
    from collections.abc import Callable

    from percolator_core import Database
    from tests.telemetry.collector import Collector

Key = tuple[str, tuple[tuple[str, str], ...]]


def received(collector: Collector) -> dict[Key, Any]:
    """The points of the last request, by the name of the metric and its labels."""
    found: dict[Key, Any] = {}
    for of_resource in collector.metrics[-1].resource_metrics:
        for scope in of_resource.scope_metrics:
            for metric in scope.metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                for point in data.data_points:
                    key = metric.name, tuple(sorted(plain(point.attributes).items()))
                    assert key not in found
                    found[key] = point
                if metric.WhichOneof("data") == "sum":
                    assert data.is_monotonic
                if metric.WhichOneof("data") != "gauge":
                    assert data.aggregation_temporality == 2  # cumulative
    return found


def exposed(exposition: Exposition) -> dict[Key, float]:
    body, _ = exposition.text("")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_every_sample_of_the_text_is_sent_with_its_value(
    db: Database, connect: Callable[[], Database], on: Collector
) -> None:
    chain = chain_of(
        watch("count", lambda t, cell: None, "docs.text"), watch("idle", lambda t, cell: None, "sums.n")
    )
    chain.create_tables(db)
    put(db, "a", b"x")
    took = Histogram()
    for seconds in (0.0005, 0.3, 1000.0):
        took.add(seconds)
    counts = Worker(db, chain).run_until_idle(PATIENCE)
    probe = Probe(connect, chain)
    exposition = Exposition(State(chain, counts, times={"count": took}).subject(), probe)
    text = exposed(exposition)
    with telemetry.push(exposition.families):
        until(lambda: on.metrics)
    probe.close()
    sent = received(on)
    checked = 0
    for (name, labels), value in text.items():
        if name.startswith("process_"):
            assert (name, labels) in sent  # such as the CPU time, which goes on
            continue
        if name.startswith("percolator_run_seconds_"):
            continue
        point = sent[name, labels]
        assert point.as_double == value, name
        assert point.start_time_unix_nano <= point.time_unix_nano
        checked += 1
    assert checked > 40
    [times] = [point for (name, _), point in sent.items() if name == "percolator_run_seconds"]
    assert plain(times.attributes) == {"namespace": "here", "observer": "count"}
    assert list(times.explicit_bounds) == list(BOUNDS)
    assert list(times.bucket_counts) == took.counts
    assert (times.count, times.sum) == (3, took.seconds)
    assert not times.HasField("min")
    names = {name for name, _ in text} | {"percolator_run_seconds"}
    assert {name for name, _ in sent} <= names, "OTLP has a metric that the text lacks"


def test_a_command_sends_without_a_port(project: Project, collector: Collector) -> None:
    project.write("def count(t, cell):\n    pass\n", "  docs: {tablets: 4}\n", count="observe: docs.text")
    with (project.folder / "stderr").open("wb") as errors:
        command = subprocess.Popen(
            [sys.executable, "-m", "percolator_core", "worker", "chain", "--url", project.url,
             "--namespace", project.namespace],
            cwd=project.folder,
            env={**os.environ, **collector.variables(OTEL_SERVICE_NAME="mine"), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )  # fmt: skip
    project.processes.append(command)
    until(lambda: collector.metrics)
    with project.connect() as db:
        project.chain().create_tables(db)
        put(db, "a", b"x")

    def runs() -> float:
        found = received(collector).items()
        return sum(float(point.as_double) for (name, _), point in found if name == "percolator_runs_total")

    until(lambda: runs() == 1)
    command.send_signal(signal.SIGTERM)
    assert command.wait(PATIENCE) == 0
    [of_resource] = collector.metrics[-1].resource_metrics
    assert plain(of_resource.resource.attributes)["service.name"] == "mine"


def test_a_collector_that_never_answers_does_not_hold_up_the_end(
    on: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100000")  # longer than this test may take
    on.hold = True
    with telemetry.push(list):
        until(lambda: on.paths)


def test_a_collector_that_is_away_and_comes_back(on: Collector) -> None:
    on.status = 400
    with telemetry.push(list):
        until(lambda: len(on.paths) > 1)
        on.status = 200
        until(lambda: on.metrics)


def test_an_error_of_one_reading_does_not_end_the_thread(on: Collector) -> None:
    readings = iter(range(99))

    def failing_once() -> list[Any]:
        if next(readings) == 0:
            raise ValueError("once")
        return []

    with telemetry.push(failing_once):
        until(lambda: on.metrics)


@pytest.mark.parametrize("interval", ["0", "-1", "often", "inf", "nan"])
def test_an_interval_that_cannot_work(on: Collector, monkeypatch: pytest.MonkeyPatch, interval: str) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", interval)
    with pytest.raises(ConfigurationError, match="a number of milliseconds above 0"):
        telemetry.push(list)
