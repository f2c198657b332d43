"""The application: the routes of the pages, the headers of every response, and the pages of errors."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from percolator_core.errors import (
    LockTimeout,
    PercolatorError,
    SnapshotTooOld,
    StoreUnavailable,
    UnknownColumn,
    UnknownTable,
)
from percolator_core.notation.error import NotationError
from percolator_core.ui import live
from percolator_core.ui.access import viewer
from percolator_core.ui.host import Host
from percolator_core.ui.pages import (
    graph,
    locks,
    observer,
    overview,
    plots,
    quarantine,
    row,
    rows,
    tables,
    trace,
    worker,
)
from percolator_core.ui.rendering import page, wants_page
from percolator_core.ui.stores import stores

_HERE: Final = Path(__file__).parent

_PAGES: Final = (live, overview, graph, observer, plots, quarantine, locks, tables, rows, row, trace, worker)

HEADERS: Final = {
    # No inline script and no script of another site runs, whatever the value of a cell contains.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

_STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (StoreUnavailable, 503),
    (LockTimeout, 503),
    (SnapshotTooOld, 410),
    (UnknownTable, 404),
    (UnknownColumn, 404),
    (NotationError, 400),
    (ValueError, 400),
)


def make_app(host: Host, *routers: APIRouter) -> FastAPI:
    """Create the application for a program that serves it; ``routers`` are further pages of the program."""
    app = FastAPI(title="Percolator", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.host = host
    app.state.streams = live.Streams()
    app.dependency_overrides[viewer] = host.viewer
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    for router in (*routers, *(module.router for module in _PAGES)):
        app.include_router(router)
    for one in host.middleware:
        app.add_middleware(one.cls, *one.args, **one.kwargs)
    app.add_middleware(_Headers)
    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_not_understood)
    for kind in (PercolatorError, NotationError):
        app.exception_handler(kind)(_failed)
    app.exception_handler(Exception)(_broken)
    return app


class _Headers:
    """Adds the headers of `HEADERS` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Read the path before the request is answered, because the router changes the path.
        static = scope.get("path", "").startswith(f"{scope.get('root_path', '')}/static/")

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                # Browsers check styles and scripts each time, so that new pages never get the files of an
                # older release.
                headers.setdefault("Cache-Control", "no-cache" if static else "no-store")
            await send(message)

        await self._app(scope, receive, send_with)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    login = _host(request).login(request) if error.status_code == 401 else None
    answer = _response(request, error.status_code, str(error.detail), login)
    answer.headers.update(error.headers or {})
    return answer


async def _not_understood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sentence = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
    return _response(request, 400, sentence)


async def _failed(request: Request, error: Exception) -> Response:
    chain = getattr(request.state, "chain", None)
    if isinstance(error, StoreUnavailable) and request.method == "GET" and chain is not None:
        stores.note_silent(chain, str(error))
    code = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    return _response(request, code, str(error))


async def _broken(request: Request, error: Exception) -> Response:
    """Answer after a bug in the pages; the error is then raised again, into the log of the program."""
    sentence = f"the page failed with {type(error).__name__}: see {_host(request).log}"
    answer = _response(request, 500, sentence)
    # This response does not pass the middleware that adds the headers.
    answer.headers.update(HEADERS)
    return answer


def _host(request: Request) -> Host:
    host: Host = request.app.state.host
    return host


def _response(request: Request, code: int, sentence: str, login: str | None = None) -> Response:
    if wants_page(request):
        chain = getattr(request.state, "chain", None)
        return page(
            request, "error.html", status=code, code=code, sentence=sentence, login=login, chain=chain
        )
    return JSONResponse({"error": sentence}, code)
