"""Migrations beside clients that they do not expect, and changes that prove impossible late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from percolator_core import (
    ConfigurationError,
    Database,
    Indexed,
    RenamedFrom,
    RowExists,
    Unique,
    UnknownColumn,
)
from percolator_core.migration.type_change import ColumnCopy
from percolator_core.notifications.activation import activate
from percolator_core.tables.model import definition_of
from percolator_core.tables.verify import check_indexes
from tests.migration.models import model, rows

Connect = Callable[..., Database]


def one_row(db: Database, number: int = 1, **values: Any) -> None:
    db.run(lambda t: t.insert("items", id=number, **values))


@pytest.mark.parametrize("name", ["id", "tree"])
def test_an_impossible_index_stops_no_writer(connect: Connect, name: str) -> None:
    db = connect()
    db.migrate([model(tree=(dict[str, Any] | None, None))])
    with pytest.raises(ConfigurationError, match="index of"):
        db.add_index("items", name)
    one_row(connect(), tree={"a": 1})
    assert len(db.tables()) == 1


def test_an_indexed_column_becomes_json_without_its_index(connect: Connect) -> None:
    db = connect()
    db.migrate([model(n=(Indexed[str], ...))])
    one_row(db, n="a")
    wanted = model(n=(dict[str, Any] | str, ...))
    with pytest.raises(ConfigurationError, match="json has no order: drop the index first"):
        db.change_type(wanted, "n")
    assert [one.kind for one in db.migrate([wanted])] == ["drop index", "change type"]
    one_row(connect(), 2, n={"a": 1})


def test_a_unique_column_stays_unique_while_its_type_changes(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, other = connect(), connect()
    db.migrate([model(n=(Unique[int], ...))])
    for number in range(5):
        one_row(db, number, n=number)
    change, done = db.schema_changes._change, []

    def refused_after(name: str, what: Any, plan: Any, **more: Any) -> None:
        change(name, what, plan, **more)
        for kind in (int, str):
            with pytest.raises((RowExists, TypeError)) as raised:
                one_row(other, 99, n=kind(3))
            done.append((what[0], raised.type))

    monkeypatch.setattr(db.schema_changes, "_change", refused_after)
    db.migrate([model(n=(Unique[str], ...))])
    assert [what for what, error in done if error is RowExists] == [
        "start copy",
        "complete index",
        "switch to copy",
    ]
    assert check_indexes(db.snapshot(), "items") == []
    assert len(db.tables()) == 2


def test_the_index_of_a_copy_follows_each_write(connect: Connect) -> None:
    db, old = connect(), model(n=(Unique[int], ...), note=(str | None, None))
    new = model(n=(Unique[str], ...), note=(str | None, None))
    db.migrate([old])
    for number in range(5):
        one_row(db, number, n=number)
    db.schema_changes.start_copy("items", definition_of(new).by_name["n"], None)
    with db.transaction() as t:
        t.update("items", id=0, n=10)
        t.update(old(id=0, n=11))
        t.upsert("items", id=1, n=12)
        t.upsert(old(id=1, n=13, note="a"))
        t.remove("items", id=2)
        t.insert("items", id=5, n=2)  # the value that the removed row had
    with db.transaction() as t:
        t.update("items", id=5, n=0)
        t.update("items", id=1, note="b")
        t.upsert("items", id=6, n=2)
    db.migrate([new])
    assert check_indexes(db.snapshot(), "items") == []
    assert [(row["id"], row["n"]) for row in rows(db)] == [
        (0, "11"),
        (1, "13"),
        (3, "3"),
        (4, "4"),
        (5, "0"),
        (6, "2"),
    ]


def test_nulls_that_would_become_equal_leave_a_unique_column_as_it_is(connect: Connect) -> None:
    db = connect()
    db.migrate([model(n=(Unique[int | None], None))])  # type: ignore[misc]
    for number in range(2):
        one_row(db, number, n=None)
    wanted = model(n=(Unique[str], "none"))
    with pytest.raises(RowExists, match="same value of the unique column n in two rows"):
        db.migrate([wanted], allow_narrowing=["items.n"])
    assert [row["n"] for row in rows(db)] == [None, None]
    with db.transaction() as t:
        t.update("items", id=1, n=7)
    db.migrate([wanted], allow_narrowing=["items.n"])
    assert [row["n"] for row in rows(db)] == ["none", "7"]
    assert check_indexes(db.snapshot(), "items") == []


def test_a_value_that_is_too_long_for_an_index_is_named_and_can_be_changed(connect: Connect) -> None:
    db, wanted = connect(), model(text=(Indexed[str], ...))
    db.migrate([model(text=(str, ...))])
    for number in range(3):
        one_row(db, number, text="x" * (70_000 if number else 1))
    with pytest.raises(ValueError, match=r"items, row id=1: text: .* at most 65536 are allowed"):
        db.migrate([wanted])
    with db.transaction() as t:
        t.update("items", id=1, text="short")
        t.remove("items", id=2)
    db.migrate([wanted])
    assert check_indexes(db.snapshot(), "items") == []


def test_the_type_is_compared_with_the_present_one(connect: Connect) -> None:
    db, other, old = connect(), connect(), model(n=(int, 0))
    db.migrate([old])
    other.catalog.refresh()
    db.change_type(model(n=(str, "0")), "n")
    other.change_type(old, "n", narrowing=True)
    connect().create_table(old)


def test_a_copy_that_another_client_has_ended_begins_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, other, wanted = connect(), connect(), model(n=(str, "0"))
    db.migrate([model(n=(int, 0))])
    one_row(db, n=5)
    fill = ColumnCopy.fill

    def ended_once(self: ColumnCopy) -> str | None:
        monkeypatch.setattr(ColumnCopy, "fill", fill)
        other.schema_changes.end_copy("items", "n")
        return fill(self)

    monkeypatch.setattr(ColumnCopy, "fill", ended_once)
    db.change_type(wanted, "n")
    assert rows(db) == [{"id": 1, "n": "5"}]


def test_a_copy_whose_column_gets_another_name_is_no_success(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, other = connect(), connect()
    db.migrate([model(n=(int, 0))])
    one_row(db, n=5)
    fill = ColumnCopy.fill

    def renamed(self: ColumnCopy) -> str | None:
        other.rename_column("items", "n", "m")
        return fill(self)

    monkeypatch.setattr(ColumnCopy, "fill", renamed)
    with pytest.raises(UnknownColumn, match="items has no column 'n': it has id, m"):
        db.change_type(model(n=(str, "0")), "n")
    monkeypatch.undo()
    db.migrate([model(m=(str, "0"))])
    assert rows(db) == [{"id": 1, "m": "5"}]


def test_an_index_that_needs_a_copy_of_an_observed_column_is_refused_first(connect: Connect) -> None:
    db = connect()
    db.migrate([model(a=(int, 0))])
    one_row(db, a=1)
    db.migrate([model(a=(int, 0), stars=(int, 3))])
    activate(db, {("items", "stars"): ("watcher",)}, "digest")
    before = db.tables()
    wanted = model(b=(Annotated[int, RenamedFrom("a")], 0), stars=(Indexed[int], 3))
    with pytest.raises(ConfigurationError, match="'watcher' observes the column"):
        db.migrate([wanted])
    assert db.tables() == before
