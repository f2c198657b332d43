"""Attacks on the pages through a browser or a document, and pages under concurrent changes."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import PercolatorError
from tests.airflow.pages import PAGE, connection_to
from tests.airflow.standalone import PATIENCE
from tests.airflow.words import Words, read, tokens
from tests.servers.plain import Server, binaries, commit_of

if TYPE_CHECKING:
    from percolator_airflow.ui.chains import KnownChain

PAGES = Path(__file__).parents[2] / "percolator_core" / "ui"
SECRET = "xK9-secret-of-the-store"


def known(words: Words) -> KnownChain:
    from percolator_airflow.ui.chains import KnownChain

    return KnownChain(words.name, words.folder, f"{words.name}_observe", "percolator_default", words.name)


# Connections.


def test_those_who_come_first_together_get_one_connection_that_stays_open(words: Words) -> None:
    from percolator_core.ui.stores import Stores

    made = Stores()
    gate = threading.Barrier(8)

    def open_one(_: int) -> Any:
        gate.wait(PATIENCE)
        return made.of(known(words))

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(open_one, range(8)))
    assert len(set(map(id, found))) == 1
    for db in found:
        db.tables()
    made.close()


def test_a_page_goes_on_with_the_connection_that_is_replaced(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_core.ui import stores as module

    monkeypatch.setattr(module, "_LOOK", 0.0)
    made = module.Stores()
    before = made.of(known(words))
    with connection_to(words.url, lock_ttl=77):
        after = made.of(known(words))
        assert after is not before
        before.tables()  # a page that began with it
        monkeypatch.setattr(module, "_GRACE", -1.0)
        with connection_to(words.url, lock_ttl=78):
            made.of(known(words))
        with pytest.raises(PercolatorError, match="closed"):
            before.tables()
    made.close()


def test_a_store_that_is_silent_is_waited_for_by_one_page_at_a_time(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_core.ui import stores as module

    monkeypatch.setattr(module, "PATIENCE", 0.2)
    monkeypatch.setattr(module, "TIMEOUT", 0.5)
    server = Server(next(iter(binaries().values())))
    try:
        with connection_to(server.unix):
            assert words.client.get(f"/{words.name}/tables").status_code == 200
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGSTOP)
            assert words.client.get(f"/{words.name}/tables").status_code == 503
            with monkeypatch.context() as patched:
                # A request to the store would now block.
                patched.setattr(module.Stores, "_of", None)
                for path in ("", "tables", "quarantine", "locks", "tables/docs/rows"):
                    answer = words.client.get(f"/{words.name}/{path}")
                    assert answer.status_code == 503
                    assert "did not answer" in answer.json()["error"]
                # A page that is updated every few seconds is refused, too, and does not prolong the time.
                with monkeypatch.context() as later:
                    later.setattr(time, "monotonic", lambda now=time.monotonic: now() + module._AGAIN / 2)
                    assert words.client.get(f"/{words.name}/").status_code == 503
            os.kill(server.process.pid, signal.SIGCONT)
            monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + module._AGAIN)
            assert words.client.get(f"/{words.name}/tables").status_code == 200
    finally:
        server.close()


# Requests.


@pytest.mark.parametrize(
    "token",
    [
        "[" * 50_000,
        json.dumps(["split", "docs", "cm93", "text", 1e400]),
        json.dumps(["split", "docs", "cm93", "text", 10**30]),
        json.dumps(["split", "docs", "cm93", "\ud800", 1]),
        json.dumps(["split", "docs", "cm93", "c" * 300, 1]),
        json.dumps(["split", "docs", "cm93", "", 1]),
        json.dumps(["split\n", "docs", "cm93", "text", 1]),
        json.dumps(["split", "", "cm93", "text", 1]),
        json.dumps([None, None, "", None, None]),
        json.dumps({"split": 1}),
        "\x00",
    ],
)
@pytest.mark.parametrize("what", ["retry", "discard"])
def test_a_made_up_cell_is_refused_in_a_sentence(words: Words, token: str, what: str) -> None:
    from tests.airflow.pages import WRITE

    client = words.site.as_("ADMIN", raise_server_exceptions=False)
    for body in ({"cell": token}, {"cells": [token]}):
        answer = client.post(f"/{words.name}/quarantine/{what}", json=body, headers=WRITE)
        assert answer.status_code in {200, 400, 404}, answer.text
        assert answer.status_code == 200 or answer.json()["error"]


def test_a_cell_of_another_observer_is_not_put_back(words: Words) -> None:
    """Chains may share a namespace: the page does not touch failed cells of another chain's observers."""
    from percolator_core.layout.keys import encode_mark, failed_key

    words.put("row")
    handle = words.db.catalog.table("docs")
    key, mark = failed_key(handle.tag(b"row"), "stranger"), encode_mark(b"text", b"row")
    record = {"error": "x", "traceback": "", "attempts": 1, "time": 5}
    words.db.store.one((b"HSET", key, mark, json.dumps(record).encode()))
    token = json.dumps(["stranger", "docs", base64.b64encode(b"row").decode(), "text", 5])
    assert words.post("quarantine/retry", cell=token)["count"] == 0
    assert words.post("quarantine/discard", cell=token)["count"] == 0
    assert words.db.store.one((b"HEXISTS", key, mark)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"table": "docs", "row": "a", "column": "text", "start": 2**70},
        {"table": "docs", "row": "a", "column": "text", "start": -1},
        {"table": "docs", "row": "a", "column": "c" * 300, "start": 5},
        {"table": "docs", "row": "a", "column": "", "start": 5},
        {"table": "docs", "row": "a", "column": "a\x00b", "start": 5},
        {"table": "docs", "row": "hex:zz", "column": "text", "start": 5},
        {"table": "words", "row": "a", "column": "dirty", "start": 5},
        {"table": "docs", "row": "r" * 100_000, "column": "text", "start": 5},
        {"table": "docs", "row": "a", "column": "text", "start": "5; DROP"},
        {"table": ["docs"]},
    ],
)
def test_a_made_up_lock_is_refused_in_a_sentence(words: Words, fields: dict[str, Any]) -> None:
    from tests.airflow.pages import WRITE

    client = words.site.as_("ADMIN", raise_server_exceptions=False)
    answer = client.post(f"/{words.name}/locks/resolve", json=fields, headers=WRITE)
    assert answer.status_code in {200, 400, 404}, answer.text


def test_looking_leaves_nothing_in_a_namespace_that_is_not_there(words: Words) -> None:
    from tests.airflow.pages import give_dag, write_chain

    name = f"{words.name}b"
    give_dag(
        write_chain(words.folder.parent / name, name, "{docs: {}}", {"split": "observe: docs.text"}), name
    )
    for path in ("", "plots", "quarantine", "locks", "tables", "tables/docs", "tables/docs/rows", "trace"):
        for query in ("", "?key=a&table=docs&row=a"):
            words.client.get(f"/{name}/{path}{query}", headers=PAGE)
    with words.connect() as db:
        left = [key for key in db.store.one((b"KEYS", b"*")) if name.encode() in key]
    # The key of the timestamps, which every connection checks.
    assert left == [b"{%s}oracle" % name.encode()]


# Contents of documents and errors of functions.


def test_what_is_nested_deeply_is_not_written_out(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    """With indentation these 60 KB would become 40 MB of spaces, for each view of the row."""
    from percolator_core.ui import values

    words.put("row", text=b"[" * 600 + b"1," * 30_000 + b"1" + b"]" * 600)
    written = 0
    encoder = values._INDENTED.iterencode

    def counted(value: Any) -> Iterator[str]:
        nonlocal written
        for part in encoder(value):
            written += len(part)
            yield part

    monkeypatch.setattr(values._INDENTED, "iterencode", counted, raising=False)
    assert "This is the beginning" in words.text(words.row("row"))
    assert 0 < written < 100_000


@pytest.mark.parametrize(
    "value",
    [
        '{"a": 1, "a": 2}',
        "[0.12345678901234567890123]",
        "[1e999]",
        "[1e-9999999999999999999999]",
        '{"b": {"a": 1.50}}',
    ],
)
def test_a_value_does_not_look_like_another_one(words: Words, value: str) -> None:
    words.put("row", text=value.encode())
    said = words.text(words.row("row"))
    shown = '{ "b": { "a": 1.5 } }' if "1.50" in value else value
    assert shown in said


def test_the_stores_password_is_not_shown_in_what_an_observer_raised(words: Words) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret(SECRET)
    words.put("row", text=b"boom")
    words.drain()
    [cell] = _failed(words)
    handle = words.db.catalog.table("docs")
    from percolator_core.layout.keys import encode_mark, failed_key

    key, mark = failed_key(handle.tag(b"row"), "split"), encode_mark(b"text", b"row")
    url = f"redis://:{SECRET}@10.0.0.1/0"
    record = {
        "error": f"OSError: {url}",
        "traceback": f"{url}\n" + "x" * 30_000 + url,
        "attempts": 1,
        "time": cell,
    }
    words.db.store.one((b"HSET", key, mark, json.dumps(record).encode()))
    for path in ("quarantine", "quarantine?row=row", "trace?table=docs&row=row"):
        page = words.page(path)
        assert "***@10.0.0.1" in page, path
        assert SECRET not in page, path


def _failed(words: Words) -> list[int]:
    return [json.loads(token)[4] for token in tokens(words.page("quarantine"))]


def test_a_table_of_any_name_leaves_nothing_in_the_browser(words: Words) -> None:
    words.db.create_table("static", tablets=1)
    for path in ("tables/static/rows", "tables/static"):
        answer = words.client.get(f"/{words.name}/{path}", headers=PAGE)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
    assert words.client.get("/static/data.js").headers["cache-control"] == "no-cache"


def test_one_chain_that_cannot_be_looked_at_leaves_the_others_theirs(
    words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    from percolator_core.ui.pages import overview
    from tests.airflow.pages import give_dag, write_chain

    name = f"{words.name}b"
    give_dag(
        write_chain(words.folder.parent / name, name, "{docs: {}}", {"split": "observe: docs.text"}), name
    )
    whole = overview.__dict__["declared"]

    def declared(chain: KnownChain) -> Any:
        if chain.name == name:
            raise PermissionError("/etc/shadow")
        return whole(chain)

    monkeypatch.setattr(overview, "declared", declared)
    page = words.client.get("/", headers=PAGE)
    assert page.status_code == 200
    assert "PermissionError: see the log of Airflow" in read(page.text).replace("&#39;", "'")
    assert "shadow" not in page.text
    assert f'id="chain-{words.name}"' in page.text


# Rows that are inserted and deleted while a user reads.


def keys(page: str) -> list[str]:
    return re.findall(r"<bdi>(row\d+)</bdi>", page)


def test_the_way_back_leads_over_rows_that_are_gone(words: Words) -> None:
    words.put(*(f"row{number:03}" for number in range(200)))
    with words.db.transaction() as t:
        for number in range(10, 130):
            t.delete("docs", f"row{number:03}", "text")
    pages = [words.page("tables/docs/rows?limit=20")]
    while "Next →" in pages[-1]:
        pages.append(words.follow(pages[-1], "Next →"))
    there = [f"row{number:03}" for number in (*range(10), *range(130, 200))]
    assert [key for page in pages for key in keys(page)] == there
    page, seen = pages[-1], keys(pages[-1])
    for _ in range(20):
        if "← Previous" not in page:
            break
        page = words.follow(page, "← Previous")
        seen += keys(page)
    assert "← Previous" not in page
    assert keys(page)[:10] == there[:10]
    assert set(seen) == set(there)


def test_no_row_is_left_out_or_shown_twice_while_others_come(words: Words) -> None:
    words.put(*(f"row{number:04}" for number in range(0, 400, 2)))
    page, seen = words.page("tables/docs/rows?limit=20"), []
    while True:
        shown = keys(page)
        seen += shown
        # Before the shown rows, among them, and after them.
        first = int(shown[0][3:])
        words.put(f"row{max(0, first - 1):04}", f"row{first + 3:04}", f"row{min(399, first + 41):04}")
        if "Next →" not in page:
            break
        page = words.follow(page, "Next →")
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)
    assert {f"row{number:04}" for number in range(0, 400, 2)} <= set(seen)


def test_a_value_under_a_lock_is_asked_for_again(words: Words) -> None:
    words.put("row", text=b"before")
    transaction = words.connect().begin()
    transaction.set("docs", "row", "text", b"after")
    commit_of(transaction).prewrite()
    answer = words.client.get(f"/{words.name}/tables/docs/cell?key=row&column=text")
    assert answer.status_code == 503
    assert "try again" in answer.json()["error"]


def test_neither_locks_nor_traces_bring_values_along(words: Words) -> None:
    for _ in range(3):
        words.put("row", text=b"v" * 2_000_000)
    transaction = words.connect().begin()
    for number in range(5):
        transaction.set("docs", b"other%d" % number, "title", b"w" * 2_000_000)
    commit_of(transaction).prewrite()
    for path, said in (("locks", "5 locks"), ("trace?table=docs&row=row&change=all", "waiting")):
        assert said in words.text(path)
        before = words.sent()
        words.page(path)
        assert words.sent() - before < 200_000, path


# In a browser.


def test_who_presses_a_button_keeps_his_place(words: Words) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("NOT TESTED: there is no chromium on this machine")
    from playwright.sync_api import Request, Route, sync_playwright

    words.put("one", "two", text=b"boom")
    words.drain()

    def answer(route: Route, request: Request) -> None:
        """Pass the browser's requests directly to the application, without a server."""
        if "/events?" in request.url:
            route.abort()  # a stream does not end, and this client waits for the end
            return
        path = request.url.removeprefix("http://pages")
        got = words.client.request(
            request.method, path, headers=request.headers, content=request.post_data_buffer or b""
        )
        route.fulfill(status=got.status_code, headers=dict(got.headers), body=got.content)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.route("http://pages/**", answer)
        page.goto(f"http://pages/{words.name}/quarantine")
        page.get_by_role("button", name="Retry one text").press("Enter")
        page.get_by_text("1 cell to be observed again").wait_for()
        page.wait_for_function("document.activeElement.id === 'main'")
        page.goto(f"http://pages/{words.name}/locks")
        page.locator("#resolve-all").press("Enter")
        page.get_by_role("button", name="Resolve", exact=True).press("Enter")
        page.get_by_text("0 locks rolled forward").wait_for()
        page.wait_for_function("document.activeElement.id === 'resolve-all'")
        browser.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_edges_stand_out(theme: str) -> None:
    """WCAG 2.2 requires 4.5 for texts, and 3 for the borders of inputs and buttons."""
    css = (PAGES / "static" / "percolator.css").read_text(encoding="utf-8")
    block = css.partition(":root" if theme == "light" else ':root[data-theme="dark"]')[2].partition("}")[0]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    text = [("text", "ground"), ("faint", "ground"), ("faint", "card"), ("link", "ground"), ("link", "card")]
    text += [("good", "card"), ("warn", "card"), ("bad", "card"), ("card", "accent"), ("ground", "text")]
    text += [(name, f"{name}-fill") for name in ("accent", "weak", "warn", "bad")]
    for above, below in text:
        assert _contrast(colours[above], colours[below]) >= 4.5, (above, below)
    for below in ("ground", "card"):
        assert _contrast(colours["edge"], colours[below]) >= 3


def _contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
