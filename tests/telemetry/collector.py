"""A collector on loopback that keeps what it gets by OTLP over HTTP."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Event:
    name: str
    attributes: dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """A span as the collector got it."""

    name: str
    trace: bytes
    span: bytes
    parent: bytes
    links: tuple[tuple[bytes, bytes], ...]
    attributes: dict[str, Any]
    events: tuple[Event, ...]
    failed: bool
    message: str
    start: int
    end: int
    resource: dict[str, Any]

    @property
    def identity(self) -> tuple[bytes, bytes]:
        return self.trace, self.span

    @property
    def outcome(self) -> str | None:
        return self.attributes.get("percolator.outcome")


class Collector:
    """``status`` is the code of each answer. While ``hold`` is set, no request is answered."""

    def __init__(self) -> None:
        self.spans: list[Sent] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200
        self.hold = False
        self._released = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
                if collector.hold:
                    collector._released.wait()
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a process that sends to this collector."""
        return {
            "PERCOLATOR_OTEL": "on",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
            "NO_PROXY": "127.0.0.1",
            **more,
        }

    def take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        if self.status != 200:
            return
        if path == "/v1/metrics":
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
            return
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = plain(of_resource.resource.attributes)
            for scope in of_resource.scope_spans:
                self.spans += [sent(span, resource) for span in scope.spans]

    def close(self) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What it got.

    def runs(self, observer: str | None = None) -> list[Sent]:
        """The spans of runs, in the order of their ends."""
        found = [one for one in self.spans if one.outcome is not None]
        return sorted((one for one in found if observer in {None, one.name}), key=lambda one: one.end)

    def named(self, name: str) -> list[Sent]:
        return [one for one in self.spans if one.name == name]

    def parts(self) -> list[set[tuple[bytes, bytes]]]:
        """The spans, as sets of ids that parents and links connect."""
        group: dict[tuple[bytes, bytes], set[tuple[bytes, bytes]]] = {}
        for one in self.spans:
            ends = [one.identity, *one.links, *([(one.trace, one.parent)] if one.parent else [])]
            joined = set(ends).union(*(group.get(end, set()) for end in ends))
            for end in joined:
                group[end] = joined
        return [set(one) for one in {frozenset(one) for one in group.values()}]


def sent(span: Any, resource: dict[str, Any]) -> Sent:
    return Sent(
        span.name,
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        tuple((link.trace_id, link.span_id) for link in span.links),
        plain(span.attributes),
        tuple(Event(one.name, plain(one.attributes)) for one in span.events),
        span.status.code == 2,
        span.status.message,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        resource,
    )


def plain(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
