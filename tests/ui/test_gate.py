"""The gate of `percolator ui`: the token, the cookie, the host's name, and requests that change something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core.store.url import StoreUrl
from percolator_core.ui.local import LocalChain, make_local_app
from tests.ui.conftest import PORT, TOKEN, Pages

if TYPE_CHECKING:
    from starlette.testclient import TestClient

PATHS = (
    "/",
    "/static/percolator.css",
    "/events?page=/",
    "/nothing",
    "/web/tables",
    "/?token=",
    f"/?token={TOKEN}x",
)
COOKIE = f"percolator_ui_{PORT}"


def client_of(
    pages: Pages, *, token: str = "", names: tuple[str, ...] = (), read_only: bool = False
) -> TestClient:
    from starlette.testclient import TestClient

    chain = LocalChain(pages.name, pages.folder, StoreUrl(pages.url), pages.name)
    app = make_local_app([chain], TOKEN, PORT, names=names, read_only=read_only)
    client = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)
    if token:
        client.headers["Authorization"] = f"Bearer {token}"
    return client


def test_nothing_is_answered_without_the_token(pages: Pages) -> None:
    client = client_of(pages)
    for path in (*PATHS, f"/{pages.name}/", f"/{pages.name}/quarantine"):
        for method in ("GET", "POST", "HEAD"):
            answer = client.request(method, path, headers={"X-Percolator": "1"})
            assert answer.status_code == 401, (method, path)
            assert pages.name not in answer.text
            assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert client_of(pages, token=TOKEN[:-1]).get("/").status_code == 401
    assert client_of(pages, token=TOKEN).get("/").status_code == 200


def test_the_url_with_the_token_gives_a_cookie_and_loses_the_token(pages: Pages) -> None:
    client = client_of(pages)
    answer = client.get(f"/{pages.name}/plots?span=1h&token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/{pages.name}/plots?span=1h"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(re.split("; ?", cookie))
    assert answer.headers["cache-control"] == "no-store"
    page = client.get(answer.headers["location"])
    assert page.status_code == 200
    assert TOKEN not in page.text
    # The cookie of a server on another port is not accepted, nor is another value.
    for name, value in ((f"percolator_ui_{PORT + 1}", TOKEN), (COOKIE, TOKEN[::-1])):
        client.cookies.clear()
        client.cookies.set(name, value)
        assert client.get("/").status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example"])
def test_the_redirect_stays_on_this_server(pages: Pages, path: str) -> None:
    import httpx

    url = httpx.URL(f"http://127.0.0.1:{PORT}").copy_with(raw_path=f"{path}?token={TOKEN}".encode())
    answer = client_of(pages).get(url)
    assert answer.status_code == 303
    assert not answer.headers["location"].startswith(("//", "/\\", "http"))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9", 200),
        ("localhost:4711", 200),
        ("LOCALHOST", 200),
        ("[::1]:4711", 200),
        ("10.1.2.3", 200),
        ("pages.example", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:4711", 421),
        ("[evil]", 421),
        ("", 421),
    ],
)
def test_a_foreign_host_name_is_refused_also_with_the_token(pages: Pages, host: str, status: int) -> None:
    client = client_of(pages, token=TOKEN, names=("pages.example",))
    assert client.get("/", headers={"Host": host}).status_code == status


def test_a_change_needs_the_header_from_the_same_origin(pages: Pages) -> None:
    client = client_of(pages, token=TOKEN)
    path = f"/{pages.name}/quarantine/retry"
    body = {"observer": "*"}
    assert client.post(path, json=body).status_code == 403
    for site in ("cross-site", "same-site"):
        headers = {"X-Percolator": "1", "Sec-Fetch-Site": site}
        assert client.post(path, json=body, headers=headers).status_code == 403
    assert client.post(path, json=body, headers={"X-Percolator": "1"}).status_code == 200
    # No other site gets permission to send the header.
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client.options(path, headers=asked).headers


def test_read_only_pages_change_nothing(pages: Pages) -> None:
    pages.write("row")
    pages.work({"row": ValueError("no")})
    client = client_of(pages, token=TOKEN, read_only=True)
    page = client.get(f"/{pages.name}/quarantine")
    assert "no such" not in page.text
    assert "<button name" not in page.text
    answer = client.post(
        f"/{pages.name}/quarantine/retry", json={"observer": "*"}, headers={"X-Percolator": "1"}
    )
    assert answer.status_code == 403
    assert "--read-only" in answer.json()["error"]
    assert client.get(f"/{pages.name}/quarantine").text.count("1 cell") >= 1


def test_every_page_needs_a_viewer(pages: Pages) -> None:
    """A page that did not ask for the user would be open in Airflow."""
    from fastapi.routing import APIRoute

    from percolator_core.ui.access import viewer

    def needs(dependant: Any) -> bool:
        return dependant.call is viewer or any(needs(one) for one in dependant.dependencies)

    def walk(some: Any) -> list[APIRoute]:
        found: list[APIRoute] = []
        for route in some:
            inner = getattr(route, "original_router", None) or getattr(route, "app", None)
            found += [route] if isinstance(route, APIRoute) else walk(getattr(inner, "routes", ()))
        return found

    routes = walk(pages.client.app.routes)  # type: ignore[attr-defined]
    assert len(routes) > 10
    # The stream requests its page with the user's own headers, so that page asks.
    assert {route.path for route in routes if not needs(route.dependant)} == {"/events"}


def test_the_stores_password_is_not_shown(tmp_path: Path) -> None:
    chain = LocalChain("c", tmp_path, StoreUrl("redis://:hu%2Fsh@127.0.0.1:9"), "c")
    assert chain.redact("redis://:hu%2Fsh@host and hu/sh") == "redis://:***@host and ***"
    assert "hu" not in repr(chain)
    assert LocalChain("c", tmp_path, StoreUrl("embedded:x"), "c").redact("text") == "text"
