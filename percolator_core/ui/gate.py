"""The gate of ``percolator ui``: a token instead of users, and a check of the host name.

The command prints a URL with the token. The first request with that URL gets a cookie, and is redirected to
the same URL without the token, so that the token stays neither in the address bar nor in the history. A
program sends the token in the header ``Authorization: Bearer TOKEN``.

A page of another site can give its own name the address of this machine (DNS rebinding); then a browser sends
requests to this server under the foreign name. Such a name is refused. An address in digits cannot be used
for this attack, so it is always accepted.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Collection
from http.cookies import SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode

from fastapi import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

SHORTEST_TOKEN: Final = 16
"""A token has at least this many characters."""

COOKIE_PREFIX: Final = "percolator_ui_"
"""The cookie's name ends with the port, because browsers send a cookie to all ports of a host."""


def new_token() -> str:
    """Return a random token, of 256 bits."""
    return secrets.token_urlsafe(32)


class Gate:
    """Answers requests without the token, and passes on the others.

    Args:
        app: the application behind the gate.
        token: the token. Everybody who knows it may see and change everything.
        port: the port of the server, for the name of the cookie.
        names: the accepted host names, beside ``localhost`` and addresses in digits.
    """

    def __init__(self, app: ASGIApp, token: str, port: int, names: Collection[str] = ()) -> None:
        self._app = app
        self._token = token.encode()
        self._cookie = f"{COOKIE_PREFIX}{port}"
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        answer = (
            self._answer(Request(scope))
            if scope["type"] == "http"
            else _refusal(403, "these pages have no web sockets: use HTTP")
        )
        await (self._app if answer is None else answer)(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        """Return the response to a request that may not pass; None if it may pass."""
        name = _host_name(request.headers.get("host", ""))
        if name not in self._names and not _is_address(name):
            return _refusal(421, f"{name[:80]!r} is not a name of this server: add it with --name")
        query = parse_qsl(request.url.query, keep_blank_values=True)
        given = next((value for key, value in query if key == "token"), None)
        if given is not None and request.method == "GET" and self._is_token(given):
            return self._with_cookie(request, [pair for pair in query if pair[0] != "token"])
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(bearer):
            return None
        cookie = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        if cookie is not None and self._is_token(cookie.value):
            return None
        return _refusal(401, "open the URL with the token that `percolator ui` printed when it started")

    def _with_cookie(self, request: Request, query: list[tuple[str, str]]) -> Response:
        # Only the path is kept: a URL that begins with // would lead to another host.
        path = "/" + request.url.path.lstrip("/")
        answer = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), 303)
        answer.set_cookie(self._cookie, self._token.decode(), httponly=True, samesite="strict", path="/")
        return answer

    def _is_token(self, given: str) -> bool:
        # The comparison takes the same time, whatever the first wrong character is.
        return secrets.compare_digest(given.encode(), self._token)


def _host_name(host: str) -> str:
    """Return the name in a ``Host`` header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refusal(status: int, sentence: str) -> Response:
    return PlainTextResponse(f"{sentence}\n", status)
