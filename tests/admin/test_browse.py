"""Pages of rows: all of them once and in order, whatever the page's size, the filter and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import percolator_core
from percolator_core import Database, Hash, Indexed, PrimaryKey, Table, Unique
from percolator_core.admin import browse as browsing
from percolator_core.admin.browse import RowsPage, browse, orders, page_before
from percolator_core.schema.expression import RawFilter, parse
from percolator_core.schema.row_keys import KeyCodec
from tests.servers.plain import some_namespace


class Seat(Table, name="seats", partition=[Hash("hall", buckets=3)]):
    """A typed table with a composite key and an index."""

    hall: PrimaryKey[str]
    number: PrimaryKey[int]
    level: Indexed[int] = 0
    note: str | None = None
    owner: Indexed[str | None] = None
    ticket: Unique[int | None] = None


class Plain(Table, name="plain"):
    """A typed table whose index is added later."""

    id: PrimaryKey[int]
    size: int


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with percolator_core.connect(f"embedded:{tmp_path_factory.mktemp('store')}", some_namespace()) as made:
        made.create_table("raw", tablets=5)
        made.create_table("empty", tablets=2)
        made.create_table(Seat)
        with made.transaction() as t:
            for number in range(300):
                t.set("raw", b"row%04d" % number, "size", b"%d" % (number % 7))
                if number % 50 == 0:
                    t.set("raw", b"row%04d" % number, "rare", b"yes")
                some = {} if number % 3 else {"owner": f"o{number % 4}", "ticket": -number}
                t.insert(Seat(hall=f"h{number % 5}", number=number, level=number % 9, **some))  # type: ignore[arg-type]
        yield made


def every(db: Database, table: str, **asked: Any) -> list[RowsPage]:
    """All pages, one after the other."""
    snapshot = db.snapshot()
    found = [browse(snapshot, table, **asked)]
    while found[-1].following is not None:
        assert len(found) < 2_000, "it does not come forward"
        found.append(browse(snapshot, table, **asked | {"start": found[-1].following}))
    return found


def raw(*conditions: str) -> RawFilter:
    return RawFilter.of(conditions, "raw")


def keys(pages: list[RowsPage]) -> list[bytes]:
    return [row for page in pages for row, _ in page.rows]


CONDITIONS: dict[str, Callable[[int], bool]] = {
    "": lambda _: True,
    "size = '3'": lambda number: number % 7 == 3,
    "rare = 'yes'": lambda number: number % 50 == 0,
    "row >= 'row0100'": lambda number: number >= 100,
    "row ^= 'row02'": lambda number: 200 <= number < 300,
    "row < 'row0010'": lambda number: number < 10,
    "row = 'row0010'": lambda number: number == 10,
    "row != 'row0010'": lambda number: number != 10,
    "row in ('row0010', 'row0020') and size is not null": lambda number: number in {10, 20},
    "rare is null and row < 'row0100'": lambda number: number < 100 and number % 50 != 0,
    "row = 'row0010' or rare = 'yes'": lambda number: number == 10 or number % 50 == 0,
    "size = 'never'": lambda _: False,
}


@pytest.mark.parametrize("seconds", [0.0, 1.0])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("limit", [1, 7, 300])
def test_pages_of_a_raw_table_have_every_row_once(
    db: Database, condition: str, limit: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "_LOOKED_AT", 8)
    where = raw(condition) if condition else None
    pages = every(db, "raw", where=where, limit=limit, seconds=seconds)
    assert keys(pages) == [b"row%04d" % number for number in range(300) if CONDITIONS[condition](number)]
    assert all(len(page.rows) <= limit for page in pages)


@settings(max_examples=60, deadline=None)
@given(
    where=st.sampled_from(
        ["", "number > 100", "hall = 'h3'", "level = 4", "level = 4 and hall > 'h2'", "note is not null"]
    ),
    limit=st.integers(1, 120),
    seconds=st.sampled_from([0.0, 1.0]),
)
def test_pages_of_a_typed_table_have_every_row_once(
    db: Database, where: str, limit: int, seconds: float
) -> None:
    predicate = parse(where, db.catalog.table("seats").definition) if where else None
    pages = every(db, "seats", where=predicate, limit=limit, seconds=seconds)
    wanted = [(one["hall"], one["number"]) for one in db.snapshot().select("seats", predicate)]
    assert len(keys(pages)) == len(wanted) == len(set(keys(pages)))
    assert keys(pages) == sorted(keys(pages))
    assert all(len(page.rows) <= limit for page in pages)


@settings(max_examples=30, deadline=None)
@given(
    where=st.sampled_from(["", "number > 100", "hall = 'h3'", "level = 4", "note is not null"]),
    order=st.sampled_from([None, "level", "owner", "ticket"]),
    prefix=st.sampled_from([None, b"h3"]),
    limit=st.sampled_from([7, 40, 200]),
    seconds=st.sampled_from([0.0, 1.0]),
    reverse=st.booleans(),
)
def test_pages_in_the_order_of_an_index_have_every_row_with_a_value_once(  # noqa: PLR0917
    db: Database,
    where: str,
    order: str | None,
    prefix: bytes | None,
    limit: int,
    seconds: float,
    *,
    reverse: bool,
) -> None:
    definition = db.catalog.table("seats").definition
    predicate = parse(where, definition) if where else None
    asked = {"where": predicate, "order_by": order, "prefix": prefix, "reverse": reverse, "limit": limit}
    pages = every(db, "seats", seconds=seconds, **asked)
    rows = [
        one
        for one in db.snapshot().select("seats", predicate)
        if (prefix is None or one["hall"] == "h3") and (order is None or one[order] is not None)
    ]
    wanted = sorted(
        ((*(() if order is None else (one[order],)), one["hall"], one["number"]) for one in rows),
        reverse=reverse,
    )
    split = KeyCodec(definition).decode
    found = [split(key) for key in keys(pages)]
    assert found == [one[-2:] for one in wanted]
    assert all(len(page.rows) <= limit for page in pages)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("limit", [7, 300])
def test_pages_of_a_raw_table_in_descending_order(
    db: Database, condition: str, limit: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "_LOOKED_AT", 8)
    where = raw(condition) if condition else None
    pages = every(db, "raw", where=where, limit=limit, seconds=seconds, reverse=True)
    wanted = [b"row%04d" % number for number in range(300) if CONDITIONS[condition](number)]
    assert keys(pages) == wanted[::-1]
    assert all(len(page.rows) <= limit for page in pages)


def test_an_order_needs_an_index_that_was_complete(db: Database) -> None:
    db.create_table(Plain)
    with db.transaction() as t:
        t.insert(Plain(id=1, size=3))
    before = db.timestamp()
    assert orders(db.snapshot(), "plain") == ()
    db.add_index(Plain, "size")
    assert orders(db.snapshot(), "plain") == ("size",)
    assert orders(db.snapshot(before), "plain") == ()
    with pytest.raises(ValueError, match="plain cannot be ordered by 'size'"):
        browse(db.snapshot(before), "plain", order_by="size")
    assert orders(db.snapshot(), "seats") == ("level", "owner", "ticket")
    assert orders(db.snapshot(), "raw") == ()
    for name, column in (("seats", "note"), ("seats", "hall"), ("seats", "nothing"), ("raw", "size")):
        with pytest.raises(ValueError, match=f"{name} cannot be ordered by '{column}'"):
            browse(db.snapshot(), name, order_by=column)


def test_a_page_without_time_says_how_far_it_came(db: Database) -> None:
    page = browse(db.snapshot(), "raw", where=raw("size = 'never'"), seconds=0.0)
    assert page == RowsPage(())  # a step looks at 512 rows of each tablet: it has seen all
    with db.transaction() as t:
        for number in range(4_000):
            t.set("raw", b"z%05d" % number, "other", b"x")
    page = browse(db.snapshot(), "raw", where=raw("other = 'never'"), seconds=0.0)
    assert not page.rows
    assert page.following is not None
    assert not page.in_time
    whole = browse(db.snapshot(), "raw", where=raw("other = 'never'"), seconds=60.0)
    assert whole == RowsPage(())
    with db.transaction() as t:
        for number in range(4_000):
            t.delete("raw", b"z%05d" % number, "other")


def test_the_page_before_ends_where_this_one_begins(db: Database) -> None:
    rows = [b"row%04d" % number for number in range(300)]
    assert page_before(db, "raw", rows[100], limit=20) == rows[80]
    assert page_before(db, "raw", rows[20], limit=20) == rows[0]
    assert page_before(db, "raw", rows[5], limit=20) == b""
    assert page_before(db, "raw", rows[0], limit=20) == b""
    assert page_before(db, "raw", rows[205], prefix=b"row02", limit=20) == b"row02"
    assert page_before(db, "raw", rows[230], prefix=b"row02", limit=20) == rows[210]
    assert page_before(db, "empty", b"x") == b""


def test_an_empty_range_is_an_empty_page(db: Database) -> None:
    assert browse(db.snapshot(), "empty") == RowsPage(())
    assert browse(db.snapshot(), "raw", start=b"row1", prefix=b"row0") == RowsPage(())
    contradiction = raw("row > 'row2'", "row < 'row1'")
    assert browse(db.snapshot(), "raw", where=contradiction) == RowsPage(())


@pytest.mark.parametrize("condition", ["", "size = '3'"])
def test_of_long_values_only_the_beginning_is_fetched(db: Database, condition: str) -> None:
    row, where = b"zlong", raw(*(one for one in (condition, "row >= 'zlong'") if one))
    for size in (b"2", b"3"):
        with db.transaction() as t:
            for column in ("text", "other"):
                t.set("raw", row, column, b"v" * 100_000)
            t.set("raw", row, "size", size)
            t.set("raw", row, "gone", b"x" * 1_000)
    with db.transaction() as t:
        t.delete("raw", row, "gone")
    assert t.commit_timestamp is not None
    before = db.snapshot(t.commit_timestamp - 1)
    with db.transaction() as later:
        later.set("raw", row, "text", b"w")
    cut = {"text": b"v" * 50, "other": b"v" * 50, "size": b"3"}
    now = browse(db.snapshot(), "raw", where=where, cut=50)
    assert dict(now.rows)[row] == cut | {"text": b"w"}
    # An older version, and one that was deleted since.
    then = browse(before, "raw", where=where, cut=50)
    assert dict(then.rows)[row] == cut | {"gone": b"x" * 50}
    whole = browse(before, "raw", where=where)
    assert dict(whole.rows)[row] == {
        "text": b"v" * 100_000,
        "other": b"v" * 100_000,
        "size": b"3",
        "gone": b"x" * 1_000,
    }
    with db.transaction() as t:
        for column in ("text", "other", "size"):
            t.delete("raw", row, column)


@pytest.mark.parametrize("condition", ["text = '{}'", "text = '{}' or other = 'x'", "not text != '{}'"])
def test_long_values_are_compared_as_a_whole(db: Database, condition: str) -> None:
    """Also by a filter that rows without the compared columns may meet: then whole rows are read."""
    db.create_table("long", tablets=3)
    with db.transaction() as t:
        t.set("long", "short", "text", b"v" * 50)
        t.set("long", "wanted", "text", b"v" * 60)
        t.set("long", "longer", "text", b"v" * 61)
    where = RawFilter.of([condition.format("v" * 60)], "long")
    found = browse(db.snapshot(), "long", where=where, cut=50)
    assert found.rows == ((b"wanted", {"text": b"v" * 50}),)


def test_a_step_that_would_take_too_long_is_not_begun(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steps = 0.0, 0

    def take(some: Any) -> None:
        nonlocal clock, steps
        clock, steps = clock + 0.6, steps + 1
        whole(some)

    snapshot = db.snapshot()
    whole = snapshot.take_scans
    monkeypatch.setattr(browsing, "_LOOKED_AT", 8)
    monkeypatch.setattr(browsing, "time", SimpleNamespace(monotonic=lambda: clock))
    monkeypatch.setattr(type(snapshot), "take_scans", lambda _, some: take(some))
    for seconds, wanted in ((1.0, 1), (1.3, 2)):
        steps = 0
        where = raw("size = 'never'")
        assert not browse(snapshot, "raw", where=where, seconds=seconds).in_time
        assert steps == wanted
