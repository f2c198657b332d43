"""The jobs of each role with typed tables."""

from __future__ import annotations

from typing import Any, Final

import pytest

from percolator_core import Database, Hash, Indexed, PrimaryKey, Range, RowExists, Table, Unique
from percolator_core.admin.diff import changes
from percolator_core.layout.records import DELETE
from percolator_core.schema.predicates import ColumnExpression
from percolator_core.tables.verify import check_indexes, rebuild_indexes


class Item(Table, name="items", partition=[Hash("shop", buckets=1), Range("number", splits=[10])]):
    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    kind: Indexed[str] = "book"
    code: Unique[str | None] = None
    price: float = 1.0


class Grown(Table, name="items", partition=[Hash("shop", buckets=1), Range("number", splits=[10])]):
    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    weight: float | None = None


class Changed(Table, name="items", partition=[Hash("shop", buckets=1), Range("number", splits=[10, 40])]):
    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    price: Indexed[str] = "1.0"
    weight: float | None = None


ITEM: Final[Any] = Item


def fill(db: Database) -> int:
    """Make the table, with two rows that changed; returns a moment before they did."""
    db.create_table(Item)
    with db.transaction() as t:
        t.insert(Item(shop="east", number=1, kind="film", code="a"))
        t.insert(Item(shop="west", number=20, code="b"))
    moment = db.timestamp()
    with db.transaction() as t:
        t.update(Item, shop="east", number=1, price=2.0)
    return moment


def read(db: Database, past: int) -> None:
    """Find and select, by keys, filters and indexes; Arrow."""
    now = db.snapshot()
    row = now.find(Item, shop="east", number=1)
    assert row is not None
    assert row.price == 2.0
    assert now.find(Item, shop="north", number=1) is None
    for where in (ITEM.price > 1, ITEM.kind == "film", ITEM.code == "a", ITEM.number < 10):
        assert list(now.select(Item, where=where)) == [row]
    assert list(now.select(Item, where=ITEM.price > 1, reverse=True)) == [row]
    assert now.to_arrow("items", where=ITEM.price > 1).num_rows == 1
    assert [one.price for one in db.snapshot(past).select(Item, where=ITEM.kind == "film")] == [1.0]
    assert check_indexes(now, Item) == []


def look_back(db: Database, past: int) -> None:
    """Return the changes."""
    assert [one.columns for one in changes(db, Item, past)] == [{"price": (1.0, 2.0)}]


def write(db: Database) -> None:
    """Insert, upsert, update and remove, in one call and in two phases."""
    for one_call_a_tablet in (False, True):
        db.client.one_call_a_tablet = one_call_a_tablet
        with db.transaction() as t:
            t.insert(Item(shop="north", number=1, code="c"))
            t.upsert(Item(shop="north", number=30, kind="film"))
            t.update(Item, shop="east", number=1, code="d")
        with pytest.raises(RowExists), db.transaction() as t:
            t.insert(Item(shop="south", number=1, code="d"))
        with db.transaction() as t:
            assert t.remove(Item, shop="north", number=1)
            assert t.remove(Item, shop="north", number=30)
            t.update(Item, shop="east", number=1, code="a")
    db.client.one_call_a_tablet = False


def mend(db: Database) -> None:
    """Make an index agree that does not."""
    index = db.catalog.table("items(code)")
    with db.transaction() as t:
        t.put(index, b"a", index.marker.encoded, (DELETE, b""))
        for column in index.columns.values():
            t.put(index, b"a", column.encoded, (DELETE, b""))
    assert rebuild_indexes(db, Item) == 1


def change(db: Database) -> None:
    """Every change of a table."""
    db.add_column(Grown, "weight")
    db.rename_column(Item, "kind", "sort")
    db.drop_column("items", "price")
    db.add_range(Grown, 40)
    assert [
        row["weight"] for row in db.snapshot().select("items", where=ColumnExpression("sort") == "film")
    ] == [None]
    db.drop_table(Item)


def migrate(db: Database) -> list[str]:
    """Make every kind of change that `percolator migrate` makes to a table with rows; return the kinds."""
    dropped = ["items.kind", "items.code"]
    return [one.kind for one in db.migrate([Changed], allow_drop=dropped, allow_narrowing=["items.price"])]
