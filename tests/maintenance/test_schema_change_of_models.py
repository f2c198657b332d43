"""Changes of tables as a model's user makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from percolator_core import (
    ConfigurationError,
    Database,
    Hash,
    Indexed,
    PrimaryKey,
    Range,
    Table,
    UnknownColumn,
)
from percolator_core.base.changes import BaseChanges
from percolator_core.catalog.schema_change import SchemaChanges
from percolator_core.maintenance.locks import Locks

Connect = Callable[..., Database]


PARTITION = [Hash("number", buckets=2), Range("day", splits=[10])]


class First(Table, name="notes", partition=PARTITION):
    day: PrimaryKey[int]
    number: PrimaryKey[int]
    author: Indexed[str]
    text: str = ""


class Second(Table, name="notes", partition=PARTITION):
    day: PrimaryKey[int]
    number: PrimaryKey[int]
    author: Indexed[str]
    stars: int = 3
    seen: bool | None = None
    bad: int | None = 7
    worse: int
    worst: Indexed[str] = ""
    text: str = ""


@pytest.fixture
def made(connect: Connect) -> Database:
    db = connect()
    db.create_table(First)
    with db.transaction() as t:
        t.insert(First(day=1, number=1, author="a", text="one"))
    return db


def test_a_column_is_added_with_what_old_rows_have(made: Database, connect: Connect) -> None:
    for name in ("stars", "seen", "stars"):
        made.add_column(Second, name)
    for name, match in (
        ("bad", "may be null"),
        ("worse", "give the column a default"),
        ("day", "part of the key"),
    ):
        with pytest.raises(ConfigurationError, match=match):
            made.add_column(Second, name)
    with pytest.raises(UnknownColumn, match="Second has no column 'other'"):
        made.add_column(Second, "other")
    made.add_column(Second, "worst")
    made.drop_index("notes", "worst")
    made.drop_column("notes", "worst")
    made.create_table(First)
    found = connect().snapshot().find("notes", day=1, number=1)
    assert found == {"day": 1, "number": 1, "author": "a", "text": "one", "stars": 3, "seen": None}


def test_indexes_come_and_go_with_their_table(made: Database, connect: Connect) -> None:
    index = made.catalog.table("notes").definition.indexes[0].table
    assert [one.name for one in made.tables()] == sorted(["notes", index])
    with pytest.raises(ConfigurationError, match="is an index: drop its table, 'notes'"):
        made.drop_table(index)
    with pytest.raises(ConfigurationError, match="is an index: change its table, 'notes'"):
        made.drop_column(index, "author")
    with pytest.raises(ConfigurationError, match="author has an index"):
        made.drop_column(First, "author")
    made.rename_column(First, "author", "writer")
    rows = list(made.snapshot().select("notes", columns=["writer"]))
    assert rows == [{"writer": "a"}]

    class Dying(SchemaChanges):
        def steps(self, entry: Any) -> Any:
            for step in super().steps(entry):
                yield step
                if step == "indexes":
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Dying(made.client, Locks(made.client), BaseChanges(made.client)).drop("notes")
    other = connect()
    assert other.tables() == []
    other.create_table(First)
    assert list(other.snapshot().select(First)) == []
    with other.transaction() as t:
        t.insert(First(day=1, number=1, author="b"))
    assert [row.author for row in other.snapshot().select(First)] == ["b"]
    other.drop_table(First)
    assert other.tables() == []


def test_ranges_of_a_model(made: Database) -> None:
    with pytest.raises(TypeError, match="'x' is no int"):
        made.add_range(First, "x")
    made.add_range(First, 5)
    made.add_range("notes", 20)
    rule = made.catalog.table("notes").definition.ranges
    assert rule is not None
    assert rule.numbers == (0, 2, 1, 3)
    made.create_table(First)
    with made.transaction() as t:
        for day in (1, 5, 9, 10, 25):
            t.upsert(First(day=day, number=2, author="a"))
    assert [row.day for row in made.snapshot().select(First, First.number == 2)] == [1, 5, 9, 10, 25]
    with pytest.raises(ConfigurationError, match="would move rows, such as day=5, number=2 below"):
        made.add_range(First, 7)
    with pytest.raises(TypeError, match="are for raw tables"):
        made.create_table(First, tablets=4)
