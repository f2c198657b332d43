"""The pages in a browser: sizes of texts and pages, sorting, and figures that change without a reload."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.airflow.pages import write_chain
from tests.ui.conftest import TABLES, Pages
from tests.ui.serving import Served, served

if TYPE_CHECKING:
    from playwright.sync_api import Page

SEVEN = {
    "row of seven": {
        f"step{number}": f"observe: docs.c{number}\nwrites: [docs.c{number + 1}, out.c{number}]"
        for number in range(7)
    },
    "fan of seven": {
        f"observer_number_{number}": f"observe: docs.text\nwrites: [out.part{number}, out.rest{number}]"
        for number in range(7)
    },
    "two and five": {
        "first_observer": "observe: docs.text\nwrites: [docs.words, docs.links]",
        "second_observer": "observe: docs.words\nreads: [docs.text]\nwrites: [out.sum]",
    }
    | {
        f"observer_{number}": f"observe: [docs.links, out.sum]\nwrites: [out.of_{number}]"
        for number in range(5)
    },
}


@contextmanager
def browser(server: Served, width: int, theme: str = "light") -> Iterator[Page]:
    """Open a browser that has the cookie."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("NOT TESTED: there is no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = opened.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(90_000)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.page())
        yield page
        opened.close()
    assert not errors


@pytest.mark.parametrize("shape", SEVEN)
def test_seven_observers_are_fitted_and_can_be_read_at_1440(pages: Pages, shape: str) -> None:
    write_chain(pages.folder, pages.name, TABLES, SEVEN[shape])
    for name in ("split", "join"):
        (pages.folder / f"{name}.yaml").unlink()
    with served(pages) as server, browser(server, 1440) as page:
        page.goto(f"{server.url}{pages.name}/")
        assert page.locator("svg.chain .observer").count() == 7
        sizes: list[float] = page.evaluate(
            """() => [...document.querySelectorAll("svg.chain text")].map((text) =>
                 Number.parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""
        )
        assert len(sizes) > 20
        assert min(sizes) >= 11
        # Nothing of the drawing is outside the pane, and no name is cut off by its box.
        assert (
            page.evaluate(
                "() => { const p = document.querySelector('.pane'); return p.scrollWidth - p.clientWidth; }"
            )
            <= 0
        )
        outside: list[str] = page.evaluate(
            """() => [...document.querySelectorAll("svg.chain a.node")].flatMap((node) => {
                 const box = node.querySelector("rect").getBoundingClientRect();
                 return [...node.querySelectorAll("text")].filter((text) => {
                   const own = text.getBoundingClientRect();
                   return own.left < box.left || own.right > box.right + 1 || own.bottom > box.bottom + 1;
                 }).map((text) => text.textContent);
               })"""
        )
        assert outside == []


def test_columns_unfold_on_a_click_and_fold_again(pages: Pages) -> None:
    write_chain(pages.folder, pages.name, TABLES, SEVEN["fan of seven"])
    with served(pages) as server, browser(server, 1440) as page:
        page.goto(f"{server.url}{pages.name}/")
        page.locator("svg.chain a.folded").first.click()
        page.get_by_role("link", name="out.part3: the rows of out").wait_for()
        page.get_by_role("link", name="Fold the columns of out").click()
        page.locator("svg.chain a.folded").first.wait_for()


def test_fifty_rows_are_short_on_a_narrow_screen(pages: Pages) -> None:
    with pages.db.transaction() as t:
        for number in range(50):
            for column in ("title", "body", "links", "owner", "state", "size"):
                t.set("docs", f"https://example.org/{number:03}", column, b"some longer text " * 20)
    with served(pages) as server, browser(server, 390, "dark") as page:
        page.goto(f"{server.url}{pages.name}/tables/docs/rows")
        assert page.locator("tbody tr").count() == 50
        assert page.evaluate("document.documentElement.scrollHeight") < 9_000
        for path in (
            "",
            "plots",
            "quarantine",
            "locks",
            "tables",
            "tables/docs",
            "trace",
            "tables/docs/rows",
        ):
            page.goto(f"{server.url}{pages.name}/{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_a_table_is_sorted_by_its_headers_and_stays_sorted(pages: Pages) -> None:
    with pages.db.transaction() as t:
        for row, size in (("a", b"9"), ("b", b"10"), ("c", b"-2")):
            t.set("docs", row, "size", size)
        t.set("docs", "d", "other", b"x")
    with served(pages) as server, browser(server, 1440) as page:
        page.goto(f"{server.url}{pages.name}/tables/docs/rows")

        def rows() -> list[str]:
            return [str(one) for one in page.locator("tbody th bdi").all_inner_texts()]

        assert rows() == ["a", "b", "c", "d"]
        page.get_by_role("button", name="size").click()
        assert rows() == ["b", "a", "c", "d"], "the highest number first, and no number last"
        page.get_by_role("button", name="size").click()
        assert rows() == ["c", "a", "b", "d"]
        assert page.locator("th[aria-sort=ascending]").inner_text() == "size"


def test_figures_change_without_a_reload(pages: Pages) -> None:
    with served(pages) as server, browser(server, 1440) as page:
        page.goto(f"{server.url}{pages.name}/")
        page.evaluate("window.stays = true")
        page.get_by_role("button", name="Backlog").click()
        pages.write("one", "two", "three")
        page.locator("#row-split td[data-name=Backlog]").get_by_text("3", exact=True).wait_for()
        assert page.evaluate("window.stays")
        assert page.locator("th[aria-sort]").inner_text() == "Backlog"
        # The stream ends with the page.
        _until(lambda: server.streams.open == 1)  # a stream that the page has replaced may end later
        page.goto("about:blank")
        _until(lambda: server.streams.open == 0)


def test_without_streams_the_page_asks_again(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    from percolator_core.ui import live

    monkeypatch.setattr(live, "MOST", 0)
    with served(pages) as server, browser(server, 1440) as page:
        page.goto(f"{server.url}{pages.name}/")
        page.evaluate("window.stays = true")
        pages.write("one", "two", "three")
        page.locator("#row-split td[data-name=Backlog]").get_by_text("3", exact=True).wait_for()
        assert page.evaluate("window.stays")


def test_a_group_of_the_quarantine_is_ticked_and_retried(pages: Pages) -> None:
    wrong: dict[str, Exception] = {f"row{number}": ValueError("no") for number in range(5)}
    wrong["other"] = TimeoutError("no answer")
    pages.write(*wrong)
    pages.work(wrong)
    with served(pages) as server, browser(server, 1440) as page:
        page.goto(f"{server.url}{pages.name}/quarantine")
        page.locator("li [data-tick]").first.check()
        page.get_by_role("button", name="Retry the ticked (5)").wait_for()
        page.get_by_role("button", name="Retry the group: ValueError: no").click()
        page.get_by_role("button", name="Retry", exact=True).last.click()
        page.get_by_text("5 cells to be observed again").wait_for()
        page.get_by_text("1 cell in quarantine").wait_for()


def _until(condition: Callable[[], Any]) -> None:
    from tests.servers.plain import until

    until(condition)
