"""The provider of spans of this process. A thread of its own sends them in batches.

No run waits for the collector: a span that has ended goes into a queue with a limit. While the collector does
not answer, the queue drops spans. The variables ``OTEL_BSP_…`` set the limits.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags

from percolator_core.runtime import process
from percolator_core.runtime.log import Log
from percolator_core.telemetry.identity import SpanId

VERSION: Final = metadata.version("percolator-core")

FLUSH: Final = 1.0
"""Seconds for which the end of a worker waits until the last spans are sent."""

_LOG_PAUSE: Final = 60.0
"""The same problem is logged again after this many seconds."""

log = Log("percolator.telemetry")


def resource() -> Resource:
    """Return the description of this process; ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win."""
    return Resource.create(
        {"service.name": "percolator", "service.version": VERSION}
        | dict(OTELResourceDetector().detect().attributes)
    )


class _Relay(logging.Handler):
    """Passes the messages of OpenTelemetry to the library's log, which may have to be JSON."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            log.warning_once_in(_LOG_PAUSE, "telemetry is incomplete", problem=record.getMessage())


def relay_messages() -> None:
    """Log what OpenTelemetry reports, such as a collector that does not answer. Idempotent."""
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Relay) for handler in logger.handlers):
        logger.addHandler(_Relay())


class _Exporter(SpanExporter):
    """Knows if its last export succeeded: only then is it worth waiting for the next."""

    def __init__(self) -> None:
        self._exporter = OTLPSpanExporter()
        self.answers = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        self.answers = result is SpanExportResult.SUCCESS
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _Ids(RandomIdGenerator):
    """Random ids, except in a thread that has chosen the ids of the next span."""

    def __init__(self) -> None:
        self.chosen = threading.local()

    def generate_trace_id(self) -> int:
        chosen: SpanId | None = getattr(self.chosen, "id", None)
        return super().generate_trace_id() if chosen is None else chosen.trace

    def generate_span_id(self) -> int:
        chosen: SpanId | None = getattr(self.chosen, "id", None)
        return super().generate_span_id() if chosen is None else chosen.span


class Export:
    """Starts spans and sends them. Use `export_of_process`."""

    def __init__(self) -> None:
        relay_messages()
        self._ids = _Ids()
        # The provider's own shutdown could wait for half a minute.
        self._provider = TracerProvider(id_generator=self._ids, resource=resource(), shutdown_on_exit=False)
        self._exporter = _Exporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("percolator_core", VERSION)
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            # Spans that an observer makes with `opentelemetry.trace.get_tracer` become parts of its run.
            trace.set_tracer_provider(self._provider)

    def root(self, name: str, own: SpanId, **settings: Any) -> Span:
        """Start a span with these ids and without a parent."""
        self._ids.chosen.id = own
        try:
            return self._tracer.start_span(name, Context(), **settings)
        finally:
            self._ids.chosen.id = None

    def child(self, name: str, parent: SpanId | None, **settings: Any) -> Span:
        """Start a span with this parent, which another process may send; None begins a new trace."""
        context = Context()
        if parent is not None:
            context = trace.set_span_in_context(NonRecordingSpan(self.context_of(parent)), context)
        return self._tracer.start_span(name, context, **settings)

    def context_of(self, of: SpanId) -> SpanContext:
        """Return the context of a derived span, as if it had been received.

        Every process samples a trace by its id, so all of them decide alike.
        """
        decision = self._provider.sampler.should_sample(Context(), of.trace, "").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
        return SpanContext(of.trace, of.span, is_remote=True, trace_flags=flags)

    def flush(self) -> None:
        """Send the spans that have ended. Wait at most `FLUSH` seconds, and not for a silent collector."""
        if not self._exporter.answers:
            return
        # The provider has no limit of its own for the time of a flush.
        sending = threading.Thread(target=self._provider.force_flush, name="percolator-flush", daemon=True)
        try:
            sending.start()
        except RuntimeError:
            return  # the interpreter ends, and Python from 3.12 on starts no thread then
        sending.join(FLUSH)
        if sending.is_alive():
            self._exporter.answers = False


_exports: dict[int, Export] = {}
_making = process.Lock()


def export_of_process() -> Export:
    """Return the export of this process. A forked child gets its own: threads and sockets are not shared."""
    with _making:
        found = _exports.get(process.pid)
        if found is None:
            _exports.clear()
            found = _exports[process.pid] = Export()
            atexit.register(found.flush)
        return found


def flush() -> None:
    """Send the spans of this process, as `Export.flush`, if it has any."""
    found = _exports.get(process.pid)
    if found is not None:
        found.flush()
