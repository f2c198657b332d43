"""The application: the routes of the pages, the headers of every response, and the pages of errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from percolator_airflow.ui.pages import graph, locks, overview, plots, quarantine, row, rows, tables, trace
from percolator_airflow.ui.rendering import login_url, page, wants_page
from percolator_airflow.ui.stores import stores
from percolator_core.errors import (
    LockTimeout,
    PercolatorError,
    SnapshotTooOld,
    StoreUnavailable,
    UnknownColumn,
    UnknownTable,
)
from percolator_core.notation.error import NotationError

_HERE: Final = Path(__file__).parent

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


def make_app() -> FastAPI:
    """Create the application that Airflow's API server mounts."""
    app = FastAPI(title="Percolator", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    for module in (overview, graph, plots, quarantine, locks, tables, rows, row, trace):
        app.include_router(module.router)
    app.middleware("http")(_with_headers)
    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_not_understood)
    for kind in (PercolatorError, NotationError):
        app.exception_handler(kind)(_failed)
    app.exception_handler(Exception)(_broken)
    return app


async def _with_headers(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    # Read the path before the request is answered, because the router changes the path.
    static = request.url.path.startswith(f"{request.scope.get('root_path', '')}/static/")
    response = await go_on(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    # Browsers check styles and scripts each time, so that new pages never get the files of an older release.
    response.headers.setdefault("Cache-Control", "no-cache" if static else "no-store")
    return response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    login = login_url(request) if error.status_code == 401 else None
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
    """Answer after a bug in the pages; the error is then raised again, into the log of the API server."""
    sentence = f"the page failed with {type(error).__name__}: see the log of Airflow's API server"
    answer = _response(request, 500, sentence)
    # This response does not pass the middleware that adds the headers.
    answer.headers.update(HEADERS)
    return answer


def _response(request: Request, code: int, sentence: str, login: str | None = None) -> Response:
    if wants_page(request):
        return page(request, "error.html", status=code, code=code, sentence=sentence, login=login)
    return JSONResponse({"error": sentence}, code)
