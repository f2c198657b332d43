"""OpenTelemetry: spans of the runs of observers, and the metrics of workers, sent by OTLP over HTTP.

`settings` says if it is on, `identity` derives the ids of spans, `spans` makes them, `export` sends them from
a thread of its own, and `metrics` sends metrics. OpenTelemetry is imported only if it is on.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from percolator_core.telemetry.settings import is_on

__all__ = ["flush", "is_on", "push", "spans_of"]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from prometheus_client.metrics_core import Metric

    from percolator_core.observers import Chain
    from percolator_core.telemetry.spans import Spans
    from percolator_core.transaction.client import Client


def spans_of(client: Client, chain: Chain) -> Spans | None:
    """Return the maker of spans for a worker of the chain, or None if telemetry is off.

    Raises ConfigurationError as `percolator_core.telemetry.settings.is_on`.
    """
    if not is_on("traces"):
        return None
    from percolator_core.telemetry.spans import Spans

    return Spans(client, chain)


def push(families: Callable[[], Iterable[Metric]]) -> AbstractContextManager[object]:
    """Return a context manager that sends metrics at regular intervals, for ``is_on("metrics")``.

    Raises ConfigurationError if ``OTEL_METRIC_EXPORT_INTERVAL`` is no number above 0.
    """
    from percolator_core.telemetry.metrics import Push

    return Push(families)


def flush() -> None:
    """Send the spans that have ended, within a second. Does nothing if telemetry is off."""
    export = sys.modules.get("percolator_core.telemetry.export")
    if export is not None:
        export.flush()
