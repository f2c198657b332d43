"""Views: the fill of a view, changes of its rows, a hot group, and a join; beside a rebuild by DuckDB.

The view has 100 groups of a table of ``rows`` rows, with count, mean, minimum and maximum. A second view is
the same over 10,000 rows: the cost of a change must not grow with the table. Changes are written first, and
then one worker of this process runs until nothing waits. At the end each view is compared with its query.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from percolator_bench import progress
from percolator_bench.figure import Figure, Target, median_figure
from percolator_bench.report import Note
from percolator_bench.scale import Scale
from percolator_bench.servers import Place, for_each, place
from percolator_bench.workers import Workers, shipped_chain, workers_of
from percolator_core.admin.views import compare, fill
from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.observers import Chain
from percolator_core.runtime.batches import batched
from percolator_core.tables.model import Hash, Indexed, PrimaryKey, Table, definition_of
from percolator_core.transaction.transaction import Transaction
from percolator_core.worker import Worker

_figure = partial(median_figure, "views", "unix socket")

_GROUPS: Final = 100
_FEW: Final = 10_000
_CUSTOMERS: Final = 1000
_ORDERS: Final = 100
"""The number of orders of a customer."""

_WRITERS: Final = 64
_LOADED: Final = 500
_SEED: Final = 19
_LIMIT: Final = 600.0
"""The longest time until a view is right, in seconds."""

_LOOK: Final = 0.0002
"""Seconds between two looks at a view."""


class _Product(Table):
    id: PrimaryKey[int]
    category: int
    price: float


class Product(_Product, name="products", partition=[Hash("id", buckets=16)]):
    """The many rows of the view ``prices``."""


class FewProduct(_Product, name="few_products", partition=[Hash("id", buckets=16)]):
    """The few rows of the view ``few_prices``."""


class Customer(Table, name="customers", partition=[Hash("id", buckets=4)]):
    """The joined rows."""

    id: PrimaryKey[int]
    city: str


class Order(Table, name="orders", partition=[Hash("id", buckets=4)]):
    """The rows that refer to customers."""

    id: PrimaryKey[int]
    customer: Indexed[int]
    amount: int


def measure(scale: Scale) -> Iterator[Figure | Note]:
    """Measure fills, changes, conflicts and latencies.

    Raises:
        PercolatorError: a view differs from its query at the end.
    """
    with shipped_chain("view_shop") as chain, place("unix") as here:
        bench = _Bench(here, chain, scale)
        bench.load()
        yield from bench.fills()
        yield from bench.changes()
        with workers_of(here, chain) as workers:
            yield from bench.hot_group(workers)
            yield from bench.latencies()
        bench.check()
        yield from bench.rebuild()


class _Bench:
    def __init__(self, here: Place, chain: Chain, scale: Scale) -> None:
        self._here = here
        self._db = here.db
        self._chain = chain
        self._scale = scale
        self._draw = random.Random(_SEED)

    def load(self) -> None:
        """Write the rows that are there before the views."""
        progress.tell("writing rows")
        for model in (Product, FewProduct, Customer, Order):
            self._db.create_table(model)
        for model, count in ((Product, self._scale.rows), (FewProduct, _FEW)):
            _load(self._db, [partial(self._product, model, number) for number in range(count)])
        made: list[Callable[[], Table]] = []
        for number in range(_CUSTOMERS):
            made.append(partial(Customer, id=number, city="Rome"))
            first = number * _ORDERS
            made += (partial(Order, id=first + at, customer=number, amount=at) for at in range(_ORDERS))
        _load(self._db, made)

    def _product(self, model: Any, number: int) -> Table:
        row: Table = model(id=number, category=number % _GROUPS, price=self._draw.random())
        return row

    def fills(self) -> Iterator[Figure]:
        """Give the rows to the views."""
        self._chain.create_tables(self._db)
        for view, rows, target in (
            ("few_prices", _FEW, None),
            ("prices", self._scale.rows, Target("at least", 15_000)),
            ("shown_orders", _CUSTOMERS * _ORDERS, None),
        ):
            progress.tell(f"filling {view}")
            started = time.perf_counter()
            fill(self._db, self._chain, view)
            yield _figure(f"{view}: rows filled", "/s", [rows / (time.perf_counter() - started)], target)
        self._settle()

    def changes(self) -> Iterator[Figure]:
        """Change single rows; the rate is that of one worker, without the writes."""
        count = self._scale.operations * 5
        rates: dict[str, list[float]] = {"products": [], "few_products": []}
        for number in range(self._scale.rounds):
            for model, rows in ((Product, self._scale.rows), (FewProduct, _FEW)):
                table = definition_of(model).name
                progress.tell(f"round {number + 1} of {self._scale.rounds}", f"changing {table}")
                chosen = self._draw.sample(range(rows), min(count, rows))
                for_each(self._db, _WRITERS, partial(self._change, model), chosen)
                rates[table].append(len(chosen) / self._settle())
        yield _figure("changes of single rows", "/s", rates["products"], Target("at least", 4000))
        ratios = [few / many for many, few in zip(rates["products"], rates["few_products"], strict=True)]
        name = f"cost of a change: {self._scale.rows:,} rows ÷ {_FEW:,} rows"
        yield _figure(name, "ratio", ratios, Target("at most", 1.3))

    def hot_group(self, workers: Workers) -> Iterator[Figure]:
        """Change rows of one group at the same time."""
        shares: list[float] = []
        for number in range(self._scale.rounds):
            progress.tell(f"round {number + 1} of {self._scale.rounds}", "one hot group")
            before, attempts = workers.counts().conflicts, [0]
            # Two writers of one row would conflict with each other, which the view does not cause.
            rows = self._draw.sample(
                range(0, self._scale.rows, _GROUPS), min(2000, self._scale.rows // _GROUPS)
            )
            for_each(self._db, _WRITERS, partial(self._change, Product, attempts=attempts), rows)
            workers.wait_until_idle(_LIMIT)
            workers.listen(0.6)  # for the last counts
            shares.append((workers.counts().conflicts - before + attempts[0] - len(rows)) / len(rows))
        name = f"one hot group, {_WRITERS} writers: conflicts a committed write"
        yield _figure(name, "ratio", shares, Target("at most", 0.05))

    def latencies(self) -> Iterator[Figure]:
        """Measure the time from a write until the view is right, while nothing else runs."""
        progress.tell("latency of a group")
        times = [self._seconds_of_a_price() * 1e3 for _ in range(self._scale.writes)]
        yield _figure("a price changes: its category is right", "ms", times, Target("at most", 5))
        progress.tell("latency of a join")
        times = [self._seconds_of_a_city(number) * 1e3 for number in range(min(_CUSTOMERS, 100))]
        name = f"a customer changes: {_ORDERS} orders are right"
        yield _figure(name, "ms", times, Target("at most", 50))

    def check(self) -> None:
        """Compare each view with its query."""
        for name in self._chain.views:
            progress.tell(f"checking {name}")
            found = compare(self._db, self._chain, name)
            if found.missing or found.extra or found.different:
                raise PercolatorError(f"the view {name} differs from its query: {found}")

    def rebuild(self) -> Iterator[Figure | Note]:
        """Compute the view anew by DuckDB, as a nightly job would."""
        try:
            import duckdb  # of the extra `bench`
        except ImportError:
            yield Note("views", "DuckDB is not installed: pip install 'percolator-core[bench]'")
            return
        progress.tell("DuckDB")
        started = time.perf_counter()
        products = self._db.snapshot().to_arrow(Product)
        read = time.perf_counter() - started
        with duckdb.connect() as connection:
            connection.register("products", products)
            started = time.perf_counter()
            sql = self._chain.views["prices"].sql
            connection.execute(sql[sql.index("SELECT") :]).fetchall()
            query = time.perf_counter() - started
        yield _figure("rebuild by DuckDB: reading the table", "ms", [read * 1e3])
        yield _figure("rebuild by DuckDB: the query", "ms", [query * 1e3])

    def _change(self, model: Any, row: int, attempts: list[int] | None = None) -> None:
        price = self._draw.random()

        def change(t: Transaction) -> None:
            if attempts is not None:
                attempts[0] += 1
            t.update(model, id=row, price=price)

        self._db.run(change, attempts=1000)

    def _settle(self) -> float:
        started = time.perf_counter()
        Worker(self._db, self._chain).run_until_idle(_LIMIT)
        return time.perf_counter() - started

    def _found(self, view: str, **key: int) -> dict[str, Any]:
        row = self._db.snapshot().find(view, **key)
        if row is None:
            raise PercolatorError(f"the view {view} has no row {key}")
        return row

    def _seconds_of_a_price(self) -> float:
        number = self._draw.randrange(self._scale.rows)
        group = number % _GROUPS
        price = self._found("prices", category=group)["high"] + 1.0
        started = time.perf_counter()
        with self._db.transaction() as t:
            t.update(Product, id=number, price=price)
        _await(lambda: self._found("prices", category=group)["high"] == price)
        return time.perf_counter() - started

    def _seconds_of_a_city(self, number: int) -> float:
        first, city = number * _ORDERS, f"Oslo {number}"
        keys = range(first, first + _ORDERS)
        started = time.perf_counter()
        with self._db.transaction() as t:
            t.update(Customer, id=number, city=city)
        # The change of a customer is one transaction: one order shows it as soon as all do.
        _await(lambda: self._found("shown_orders", id=first)["city"] == city)
        seconds = time.perf_counter() - started
        if {self._found("shown_orders", id=key)["city"] for key in keys} != {city}:
            raise PercolatorError("a view shows a part of a transaction")
        return seconds


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _LIMIT
    while not condition():
        if time.monotonic() > until:
            raise PercolatorError("the view did not follow")
        time.sleep(_LOOK)


def _load(db: Database, made: Sequence[Callable[[], Table]]) -> None:
    def insert(some: Sequence[Callable[[], Table]]) -> None:
        with db.transaction() as t:
            for one in some:
                t.upsert(one())

    for_each(db, 4, insert, batched(made, _LOADED))
