"""The metrics for Prometheus: the counts of a worker, and the status of its chain in the store.

docs/reference/metrics.md documents the names; a test compares both.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

import percolator_core
from percolator_core.admin.bases import BaseStatus
from percolator_core.admin.status import ObserverStatus, Status, TableStatus
from percolator_core.monitoring.health import Subject
from percolator_core.monitoring.probe import Probe

COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "ran": ("percolator_runs", "Runs of observers that committed."),
    "collapsed": ("percolator_collapsed", "Notifications that an earlier run had covered."),
    "conflicts": ("percolator_conflicts", "Runs that lost against another transaction and ran again."),
    "failed": ("percolator_failures", "Runs that raised."),
    "quarantined": ("percolator_quarantined", "Cells put in quarantine."),
    "round_trips": ("percolator_round_trips", "Round trips to the store for which runs waited."),
    "requests": ("percolator_read_requests", "Requests to the store with reads of cells by name."),
    "operations": ("percolator_reads", "Cells that runs read by name."),
    "sent": ("percolator_reads_sent", "Commands to the store for reads of cells by name."),
    "cached": ("percolator_reads_cached", "Reads answered because the run had read the cell before."),
    "served": ("percolator_reads_prefetched", "Reads answered because the cell was prefetched."),
    "prefetched": ("percolator_prefetched_cells", "Prefetched cells, whether or not a run read them."),
    "scans": ("percolator_scan_steps", "Steps of scans, each one command to one tablet."),
    "scanned": ("percolator_scanned_cells", "Cells that scans returned."),
}
"""Name (without ``_total``) and text of each counter, by field of `percolator_core.worker.ObserverCounts`."""

BACKLOG: Final[dict[str, tuple[str, Callable[[ObserverStatus], float]]]] = {
    "percolator_backlog_cells": ("Dirty cells, also those of runs under way.", lambda one: one.backlog),
    "percolator_waiting_cells": (
        "Dirty cells that a run is processing, or that wait for a retry.",
        lambda one: one.waiting,
    ),
    "percolator_oldest_cell_age_seconds": (
        "Seconds for which the oldest due cell has been due; 0 if no cell is due.",
        lambda one: one.oldest or 0.0,
    ),
    "percolator_quarantine_cells": ("Cells in quarantine now.", lambda one: one.failed),
    "percolator_observer_active": ("1 if writers leave marks for the observer.", lambda one: one.active),
}
TABLES: Final[dict[str, tuple[str, Callable[[TableStatus], float]]]] = {
    "percolator_table_rows": (
        "Rows in the store, also deleted ones that are not collected yet; not rows that only the base has.",
        lambda one: one.rows,
    ),
    "percolator_table_locks": ("Locks of transactions that are committing.", lambda one: one.locks),
}
BASE_UP: Final[dict[str, tuple[str, Callable[[BaseStatus], float]]]] = {
    "percolator_base_up": ("1 if the manifests of the base can be read.", lambda one: not one.error),
}
BASES: Final[dict[str, tuple[str, Callable[[BaseStatus], float]]]] = {
    "percolator_base_rows": ("Rows of a typed table in its base; cells of a raw one.", lambda one: one.rows),
    "percolator_base_bytes": ("Size of the row sets of the base.", lambda one: one.bytes),
    "percolator_base_height": (
        "The largest number of row sets in which one key is searched.",
        lambda one: one.height,
    ),
}


class Exposition:
    """The metrics of one subject as text."""

    def __init__(self, subject: Subject, probe: Probe) -> None:
        self._subject = subject
        self._probe = probe
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the current metrics and their content type, which depends on the header ``accept``."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def families(self) -> Iterable[Metric]:
        """Return the current metrics, those of the process included."""
        return self._registry.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield all families; prometheus_client calls it."""
        yield from self._about_itself()
        yield from self._counters()
        yield self._times()
        yield from self._of_the_store()

    def describe(self) -> list[Metric]:
        """Return an empty list: a list of the families would need a read of the store."""
        return []

    def _about_itself(self) -> Iterator[Metric]:
        subject = self._subject
        yield InfoMetricFamily(
            "percolator_build",
            "The version, and the chain of the worker.",
            {
                "version": percolator_core.__version__,
                "python": platform.python_version(),
                "namespace": subject.namespace,
                "chain": subject.chain.name,
                "digest": subject.chain.digest,
            },
        )
        for name, text, value in (
            ("percolator_processes", "Worker processes of this command.", subject.processes()),
            ("percolator_stalled_seconds", "Seconds since the last turn of the loop.", subject.stalled()),
        ):
            yield _gauge(name, text, subject, value)
        replaced = CounterMetricFamily(
            "percolator_replaced_processes", "Processes that ended and were replaced.", labels=["namespace"]
        )
        replaced.add_metric([subject.namespace], subject.replaced())
        yield replaced

    def _counters(self) -> Iterator[Metric]:
        counts = self._subject.counts()
        for field, (name, text) in COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=["namespace", "observer"])
            for observer in sorted(self._subject.chain.observers):
                # Each counter exists before the first run. If a counter first appeared as 1, Prometheus would
                # not see an increase.
                one = counts.observers.get(observer)
                number = getattr(one, field) if one is not None else 0
                family.add_metric([self._subject.namespace, observer], number)
            yield family

    def _times(self) -> Metric:
        family = HistogramMetricFamily(
            "percolator_run_seconds", "Duration of runs, with their commit.", labels=["namespace", "observer"]
        )
        for observer, times in sorted(self._subject.times().items()):
            family.add_metric([self._subject.namespace, observer], times.cumulative(), times.seconds)
        return family

    def _of_the_store(self) -> Iterator[Metric]:
        subject, result = self._subject, self._probe.latest()
        status = result.status
        yield _gauge("percolator_store_up", "1 if the store answers.", subject, status is not None)
        yield _gauge(
            "percolator_store_evicts", "1 if a server evicts or has evicted keys.", subject, result.evicts
        )
        if status is None:
            return
        yield _gauge("percolator_workers", "Live workers of the namespace.", subject, len(status.workers))
        yield _gauge(
            "percolator_store_memory_bytes", "Memory of the servers' data.", subject, status.store.memory
        )
        yield _gauge(
            "percolator_store_memory_limit_bytes",
            "Limit of the memory of the servers' data; 0 without a limit.",
            subject,
            status.store.memory_limit,
        )
        yield from _families(subject.namespace, status)


def _gauge(name: str, text: str, subject: Subject, value: float) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["namespace"])
    family.add_metric([subject.namespace], value)
    return family


def _families(namespace: str, status: Status) -> Iterator[Metric]:
    bases = [(table.name, table.base) for table in status.tables if table.base is not None]
    groups: list[tuple[str, dict[str, Any], Sequence[tuple[str, Any]]]] = [
        ("observer", BACKLOG, [(one.name, one) for one in status.observers]),
        ("table", TABLES, [(one.name, one) for one in status.tables]),
        ("table", BASE_UP, bases),
        ("table", BASES, [(name, base) for name, base in bases if not base.error]),
    ]
    for label, metrics, found in groups:
        for name, (text, value) in metrics.items():
            family = GaugeMetricFamily(name, text, labels=["namespace", label])
            for of, one in found:
                family.add_metric([namespace, of], value(one))
            yield family
