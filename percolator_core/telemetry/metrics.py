"""Sends families of Prometheus metrics by OTLP, with their names and values, at regular intervals.

A name is that of the sample in the text for Prometheus: a counter ends in ``_total``, an info in ``_info``.
All sums and histograms are cumulative. The interval is ``OTEL_METRIC_EXPORT_INTERVAL`` (ms, by default
60,000).
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Self

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from percolator_core.errors import ConfigurationError
from percolator_core.runtime.log import Log
from percolator_core.telemetry.export import FLUSH, VERSION, relay_messages, resource

_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE

log = Log("percolator.telemetry")


class Push:
    """Sends the metrics from a thread of its own. A context manager; its end sends them once more.

    Args:
        families: returns the current metrics; the thread calls it, also while the last call has failed.

    Raises:
        ConfigurationError: the interval is no number of milliseconds above 0.
    """

    def __init__(self, families: Callable[[], Iterable[Family]]) -> None:
        self._families = families
        self._seconds = _interval()
        relay_messages()
        self._exporter = OTLPMetricExporter()
        self._resource = resource()
        self._since = time.time_ns()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send_often, name="percolator-metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send the last metrics. A collector that does not answer delays the end by a second at most."""
        self._over.set()
        self._thread.join(FLUSH)

    def _send_often(self) -> None:
        while True:
            over = self._over.wait(self._seconds)
            try:
                self._exporter.export(self._data())
            except Exception:
                log.exception("the metrics could not be sent")
            if over:
                return

    def _data(self) -> MetricsData:
        now = time.time_ns()
        metrics = [metric for one in self._families() for metric in converted(one, self._since, now)]
        scope = InstrumentationScope("percolator_core", VERSION)
        return MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(scope, metrics, "")], "")])


def converted(family: Family, since: int, now: int) -> list[Metric]:
    """Convert a family; the times are in nanoseconds. A family of an unknown type becomes gauges.

    A family without samples has no metric.
    """
    if family.type == "histogram":
        histograms = _histograms(family, since, now)
        return [_metric(family, family.name, Histogram(histograms, _CUMULATIVE))] if histograms else []
    named: dict[str, list[NumberDataPoint]] = defaultdict(list)
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            named[sample.name].append(NumberDataPoint(sample.labels, since, now, float(sample.value)))
    if family.type == "counter":
        return [_metric(family, name, Sum(points, _CUMULATIVE, True)) for name, points in named.items()]
    return [_metric(family, name, Gauge(points)) for name, points in named.items()]


def _metric(family: Family, name: str, data: Sum | Gauge | Histogram) -> Metric:
    return Metric(name, family.documentation, family.unit, data)


def _histograms(family: Family, since: int, now: int) -> list[HistogramDataPoint]:
    by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = defaultdict(list)
    for sample in family.samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        by_labels[labels].append(sample)
    return [_histogram(family.name, dict(labels), some, since, now) for labels, some in by_labels.items()]


def _histogram(
    name: str, labels: dict[str, str], samples: Sequence[Sample], since: int, now: int
) -> HistogramDataPoint:
    # The buckets of Prometheus are cumulative, and those of OTLP are not.
    buckets = [(one.labels["le"], int(one.value)) for one in samples if one.name == f"{name}_bucket"]
    counts = [0, *(count for _, count in buckets)]
    each: list[Any] = [more - less for less, more in pairwise(counts)]
    bounds = [float(bound) for bound, _ in buckets[:-1]]
    [seconds] = [one.value for one in samples if one.name == f"{name}_sum"]
    unknown: Any = None  # the least and the greatest value, which the protocol may leave out
    return HistogramDataPoint(labels, since, now, counts[-1], seconds, each, bounds, unknown, unknown)


def _interval() -> float:
    text = os.environ.get(_INTERVAL, "").strip() or "60000"
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = 0.0
    if not 0 < milliseconds < float("inf"):
        raise ConfigurationError(f"{_INTERVAL} is {text!r}: set it to a number of milliseconds above 0")
    return milliseconds / 1000
