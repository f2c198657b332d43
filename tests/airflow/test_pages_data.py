"""The pages of data: the quarantine, locks, tables, rows and traces."""

from __future__ import annotations

import base64
import html
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from percolator_core import Hash, Indexed, PrimaryKey, Table
from percolator_core.admin.quarantine import Quarantine
from tests.airflow.pages import PAGE
from tests.airflow.words import Words, link, read, tokens
from tests.servers.plain import commit_of, die


class Order(Table, name="orders", partition=[Hash("shop", buckets=2)]):
    """A typed table with a key of two columns."""

    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    customer: Indexed[str | None] = None
    note: str = ""
    blob: bytes = b""


# The quarantine.


def test_the_quarantine_lists_what_failed_with_its_error_and_its_links(words: Words) -> None:
    words.put("good")
    words.put("http://bad/1", "http://bad/2", text=b"boom")
    words.drain()
    page = words.page("quarantine")
    said = read(page)
    assert "2 cells in quarantine" in said
    assert "split 2" in said
    assert "measure 0" in said
    assert "ValueError: no such word: <b>boom</b>" in said
    assert "<b>boom</b>" not in page
    assert "in split raise ValueError" in said, "the traceback"
    assert "1 attempt" in said
    assert "boom" in read(words.follow(page, "http://bad/1"))
    assert "in quarantine after 1 attempt" in read(words.follow(page, "trace"))


def test_an_empty_quarantine_says_so_and_offers_nothing(words: Words) -> None:
    page = words.page("quarantine")
    assert "Nothing is in quarantine." in read(page)
    assert "<button name" not in page
    assert not tokens(page)


def test_the_quarantine_is_filtered_by_observer_and_by_row(words: Words) -> None:
    words.put("one", "two", text=b"boom")
    words.drain()
    assert "No cell of measure" in words.text("quarantine?observer=measure")
    assert len(tokens(words.page("quarantine?observer=split"))) == 2
    found = words.page("quarantine?row=two")
    assert [json.loads(one)[2] for one in tokens(found)] == [base64.b64encode(b"two").decode()]
    assert "No cell of this row" in words.text("quarantine?row=three")
    assert "no observer 'nobody'" in words.text("quarantine?observer=nobody", 400)


def test_pages_of_the_quarantine_have_each_cell_once(words: Words) -> None:
    rows = [f"row{number:03}" for number in range(120)]
    words.put(*rows, text=b"boom")
    words.drain()
    page, found = words.page("quarantine"), []
    while True:
        found += tokens(page)
        assert len(found) <= 120
        if "Next →" not in page:
            break
        page = words.follow(page, "Next →")
    assert sorted(base64.b64decode(json.loads(one)[2]).decode() for one in found) == rows


def test_one_cell_is_retried_and_observed_again(words: Words) -> None:
    words.put("mended", "broken", text=b"boom")
    words.drain()
    [token] = tokens(words.page("quarantine?row=mended"))
    assert words.post("quarantine/retry", cell=token)["said"] == "1 cell to be observed again"
    assert words.post("quarantine/retry", cell=token)["count"] == 0
    assert "1 cell in quarantine" in words.text("quarantine")
    words.put("mended")
    words.drain()
    assert len(tokens(words.page("quarantine"))) == 1


def test_ticked_cells_and_all_of_an_observer_are_discarded(words: Words) -> None:
    words.put(*[f"row{number}" for number in range(7)], text=b"boom")
    words.drain()
    some = tokens(words.page("quarantine"))[:2]
    assert words.post("quarantine/discard", cells=some)["said"] == "2 cells discarded"
    page = words.page("quarantine?observer=split")
    assert 'data-ask="Discard 5 cells of split? They are not observed until they change again."' in page
    assert words.post("quarantine/discard", observer="measure")["count"] == 0
    assert words.post("quarantine/discard", observer="split")["count"] == 5
    assert "Nothing is in quarantine." in words.text("quarantine")


def test_what_fails_after_all_were_meant_is_not_discarded(words: Words) -> None:
    from percolator_core.ui.pages.quarantine import _discard_all

    words.put("before", text=b"boom")
    words.drain()
    until = words.db.timestamp()
    words.put("after", text=b"boom")
    words.drain()
    quarantine = Quarantine(words.db, words.chain)
    assert _discard_all(quarantine, "split", until=until) == (1, 1)
    assert [cell.row for cell in quarantine.cells()] == [b"after"]


def test_a_cell_that_failed_anew_is_not_discarded_by_an_old_page(words: Words) -> None:
    words.put("row", text=b"boom")
    words.drain()
    [token] = tokens(words.page("quarantine"))
    words.post("quarantine/retry", cell=token)
    words.drain()
    assert words.post("quarantine/discard", cell=token)["count"] == 0
    assert "1 cell in quarantine" in words.text("quarantine")


def test_what_is_no_cell_is_refused_in_a_sentence(words: Words) -> None:
    assert "tick some" in words.post("quarantine/retry", 400)["error"]
    assert "reload the page" in words.post("quarantine/discard", 400, cell="[1, 2]")["error"]
    assert "the cursor is not from a page of this list" in words.text("quarantine?cursor=nonsense", 400)


def test_who_may_not_edit_sees_no_buttons_and_may_not_retry(words: Words) -> None:
    words.put("row", text=b"boom")
    words.drain()
    [token] = tokens(words.page("quarantine"))
    words.client = words.site.as_("VIEWER")
    answer = words.client.get(f"/{words.name}/quarantine", headers=PAGE)
    assert "<button name" not in answer.text
    assert words.post("quarantine/retry", 403, cell=token)
    assert words.post("locks/resolve", 403)


def test_a_group_is_retried_by_those_who_may_edit(words: Words) -> None:
    words.put("one", "two", text=b"boom")
    words.drain()
    [like] = {
        html.unescape(one) for one in re.findall(r'name="like" value="([^"]*)"', words.page("quarantine"))
    }
    admin, words.client = words.client, words.site.as_("VIEWER")
    assert words.post("quarantine/retry", 403, like=like)
    words.client = admin
    assert words.post("quarantine/retry", like=like)["count"] == 2


# Live pages, and pages of observers.


def test_live_pages_are_followed_with_airflows_login(words: Words, monkeypatch: Any) -> None:
    from percolator_core.ui import live

    monkeypatch.setattr(live, "LIFE", 0.0)  # the stream ends after its first event
    asked = {"page": f"/{words.name}/tables"}
    answer = words.client.get("/events", params=asked)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    [data] = re.findall(r"^event: live\ndata: (.*)$", answer.text, re.MULTILINE)
    assert "docs" in json.loads(data)["tables"]
    assert words.site.anonymous().get("/events", params=asked).status_code == 401
    assert words.site.as_(None).get("/events", params=asked).status_code == 404


def test_the_source_of_an_observer_is_for_those_who_may_read_code(words: Words, monkeypatch: Any) -> None:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity

    (words.folder / "steps.py").write_text("def split(t, cell):\n    return 'the source'\n")
    words.put("row")
    words.drain()
    page = html.unescape(words.page("observers/split"))
    assert "return 'the source'" in page
    assert f'href="/dags/{words.name}_observe/tasks/split"' in page
    assert ">row</bdi>" in page
    hidden = {DagAccessEntity.CODE, DagAccessEntity.XCOM}
    monkeypatch.setattr(
        get_auth_manager(), "is_authorized_dag", lambda **asked: asked.get("access_entity") not in hidden
    )
    page = html.unescape(words.page("observers/split"))
    assert "the source" not in page
    assert "observe: docs.text" not in page
    assert "permission to read the code" in page
    assert ">row</bdi>" not in page


# Locks.


def test_locks_tell_of_their_owners_and_dead_ones_are_resolved(words: Words) -> None:
    for name, row in (("dead", "one"), ("alive", "two")):
        other = words.connect()
        transaction = other.begin()
        transaction.set("docs", row, "text", b"never seen")
        transaction.set("docs", row, "title", b"never seen")
        commit_of(transaction).prewrite()
        if name == "dead":
            die(other)
    page = words.page("locks")
    said = read(page)
    assert "4 locks, 2 of dead owners" in said
    assert "Locks of live owners stay" in said
    assert said.count("dead ") >= 2
    assert "this one" in said
    assert "docs one text" in said
    fields = [
        dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        for form in re.findall(r'<input type="hidden" name="table".*?<button', page, re.DOTALL)
    ]
    answers = {(one["row"], one["column"]): words.post("locks/resolve", **one)["said"] for one in fields}
    assert "rolled back" in answers["one", "text"]
    assert "left unresolved" in answers["two", "text"]
    assert words.post("locks/resolve")["said"].startswith("0 locks rolled forward")
    assert "2 locks" in words.text("locks")
    assert "no table 'none'" in words.post("locks/resolve", 404, table="none", start=1)["error"]
    assert "start timestamp" in words.post("locks/resolve", 400, table="docs")["error"]


def test_a_row_that_is_being_written_is_shown_as_it_was(words: Words) -> None:
    words.put("row", text=b"before")
    other = words.connect()
    transaction = other.begin()
    transaction.set("docs", "row", "text", b"after")
    commit_of(transaction).prewrite()
    said = words.text("tables/docs/rows")
    assert "a long commit to these rows" in said
    assert "before" in said
    said = words.text(words.row("row"))
    assert "locked" in said
    assert "before" in said
    assert "after" not in said


# Tables.


def test_tables_tell_their_kind_and_size(words: Words) -> None:
    words.db.create_table(Order)
    words.put("one", "two")
    with words.db.transaction() as t:
        t.insert(Order(shop="ada", number=7, customer="eve"))
    said = words.text("tables")
    assert "docs raw 2 4 0 rows" in said
    assert "orders typed 5 columns 1 2 0 rows" in said
    assert "index of orders" in said
    assert "notify-only: dirty" in said
    said = words.text("tables/docs").replace(" ,", ",")
    assert "Rows in the store 2 Dirty cells 4" in said
    assert "a hash of the row key" in said
    assert "text by measure, split" in said or "text by split, measure" in said
    said = words.text("tables/orders")
    assert "shop str key 1" in said
    assert "number int key 2" in said
    assert "hash of shop in 2" in said
    assert "there is no table 'none'" in words.text("tables/none", 404) or "none" in words.text(
        "tables/none", 404
    )


# Rows.


def test_rows_are_browsed_in_both_directions(words: Words) -> None:
    rows = [f"row{number:03}" for number in range(130)]
    words.put(*rows)
    page, seen = words.page("tables/docs/rows"), []
    while True:
        seen.append(re.findall(r"<bdi>(row\d+)</bdi>", page))
        assert len(seen) < 10, "it does not come forward"
        if "Next →" not in page:
            break
        page = words.follow(page, "Next →")
    assert [key for part in seen for key in part] == rows
    page = words.follow(page, "← Previous")
    assert re.findall(r"<bdi>(row\d+)</bdi>", page) == seen[1]
    page = words.follow(page, "← Previous")
    assert re.findall(r"<bdi>(row\d+)</bdi>", page) == seen[0]
    assert "← Previous" not in page or "row000" in page
    assert re.findall(r"<bdi>(row\d+)</bdi>", words.page("tables/docs/rows?prefix=row12")) == rows[120:]
    assert len(re.findall(r"<bdi>(row\d+)</bdi>", words.page("tables/docs/rows?limit=20"))) == 20


def test_rows_of_a_raw_table_are_filtered(words: Words) -> None:
    words.put("a", "b", text=b"one")
    words.put("c", "d", text=b"two")
    words.put("d", text=b"extra", column="title")
    assert re.findall(r"<bdi>(\w)</bdi>", words.page("tables/docs/rows?where=text%3D'two'")) == ["c", "d"]
    both = words.text("tables/docs/rows?where=text%3D'two' and row>'c'")
    # The page shows the whole row, not only the column of the filter.
    assert "Row text title d two extra" in both
    assert "No row matches" in words.text("tables/docs/rows?where=text%3D'three'")
    assert "an operator such as" in words.text("tables/docs/rows?where=text", 400)
    many = " and ".join(["text!='x'"] * 21)
    assert "at most 20 conditions" in words.text(f"tables/docs/rows?where={many}", 400)


def test_rows_of_a_typed_table_are_filtered_and_have_pages(words: Words) -> None:
    words.db.create_table(Order)
    with words.db.transaction() as t:
        for number in range(90):
            t.insert(Order(shop="ada" if number % 2 else "bob", number=number, customer=f"c{number % 3}"))
    page = words.page("tables/orders/rows?limit=20&where=number >= 10")
    seen = re.findall(r"<bdi>shop=(\w+) number=(\d+)</bdi>", page)
    while "Next →" in page:
        page = words.follow(page, "Next →")
        seen += re.findall(r"<bdi>shop=(\w+) number=(\d+)</bdi>", page)
    assert len(seen) == 80
    assert seen == sorted(seen, key=lambda one: (one[0], int(one[1])))
    page = words.page("tables/orders/rows?where=customer = 'c1' and shop = 'bob'")
    assert len(re.findall(r"<bdi>shop=bob", page)) == 15
    assert "orders has no column 'wrong'" in words.text("tables/orders/rows?where=wrong", 400)
    assert "shop ada" not in words.text("tables/orders/rows?prefix=bob")
    said = words.text("tables/orders/row?key=shop%3Dada number%3D1")
    assert "customer str or null" in said
    assert "c1" in said
    assert "written" in said


def test_a_row_shows_its_versions_and_what_it_was(words: Words) -> None:
    for text in (b"first", b"second", b"third"):
        words.put("row", text=text)
    with words.db.transaction() as t:
        t.delete("docs", "row", "text")
    words.put("row", text=b'{"b": [1, 2], "a": "<i>"}', column="meta")
    page = words.page(words.row("row"))
    said = read(page)
    assert "4 versions" in said
    assert "deleted" in said
    assert '{ "b": [ 1, 2 ], "a": "<i>" }' in said
    assert "<i>" not in page
    versions = words.db.history("docs", "row", "text")
    then = words.text(words.row("row", at=versions[1].commit_ts))
    assert "As of" in then
    assert "text" in then
    assert "third" in then
    assert "not written yet" in then
    before = words.text(words.row("row", at=versions[1].commit_ts - 1))
    assert re.search(r"text written \S+ \S+ .*? second", before)
    assert "As of" in read(words.follow(page, read_time(versions[2].commit_ts)))


def read_time(timestamp: int) -> str:
    moment = datetime.fromtimestamp(timestamp // 1_000_000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{timestamp // 1000 % 1000:03}Z"


def test_a_row_that_was_removed_or_never_was_says_so(words: Words) -> None:
    words.put("row")
    with words.db.transaction() as t:
        t.delete("docs", "row", "text")
    assert "The row does not exist" in words.text(words.row("row"))
    assert "has no such row" in words.text(words.row("never"))
    words.db.create_table(Order)
    with words.db.transaction() as t:
        t.insert(Order(shop="ada", number=1))
    with words.db.transaction() as t:
        t.remove(Order, shop="ada", number=1)
    said = words.text("tables/orders/row?key=shop%3Dada number%3D1")
    assert "The row does not exist" in said
    assert "deleted" in said
    assert "inserted" in said


def test_times_are_understood_and_those_that_are_gone_are_told(words: Words) -> None:
    words.put("row", text=b"old")
    words.put("row", text=b"new")
    old = words.db.history("docs", "row", "text")[1].commit_ts
    assert "The page cannot show that time" in words.text("tables/docs/rows?at=1h", 400)
    assert "old" in words.text(f"tables/docs/rows?at={old}")
    assert "is not a time" in words.text("tables/docs/rows?at=yesterday", 400)
    assert "has not come yet" in words.text("tables/docs/rows?at=2099-01-01T00:00:00Z", 400)
    words.db.collect_garbage(keep=timedelta(0))
    gone = "The page cannot show that time"
    assert gone in words.text(f"tables/docs/rows?at={old}", 400)
    assert gone in words.text(words.row("row", at=old), 400)
    answer = words.client.get(f"/{words.name}/tables/docs/cell?key=row&column=text&at={old}")
    assert answer.status_code == 410
    assert gone in answer.text


def test_a_large_value_is_cut_and_may_be_downloaded(words: Words) -> None:
    large = b"lorem <b>ipsum</b> " * 600_000
    words.put("row", text=large)
    words.put("row", text=bytes(range(256)) * 200, column="blob")
    words.put("row", text=large[:100_000], column="some")
    for path in ("tables/docs/rows", words.row("row")):
        assert len(words.page(path)) < 200_000
    page = words.page(words.row("row"))
    said = read(page)
    assert "too large for this page" in said
    assert "This is the beginning of 97.7 KiB" in said
    assert "000010 10 11 12 13" in said
    for column, value in (("text", large), ("blob", bytes(range(256)) * 200)):
        answer = words.client.get(f"/{words.name}/tables/docs/cell?key=row&column={column}")
        assert answer.content == value
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith(f'attachment; filename="docs.{column}.bin"')
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "column=text" in link(page, "Download the value") or "column=blob" in link(
        page, "Download the value"
    )


def test_bytes_that_are_no_text_are_shown_as_bytes(words: Words) -> None:
    words.put("row", text=b"\x00\x01\x02 ascii")
    said = words.text(words.row("row"))
    assert "000000 00 01 02 20 61 73 63 69 69 ··· ascii" in said
    assert "00 01 02 20 61" in words.text("tables/docs/rows")


def test_columns_with_the_longest_names_are_readable_and_every_page_of_them_is_reached(words: Words) -> None:
    from percolator_core.ui.links import column_token

    columns = [f"http://{number:03}.example/?q=" + "é&" * 21_837 + "..." for number in range(60)]
    assert {len(column.encode()) for column in columns} == {65_536}
    for value in (b"old", b"new"):
        with words.db.transaction() as t:
            for column in columns:
                t.set("docs", "row", column, value)
    assert len(words.page("tables/docs/rows")) < 60_000
    page, seen = words.page(words.row("row")), []
    while True:
        assert len(page) < 400_000
        seen += re.findall(r"<code>http://(\d+)\.example", page)
        if "More columns →" not in page:
            break
        assert len(link(page, "More columns →")) < 8_000
        page = words.follow(page, "More columns →")
    assert seen == [f"{number:03}" for number in range(60)]
    one = words.follow(words.page(words.row("row")), "Full name")
    assert columns[0] in html.unescape(one)
    assert "2 versions" in read(one)
    assert columns[1][:30] not in one
    then = words.text(words.row("row", column=column_token(columns[0]), at=words.db.timestamp()))
    assert "As of" in then
    place = f"/{words.name}/tables/docs/cell"
    asked = {"key": "row", "column": column_token(columns[7])}
    answer = words.client.get(place, params=asked)
    assert answer.content == b"new"
    assert len(answer.headers["content-disposition"]) < 500
    assert words.client.get(place, params=asked | {"column": column_token("x" * 65_536)}).status_code == 404
    assert "no observer" in words.text(f"trace?table=docs&row=row&column={column_token(columns[0])}", 400)


def test_locks_of_columns_with_the_longest_names_are_listed_and_resolved(words: Words) -> None:
    dead, column = words.connect(), "http://é/" * 6_553 + "123456"
    with dead.begin() as t:
        assert t.start_timestamp
        t.set("docs", "row", column, b"1")
        commit_of(t).prewrite()
        t.rollback()
    die(dead)
    page = words.page("locks")
    assert column[:100] in page
    assert "…" in page
    [name] = re.findall(r'name="column" value="([^"]*)"', page)
    [start] = re.findall(r'name="start" value="(\d+)"', page)
    which: dict[str, Any] = {
        "table": "docs",
        "row": "row",
        "column": html.unescape(name),
        "start": int(start),
    }
    assert "rolled back" in words.post("locks/resolve", **which)["said"]
    assert words.db.snapshot().get_row("docs", "row") == {}


# Traces.


def test_a_trace_shows_the_runs_that_a_row_caused(words: Words) -> None:
    words.put("good", text=b"three small words")
    words.put("bad", text=b"boom")
    words.put("waits")
    words.drain()
    words.put("late")
    assert "Name a row" in words.text("trace")
    page = words.page("trace?table=docs&row=good")
    said = read(page)
    assert "3 runs in" in said
    assert "3 words.count" in said
    assert "words.dirty (notified)" in said
    assert "total words all dirty" in said
    assert page.count("<svg") == 3
    assert "in quarantine after 1 attempt: ValueError" in words.text("trace?table=docs&row=bad")
    assert "waits for a worker" in words.text("trace?table=docs&row=late")
    assert "no such change" in words.text("trace?table=docs&row=never")
    assert "is not a change" in words.text("trace?table=docs&row=good&change=wrong", 400)
    assert "watches docs.title" in words.text("trace?table=docs&row=good&column=title", 400)


def test_a_run_that_dealt_with_several_changes_is_drawn_once(words: Words) -> None:
    words.put("row", text=b"one")
    words.put("row", text=b"two")
    words.drain()
    said = words.text("trace?table=docs&row=row&change=all")
    assert said.count("shown above") == 2
    assert said.count("for 2 changes") == 2
    assert said.count("docs row text written") == 2
