"""The HTTP server. It has few threads, handles short requests, and does not depend on the worker.

The server has no password and no TLS: each client that reaches the port gets an answer. So it listens on the
loopback address only, unless the address names another host.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final, NamedTuple, Self

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.monitoring.exposition import Exposition
from percolator_core.monitoring.health import Health, Subject, liveness, readiness
from percolator_core.monitoring.probe import Probe
from percolator_core.runtime.log import Log

LOCAL: Final = "127.0.0.1"
"""The default host."""

AT_A_TIME: Final = 8
"""The number of requests that are answered at the same time; further requests are refused."""

REQUEST_TIME: Final = 5.0
"""Seconds that a client may take for each part of its request."""

_TICK: Final = 0.1
"""Seconds between two checks whether the server has to stop."""

log = Log("percolator.worker")


class Address(NamedTuple):
    """The address of the server. Port 0 means any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse ``PORT``, ``HOST:PORT`` or ``[IPV6]:PORT``. Raises ValueError with a message for the user."""
        host, separator, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if (separator and not host) or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            raise ValueError(
                f"{text!r} is no address to listen on: write PORT or HOST:PORT, with a port up to 65535"
            )
        return cls(host or LOCAL, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Monitor:
    """Serves the health and the metrics of ``subject``. A context manager; the constructor starts the server.

    Args:
        address: the address of the server.
        subject: the worker or crew.
        connect: opens a connection for reads of the status, with short timeouts (`probe.PATIENCE`).

    Raises:
        ConfigurationError: the address cannot be used; the message names a remedy.
    """

    def __init__(self, address: Address, subject: Subject, connect: Callable[[], Database]) -> None:
        self._probe = Probe(connect, subject.chain)
        self._pages = _Pages(subject, self._probe)
        self._server = _listen(address, self._pages)
        self.address = Address(address.host, int(self._server.server_address[1]))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_TICK,), name="percolator-monitor", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the server, without a path."""
        return f"http://{self.address}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the server, without waiting for current requests. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._probe.close()


class _Answer(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


class _Pages:
    def __init__(self, subject: Subject, probe: Probe) -> None:
        self._subject = subject
        self._probe = probe
        self._exposition = Exposition(subject, probe)
        self._pages: dict[str, Callable[[str], _Answer]] = {
            "/metrics": self._metrics,
            "/healthz": lambda _: _health("live", liveness(self._subject)),
            "/readyz": lambda _: _health("ready", readiness(self._subject, self._probe.latest())),
        }

    def answer(self, path: str, accept: str) -> _Answer:
        """Answer a request for the path. Raises nothing."""
        page = self._pages.get(path.partition("?")[0])
        if page is None:
            return _in_json(HTTPStatus.NOT_FOUND, {"error": "no such page", "pages": sorted(self._pages)})
        try:
            return page(accept)
        except Exception:
            log.exception("a request for health or metrics could not be answered", path=path[:100])
            return _in_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the log has the cause"})

    def _metrics(self, accept: str) -> _Answer:
        body, content_type = self._exposition.text(accept)
        return _Answer(HTTPStatus.OK, content_type, body)


def _health(name: str, health: Health) -> _Answer:
    status = HTTPStatus.OK if health.ok else HTTPStatus.SERVICE_UNAVAILABLE
    return _in_json(status, {name: health.ok, "why": health.reason, **health.details})


def _in_json(status: HTTPStatus, content: dict[str, Any]) -> _Answer:
    return _Answer(status, "application/json", json.dumps(content, ensure_ascii=False).encode() + b"\n")


class _Handler(BaseHTTPRequestHandler):
    """One request; then the connection closes."""

    server: _Server
    server_version = "percolator"
    sys_version = ""
    timeout = REQUEST_TIME

    def do_GET(self) -> None:
        """Answer; the answer to HEAD has no body."""
        answer = self.server.pages.answer(self.path, self.headers.get("Accept", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - the name is given

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is given
        """Log nothing: a monitoring system sends a request every few seconds."""


class _Server(ThreadingMixIn, HTTPServer):
    """Answers each request in a thread, at most `AT_A_TIME` at once. Closing does not wait for requests."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False
    request_queue_size = 2 * AT_A_TIME

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int], pages: _Pages) -> None:
        self.address_family = family
        self.pages = pages
        self._free_threads = threading.BoundedSemaphore(AT_A_TIME)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind, but do not ask the name service for the name of this machine."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if one is free; otherwise close the connection."""
        if not self._free_threads.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free_threads.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_threads.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error of a client that closed its connection early."""


def _listen(address: Address, pages: _Pages) -> _Server:
    try:
        family, *_, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _Server(family, (str(place[0]), int(place[1])), pages)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"cannot listen on {address}: {reason}; name another HOST:PORT, or port 0 for any free port"
        ) from None
