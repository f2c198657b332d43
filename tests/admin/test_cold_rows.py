"""Rows of a base in everything that a person looks at: as in a twin of the table that was never flushed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import percolator_core
from percolator_core import Database, Hash, Indexed, PrimaryKey, SnapshotTooOld, Table
from percolator_core.admin import row_history as histories
from percolator_core.admin.browse import browse, page_before
from percolator_core.admin.diff import changes
from percolator_core.admin.row_history import CellHistory, RowHistory, columns_of, row_history
from percolator_core.base.flush import TabletFlush
from percolator_core.layout.records import Version
from percolator_core.schema.expression import RawFilter, parse
from tests.flushing import flush, is_cold
from tests.servers.plain import some_namespace

NAMES = [f"r{number:02}" for number in range(60)]
BOTH = ("docs", "twin")


class Docs(Table, name="docs", partition=[Hash("id", buckets=3)]):
    id: PrimaryKey[str]
    a: Indexed[str | None] = None
    b: str | None = None
    n: int = 7


class Twin(Table, name="twin", partition=[Hash("id", buckets=3)]):
    id: PrimaryKey[str]
    a: Indexed[str | None] = None
    b: str | None = None
    n: int = 7


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = f"embedded:{tmp_path_factory.mktemp('store')}"
    with percolator_core.connect(made, "keeper"):
        yield made


@pytest.fixture
def empty(url: str) -> Iterator[Database]:
    with percolator_core.connect(url, some_namespace()) as made:
        yield made


@pytest.fixture(params=["raw", "typed"])
def db(request: pytest.FixtureRequest, empty: Database, tmp_path: Path) -> Database:
    """Rows 0 to 19 are cold, 20 to 39 have changed since the flush, 40 to 59 are hot."""
    if request.param == "raw":
        for table in BOTH:
            empty.create_table(table, tablets=3)
    else:
        for model in (Docs, Twin):
            empty.create_table(model)
    put(empty, NAMES[:40], a="old", b="old " * 50)
    assert flush(empty, "docs", tmp_path) == 40
    put(empty, NAMES[20:25], a="new")
    put(empty, NAMES[25:30], b=None)
    put(empty, NAMES[30:35], a=None, b="new")
    remove(empty, NAMES[35:40])
    put(empty, NAMES[40:], a="hot", b="hot")
    assert all(is_cold(empty, "docs", name.encode()) == (name < "r20") for name in NAMES)
    return empty


def put(db: Database, names: list[str], **cells: str | None) -> int:
    """Write cells of rows, in both tables at the same time."""
    with db.transaction() as t:
        for name in names:
            for model in (Docs, Twin):
                if db.catalog.table("docs").is_typed:
                    t.upsert(model(id=name, **cells))  # type: ignore[arg-type]
                    continue
                for column, value in cells.items():
                    if value is None:
                        t.delete(model.__name__.lower(), name, column)
                    else:
                        t.set(model.__name__.lower(), name, column, value.encode())
    assert t.commit_timestamp is not None
    return t.commit_timestamp


def remove(db: Database, names: list[str]) -> None:
    with db.transaction() as t:
        for name in names:
            for model in (Docs, Twin):
                if db.catalog.table("docs").is_typed:
                    t.remove(model, id=name)
                else:
                    t.delete_row(model.__name__.lower(), name)


def pages(db: Database, table: str, **asked: Any) -> list[tuple[bytes, Any]]:
    snapshot = db.snapshot()
    rows: list[tuple[bytes, Any]] = []
    page = browse(snapshot, table, **asked)
    rows += page.rows
    while page.following is not None:
        page = browse(snapshot, table, **asked | {"start": page.following})
        rows += page.rows
    return rows


@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("cut", [None, 5])
@pytest.mark.parametrize("reverse", [False, True])
def test_pages_have_all_rows(db: Database, limit: int, cut: int | None, *, reverse: bool) -> None:
    typed = db.catalog.table("docs").is_typed
    docs, twin = (pages(db, table, limit=limit, cut=cut, reverse=reverse) for table in BOTH)
    assert docs == twin
    assert docs == sorted(docs, key=itemgetter(0), reverse=reverse)
    assert len(docs) == 55
    assert {len(cells["b"]) for row, cells in docs if row < b"r20"} == {5 if cut and not typed else 200}


@pytest.mark.parametrize(
    "conditions", [["a = 'old'"], ["b ^= 'old'"], ["a != 'old'"], ["row > 'r15'", "b = 'new'"], ["n = '7'"]]
)
@pytest.mark.parametrize("cut", [None, 2])
def test_pages_of_a_raw_table_with_conditions(db: Database, conditions: list[str], cut: int | None) -> None:
    if db.catalog.table("docs").is_typed:
        pytest.skip("typed rows are selected")
    docs, twin = (pages(db, table, limit=4, cut=cut, where=RawFilter.of(conditions, table)) for table in BOTH)
    assert docs == twin
    assert all(len(value) <= (cut or 200) for _, cells in docs for value in cells.values())


@pytest.mark.parametrize(
    "condition", ["a = 'old'", "b ^= 'old'", "a is null", "id > 'r15' and b = 'new'", "n = 7"]
)
def test_pages_of_a_typed_table_with_conditions(db: Database, condition: str) -> None:
    if not db.catalog.table("docs").is_typed:
        pytest.skip("raw rows are scanned")
    where = parse(condition, db.catalog.table("docs").definition)
    docs, twin = (pages(db, table, limit=4, where=where) for table in BOTH)
    assert docs == twin
    assert docs


@pytest.mark.parametrize("reverse", [False, True])
def test_pages_in_the_order_of_an_index(db: Database, *, reverse: bool) -> None:
    if not db.catalog.table("docs").is_typed:
        pytest.skip("a raw table has no index")
    docs, twin = (pages(db, table, limit=4, order_by="a", reverse=reverse) for table in BOTH)
    assert docs == twin
    assert len(docs) == 50
    assert [cells["a"] for _, cells in docs] == sorted((cells["a"] for _, cells in docs), reverse=reverse)


@pytest.mark.parametrize("limit", [1, 7, 20, 100])
@pytest.mark.parametrize("prefix", [None, b"r1", b"r2", b"r9"])
def test_pages_backward(db: Database, limit: int, prefix: bytes | None) -> None:
    for end in (b"", b"r00", b"r10", b"r25", b"r40", b"r59", b"s"):
        before = [page_before(db, table, end, prefix=prefix, limit=limit) for table in BOTH]
        assert before[0] == before[1], end


def comparable(found: RowHistory, typed: bool) -> RowHistory:
    """Without what a base does not know: starts of transactions and, of a typed row, times of cells."""

    def known(version: Version) -> Version:
        return Version(0 if typed else version.commit_ts, 0, version.value)

    def cell(one: CellHistory) -> CellHistory:
        versions = tuple(map(known, one.versions))
        return replace(one, versions=versions, version=one.version and known(one.version))

    return RowHistory(
        found.at,
        tuple(map(cell, found.cells)),
        found.behind,
        tuple(map(known, found.marker)),
    )


@pytest.mark.parametrize("versions", [1, 2, 10])
def test_the_history_of_a_row(db: Database, versions: int) -> None:
    typed = db.catalog.table("docs").is_typed
    times = [None, db.timestamp()]
    for name in NAMES[::3]:
        for at in times:
            docs, twin = (
                row_history(db, table, name, at=at or times[1], versions=versions) for table in BOTH
            )
            assert comparable(docs, typed) == comparable(twin, typed), name
            assert docs.exists == twin.exists
        assert columns_of(db, "docs", name) == columns_of(db, "twin", name)
        for column in ("a", "b"):
            found = [db.history(table, name, column, limit=versions) for table in BOTH]
            values = [[version.value for version in each] for each in found]
            assert values[0] == values[1]
    cold = row_history(db, "docs", "r00", versions=versions)
    assert [one.versions[-1].is_of_base for one in cold.cells if one.versions] == (
        [True] * (2 + db.catalog.table("docs").is_typed)
    )
    hot = row_history(db, "docs", "r50")
    assert not any(version.is_of_base for one in hot.cells for version in one.versions)


def test_the_version_below_all_that_were_read(db: Database) -> None:
    """A reader's version may be the one of the base, and a page may have newer ones only."""
    at = db.timestamp()
    for turn in range(4):
        put(db, ["r00"], a=f"turn {turn}")
    for versions in (1, 2, 4, 5):
        [cell] = row_history(db, "docs", "r00", at=at, columns=["a"], versions=versions).cells
        assert cell.version is not None
        assert cell.version.value == b"old"
        assert cell.more == (versions < 5)
        assert len(cell.versions) == versions
    with pytest.raises(SnapshotTooOld, match="is not known any more"):
        row_history(db, "docs", "r00", at=1)


def test_a_page_of_columns_of_a_cold_row(db: Database) -> None:
    typed = db.catalog.table("docs").is_typed
    first = row_history(db, "docs", "r00", limit=1)
    assert [one.column for one in first.cells] == ["a"]
    rest = row_history(db, "docs", "r00", after=first.behind)
    assert [one.column for one in rest.cells] == (["b", "n"] if typed else ["b"])
    assert rest.behind is None


def test_large_values_of_the_base_are_not_returned(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "LARGEST", 100)
    cells = {one.column: one for one in row_history(db, "docs", "r00").cells}
    assert (cells["a"].unread, cells["b"].unread) == (False, True)
    assert cells["b"].size == 200
    assert not cells["b"].versions
    monkeypatch.setattr(histories, "LARGEST", 1000)
    monkeypatch.setattr(histories, "_TOGETHER", 210)
    cells = {one.column: one for one in row_history(db, "docs", "r00").cells}
    assert (cells["a"].unread, cells["b"].unread) == (False, True)


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_flush_in_between_hides_nothing(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Whatever leaves the store between two requests is found in the base."""
    below, safe = histories._below, db.collect_garbage(timedelta(0)).safe_point
    flushed: list[int] = []

    def flush_as_well(*given: Any) -> Any:
        found = None if first else below(*given)
        flushed.append(flush(db, "docs", tmp_path, safe=safe))
        return below(*given) if first else found

    monkeypatch.setattr(histories, "_below", flush_as_well)
    typed = db.catalog.table("docs").is_typed
    docs, twin = (row_history(db, table, "r45") for table in BOTH)
    assert flushed[0] >= 20
    assert is_cold(db, "docs", b"r45")
    values = [
        [(one.column, [version.value for version in one.versions]) for one in found.cells]
        for found in (docs, twin)
    ]
    assert values[0] == values[1]
    assert docs.exists
    assert bool(docs.marker) == typed


def test_differences_between_two_times(db: Database) -> None:
    begin = db.timestamp()
    put(db, ["r01", "r21", "r41"], a="changed")
    remove(db, ["r02", "r22", "r42"])
    put(db, ["r36", "new"], a="added")

    def found(table: str) -> list[Any]:
        return [(one.kind, one.row, one.columns) for one in changes(db, table, begin, db.timestamp())]

    assert found("docs") == found("twin")
    assert len(found("docs")) == 8


def test_what_store_and_base_both_have_comes_once(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the flush before it evicts leaves rows in both."""
    put(db, ["r05"], a="again")
    monkeypatch.setattr(TabletFlush, "_evict", lambda *_: 0)
    flush(db, "docs", tmp_path)
    assert not is_cold(db, "docs", b"r45")
    for name in ("r05", "r20", "r45"):
        found = [row_history(db, table, name) for table in BOTH]
        values = [
            [(one.column, [version.value for version in one.versions]) for one in each.cells]
            for each in found
        ]
        assert values[0] == values[1]
        assert len(found[0].marker) == len(found[1].marker)
        docs, twin = ([version.value for version in db.history(table, name, "a")] for table in BOTH)
        assert docs == twin
    for end in (b"r00", b"r50", b"s"):
        before = [page_before(db, table, end, limit=9) for table in BOTH]
        assert before[0] == before[1]
    assert pages(db, "docs", limit=7) == pages(db, "twin", limit=7)
