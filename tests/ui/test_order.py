"""The order of the rows of a table: of all rows where the store has one, and a word where it has none."""

from __future__ import annotations

import html
import re

import pytest

from percolator_core import Hash, Indexed, PrimaryKey, Table
from tests.ui.conftest import Pages
from tests.ui.serving import served
from tests.ui.test_browser import browser


class Order(Table, name="orders", partition=[Hash("id", buckets=3)]):
    """A typed table; every third row has no owner."""

    id: PrimaryKey[int]
    amount: Indexed[int]
    owner: Indexed[str | None] = None
    note: str | None = None


@pytest.fixture
def orders(pages: Pages) -> Pages:
    pages.db.create_table(Order)
    with pages.db.transaction() as t:
        for number in range(120):
            owner = f"o{number % 4}" if number % 3 else None
            t.insert(Order(id=number, amount=number * 7 % 120, owner=owner, note=f"n{number % 10}"))
    return pages


def ids(page: str) -> list[int]:
    return [int(one) for one in re.findall(r'<th role="rowheader"[^>]*>\s*<a[^>]*><bdi>(\d+)</bdi>', page)]


def link(page: str, text: str) -> str:
    [found] = re.findall(rf'<a [^>]*href="([^"]*)"[^>]*>(?:<bdi>)?{text}<', page)
    return html.unescape(found)


def walk(pages: Pages, query: str) -> list[int]:
    """Return the rows of all pages."""
    page = pages.get(f"tables/orders/rows?limit=20&{query}")
    found = ids(page)
    while "Next →" in page:
        assert "← Previous" not in page
        page = pages.client.get(link(page, "Next →"), headers={"Accept": "text/html"}).text
        assert len(found) < 200
        found += ids(page)
    return found


def test_all_rows_are_ordered_by_key_and_by_indexed_columns(orders: Pages) -> None:
    amounts = sorted(range(120), key=lambda number: number * 7 % 120)
    assert walk(orders, "sort=-") == list(range(119, -1, -1))
    assert walk(orders, "sort=amount") == amounts
    assert walk(orders, "sort=-amount") == amounts[::-1]
    assert walk(orders, "sort=-amount&where=note='n3'") == [one for one in amounts[::-1] if one % 10 == 3]
    owned = sorted((number for number in range(120) if number % 3), key=lambda number: (number % 4, number))
    assert walk(orders, "sort=owner") == owned


def test_headers_lead_to_the_orders_that_exist(orders: Pages) -> None:
    page = orders.get("tables/orders/rows?limit=20&where=amount%3E2")
    assert 'aria-sort="ascending"><a' in page
    # A number begins with its highest value, and a second press turns the order.
    descending = orders.client.get(link(page, "amount"), headers={"Accept": "text/html"}).text
    assert ids(descending) == [one for one in range(120) if one * 7 % 120 == 119] + ids(descending)[1:]
    assert "sort=amount&" in link(descending, "amount") + "&"
    assert descending.count("aria-sort=") == 1
    assert re.search(r'<option value="-amount" selected>amount, descending<', descending)
    assert not re.search(r"<a [^>]*><bdi>note<", page), "there is no index"
    # The rows that have no value in the index are a link away.
    page = orders.get("tables/orders/rows?sort=owner&where=amount%3E2")
    nulls = orders.client.get(link(page, "show them"), headers={"Accept": "text/html"}).text
    assert len(ids(nulls)) == len([one for one in range(120) if one % 3 == 0 and one * 7 % 120 > 2])
    assert "show them" not in orders.get("tables/orders/rows?sort=amount")


def test_an_order_without_an_index_is_refused(orders: Pages) -> None:
    page = html.unescape(orders.get("tables/orders/rows?sort=note", 400))
    assert "orders cannot be ordered by 'note'" in page
    assert "docs cannot be ordered by 'text'" in html.unescape(orders.get("tables/docs/rows?sort=text", 400))


def test_a_filter_keeps_the_chosen_columns_and_the_order(orders: Pages) -> None:
    page = orders.get("tables/orders/rows?column=note&column=amount&sort=-amount")
    form = page.split("<form", 2)[1].split("</form>")[0]
    assert re.findall(r'type="hidden" name="column" value="(\w+)"', form) == ["note", "amount"]
    assert '<option value="-amount" selected>' in form


def test_a_page_says_that_only_its_rows_are_sorted(orders: Pages) -> None:
    with served(orders) as server, browser(server, 1440) as page:
        page.goto(f"{server.url}{orders.name}/tables/orders/rows?limit=20")
        said = (
            "The headers id, amount, owner order all rows; other headers sort only the 20 rows of this page."
        )
        page.get_by_text(said).wait_for()
        page.get_by_role("button", name="note").click()
        assert page.locator("th[aria-sort]").inner_text() == "note"
        values = page.locator("td[data-label=note]").all_inner_texts()
        assert values == sorted(values)
        # The sign of the order is beside its header.
        assert page.evaluate("document.documentElement.scrollWidth") <= 1440
        page.get_by_role("link", name="amount").click()
        page.locator("th[aria-sort=descending]", has_text="amount").wait_for()
        # A page with all rows has nothing to say.
        page.goto(f"{server.url}{orders.name}/tables/orders/rows?limit=200")
        page.get_by_role("button", name="note").click()
        assert page.get_by_text("other headers sort only").count() == 0


def test_values_of_many_columns_use_the_width_of_a_narrow_screen(orders: Pages) -> None:
    text = "a text of thirty-six characters here"
    with orders.db.transaction() as t:
        for column in ("one", "two", "three", "four", "five"):
            t.set("docs", "row", column, text.encode())
    with served(orders) as server, browser(server, 390) as page:
        page.goto(f"{server.url}{orders.name}/tables/docs/rows")
        cells = page.locator("td[data-label=one]")
        assert cells.evaluate("(cell) => cell.clientWidth") > 300
        # Tablets fit without scrolling.
        page.goto(f"{server.url}{orders.name}/tables/docs")
        assert page.locator("#tablets").evaluate("(one) => one.scrollWidth - one.clientWidth") <= 0
