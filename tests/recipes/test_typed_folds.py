"""Queues and counters that fold into columns of typed tables."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from percolator_core import (
    Cell,
    Chain,
    Database,
    PrimaryKey,
    Table,
    TableDefinition,
    Transaction,
    UnknownColumn,
    Worker,
)
from percolator_core.errors import ConfigurationError
from percolator_core.recipes import CombineQueue, Counter
from percolator_core.tables.model import definition_of
from tests.chains import chain_of, failed_of, watch
from tests.servers.plain import PATIENCE

Money = Annotated[Decimal, Field(max_digits=12, decimal_places=2)]


class Category(Table, name="categories"):
    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    total: int = 0
    income: Money = Decimal(0)
    top: list[str] = Field(default_factory=list)
    note: str | None = None


class Account(Table, name="accounts"):
    owner: PrimaryKey[str]
    name: str
    balance: int = 0


class Sale(BaseModel):
    title: str
    pieces: int


TABLES = (TableDefinition("queue", 1, ("added",)),)


def folding(db: Database, part: CombineQueue | Counter, model: type[Table], column: str) -> Chain:
    def fold(t: Transaction, cell: Cell) -> None:
        part.drain(t, cell)

    writes = ("queue.added", "queue.value", f"{definition_of(model).name}.{column}")
    watched = watch("fold", fold, "queue.added", writes=writes, mode="weak", feedback=True)
    chain = chain_of(watched, tables=TABLES)
    db.create_table(model)
    chain.create_tables(db)
    return chain


def settle(db: Database, chain: Chain) -> int:
    return Worker(db, chain).run_until_idle(PATIENCE).quarantined


KEYS: list[Any] = [("east", 7), {"number": 7, "shop": "east"}, Category(shop="east", number=7)]


@pytest.mark.parametrize("into", [Category.total, (Category, "total")], ids=["attribute", "pair"])
def test_a_counter_adds_to_a_row_of_a_typed_table_and_inserts_a_row_that_is_missing(
    db: Database, into: Any
) -> None:
    counter = Counter("queue", into)
    chain = folding(db, counter, Category, "total")
    with db.transaction() as t:
        t.insert(Category(shop="west", number=1, total=10, note="kept"))
        for key in KEYS:
            counter.add(t, key, 2)
        counter.add(t, ("west", 1), -4)
        assert counter.value(t, ("east", 7)) == 6
        assert counter.value(t, ("west", 1)) == 6
    assert db.snapshot().find(Category, shop="east", number=7) is None
    assert settle(db, chain) == 0
    assert db.snapshot().find(Category, shop="east", number=7) == Category(shop="east", number=7, total=6)
    west = db.snapshot().find(Category, shop="west", number=1)
    assert west == Category(shop="west", number=1, total=6, note="kept")
    assert counter.value(db.snapshot(), ("west", 1)) == 6


def test_a_counter_of_decimals_stays_exact(db: Database) -> None:
    counter = Counter("queue", Category.income)
    chain = folding(db, counter, Category, "income")
    with db.transaction() as t:
        for _ in range(10):
            counter.add(t, ("a", 1), Decimal("0.10"))
        counter.add(t, ("a", 1), 3)
        with pytest.raises(TypeError, match="float"):
            counter.add(t, ("a", 1), 0.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="does not fit"):
            counter.add(t, ("a", 1), Decimal("0.001"))
    settle(db, chain)
    found = db.snapshot().find(Category, shop="a", number=1)
    assert found is not None
    assert found.income == Decimal("4.00")


def test_many_writers_of_one_typed_row_lose_nothing(db: Database) -> None:
    counter = Counter("queue", Category.total, most=7)
    chain = folding(db, counter, Category, "total")

    def add(number: int) -> None:
        with db.transaction() as t:
            counter.add(t, ("a", 1), number)

    worker = Worker(db, chain)
    with ThreadPoolExecutor(4) as pool:
        working = pool.submit(worker.run)
        list(pool.map(add, range(100)))
        worker.stop()
        working.result()
    settle(db, chain)
    found = db.snapshot().find(Category, shop="a", number=1)
    assert found is not None
    assert found.total == 4950 == counter.value(db.snapshot(), ("a", 1))


def test_the_items_of_a_queue_are_models_and_the_column_is_json(db: Database) -> None:
    def best(old: list[str] | None, sales: Sequence[Sale]) -> list[str]:
        assert all(type(one) is Sale for one in sales)
        return sorted({*(old or []), *(one.title for one in sales if one.pieces > 1)})

    queue = CombineQueue("queue", Category.top, best, items=Sale)
    chain = folding(db, queue, Category, "top")
    for title, pieces in (("tea", 2), ("milk", 1), ("rice", 3)):
        with db.transaction() as t:
            queue.add(t, ("a", 1), Sale(title=title, pieces=pieces))
    assert [one.title for one in queue.waiting(db.snapshot(), ("a", 1))] == ["tea", "milk", "rice"]
    with db.transaction() as t, pytest.raises(ValueError, match="JSON"):
        queue.add(t, ("a", 1), "tea")
    settle(db, chain)
    assert queue.value(db.snapshot(), ("a", 1)) == ["rice", "tea"]


def test_none_is_null_in_a_typed_table(db: Database) -> None:
    queue = CombineQueue("queue", Category.note, lambda _, items: None if items == ["-"] else items[-1])
    chain = folding(db, queue, Category, "note")
    for note in ("good", "-"):
        with db.transaction() as t:
            queue.add(t, ("a", 1), note)
        settle(db, chain)
        assert queue.value(db.snapshot(), ("a", 1)) == (None if note == "-" else note)
    with db.transaction() as t:
        queue.add(t, ("b", 1), "-")
    settle(db, chain)
    assert db.snapshot().find(Category, shop="b", number=1) is None, "there was nothing to insert"


def test_items_wait_for_a_row_that_a_fold_cannot_insert(db: Database) -> None:
    counter = Counter("queue", Account.balance)
    chain = folding(db, counter, Account, "balance")
    with db.transaction() as t:
        counter.add(t, "ada", 5)
    assert settle(db, chain) == 1
    (failed,) = failed_of(db, chain)
    assert "accounts has no row owner='ada'" in str(failed)
    with db.transaction() as t:
        t.insert(Account(owner="ada", name="Ada"))
    assert counter.value(db.snapshot(), "ada") == 5
    assert counter.notify_all(db) == 1
    settle(db, chain)
    found = db.snapshot().find(Account, owner="ada")
    assert found is not None
    assert found.balance == 5


def test_what_cannot_be_folded_into_is_refused(db: Database) -> None:
    for into, error, message in (
        (Category.note, ConfigurationError, "ints or decimals"),
        (Category.number, ConfigurationError, "part of the key"),
        ((Category, "totl"), UnknownColumn, "has no column 'totl'"),
        ("categories.total", TypeError, "no column of a model"),
    ):
        with pytest.raises(error, match=message):
            Counter("queue", into)
    with pytest.raises(ConfigurationError, match="cannot be None"):
        CombineQueue("queue", Category.total, max, items=int | None)
    counter = Counter("queue", Category.total)
    with db.transaction() as t, pytest.raises(TypeError, match=r"has the key \(shop, number\)"):
        counter.add(t, "east")
