"""Live pages: server-sent events of a real server, their bound, their end, and access at each look."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from percolator_core.ui import live
from tests.servers.plain import until
from tests.ui.conftest import TOKEN, Pages
from tests.ui.serving import Served, served

AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def site(pages: Pages) -> Iterator[Served]:
    with served(pages) as made:
        yield made


def events(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Yield the events of a stream: name and data."""
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def stream(site: Served, page: str, **headers: str) -> Any:
    return httpx.stream(
        "GET", f"{site.url}events", params={"page": page}, headers=AUTHORIZATION | headers, timeout=60
    )


def test_a_change_is_sent_and_what_stays_is_not(pages: Pages, site: Served) -> None:
    with stream(site, f"/{pages.name}/tables") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        found = events(answer)
        name, first = next(found)
        assert (name, set(first)) == ("live", {"tables"})
        assert "docs" in first["tables"]
        assert "<script" not in first["tables"]
        name, second = next(found)
        assert (name, second) == ("live", {})
        pages.write("one", "two")
        later = next(data for name, data in found if name == "live" and data)
        assert 'class="n">2</td>' in later["tables"]


def test_access_is_checked_again_at_each_look(pages: Pages, site: Served, monkeypatch: Any) -> None:
    from percolator_core.ui.local import LocalViewer

    with stream(site, f"/{pages.name}/tables") as answer:
        found = events(answer)
        assert next(found)[0] == "live"
        monkeypatch.setattr(LocalViewer, "chain", lambda *_: None)
        assert list(found)[-1] == ("lost", 404)
    until(lambda: site.streams.open == 0)


@pytest.mark.parametrize(
    "headers", [{"Authorization": ""}, {"Authorization": "Bearer x"}, {"Host": "evil.example"}]
)
def test_a_stream_needs_what_its_page_needs(pages: Pages, site: Served, headers: dict[str, str]) -> None:
    with stream(site, f"/{pages.name}/", **headers) as answer:
        assert answer.status_code in {401, 421}


@pytest.mark.parametrize(
    ("page", "status"),
    [
        ("/NAME/none", 404),
        ("/nobody/", 404),
        ("", 400),
        ("http://evil.example/", 400),
        ("/events?page=/NAME/", 400),
        ("/%65vents?page=/NAME/", 400),
        ("/static/percolator.css", 400),
        ("/NAME/plots?span=never", 400),
        ("/NAME/tables/docs/rows\r\nX: y", 404),
    ],
)
def test_only_pages_can_be_followed(pages: Pages, site: Served, page: str, status: int) -> None:
    with stream(site, page.replace("NAME", pages.name)) as answer:
        assert answer.status_code == status
    assert site.streams.open == 0


def test_streams_are_bounded_and_end_with_their_pages(
    pages: Pages, site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST", 2)
    page = f"/{pages.name}/"
    with stream(site, page) as one, stream(site, page) as other:
        # A generator that is collected closes its connection, so both have a name.
        first, second = events(one), events(other)
        assert (next(first)[0], next(second)[0]) == ("live", "live")
        assert site.streams.open == 2
        with stream(site, page) as third:
            assert third.status_code == 503
    # The browser has closed its pages.
    until(lambda: site.streams.open == 0)
    with stream(site, page) as fourth:
        assert next(events(fourth))[0] == "live"


def test_a_stream_ends_after_a_while_and_when_the_server_stops(
    pages: Pages, site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stream(site, f"/{pages.name}/") as answer:
        found = events(answer)
        next(found)
        site.streams.close()
        assert all(name == "live" for name, _ in found), "it ends in order"
    with stream(site, f"/{pages.name}/") as answer:
        assert answer.status_code == 503
    site.streams.closing = False
    monkeypatch.setattr(live, "LIFE", 0.0)
    with stream(site, f"/{pages.name}/") as answer:
        assert [name for name, _ in events(answer)] == ["live"]
