"""The HTTP server: few threads, short requests, no part in the worker's life.

Whoever reaches the port may ask; there is no password and no TLS. So it listens on this machine only, unless
another host is named.
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
from percolator_core.monitoring.health import Verdict, liveness, readiness
from percolator_core.monitoring.look import Looks
from percolator_core.monitoring.subject import Subject
from percolator_core.runtime.log import Log

LOCAL: Final = "127.0.0.1"
"""The host when none is named."""

AT_A_TIME: Final = 8
"""Requests that are answered at a time; more are turned away."""

REQUEST_TIME: Final = 5.0
"""Seconds that a client may take over each part of its request."""

_TICK: Final = 0.1
"""Seconds until a server that is to end has noticed."""

log = Log("percolator.worker")


class Address(NamedTuple):
    """Where to listen. Port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """``PORT``, ``HOST:PORT`` or ``[IPV6]:PORT``; raises ValueError with a sentence for anything else."""
        host, separator, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if (separator and not host) or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
            raise ValueError(
                f"{text!r} is no place to listen: write PORT or HOST:PORT, with a port up to 65535"
            )
        return cls(host or LOCAL, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Monitor:
    """Serves the health and the metrics of ``subject``. A context manager; it listens from its making on.

    Args:
        address: where to listen.
        subject: what is monitored.
        connect: makes a database connection for looks at the store: with little patience, see `PATIENCE`.

    Raises:
        ConfigurationError: nobody can listen there; the message says what to do.
    """

    def __init__(self, address: Address, subject: Subject, connect: Callable[[], Database]) -> None:
        self._looks = Looks(connect, subject.chain)
        self._pages = _Pages(subject, self._looks)
        self._server = _listen(address, self._pages)
        self.address = Address(address.host, int(self._server.server_address[1]))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_TICK,), name="percolator-monitor", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """What the paths are appended to."""
        return f"http://{self.address}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more. Waits for no request that is under way. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._looks.close()


class _Answer(NamedTuple):
    """An answer to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes


class _Pages:
    """What there is to see, by its path."""

    def __init__(self, subject: Subject, looks: Looks) -> None:
        self._subject = subject
        self._looks = looks
        self._exposition = Exposition(subject, looks)
        self._pages: dict[str, Callable[[str], _Answer]] = {
            "/metrics": self._metrics,
            "/healthz": lambda _: _judged("live", liveness(self._subject)),
            "/readyz": lambda _: _judged("ready", readiness(self._subject, self._looks.latest())),
        }

    def answer(self, path: str, accept: str) -> _Answer:
        """The answer to a request for the path. Raises nothing."""
        page = self._pages.get(path.partition("?")[0])
        if page is None:
            return _in_json(HTTPStatus.NOT_FOUND, {"error": "no such page", "pages": sorted(self._pages)})
        try:
            return page(accept)
        except Exception:
            log.exception("a request for health or metrics could not be answered", path=path[:100])
            return _in_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the log tells what went wrong"})

    def _metrics(self, accept: str) -> _Answer:
        body, content_type = self._exposition.text(accept)
        return _Answer(HTTPStatus.OK, content_type, body)


def _judged(what: str, verdict: Verdict) -> _Answer:
    status = HTTPStatus.OK if verdict.well else HTTPStatus.SERVICE_UNAVAILABLE
    return _in_json(status, {what: verdict.well, "why": verdict.why, **verdict.facts})


def _in_json(status: HTTPStatus, content: dict[str, Any]) -> _Answer:
    return _Answer(status, "application/json", json.dumps(content, ensure_ascii=False).encode() + b"\n")


class _Handler(BaseHTTPRequestHandler):
    """One request; the connection closes behind it."""

    server: _Server
    server_version = "percolator"
    sys_version = ""
    timeout = REQUEST_TIME

    def do_GET(self) -> None:
        """Answer with the page."""
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the page itself."""
        self._send(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is given
        """Log no request: there is one every few seconds, for ever."""

    def _send(self, *, with_body: bool) -> None:
        answer = self.server.pages.answer(self.path, self.headers.get("Accept", ""))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)


class _Server(ThreadingMixIn, HTTPServer):
    """A thread for each request, but never more than `AT_A_TIME`; nobody waits for them at the end."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False
    request_queue_size = 2 * AT_A_TIME

    def __init__(self, family: socket.AddressFamily, address: tuple[str, int], pages: _Pages) -> None:
        self.address_family = family
        self.pages = pages
        self._places = threading.BoundedSemaphore(AT_A_TIME)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind, without asking the name service for the name of this machine."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is one left."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, in this thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away in the middle."""


def _listen(address: Address, pages: _Pages) -> _Server:
    try:
        family, *_, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _Server(family, (str(place[0]), int(place[1])), pages)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"cannot listen on {address}: {reason}; name another HOST:PORT, or port 0 for any that is free"
        ) from None
