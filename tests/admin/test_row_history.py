"""One row with its cells, their versions, and what it was at any time that is still known."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

import percolator_core
from percolator_core import Database, Hash, PrimaryKey, SnapshotTooOld, Table, UnknownColumn, UnknownTable
from percolator_core.admin.row_history import LARGEST, row_history
from tests.servers.plain import commit_of, some_namespace


class Note(Table, name="notes", partition=[Hash("name", buckets=2)]):
    """A typed table."""

    name: PrimaryKey[str]
    text: str | None = None
    size: int = 0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = f"embedded:{tmp_path_factory.mktemp('store')}"
    with percolator_core.connect(made, "keeper"):
        yield made


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with percolator_core.connect(url, some_namespace()) as made:
        made.create_table("docs", tablets=3)
        yield made


def put(db: Database, **cells: bytes | None) -> int:
    with db.transaction() as t:
        for column, value in cells.items():
            t.delete("docs", "row", column) if value is None else t.set("docs", "row", column, value)
    assert t.commit_timestamp is not None
    return t.commit_timestamp


def test_it_agrees_with_history_and_with_snapshots_at_every_time(db: Database) -> None:
    times = [
        put(db, a=b"1", b=b"x"),
        put(db, a=b"2"),
        put(db, a=None, c=b"new"),
        put(db, a=b"3", b=None),
        put(db, b=b"again", c=None),
    ]
    for at in [None, *times, *(time - 1 for time in times), *(time + 1 for time in times)]:
        found = row_history(db, "docs", "row", at=at)
        wanted = db.snapshot(at).get_row("docs", "row")
        seen = {
            one.column: one.version.value
            for one in found.cells
            if one.version is not None and one.version.value is not None
        }
        assert seen == wanted
        assert found.exists == bool(wanted)
        for cell in found.cells:
            assert list(cell.versions) == db.history("docs", "row", cell.column)
            assert not cell.more


def test_columns_come_some_at_a_time_and_versions_too(db: Database) -> None:
    for number in range(6):
        put(db, **{f"c{column}": b"%d" % number for column in range(7)})
    first = row_history(db, "docs", "row", limit=3, versions=4)
    assert [cell.column for cell in first.cells] == ["c0", "c1", "c2"]
    assert first.behind == "c2"
    assert all(len(cell.versions) == 4 and cell.more for cell in first.cells)
    last = row_history(db, "docs", "row", after="c5", limit=3)
    assert [cell.column for cell in last.cells] == ["c6"]
    assert last.behind is None
    assert not last.cells[0].more
    assert len(last.cells[0].versions) == 6
    [only] = row_history(db, "docs", "row", columns=["c4"], versions=6).cells
    assert len(only.versions) == 6
    assert not only.more


def test_a_version_older_than_those_listed_is_seen_all_the_same(db: Database, url: str) -> None:
    old = put(db, a=b"old")
    for _ in range(9):
        put(db, a=b"new")
    for versions in (3, 10):
        [cell] = row_history(db, "docs", "row", at=old, versions=versions).cells
        assert cell.version is not None
        assert cell.version.value == b"old"
        assert len(cell.versions) == versions
        assert cell.more == (versions == 3)
    [cell] = row_history(db, "docs", "row", at=old - 1, versions=3).cells
    assert cell.version is None
    assert not cell.unsettled
    with percolator_core.connect(url, db.namespace) as other:
        transaction = other.begin()
        begun = transaction.start_timestamp
        transaction.set("docs", "row", "a", b"under way")
        commit_of(transaction).prewrite()
        [cell] = row_history(db, "docs", "row", at=begun + 1, versions=1).cells
        assert cell.locked
        assert cell.version is not None


def test_a_value_that_is_too_large_is_left_where_it_is(db: Database) -> None:
    put(db, large=b"x" * (LARGEST + 1), small=b"y")
    large, small = row_history(db, "docs", "row").cells
    assert large.unread
    assert large.size == LARGEST + 1
    assert not large.versions
    assert not small.unread
    assert small.version is not None
    assert small.version.value == b"y"


def test_many_large_values_are_not_all_read(db: Database) -> None:
    value = b"x" * (LARGEST // 2)
    for _ in range(2):
        put(db, **{f"c{column}": value for column in range(6)})
    cells = row_history(db, "docs", "row").cells
    assert sum(len(cell.versions) for cell in cells) * len(value) <= 6 * LARGEST
    assert any(cell.unread for cell in cells)
    assert not all(cell.unread for cell in cells)


def test_nobody_is_waited_for(db: Database, url: str) -> None:
    put(db, a=b"before")
    with percolator_core.connect(url, db.namespace) as other:
        transaction = other.begin()
        transaction.set("docs", "row", "a", b"after")
        transaction.set("docs", "row", "b", b"first")
        commit_of(transaction).prewrite()
        a = row_history(db, "docs", "row").cells[0]
        assert a.locked
        assert a.version is not None
        assert a.version.value == b"before"


def test_a_typed_row_tells_when_it_was_made_and_removed(db: Database) -> None:
    db.create_table(Note)
    with db.transaction() as t:
        t.insert(Note(name="n", text="hello"))
    made = t.commit_timestamp
    with db.transaction() as t:
        t.remove(Note, name="n")
    found = row_history(db, "notes", "n")
    assert not found.exists
    assert [one.value is None for one in found.marker] == [True, False]
    found = row_history(db, "notes", "n", at=made)
    assert found.exists
    assert {cell.column: cell.version.value for cell in found.cells if cell.version} == {
        "text": b"hello",
        "size": (1 << 63).to_bytes(8, "big"),
    }


def test_what_is_not_there_is_said(db: Database) -> None:
    assert not row_history(db, "docs", "never").cells
    with pytest.raises(UnknownTable):
        row_history(db, "none", "row")
    db.create_table("marks", notify_only=["dirty"])
    with pytest.raises(UnknownColumn):
        row_history(db, "marks", "row", columns=["dirty"])
    old = put(db, a=b"1")
    put(db, a=b"2")
    db.collect_garbage(timedelta(0))
    with pytest.raises(SnapshotTooOld, match="not known any more"):
        row_history(db, "docs", "row", at=old)


def test_only_the_columns_that_are_shown_are_known_afterwards(url: str, db: Database) -> None:
    with db.transaction() as t:
        for number in range(500):
            t.set("docs", "wide", f"c{number:04}", b"v")
    with percolator_core.connect(url, db.namespace) as other:
        found = row_history(other, "docs", "wide", after="c0099", limit=20)
        assert [cell.column for cell in found.cells] == [f"c{number:04}" for number in range(100, 120)]
        assert found.behind == "c0119"
        assert len(other.catalog.table("docs").columns) <= 30
