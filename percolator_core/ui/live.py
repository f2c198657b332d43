"""Live pages by server-sent events.

A stream requests its page again at intervals, inside the program and with the headers of the browser's
request, and sends the elements that have changed. So each page exists once, and access is checked each time.
An element with ``data-live="SECONDS"`` and an id is live; the comment ``<!--/live-->`` marks its end.

The number of streams is bounded, and a stream ends after a while, so that a server which stops need not wait
for it; the browser then connects again.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

router = APIRouter()

MOST: Final = 32
"""A process has at most this many streams. The browser of a further page requests the page again instead."""

LIFE: Final = 60.0
"""Seconds after which a stream ends."""

_SLICE: Final = 0.25
"""Seconds after which a stream notices that the server stops."""

_LIVE: Final = re.compile(
    r'<\w+ [^<>]*\bid="([\w-]+)"[^<>]*\bdata-live="(\d+)"[^<>]*>(.*?)<!--/live-->', re.DOTALL
)
_SCOPE: Final = ("type", "asgi", "http_version", "scheme", "root_path", "client", "server")


@dataclass(slots=True)
class Streams:
    """The streams of one application. They all run in the event loop of the server."""

    open: int = 0
    closing: bool = False

    def close(self) -> None:
        """End all streams within `_SLICE` seconds."""
        self.closing = True


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    type: str
    body: bytes

    def elements(self) -> dict[str, str]:
        """Return the contents of the live elements by id."""
        return {found[1]: found[3] for found in _LIVE.finditer(self.body.decode())}

    def seconds(self) -> float:
        """Return the shortest interval of the live elements."""
        return min((float(found[2]) for found in _LIVE.finditer(self.body.decode())), default=LIFE)


@router.get("/events")
async def events(request: Request, page: str = "") -> Response:
    """Send the live elements of a page, and then each change. ``page`` is the path and query of the page."""
    front = f"{request.scope.get('root_path', '')}/"
    is_page = page.startswith(front) and not unquote(page).startswith(f"{front}events")
    # A request without a login gets its answer from any page.
    first = await _request(request, page if is_page else front)
    if first.status != 200:
        return Response(first.body, first.status, media_type=first.type)
    if not is_page or not first.type.startswith("text/html"):
        raise HTTPException(400, "page must be the path of one of these pages")
    streams: Streams = request.app.state.streams
    if streams.closing or streams.open >= MOST:
        raise HTTPException(503, "too many pages are live at the moment: request the page again instead")
    return _Stream(streams, _changes(request, page, first, streams))


class _Stream(StreamingResponse):
    """The response of a stream, which counts as open until the browser has closed it."""

    def __init__(self, streams: Streams, content: AsyncIterator[str]) -> None:
        # Without the second header nginx would collect the events before it sends them.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


async def _changes(request: Request, page: str, answer: _Answer, streams: Streams) -> AsyncIterator[str]:
    """Yield an event for each interval, with the elements that have changed since the event before."""
    until = time.monotonic() + LIFE
    sent: dict[str, str] = {}
    yield "retry: 1000\n\n"
    while answer.status == 200:
        now = answer.elements()
        changed = {name: text for name, text in now.items() if sent.get(name) != text}
        sent = now
        yield f"event: live\ndata: {json.dumps(changed)}\n\n"
        if not await _pause(answer.seconds(), until, streams):
            return
        answer = await _request(request, page)
    # For example the store does not answer, or the user has lost a permission.
    yield f"event: lost\ndata: {answer.status}\n\n"


async def _pause(seconds: float, until: float, streams: Streams) -> bool:
    """Wait for the next interval; return False if the stream has to end."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if streams.closing or time.monotonic() > until:
            return False
        await asyncio.sleep(min(left, _SLICE))
    return not streams.closing


async def _request(request: Request, page: str) -> _Answer:
    """Request a page from the application itself, with the headers of the browser's request."""
    path, _, query = page.partition("?")
    scope: dict[str, Any] = {name: request.scope[name] for name in _SCOPE if name in request.scope}
    scope |= {
        "method": "GET",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": request.scope["headers"],
        "state": dict(request.scope.get("state", {})),
    }
    parts: list[bytes] = []
    begin: Message = {"status": 500, "headers": []}
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if asked:
            # A response may wait for the client's disconnection until it has been sent.
            await asyncio.Event().wait()
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal begin
        if message["type"] == "http.response.start":
            begin = message
        else:
            parts.append(message.get("body", b""))

    await request.app(scope, receive, send)
    types = [value.decode() for name, value in begin["headers"] if name.lower() == b"content-type"]
    return _Answer(begin["status"], next(iter(types), ""), b"".join(parts))
