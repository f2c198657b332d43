"""Rows of typed tables in tables of SQL: each row as of the newest commit, in SQLite and PostgreSQL."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import psycopg
import pytest
from pydantic import Field

from percolator_core import Cell, Chain, Database, PrimaryKey, Table, TableDefinition, Transaction, Worker
from percolator_core.errors import ConfigurationError
from percolator_core.observers import Retry
from percolator_core.recipes import ExportQueue, PostgresTable, SQLiteTable
from percolator_core.recipes.sinks.sql_table import RowEffect, SQLTable
from tests.chains import chain_of, watch
from tests.servers.plain import PATIENCE
from tests.servers.postgresql import postgres_server

postgres = pytest.fixture(scope="module")(postgres_server)

KINDS = ("sqlite", "postgres")
RETRY = Retry(attempts=100, backoff=0.001, max_backoff=0.01)


class Colour(Enum):
    RED = "red"


class Item(Table, name="items"):
    """A name has a character that SQL and psycopg give a meaning."""

    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    price: Annotated[Decimal, Field(max_digits=12, decimal_places=2)] = Decimal(0)
    exact: Annotated[Decimal, Field(max_digits=38, decimal_places=20)] = Decimal(0)
    weight: float = 0.0
    sold: bool = False
    picture: bytes | None = None
    since: datetime | None = None
    day: date | None = None
    code: UUID | None = None
    colour: Colour | None = None
    tags: list[str] | None = None


class Odd(Table, name='100% "odd"'):
    key: PrimaryKey[str]
    share_in_percent: int = 0


class Link(Table, name="links"):
    page: PrimaryKey[str]
    origin: PrimaryKey[str]


FULL = Item(
    shop="east",
    number=-7,
    price=Decimal("9.50"),
    exact=Decimal("123456789012345678.00000000000000000001"),
    weight=-math.inf,
    sold=True,
    picture=b"\x00\xff",
    since=datetime(2026, 11, 28, 12, 0, 0, 5, timezone(timedelta(hours=2))),
    day=date(9999, 12, 31),
    code=UUID(int=5),
    colour=Colour.RED,
    tags=["ä", '"'],
)
PLAIN = Item(shop="west", number=2**63 - 1)


@pytest.fixture
def sql(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Sql]]:
    made: list[Sql] = []

    def of(kind: str) -> Sql:
        conninfo = request.getfixturevalue("postgres").conninfo if kind == "postgres" else ""
        made.append(Sql(kind, tmp_path / "rows.sqlite", conninfo))
        return made[-1]

    yield of
    for one in made:
        one.clean()


class Sql:
    """A database of SQL, and what it has."""

    def __init__(self, kind: str, path: Path, conninfo: str) -> None:
        self.kind = kind
        self.path = path
        self.conninfo = conninfo
        self._made: list[SQLTable] = []

    def table(
        self, model: type[Table], table: str | None = None, effect: RowEffect | None = None
    ) -> SQLTable:
        made: SQLTable
        if self.kind == "sqlite":
            made = SQLiteTable(self.path, model, table, effect=effect)
        else:
            made = PostgresTable(self.conninfo, model, table, effect=effect)
        self._made.append(made)
        return made

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.conninfo, autocommit=True) as server:
            found = server.execute(statement.encode())
            return found.fetchall() if found.description else []

    def clean(self) -> None:
        for one in self._made:
            one.close()
        if self.kind == "postgres":
            self.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


def shipping(db: Database, table: SQLTable, *observe: str) -> Chain:
    def ship(t: Transaction, cell: Cell) -> None:
        table.export(t, cell)

    db.create_table(table.model)
    chain = chain_of(watch("ship", ship, *observe, executor="threads", retry=RETRY), tables=())
    chain.create_tables(db)
    return chain


def ship_all(db: Database, chain: Chain) -> None:
    assert Worker(db, chain).run_until_idle(PATIENCE).quarantined == 0


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_inserted_updated_and_deleted_as_the_commits_say(
    kind: str, db: Database, sql: Callable[[str], Sql]
) -> None:
    there = sql(kind)
    chain = shipping(db, there.table(Item), "items.price", "items.sold")
    with db.transaction() as t:
        t.insert(PLAIN)
        t.insert(FULL)
    ship_all(db, chain)
    assert there.run("SELECT shop, number, price, sold FROM items ORDER BY shop") == [
        ("east", -7, Decimal("9.50"), True),
        ("west", 2**63 - 1, 0, False),
    ]
    with db.transaction() as t:
        t.update(Item, shop="west", number=2**63 - 1, price=Decimal("0.01"))
        t.remove(Item, shop="east", number=-7)
    ship_all(db, chain)
    assert [(shop, float(price)) for shop, price in there.run("SELECT shop, price FROM items")] == [
        ("west", 0.01)
    ]
    with db.transaction() as t:
        t.insert(FULL)
    ship_all(db, chain)
    assert len(there.run("SELECT * FROM items")) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_each_type_has_its_values_in_sql(kind: str, db: Database, sql: Callable[[str], Sql]) -> None:
    there = sql(kind)
    chain = shipping(db, there.table(Item), "items.price")
    with db.transaction() as t:
        t.insert(FULL)
        t.insert(PLAIN)
    ship_all(db, chain)
    names = "exact, weight, picture, since, day, code, colour, tags"
    (full, plain) = there.run(f"SELECT {names} FROM items ORDER BY shop")
    assert FULL.since is not None
    exact, since, tags = (
        Decimal("123456789012345678.00000000000000000001"),
        FULL.since.astimezone(UTC),
        FULL.tags,
    )
    if kind == "sqlite":
        text = (since.isoformat(), "9999-12-31", str(UUID(int=5)), "red")
        assert full[:7] == (str(exact), -math.inf, b"\x00\xff", *text)
        assert json.loads(full[7]) == tags
    else:
        assert full == (exact, -math.inf, b"\x00\xff", since, date(9999, 12, 31), UUID(int=5), "red", tags)
    assert plain[2:] == (None,) * 6


@pytest.mark.parametrize("kind", KINDS)
def test_names_with_signs_and_a_table_of_keys_alone(
    kind: str, db: Database, sql: Callable[[str], Sql]
) -> None:
    there = sql(kind)
    odd, links = there.table(Odd), there.table(Link)
    for sequence in (1, 2):
        odd.take(Odd.row_key(key="%s ? \"'"), sequence, b'{"key": "%s ? \\"\'", "share_in_percent": 3}')
        links.take(Link.row_key(page="a", origin="b"), sequence, b'{"page": "a", "origin": "b"}')
    assert there.run('SELECT * FROM "100% ""odd"""') == [("%s ? \"'", 3)]
    assert there.run("SELECT * FROM links") == [("a", "b")]
    links.take(Link.row_key(page="a", origin="b"), 3, b"")
    assert there.run("SELECT * FROM links") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_late_neither_overwrites_a_row_nor_brings_it_back(
    kind: str, db: Database, sql: Callable[[str], Sql]
) -> None:
    there = sql(kind)
    table = there.table(Item)
    db.create_table(Item)
    cell = Cell("items", Item.row_key(shop="a", number=1), "price", 0)
    with db.transaction() as t:
        t.insert(Item(shop="a", number=1, price=Decimal(1)))
    late = db.begin()
    assert late.find(Item, shop="a", number=1) is not None
    with db.transaction() as t:
        t.update(Item, shop="a", number=1, price=Decimal(2))
    with db.transaction() as t:
        table.export(t, cell)
    table.export(late, cell)
    assert there.run("SELECT price FROM items") == [(2,)]
    with db.transaction() as t:
        t.remove(Item, shop="a", number=1)
    with db.transaction() as t:
        table.export(t, cell)
    table.export(late, cell)
    assert there.run("SELECT * FROM items") == []
    with pytest.raises(ConfigurationError, match="not those of others"):
        table.export(late, Cell("others", cell.row, "price", 0))


@pytest.mark.parametrize("kind", KINDS)
def test_many_writers_and_runs_end_with_the_stored_rows(
    kind: str, db: Database, sql: Callable[[str], Sql]
) -> None:
    there = sql(kind)
    table = there.table(Item)
    chain = shipping(db, table, "items.price", "items.weight")

    def write(number: int) -> None:
        def change(t: Transaction) -> None:
            if number % 5 == 4:
                t.remove(Item, shop="a", number=number % 3)
            else:
                t.upsert(Item(shop="a", number=number % 3, price=Decimal(number), weight=float(number)))

        db.run(change, 1000)

    worker = Worker(db, chain)
    with ThreadPoolExecutor(4) as pool:
        working = pool.submit(worker.run)
        try:
            list(pool.map(write, range(60)))
        finally:
            worker.stop()
        working.result()
    ship_all(db, chain)
    stored = [(row.number, row.price, row.weight) for row in db.snapshot().select(Item)]
    assert there.run("SELECT number, price, weight FROM items ORDER BY number") == stored


@pytest.mark.parametrize("kind", KINDS)
def test_an_effect_is_in_the_transaction_of_the_row(
    kind: str, db: Database, sql: Callable[[str], Sql]
) -> None:
    there = sql(kind)
    there.run("CREATE TABLE log (page text, is_there integer)")
    refused = [True]

    def note(connection: Any, key: dict[str, Any], row: Link | None) -> None:
        connection.execute(f"INSERT INTO log VALUES ('{key['page']}', {int(row is not None)})")
        if refused.pop():
            raise ValueError("not that one")

    table = there.table(Link, effect=note)
    key, payload = Link.row_key(page="a", origin="b"), b'{"page": "a", "origin": "b"}'
    with pytest.raises(ValueError, match="not that one"):
        table.take(key, 1, payload)
    assert there.run("SELECT * FROM links") == there.run("SELECT * FROM log") == []
    refused += [False, False]
    for sequence, item in ((1, payload), (1, payload), (2, b"")):
        table.take(key, sequence, item)
    assert there.run("SELECT * FROM log") == [("a", 1), ("a", 0)]
    with pytest.raises(ValueError, match="page"):
        table.take(key, 3, b"{}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_exists_is_used_and_a_missing_column_is_named(
    kind: str, db: Database, sql: Callable[[str], Sql]
) -> None:
    there = sql(kind)
    there.run(
        "CREATE TABLE mine (origin text, page text, more integer DEFAULT 5, PRIMARY KEY (page, origin))"
    )
    there.run("CREATE TABLE short (page text PRIMARY KEY)")
    there.table(Link, "mine").take(Link.row_key(page="a", origin="b"), 1, b'{"page": "a", "origin": "b"}')
    assert there.run("SELECT page, origin, more FROM mine") == [("a", "b", 5)]
    with pytest.raises(ConfigurationError, match=r'ALTER TABLE short ADD COLUMN "origin" (text|TEXT)'):
        there.table(Link, "short").take(
            Link.row_key(page="a", origin="b"), 1, b'{"page": "a", "origin": "b"}'
        )


def test_a_queue_exports_each_committed_row_and_its_removal(db: Database, sql: Callable[[str], Sql]) -> None:
    there = sql("sqlite")
    seen: list[tuple[str, str | None]] = []
    table = there.table(
        Item, effect=lambda _, key, row: seen.append((key["shop"], None if row is None else str(row.price)))
    )
    queue = ExportQueue("exports")

    def ship(t: Transaction, cell: Cell) -> None:
        queue.export(t, cell, table)

    watched = watch(
        "ship",
        ship,
        "exports.last",
        "exports.more",
        writes=("exports.more", "exports.done", "exports.payload"),
        feedback=True,
    )
    chain = chain_of(watched, tables=(TableDefinition("exports", 1),))
    chain.create_tables(db)
    db.create_table(Item)
    for price in ("1.00", "2.00", ""):
        with db.transaction() as t:
            if price:
                item = Item(shop="a", number=1, price=Decimal(price))
                t.upsert(item)
                queue.add_row(t, item)
            else:
                t.remove(Item, shop="a", number=1)
                queue.add_removal(t, Item, shop="a", number=1)
    ship_all(db, chain)
    assert seen == [("a", "1.00"), ("a", "2.00"), ("a", None)]
    with db.transaction() as t, pytest.raises(ValueError, match="JSON"):
        queue.add_row(t, FULL)


def test_nothing_is_opened_before_the_first_row_or_after_the_end(tmp_path: Path) -> None:
    with SQLiteTable(tmp_path / "missing" / "rows.sqlite", Link) as table:
        with pytest.raises(sqlite3.Error):
            table.take(Link.row_key(page="a", origin="b"), 1, b"")
        (tmp_path / "missing").mkdir()
        table.take(Link.row_key(page="a", origin="b"), 1, b"")
    with pytest.raises(ValueError, match="closed"):
        table.take(Link.row_key(page="a", origin="b"), 2, b"")
    with pytest.raises(ValueError, match="above 0"):
        SQLiteTable(tmp_path / "rows.sqlite", Link, timeout=0)
