"""Views in a store: workers keep them equal to DuckDB's answer to the same SQL, whatever changes."""

from __future__ import annotations

import random
import threading
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import percolator_core
from percolator_core import Chain, ConfigurationError, Worker
from percolator_core.admin.views import compare, fill, views
from percolator_core.layout.keys import MARKER
from percolator_core.notifications.dirty import Lease
from percolator_core.schema.types import column_type
from percolator_core.tables import rows
from percolator_core.transaction.transaction import Transaction
from percolator_core.views.recompute import faults
from tests.flushing import is_cold
from tests.servers.plain import PATIENCE

if TYPE_CHECKING:
    from percolator_core import Database

MODELS = """\
from percolator_core import Hash, Indexed, PrimaryKey, Table

class Customer(Table, name="customers", partition=[Hash("id", buckets=4)]):
    id: PrimaryKey[int]
    city: str | None = None

class Order(Table, name="orders", partition=[Hash("id", buckets=4)]):
    id: PrimaryKey[int]
    customer: Indexed[int | None] = None
    amount: int | None = None
    price: float | None = None
    note: str | None = None
"""
VIEWS = {
    "cheap": "SELECT id, amount * 2 AS twice FROM orders WHERE price < 5",
    "sums": (
        "SELECT customer, count(*) AS n, sum(amount) AS total, min(price) AS low, max(price) AS high, "
        "count(DISTINCT amount) AS kinds FROM orders WHERE customer IS NOT NULL GROUP BY customer"
    ),
    "everything": "SELECT count(*) AS n, avg(amount) AS mean FROM orders",
    "joined": ("SELECT o.id, o.amount, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.id"),
    "cities": (
        "SELECT c.city, sum(o.amount) AS total, count(*) AS n FROM orders o "
        "JOIN customers c ON o.customer = c.id GROUP BY c.city"
    ),
    "best": (
        "SELECT id, customer, amount FROM orders WHERE customer IS NOT NULL "
        "QUALIFY row_number() OVER (PARTITION BY customer ORDER BY amount DESC NULLS LAST, id) <= 2"
    ),
    "things": (
        "SELECT id AS number, 'order' AS kind FROM orders UNION ALL SELECT id, 'customer' FROM customers"
    ),
    "large": "SELECT customer, total FROM sums WHERE total > 20",
}


class Shop:
    """A chain with two tables and the views above."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        chain = folder / "shop"
        (chain / "views").mkdir(parents=True)
        (folder / "view_models.py").write_text(MODELS)
        (chain / "chain.yaml").write_text("version: 1\nchain: shop\nschemas: view_models\n")
        for name, sql in VIEWS.items():
            (chain / "views" / f"{name}.sql").write_text(f"CREATE VIEW {name} AS\n{sql}\n")
        self.chain = Chain.load(chain)
        self.order: Any = self.chain.models["orders"]
        self.customer: Any = self.chain.models["customers"]
        self.chain.create_tables(db)

    def change(self, draw: random.Random) -> None:
        """Change some rows in one transaction."""
        seed = draw.random()
        self.db.run(lambda t: self._change(t, random.Random(seed)), attempts=100)

    def changes(self, draw: random.Random, count: int) -> None:
        """Make many changes, one after the other."""
        for _ in range(count):
            self.change(draw)

    def _change(self, t: Transaction, draw: random.Random) -> None:
        for _ in range(draw.randrange(1, 4)):
            model, key = draw.choice([(self.order, draw.randrange(12)), (self.customer, draw.randrange(4))])
            if draw.random() < 0.25:
                t.remove(model, id=key)
            elif model is self.order:
                t.upsert(
                    model(
                        id=key,
                        customer=draw.choice([None, 0, 1, 2, 3]),
                        amount=draw.choice([None, 1, 2, 3, 50]),
                        price=draw.choice([None, 0.1, 1.5, 9.25]),
                        note=draw.choice(["a", "b"]),
                    )
                )
            else:
                t.upsert(model(id=key, city=draw.choice([None, "Rome", "Oslo"])))

    def settle(self) -> None:
        Worker(self.db, self.chain).run_until_idle(PATIENCE)

    def observer(self, view: str, part: str) -> str:
        """Return the name of an observer of a view: of its source ``rows``, or of its ``groups``."""
        return f"{self.chain.views[view].stored.name}@{part}"

    def run_alone(self, view: str, table: str, row: bytes) -> None:
        """Run the observer of a view's source rows for one row, and leave the marks as they are."""
        name = self.observer(view, "rows")
        runs = self.chain.observers[name].view
        assert runs is not None
        t = Transaction(self.db.client)
        tag = self.db.catalog.table(table).tag(row)
        change = runs.begin(t, Lease(name, table, tag, row, MARKER, 0, 0, 0, 0, 0.0))
        assert change is not None
        runs.process(None, change)
        t.commit()

    def must_be_right(self, views: dict[str, str] = VIEWS) -> None:
        """Compare each view with DuckDB's answer over a snapshot of the tables."""
        snapshot = self.db.snapshot()
        with duckdb.connect() as peer:
            peer.register("orders", snapshot.to_arrow("orders"))
            peer.register("customers", snapshot.to_arrow("customers"))
            for name in ("sums", *(name for name in views if name != "sums")):
                peer.execute(f"CREATE VIEW {name} AS {views[name]}")
                expected = peer.execute(f"SELECT * FROM {name}").fetchall()
                columns = [one[0] for one in peer.description or ()]
                rows = [tuple(row[one] for one in columns) for row in snapshot.select(name)]
                assert sorted(map(repr, rows)) == sorted(map(repr, expected)), name


def test_a_row_that_changed_and_changed_back_around_the_run_of_a_joined_row(shop: Shop) -> None:
    with shop.db.transaction() as t:
        for key, city in ((1, "Rome"), (2, "Oslo")):
            t.upsert(shop.customer(id=key, city=city))
        t.upsert(shop.order(id=1, customer=1, amount=5))
    shop.settle()
    with shop.db.transaction() as t:
        t.update(shop.order, id=1, customer=2)
        t.update(shop.customer, id=2, city="Bonn")
    shop.run_alone("cities", "customers", shop.customer.row_key(id=2))
    with shop.db.transaction() as t:
        t.update(shop.order, id=1, customer=1)
    shop.settle()
    shop.must_be_right()


def test_a_joined_row_that_changed_and_changed_back_around_a_run_that_used_it(shop: Shop) -> None:
    with shop.db.transaction() as t:
        t.upsert(shop.customer(id=1, city="Rome"))
        t.upsert(shop.order(id=1, customer=1, amount=5))
    shop.settle()
    with shop.db.transaction() as t:
        t.update(shop.customer, id=1, city="Oslo")
        t.update(shop.order, id=1, amount=6)
    shop.run_alone("cities", "orders", shop.order.row_key(id=1))
    with shop.db.transaction() as t:
        t.update(shop.customer, id=1, city="Rome")
    shop.settle()
    shop.must_be_right()


def test_a_view_of_rows_that_are_there_is_filled_while_writes_go_on(shop: Shop, tmp_path: Path) -> None:
    draw = random.Random(5)
    shop.changes(draw, 20)
    shop.settle()
    for name, sql in {"late": VIEWS["cities"], "later": VIEWS["best"]}.items():
        (tmp_path / "shop" / "views" / f"{name}.sql").write_text(f"CREATE VIEW {name} AS {sql}")
    shop.chain = Chain.load(tmp_path / "shop")
    shop.chain.create_tables(shop.db)
    assert {one.name for one in views(shop.db, shop.chain) if not one.filled} == {"late", "later"}
    shop.changes(draw, 3)
    shop.settle()
    first = fill(shop.db, shop.chain, "late")
    assert (first.rows > first.known, first.marked) == (True, 0)
    shop.changes(draw, 3)
    assert fill(shop.db, shop.chain, "later").rows
    assert fill(shop.db, shop.chain, "late").known
    shop.settle()
    shop.must_be_right({**VIEWS, "late": VIEWS["cities"], "later": VIEWS["best"]})
    assert all(one.filled and not one.waiting for one in views(shop.db, shop.chain))


def test_a_row_without_a_result_holds_back_no_other_row_of_the_join(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop" / "views" / "ratios.sql").write_text(
        "CREATE VIEW ratios AS SELECT o.id, c.city, 100 // o.amount AS share "
        "FROM orders o JOIN customers c ON o.customer = c.id WHERE c.city <> 'Rome' OR o.amount > 0"
    )
    shop.chain = Chain.load(tmp_path / "shop")
    shop.chain.create_tables(shop.db)
    with shop.db.transaction() as t:
        t.upsert(shop.customer(id=1, city="Rome"))
        for key, amount in ((1, 5), (2, 0)):
            t.upsert(shop.order(id=key, customer=1, amount=amount))
    shop.settle()
    with shop.db.transaction() as t:
        t.update(shop.customer, id=1, city="Oslo")
    shop.settle()
    assert [row["city"] for row in shop.db.snapshot().select("ratios")] == ["Oslo"]


def test_starts_do_not_bring_back_a_group_that_having_hides(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop" / "views" / "few.sql").write_text(
        "CREATE VIEW few AS SELECT count(*) AS n FROM orders HAVING count(*) < 2"
    )
    shop.chain = Chain.load(tmp_path / "shop")
    shop.chain.create_tables(shop.db)
    assert [row["n"] for row in shop.db.snapshot().select("few")] == [0]
    with shop.db.transaction() as t:
        for key in (1, 2):
            t.upsert(shop.order(id=key))
    shop.settle()
    shop.chain.create_tables(shop.db)
    assert list(shop.db.snapshot().select("few")) == []


def test_a_row_that_is_gone_leaves_nothing_in_a_table_with_a_base(shop: Shop, tmp_path: Path) -> None:
    shop.db.set_base("orders", str(tmp_path / "base"))
    with shop.db.transaction() as t:
        t.upsert(shop.order(id=1, customer=1, amount=5))
    shop.settle()
    shop.db.flush("orders", everything=True)
    with shop.db.transaction() as t:
        t.remove(shop.order, id=1)
    shop.settle()
    shop.db.flush("orders", everything=True)
    for _ in range(2):
        shop.db.collect_garbage(timedelta(0))
    assert is_cold(shop.db, "orders", shop.order.row_key(id=1))


def test_a_restored_view_goes_on(shop: Shop, store_url: str, tmp_path: Path) -> None:
    draw = random.Random(9)
    shop.changes(draw, 10)
    shop.settle()
    shop.changes(draw, 3)
    percolator_core.backup(shop.db, str(tmp_path / "backup"))
    with percolator_core.connect(store_url, namespace=uuid.uuid4().hex) as other:
        percolator_core.restore(str(tmp_path / "backup"), other)
        shop.db = other
        shop.chain.create_tables(other)
        assert all(one.filled for one in views(other, shop.chain))
        shop.settle()
        shop.must_be_right()
        shop.changes(draw, 5)
        shop.settle()
        shop.must_be_right()


def test_a_chain_has_the_same_digest_without_its_models(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    assert Chain.load(folder, import_functions=False).digest == shop.chain.digest
    (folder / "views" / "cheap.sql").write_text("CREATE VIEW cheap AS SELECT id, amount FROM orders")
    assert Chain.load(folder, import_functions=False).digest != shop.chain.digest
    assert Chain.load(folder).digest != shop.chain.digest


def test_a_view_that_differs_from_its_query_is_found(shop: Shop) -> None:
    shop.changes(random.Random(8), 10)
    shop.settle()
    plans, of_int = shop.chain.views, column_type("int").encode
    for name in plans:
        found = compare(shop.db, shop.chain, name)
        assert (found.missing, found.extra, found.different, found.waiting) == (0, 0, 0, 0)
        assert found.rows or name == "large"
    with shop.db.transaction() as t:
        t.writes_view, sums = plans["sums"].fingerprint, plans["sums"].model
        customer = next(t.select("sums"))["customer"]
        rows.upsert(t, t.handle_of("sums"), sums.row_key(customer=customer), {"n": of_int(99)}, {})
        added = {"n": of_int(1), "kinds": of_int(0)}
        rows.insert(t, t.handle_of("sums"), sums.row_key(customer=77), added)
    with shop.db.transaction() as t:
        t.writes_view, joined = plans["joined"].fingerprint, plans["joined"].model
        rows.remove(t, t.handle_of("joined"), joined.row_key(id=next(t.select("joined"))["id"]))
    assert sorted(one.fault for one in faults(shop.db.snapshot(), plans["sums"])) == ["different", "extra"]
    assert [one.fault for one in faults(shop.db.snapshot(), plans["joined"])] == ["missing"]


def test_a_join_needs_an_index(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shop" / "views" / "noted.sql").write_text(
        "CREATE VIEW noted AS SELECT o.id, c.city FROM orders o JOIN customers c ON o.amount = c.id"
    )
    with pytest.raises(ConfigurationError, match="finds the rows of 'orders' by amount, which has no index"):
        Chain.load(tmp_path / "shop")


def test_rows_of_a_view_may_be_in_a_base(shop: Shop, tmp_path: Path) -> None:
    draw = random.Random(6)
    for table in ("orders", "customers", "sums"):
        shop.db.set_base(table, str(tmp_path / "base"))
    for _ in range(6):
        shop.changes(draw, 4)
        shop.settle()
        for table in ("orders", "customers", "sums"):
            shop.db.flush(table, everything=True)
        shop.must_be_right()


@pytest.mark.parametrize("seed", range(3))
def test_views_equal_the_answers_of_duckdb_after_each_change(shop: Shop, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        shop.change(draw)
        shop.settle()
        shop.must_be_right()


def test_views_are_exact_beside_writers_and_workers(shop: Shop) -> None:
    """Two writers, one after the other idle, and workers with threads: runs conflict, and are repeated."""
    writers = [threading.Thread(target=shop.changes, args=(random.Random(seed), 60)) for seed in (11, 12)]
    for one in writers:
        one.start()
    while any(one.is_alive() for one in writers):
        Worker(shop.db, shop.chain, threads=4).run_until_idle(PATIENCE)
    for one in writers:
        one.join()
    shop.settle()
    shop.must_be_right()
