"""What changed in a table between two moments."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from percolator_core import (
    Database,
    Hash,
    PrimaryKey,
    Snapshot,
    SnapshotTooOld,
    Table,
    UnknownColumn,
    connect,
)
from percolator_core.admin.diff import changes


class Item(Table, name="items", partition=[Hash("kind", "number", buckets=3)]):
    kind: PrimaryKey[str]
    number: PrimaryKey[int]
    size: float | None = None
    data: dict[str, Any] | None = None


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"embedded:{tmp_path_factory.mktemp('store')}"
    with connect(url, "keeper"):
        yield url


@pytest.fixture
def db(url: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    with connect(url, request.node.name) as database:
        database.create_table("raw", tablets=3)
        database.create_table(Item)
        yield database


def put(db: Database, **rows: dict[str, bytes]) -> int:
    with db.transaction() as t:
        for row, cells in rows.items():
            for column, value in cells.items():
                t.set("raw", row, column, value)
    return db.timestamp()


def test_raw_rows_that_came_went_and_changed(db: Database) -> None:
    born = db.timestamp()
    first = put(db, a={"x": b"1", "y": b"1"}, b={"x": b"1"}, c={"x": b"1"}, e={"x": b"1"})
    with db.transaction() as t:
        t.set("raw", "a", "x", b"2")
        t.delete_row("raw", "b")
        t.set("raw", "c", "x", b"1")  # written, and still the same
        t.set("raw", "d", "z", b"1")
        t.delete("raw", "e", "x")
        t.set("raw", "e", "y", b"1")
    found = list(changes(db, "raw", first))
    assert [(one.row, one.kind, one.columns) for one in found] == [
        (b"a", "changed", {"x": (b"1", b"2")}),
        (b"b", "removed", {"x": (b"1", None)}),
        (b"d", "added", {"z": (None, b"1")}),
        (b"e", "changed", {"x": (b"1", None), "y": (None, b"1")}),
    ]
    assert (found[0].old, found[0].new) == ({"x": b"1", "y": b"1"}, {"x": b"2", "y": b"1"})
    assert [one.row for one in changes(db, "raw", first, columns=["y"])] == [b"e"]
    assert list(changes(db, "raw", first, first)) == []
    assert [one.kind for one in changes(db, "raw", born, first)] == ["added"] * 4


def test_a_filter_of_raw_rows_is_true_at_one_of_the_moments(db: Database) -> None:
    first = put(db, a={"x": b"1"}, b={"x": b"5"}, c={"x": b"2", "y": b"0"})
    put(db, a={"x": b"5"}, b={"x": b"1"}, c={"x": b"3"})

    def found(**settings: Any) -> list[bytes]:
        return [
            one.row
            for one in changes(db, "raw", first, where=lambda _, cells: cells["x"] == b"5", **settings)
        ]

    assert found() == [b"a", b"b"]
    assert found(columns=["y"]) == []


def test_typed_rows(db: Database) -> None:
    with db.transaction() as t:
        t.insert(Item(kind="a", number=-1, size=float("nan"), data={"n": 1}))
        t.insert(Item(kind="a", number=1))
        t.insert(Item(kind="b", number=1, size=1.0))
        t.insert(Item(kind="b", number=2, size=1.0))
    first = db.timestamp()
    with db.transaction() as t:
        t.update(Item(kind="a", number=-1, data={"n": True}))  # equal in Python, and another value
        t.remove(Item, kind="a", number=1)
        t.update(Item(kind="b", number=1, size=0.5))
        t.insert(Item(kind="b", number=3))  # has nothing but its key
    found = list(changes(db, "items", first))
    assert [(one.kind, one.columns) for one in found] == [
        ("changed", {"data": ({"n": 1}, {"n": True})}),
        ("removed", {}),
        ("changed", {"size": (1.0, 0.5)}),
        ("added", {}),
    ]
    assert found[2].old == {"kind": "b", "number": 1, "size": 1.0, "data": None}
    assert Item.key_of(found[3].row) == {"kind": "b", "number": 3}
    by_model = list(changes(db, Item, first, columns=["size"]))
    assert [one.kind for one in by_model] == ["removed", "changed", "added"]
    assert by_model[1].new.size == 0.5


def test_a_typed_filter_is_true_at_one_of_the_moments(db: Database) -> None:
    with db.transaction() as t:
        for number in range(6):
            t.insert(Item(kind="a", number=number, size=number))
    first = db.timestamp()
    with db.transaction() as t:
        t.update(Item(kind="a", number=0, size=10.0))  # comes into it
        t.update(Item(kind="a", number=5, size=-1.0))  # falls out of it
        t.update(Item(kind="a", number=1, size=1.5))  # never is
        t.update(Item(kind="a", number=4, size=4.5))  # always is
        t.remove(Item, kind="a", number=3)
    size: Any = Item.size
    found = {
        one.old.number: (one.kind, one.columns["size"]) for one in changes(db, Item, first, where=size > 2)
    }
    assert found == {
        0: ("changed", (0.0, 10.0)),
        3: ("removed", (3.0, None)),
        4: ("changed", (4.0, 4.5)),
        5: ("changed", (5.0, -1.0)),
    }
    by_key: Any = Item.number >= 4
    assert [one.new.number for one in changes(db, Item, first, where=by_key)] == [4, 5]


def test_rows_that_met_the_filter_at_one_moment_are_read_many_at_once(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 700
    with db.transaction() as t:
        for number in range(count):
            t.insert(Item(kind="a", number=number, size=1))
    first = db.timestamp()
    with db.transaction() as t:
        for number in range(count):
            t.update(Item, kind="a", number=number, size=2)
    asked: list[int] = []
    ask = Snapshot._ask

    def counted(snapshot: Snapshot, commands: Sequence[Any], *more: Any) -> Any:
        asked.append(len(commands))
        return ask(snapshot, commands, *more)

    monkeypatch.setattr(Snapshot, "_ask", counted)
    found = list(changes(db, Item, first, where=Item.size == 1))  # type: ignore[arg-type]
    assert [(one.new.number, one.columns) for one in found] == [
        (number, {"size": (1, 2)}) for number in range(count)
    ]
    assert sum(asked) == count
    assert len(asked) <= 6


def test_what_cannot_be(db: Database) -> None:
    now = db.timestamp()
    with pytest.raises(ValueError, match="give the earlier time first"):
        changes(db, "raw", now, 5)
    with pytest.raises(ValueError, match="has not come yet"):
        changes(db, "raw", now + 10**12)
    with pytest.raises(TypeError, match="where is a function"):
        changes(db, "raw", 5, where=Item.number > 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is no predicate"):
        changes(db, "items", 5, where=lambda _, __: True)
    with pytest.raises(UnknownColumn):
        changes(db, "items", 5, columns=["nothing"])


@pytest.mark.parametrize("table", ["raw", "items"])
def test_a_moment_below_the_safe_point(db: Database, table: str) -> None:
    put(db, a={"x": b"1"})
    db.collect_garbage(keep=timedelta(0))
    with pytest.raises(SnapshotTooOld, match="safe point"):
        next(changes(db, table, 5))


def test_both_moments_are_pinned_while_they_are_read(db: Database) -> None:
    first = put(db, **{f"{number:03}": {"x": b"1"} for number in range(50)})
    put(db, **{f"{number:03}": {"x": b"2"} for number in range(50)})
    found = changes(db, "raw", first)
    assert next(found).row == b"000"
    assert db.collect_garbage(keep=timedelta(0)).versions == 0
    assert sum(1 for _ in found) == 49
    assert db.store.one((b"ZCARD", db.store.keyspace.pins)) == 0


def test_the_same_as_two_scans_say(db: Database) -> None:
    rng, born = random.Random(7), db.timestamp()
    moments = []
    for _ in range(8):
        with db.transaction() as t:
            for _ in range(12):
                kind, number = rng.choice("ab"), rng.randrange(12)
                if rng.random() < 0.3:
                    t.remove(Item, kind=kind, number=number)
                else:
                    t.upsert(Item(kind=kind, number=number, size=rng.choice([None, 1.0, 2.0])))
        moments.append(db.timestamp())
    for begin, end in [(moments[0], moments[-1]), (moments[2], moments[3]), (born, moments[4])]:
        before, after = (
            {(one["kind"], one["number"]): one for one in db.snapshot(at).select("items")}
            for at in (begin, end)
        )
        expected = {key: (before.get(key), after.get(key)) for key in before.keys() | after.keys()}
        found = {
            tuple(Item.key_of(one.row).values()): (one.old, one.new)
            for one in changes(db, "items", begin, end)
        }
        assert found == {key: pair for key, pair in expected.items() if pair[0] != pair[1]}
