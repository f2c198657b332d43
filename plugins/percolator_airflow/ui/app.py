"""The application: the pages' routes, what every answer carries, and how errors are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from percolator_airflow.ui.pages import graph, locks, overview, plots, quarantine, rows, tables, trace
from percolator_airflow.ui.rendering import error_page, login_url, wants_page
from percolator_core.errors import PercolatorError, StoreUnavailable, UnknownColumn, UnknownTable
from percolator_core.notation.error import NotationError

_HERE: Final = Path(__file__).parent

HEADERS: Final = {
    # Nothing inline and nothing from elsewhere runs, whatever a row's value is made of.
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}

_STATUS: Final[tuple[tuple[type[Exception], int], ...]] = (
    (StoreUnavailable, 503),
    (UnknownTable, 404),
    (UnknownColumn, 404),
    (NotationError, 400),
    (ValueError, 400),
)


def make_app() -> FastAPI:
    """The application that Airflow's API server mounts."""
    app = FastAPI(title="Percolator", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    for page in (overview, graph, plots, quarantine, locks, tables, rows, trace):
        app.include_router(page.router)
    app.middleware("http")(_with_headers)
    app.exception_handler(HTTPException)(_refused)
    app.exception_handler(RequestValidationError)(_not_understood)
    for kind in (PercolatorError, NotationError):
        app.exception_handler(kind)(_failed)
    return app


async def _with_headers(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await go_on(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if "/static/" not in request.url.path:
        response.headers.setdefault("Cache-Control", "no-store")
    return response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    link = login_url(request) if error.status_code in (401, 403) else None
    return _told(request, error.status_code, str(error.detail), link if error.status_code == 401 else None)


async def _not_understood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
    return _told(request, 400, said)


async def _failed(request: Request, error: Exception) -> Response:
    code = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    return _told(request, code, str(error))


def _told(request: Request, code: int, sentence: str, login: str | None = None) -> Response:
    if wants_page(request):
        return error_page(request, code, sentence, login)
    return JSONResponse({"error": sentence}, code)
