"""A proxy in front of an object store, which counts its requests, and answers some of them with errors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final, Literal

Fault = tuple[int, str] | Literal["drop"] | None
"""An HTTP status and an error code of S3, or the end of the connection; None lets a request pass."""

_COPIED: Final = ("Content-Type", "Content-Range", "ETag", "Last-Modified")

_MESSAGES: Final = {"InvalidObjectState": "The operation is not valid for the object's storage class"}
"""Messages of S3, which pyarrow passes on without their codes."""


class Proxy:
    """Passes requests on. ``fault`` gets the method and the path of each request."""

    def __init__(self, store: str, address: str) -> None:
        self.store = store
        self.address = address
        self.seen: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], Fault] = lambda _method, _path: None


@contextmanager
def proxy_of(store: str) -> Iterator[Proxy]:
    """Run a proxy in front of the store at this address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            proxy.seen.append((self.command, self.path))
            fault = proxy.fault(self.command, self.path)
            if fault == "drop":
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
            elif fault is None:
                self._pass_on()
            else:
                status, code = fault
                body = f"<Error><Code>{code}</Code><Message>{_MESSAGES.get(code, '')}</Message></Error>"
                self._answer(status, {"Content-Type": "application/xml"}, body.encode())

        do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

        def _pass_on(self) -> None:
            connection = HTTPConnection(proxy.store)
            connection.request(self.command, self.path, headers=dict(self.headers))
            answer = connection.getresponse()
            headers = {name: value for name in _COPIED if (value := answer.getheader(name)) is not None}
            self._answer(answer.status, headers, answer.read(), answer.getheader("Content-Length"))
            connection.close()

        def _answer(
            self, status: int, headers: dict[str, str], body: bytes, length: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy = Proxy(store, f"127.0.0.1:{server.server_address[1]}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
