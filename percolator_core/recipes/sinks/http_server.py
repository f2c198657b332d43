"""A sink that sends requests to an HTTP server, and the requests of other sinks."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote, urlsplit

from percolator_core.recipes.sinks import NotTaken, digest_of, seconds

_LONGEST_READABLE_KEY: Final = 100
_BODY_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server; ``host`` is the server's name."""

    host: str
    status: int
    reason: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def is_success(self) -> bool:
        """True for the answers 2xx."""
        return 200 <= self.status < 300

    @property
    def shown(self) -> str:
        """The answer as the beginning of a message."""
        said = self.body[:_BODY_SHOWN].decode("utf-8", "replace")
        return f"{self.host} answered {self.status} {self.reason}: {said!r}"


class HTTPClient:
    """A server with the protocol HTTP or HTTPS. Each request has a connection of its own."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        headers: Mapping[str, str] | None,
        context: ssl.SSLContext | None,
    ) -> None:
        """The arguments, and the ValueError, are those of `HTTPSink`."""
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
            raise ValueError("a sink's URL is http(s)://HOST[:PORT]/PATH: put credentials into headers")
        self._host, self._port = parts.hostname, parts.port
        self.target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout = seconds(timeout)
        self.headers = dict(headers or {})
        self._context = (context or ssl.create_default_context()) if parts.scheme == "https" else None

    def request(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str], *, longest: int | None = None
    ) -> Answer:
        """Send a request, and read at most ``longest`` bytes of the answer's body.

        Raises:
            OSError, http.client.HTTPException: no answer.
        """
        with closing(self._connect()) as connection:
            connection.request(method, target, body, dict(headers))
            with connection.getresponse() as answer:
                return Answer(
                    self._host, answer.status, answer.reason, answer.read(longest), dict(answer.getheaders())
                )

    def _connect(self) -> http.client.HTTPConnection:
        # urllib's opener would follow a redirection, and turn a POST into a GET without the payload.
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout, context=self._context
        )


class HTTPSink:
    """Sends each item as a request to an HTTP or HTTPS server.

    The item's percent-encoded key replaces ``{key}`` in the path or query of the URL. The body is the
    payload. The header ``Idempotency-Key`` consists of key and sequence, and is the same for each repetition.
    ``Export-Sequence`` is the sequence in decimal digits. If the server has seen the idempotency key, it has
    to send 409, or its earlier answer; if it has seen a higher sequence of the item's key, 409.

    The answer 2xx means that the item was taken, and 409 that the server has this item or a newer one. All
    other answers, also redirections, mean that the item was not taken.
    """

    def __init__(
        self,
        url: str,
        *,
        method: Literal["POST", "PUT"] = "POST",
        timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Check the arguments, and send nothing.

        Args:
            url: ``http://`` or ``https://``, without user and password: put credentials into ``headers``.
            method: POST or PUT.
            timeout: seconds to wait for the server, above 0.
            headers: sent with every request, such as Authorization and Content-Type.
            context: the trusted authorities for https; by default the authorities of the system.

        Raises:
            ValueError: the URL, method or timeout is not valid.
        """
        if method not in {"POST", "PUT"}:
            raise ValueError(f"a sink's method is POST or PUT, not {method}")
        self._server = HTTPClient(url, timeout=timeout, headers=headers, context=context)
        self._method = method

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Send the item, and read the answer.

        Raises:
            NotTaken: the answer was neither 2xx nor 409.
            OSError, http.client.HTTPException: no answer. The item may have been taken.
        """
        name = quote(key, safe="")
        headers = {
            "Content-Type": "application/octet-stream",
            **self._server.headers,
            "Idempotency-Key": f"{_short(key, name)}:{sequence}",
            "Export-Sequence": str(sequence),
        }
        target = self._server.target.replace("{key}", name)
        answer = self._server.request(self._method, target, payload, headers, longest=_BODY_SHOWN)
        if answer.is_success or answer.status == http.client.CONFLICT:
            return
        raise NotTaken(f"{answer.shown}; the server must answer 2xx, or 409 for an item that it already has")


def _short(key: bytes, name: str) -> str:
    """Return a unique text for the key, short enough for a header."""
    if len(name) <= _LONGEST_READABLE_KEY:
        return name
    return digest_of(key)  # no percent-encoded key has a "="
