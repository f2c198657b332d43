"""The pages of data with unusual rows and names, and with very large stores."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from percolator_core.layout.keys import encode_mark, failed_key
from percolator_core.schema.definitions import TableDefinition
from percolator_core.ui.links import Links, quoted, unquoted
from tests.airflow.pages import PAGE
from tests.airflow.words import Words, read

ROWS = (
    b"<script>alert(1)</script>",
    b'"><img src=x onerror=alert(1)>',
    b"' onmouseover='alert(1)",
    b"../../etc/passwd",
    b"..",
    b"a\x00b",
    b"%00%2e%2e%2f",
    b"a&b=c#d?e=f+g h",
    "\u202egpj.exe".encode(),
    "שלום".encode(),
    "😀 🏳️\u200d🌈".encode(),
    b"\xff\xfe\x00",
    b"{{ 7 * 7 }}",
    b"hex:00",
    b"line\nbreak",
    b"x" * 5_000,
    b"",
)
TABLES = ("..", "a/b", "%2e%2e", "rows", "<b>t</b>", 'q"uote', "tables/x", "naïve table")


def cursor(*parts: Any) -> str:
    """Return a forged cursor of the quarantine's pages."""
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def links_of(page: str, part: str) -> list[str]:
    """Return all links of a page to a kind of page, once each."""
    found = [html.unescape(one) for one in re.findall(r'href="([^"]*)"', page)]
    return [one for one in dict.fromkeys(found) if part in one]


def safe(page: str) -> str:
    """Return the page; fail if a text in it became markup."""
    tags = re.findall(r"<(\w+)([^>]*)>", page.partition("<main")[2])
    for tag, attributes in tags:
        assert tag not in {"script", "img", "style", "iframe"}, tag
        assert not re.search(r"\son\w+=|\sstyle=|javascript:", re.sub(r'="[^"]*"', "=", attributes))
    assert "\u202e" not in page
    assert "49" not in page or "7 * 7" not in page.replace("{{ 7 * 7 }}", "")
    return page


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_any_row_key_is_shown_linked_and_found_again(words: Words, row: bytes) -> None:
    words.put(row, text=b"boom <script>alert(2)</script>", column="text")
    words.drain()
    listed = safe(words.page("tables/docs/rows"))
    [link] = links_of(listed, "/tables/docs/row?") or links_of(listed, "/tables/docs/row")[-1:]
    answer = words.client.get(link, headers=PAGE)
    assert answer.status_code == 200
    assert "boom <script>alert(2)</script>" in read(safe(answer.text))
    for part, said in (("/trace", "in quarantine after 1 attempt"), ("/row", "boom")):
        quarantine = safe(words.page("quarantine"))
        link = links_of(quarantine, part)[-1]
        answer = words.client.get(link, headers=PAGE)
        assert answer.status_code == 200, link
        assert said in read(safe(answer.text)), link


def test_a_key_that_no_link_can_carry_is_shown_without_one(words: Words) -> None:
    words.put(b"y" * 60_000, b"z", text=b"boom")
    words.drain()
    for path in ("tables/docs/rows", "quarantine", "locks"):
        page = words.page(path)
        assert len(page) < 20_000 + 90_000 * (path == "quarantine"), "once, where it can be ticked"
        assert not [one for one in links_of(page, "yyyy") if len(one) > 8_000]
    assert "yyyy" in words.text("tables/docs/rows")
    assert "z" in words.text("tables/docs/rows")


@pytest.mark.parametrize("table", TABLES)
def test_any_table_has_its_pages(words: Words, table: str) -> None:
    words.db.create_table(table, tablets=1)
    with words.db.transaction() as t:
        t.set(table, "row", "a.b.c", b"value")
        t.set(table, "row", "<i>col</i>", b"other")
    listed = safe(words.page("tables"))
    paths = [one for one in links_of(listed, "/tables/") if one.endswith("/rows")]
    path = next(one for one in paths if one.endswith(f"/{quoted(table)}/rows"))
    page = safe(words.client.get(path, headers=PAGE).text)
    assert "Row <i>col</i> a.b.c row other value" in read(page)
    [row] = links_of(page, "/row?")
    assert "a.b.c" in read(safe(words.client.get(row, headers=PAGE).text))
    answer = words.client.get(path.removesuffix("/rows"), headers=PAGE)
    assert answer.status_code == 200
    assert table in read(safe(answer.text))


def test_names_survive_their_way_through_a_path() -> None:
    for table in (*TABLES, "~2F", "~", "a~b%41"):
        sent = quoted(table)
        assert not set(sent) & set("/%")
        assert sent not in {".", ".."}
        assert unquoted(sent) == table
    assert quoted("plain_table-1.2") == "plain_table-1.2"


@pytest.mark.parametrize(
    "value",
    [
        b"<script>alert(1)</script>",
        "\u202eevil\u2066".encode(),
        b'{"a": "<img src=x>", "b": {{ 7 }} }',
        b'{"a": "</pre><script>"}',
        b"[" * 100_000,
        b"\x1b[31mred",
        b"\r\nSet-Cookie: x=y",
    ],
)
def test_any_value_is_only_text(words: Words, value: bytes) -> None:
    words.put("row", text=value)
    for path in ("tables/docs/rows", words.row("row")):
        safe(words.page(path))
    answer = words.client.get(f"/{words.name}/tables/docs/cell?key=row&column=text")
    assert answer.content == value
    assert "set-cookie" not in answer.headers


def test_a_column_name_cannot_break_a_download(words: Words) -> None:
    column = 'x"; filename=evil.html\r\nX-Evil: 1'
    words.put("row", text=b"v" * 300, column=column)
    [link] = links_of(words.page(words.row("row")), "/cell?")
    answer = words.client.get(link)
    assert answer.content == b"v" * 300
    assert "x-evil" not in answer.headers
    assert re.fullmatch(
        r'attachment; filename="[\w.-]+"; filename\*=UTF-8\'\'[\w.-]+', answer.headers["content-disposition"]
    )


@pytest.mark.parametrize(
    "path",
    [
        "tables/docs/rows?at=0x10",
        "tables/docs/rows?at=-5",
        "tables/docs/rows?at=99999999999d",
        "tables/docs/rows?at=999999999d",
        "tables/docs/rows?at=9999-12-31T23:59:59-23:59",
        "tables/docs/row?key=row&at=9999-12-31T23:59:59-23:59",
        "tables/docs/rows?at=0001-01-01T00:00:00Z",
        "tables/docs/cell?key=row&column=text&at=" + "9" * 5_000,
        "tables/docs/rows?where=" + " and ".join(["text!='x'"] * 500),
        "tables/docs/rows?after=%00%ff",
        "tables/docs/rows?after=a",
        "tables/docs/rows?before=é",
        "tables/docs/rows?prefix=hex:zz",
        "tables/docs/rows?where=a",
        "tables/docs/row?key=hex:zz",
        "tables/docs/row?key=row&column=",
        "tables/docs/row?key=row&column=%ff",
        "tables/docs/row?key=row&column=" + "c" * 300,
        "tables/words/row?key=row&column=dirty",
        "tables/docs/row?key=row&after=nothing",
        "tables/docs/cell?key=row&column=none",
        "tables/docs/cell?key=hex:zz&column=text",
        "tables/words/cell?key=row&column=dirty",
        "tables/docs/cell?key=row&column=" + "c" * 300,
        "tables/docs/cell?key=row",
        "tables/docs/rows?limit=x",
        "tables/docs/rows?limit=-1",
        "trace?table=none&row=a",
        "trace?table=docs&row=hex:zz",
        "trace?table=docs&row=a&change=99999999999999999999999",
        "quarantine?row=hex:zz",
        "quarantine?cursor=W10=",
        "quarantine?cursor=" + cursor("split", "docs", 1e400, None, []),
        "quarantine?cursor=" + cursor("split", "docs", 0, -5, []),
        "quarantine?cursor=" + cursor("split", "docs", 0, 2**70, []),
        "quarantine?cursor=" + cursor("split", "docs", 0, None, ["//8=", ""]),
        "quarantine?cursor=" + cursor("split", "docs", 0, "\ud800", []),
        "quarantine?cursor=" + base64.urlsafe_b64encode(b"[" * 3_000).decode(),
    ],
)
def test_nothing_asked_for_is_a_mistake_of_ours(words: Words, path: str) -> None:
    words.put("row")
    answer = words.client.get(f"/{words.name}/{path}", headers=PAGE)
    assert answer.status_code in {200, 400, 404}, answer.text
    assert "the page failed with" not in answer.text


# Costs.


def cost(words: Words, path: str) -> tuple[int, int]:
    """Return the commands and KiB that a page costs the server at its second request."""
    words.page(path)
    calls, sent = words.calls(), words.sent()
    words.page(path)
    return words.calls() - calls, (words.sent() - sent) // 1024


def fill_quarantine(words: Words, count: int) -> None:
    """Create the state that workers leave, without running them."""
    handle = words.db.catalog.table("docs")
    record: dict[str, Any] = {
        "error": "ValueError: x",
        "traceback": "Traceback …" * 50,
        "attempts": 1,
        "time": 1_700_000_000_000_000,
    }
    by_key: dict[bytes, list[bytes]] = {}
    for number in range(count):
        row = b"row%06d" % number
        fields = by_key.setdefault(failed_key(handle.tag(row), "split"), [])
        fields += [encode_mark(b"text", row), json.dumps(record | {"time": record["time"] + number}).encode()]
    for key, fields in by_key.items():
        for start in range(0, len(fields), 1000):
            words.db.store.one((b"HSET", key, *fields[start : start + 1000]))


def fill_rows(words: Words, count: int) -> None:
    for start in range(0, count, 2000):
        with words.db.transaction() as t:
            for number in range(start, min(count, start + 2000)):
                t.set("words", b"row%06d" % number, "count", b"%d" % number)


@pytest.mark.parametrize(
    ("path", "fill", "few", "many"),
    [
        ("quarantine", fill_quarantine, 300, 10_000),
        ("quarantine?observer=split", fill_quarantine, 300, 10_000),
        ("quarantine?row=row000042", fill_quarantine, 100, 10_000),
        ("tables", fill_rows, 200, 12_000),
        ("tables/words", fill_rows, 200, 12_000),
        ("tables/words/rows", fill_rows, 200, 12_000),
        ("tables/words/rows?prefix=row0001", fill_rows, 200, 12_000),
        ("tables/words/row?key=row000042", fill_rows, 200, 12_000),
        ("locks", fill_rows, 200, 12_000),
    ],
)
def test_a_page_costs_the_same_however_much_there_is(
    words: Words, path: str, fill: Callable[[Words, int], None], few: int, many: int
) -> None:
    fill(words, few)
    calls, sent = cost(words, path)
    fill(words, many)
    now = cost(words, path)
    assert now[0] <= calls + 10
    assert now[1] <= sent + 30
    assert len(words.page(path)) < 300_000


def test_a_filter_that_nothing_meets_ends_and_goes_on(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    from percolator_core.ui.pages import rows

    monkeypatch.setattr(rows, "SECONDS", 0.0)
    fill_rows(words, 4_000)
    page = words.page("tables/words/rows?where=count%3D%273999%27")
    assert "No matching row was found up to" in read(page)
    before = words.calls()
    words.page("tables/words/rows?where=count%3D%273999%27")
    assert words.calls() - before < 3_000, "it has not looked at all rows"
    for _ in range(20):
        if "row003999" in read(page).replace("up to row003999", ""):
            break
        page = words.follow(page, "Next →")
    assert "Row count row003999 3999" in read(page)


def test_the_locks_page_does_not_look_at_every_lock(words: Words) -> None:
    from tests.servers.plain import commit_of

    def lock(first: int, count: int) -> None:
        other = words.connect()
        transaction = other.begin()
        for number in range(first, first + count):
            transaction.set("docs", b"row%06d" % number, "text", b"x")
        commit_of(transaction).prewrite()

    lock(0, 300)
    calls, sent = cost(words, "locks")
    lock(300, 4_000)
    now = cost(words, "locks")
    assert now[0] <= calls + 10
    assert now[1] <= sent + 50
    assert "200 locks, the oldest" in words.text("locks")


def test_links_leave_out_what_is_empty() -> None:
    request: Any = SimpleNamespace(scope={"root_path": "/percolator"})
    chain: Any = SimpleNamespace(name="words", redact=str)
    links = Links(request, chain, [TableDefinition("docs")])
    assert links.to("trace", table="docs", row=None, column="") == "/percolator/words/trace?table=docs"
    assert links.row("docs", b"a/b c") == "/percolator/words/tables/docs/row?key=a%2Fb%20c"
    assert links.row("gone", b"a") is None
