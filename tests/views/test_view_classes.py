"""Views that are declared as classes: the same plans as those of SQL, and models of their rows."""

# mypy: disable-error-code="pydantic-field"

from __future__ import annotations

import random
import sys
from collections import defaultdict
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import duckdb
import pytest
from pydantic import Field

from percolator_core import (
    Chain,
    ConfigurationError,
    Indexed,
    PrimaryKey,
    Table,
    View,
    Worker,
    avg,
    col,
    count,
    max_,
    min_,
    observer,
    sql,
    sum_,
    view_function,
)
from percolator_core.tables.model import definition_of
from percolator_core.views.planner import plan_view
from percolator_core.views.view import declared_view
from tests.servers.plain import PATIENCE
from tests.views.chain_folder import ChainFolder, imported_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from percolator_core import Database


class Colour(Enum):
    RED = "red"


class Brand(Table, name="brands"):
    key: PrimaryKey[str]
    line: PrimaryKey[int]
    country: Indexed[str | None] = None


class Country(Table, name="countries"):
    code: PrimaryKey[str]
    label: str


class Product(Table, name="products"):
    id: PrimaryKey[int]
    category: str
    price: float | None = None
    cost: Annotated[Decimal, Field(max_digits=9, decimal_places=2)] | None = None
    brand: Indexed[str | None] = None
    line: int = 0
    seen: datetime | None = None
    day: date | None = None
    token: UUID | None = None
    blob: bytes | None = None
    order: int = 0


@view_function(revision=2)
def initial(text: str) -> str:
    return text[:1]


def text_of(view: Any) -> list[str]:
    declared = declared_view(view)
    assert declared is not None
    return declared.text.sql.splitlines()


def where(predicate: Any) -> str:
    class Some(View, name="some"):
        id = Product.id
        where = predicate

    return text_of(Some)[-1].removeprefix("WHERE ")


def test_a_class_with_aggregates_is_a_select_with_groups() -> None:
    class Prices(View, name="prices"):
        """Prices by category."""

        category = Product.category
        leading = sql("initial(category)")
        n: int = count()
        priced = count(Product.price)
        kinds = count(Product.brand, distinct=True, where=col(Product.line) > 0)
        total = sum_(Product.cost)
        mean = avg(Product.price)
        low = min_(Product.price)
        high = max_(Product.seen)
        where = col(Product.price).is_not_null()

    assert text_of(Prices) == [
        "CREATE VIEW prices AS",
        "SELECT",
        "  category,",
        "  initial(category) AS leading,",
        "  count(*) AS n,",
        "  count(price) AS priced,",
        "  count(DISTINCT brand) FILTER (WHERE line > 0) AS kinds,",
        "  sum(cost) AS total,",
        "  avg(price) AS mean,",
        "  min(price) AS low,",
        "  max(seen) AS high",
        "FROM products",
        "WHERE price IS NOT NULL",
        "GROUP BY category,",
        "  2",
    ]
    found = definition_of(Prices)
    assert (found.name, found.key) == ("prices", ("category", "leading"))
    assert {one.name: one.type for one in found.columns}["total"] == "decimal(38,2)"
    assert Prices.__doc__ == "Prices by category."
    assert Prices.__module__ == __name__


def test_joins_are_by_the_key_of_the_model_on_the_right_side() -> None:
    class Named(View, name="named"):
        id = Product.id
        country = Country.label
        left_join = Brand.country == Country.code
        join = (Product.brand == Brand.key) & (Product.line == Brand.line)

    assert text_of(Named)[1:] == [
        "SELECT",
        "  products.id AS id,",
        "  countries.label AS country",
        "FROM products",
        "JOIN brands ON products.brand = brands.key AND products.line = brands.line",
        "LEFT JOIN countries ON brands.country = countries.code",
    ]
    assert definition_of(Named).by_name["country"].nullable


def test_conditions_are_those_of_selects_in_sql() -> None:
    product: Any = Product
    at = datetime(2024, 5, 1, 12, tzinfo=UTC)
    token = UUID(int=7)
    found = {
        where((product.category == "it's") & ~((product.price > 0.5) | (product.price < -1.0))): (
            "category = 'it''s' AND (NOT (price > 0.5 OR price < -1.0))"
        ),
        where(product.category.in_(["a", None])): "category IN ('a') OR category IS NULL",
        where(product.category.in_([])): "FALSE",
        where(product.category.startswith("a%")): "starts_with(category, 'a%')",
        where(product.category != Colour.RED): "category <> 'red'",
        where(product.cost >= Decimal("1.50")): "cost >= 1.50",
        where(product.price == float("inf")): "price = CAST('inf' AS DOUBLE)",
        where(product.seen <= at): "seen <= '2024-05-01 12:00:00+00:00'",
        where(product.day == date(2024, 5, 1)): "day = '2024-05-01'",
        where(product.token == token): f"token = '{token}'",
        where(product.blob == b"\x00'"): "\"blob\" = CAST('\\x00\\x27' AS BLOB)",
        where(product.price > product.cost): "price > cost",
        where(product.order == 1): '"order" = 1',
        where(product.price == None): "price IS NULL",  # noqa: E711 - a predicate
        where(sql("price > 1 OR line = 2")): "price > 1 OR line = 2",
        where(product.price > sql("line + 1")): "price > (line + 1)",
    }
    with duckdb.connect() as peer:
        peer.execute(
            'CREATE TABLE products (id BIGINT, category TEXT, price DOUBLE, "cost" DECIMAL(9, 2), '
            'line BIGINT, seen TIMESTAMPTZ, day DATE, token UUID, "blob" BLOB, "order" BIGINT)'
        )
        for made, expected in found.items():
            assert made == expected
            peer.execute(f"SELECT id FROM products WHERE {made}")


def bad_argument() -> type:
    class Bad(View, name="bad"):
        n = count()
        total = sum_(Product.category)

    return Bad


def bad_value() -> type:
    class Bad(View, name="bad"):
        id = Product.id
        five = 5

    return Bad


def bad_condition() -> type:
    class Bad(View, name="bad"):
        id = Product.id
        where = col(Product.seen) > datetime(2024, 1, 1)  # noqa: DTZ001 - it is refused

    return Bad


def bad_sql() -> type:
    class Bad(View, name="bad"):
        id = Product.id
        word = sql("intial(category)")

    return Bad


def no_join() -> type:
    class Bad(View, name="bad"):
        id = Product.id
        country = Country.label

    return Bad


def no_way() -> type:
    class Bad(View, name="bad"):
        id = Product.id
        country = Country.label
        join = (Country.code == Brand.key, Brand.key == Country.code)

    return Bad


def no_key() -> type:
    class Bad(View, name="bad"):
        id = Product.id
        country = Brand.country
        left_join = Product.brand == Brand.key

    return Bad


def no_column() -> type:
    class Bad(View, name="bad"):
        where = col(Product.id) > 1

    return Bad


def no_name() -> type:
    class Bad(View):
        id = Product.id

    return Bad


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (bad_argument, ": Bad.total: sum takes bool, int, decimal, float, not str: write a CAST"),
        (bad_value, ": Bad.five: 5 is no column: give a column of a model, an aggregate such as count()"),
        (bad_condition, ": Bad.where: 2024-01-01 00:00:00 has no time zone: give an aware datetime"),
        (bad_sql, ": Bad.word: there is no function 'intial'"),
        (no_join, ": Bad: reads countries, products: join all but one of them"),
        (no_way, ": Bad.join: no join leads from products to brands"),
        (no_key, ": Bad.left_join: a table is joined by its whole primary key, and brands has (key, line)"),
        (no_column, ": Bad: has no column of a model: write one, such as name = Product.name"),
        (no_name, ': Bad: write class Bad(View, name="…")'),
    ],
)
def test_a_view_that_cannot_be_is_refused_with_its_class_and_attribute(
    make: Callable[[], type], problem: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    place, _, _ = str(refused.value).partition(": ")
    assert place == f"{__file__}:{make.__code__.co_firstlineno + 1}"
    assert problem in str(refused.value)


def test_arguments_of_aggregates_have_types() -> None:
    calls: list[Callable[[], Any]] = [
        lambda: sum_("price"),
        lambda: count(where="x"),
        lambda: count(distinct=True),
    ]
    for wrong in calls:
        with pytest.raises(TypeError):
            wrong()


MODELS = """\
from percolator_core import Hash, Indexed, PrimaryKey, Table

class Airline(Table, name="airlines"):
    carrier: PrimaryKey[str]
    name: str

class Flight(Table, name="flights"):
    id: PrimaryKey[int]
    carrier: Indexed[str]
    delay: int | None = None
"""
CLASSES = '''\
import percolator_core as percolator
from percolator_core import View, avg, count, max_, sql
from air_models import Airline, Flight

LATE = 15

@percolator.view_function()
def size(delay: int) -> str:
    return "large" if delay > 10 else "small"

class Delays(View, name="delays"):
    """Delays by carrier."""
    carrier = Flight.carrier
    flights = count()
    late = count(where=Flight.delay > LATE)
    mean = avg(Flight.delay)
    worst = max_(Flight.delay)
    where = Flight.delay != None

    def is_bad(self):
        return self.late * 2 > self.flights

class Named(View, name="named"):
    id = Flight.id
    size = sql("size(delay)")
    airline = Airline.name
    left_join = Flight.carrier == Airline.carrier

class Large(percolator.View, name="large"):
    carrier = Delays.carrier
    worst = Delays.worst
    where = Delays.worst > 50
'''


class Air(ChainFolder):
    def __init__(self, top: Path) -> None:
        super().__init__(top, "air")
        self.write("air_models.py", MODELS)
        self.write("air_views.py", CLASSES)
        self.write("air/chain.yaml", "version: 1\nchain: air\nschemas: air_models\nviews: air_views\n")
        self.write("air/views/worst.sql", "CREATE VIEW worst AS SELECT max(worst) AS worst FROM delays")

    def problems(self) -> str:
        with pytest.raises(ConfigurationError) as refused:
            self.load()
        return str(refused.value).replace(f"{self.top}/", "")


@pytest.fixture
def air(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Air]:
    with imported_from(Air, tmp_path, monkeypatch) as made:
        yield made


def test_a_chain_has_views_of_files_and_of_classes(air: Air) -> None:
    chain = air.load()
    module = sys.modules["air_views"]
    assert set(chain.views) == {"delays", "large", "named", "worst"}
    assert chain.models["delays"] is module.Delays
    files = {one.name.partition("_")[0].partition("@")[0]: one.file for one in chain.observers.values()}
    assert files == {
        **dict.fromkeys(("delays", "large", "named"), Path("air_views.py")),
        "worst": air.folder / "views" / "worst.sql",
    }
    assert chain.view_modules == ("air_views",)


def test_the_same_sql_has_the_same_fingerprint_in_a_file_and_in_a_class(air: Air) -> None:
    chain = air.load()
    declared = declared_view(sys.modules["air_views"].Delays)
    assert declared is not None
    air.write("air_views.py", "\n".join(CLASSES.split("class ")[:1]))
    air.write("air/views/delays.sql", declared.text.sql)
    assert air.load().views["delays"].fingerprint == chain.views["delays"].fingerprint
    typed = {name: definition_of(model) for name, model in chain.models.items() if name == "flights"}
    plain = (
        "CREATE VIEW delays AS SELECT carrier, count(*) AS flights, "
        "count(*) FILTER (WHERE delay > 15) AS late, avg(delay) AS mean, max(delay) AS worst "
        "FROM flights WHERE delay IS NOT NULL GROUP BY carrier"
    )
    assert plan_view(plain, typed).fingerprint == chain.views["delays"].fingerprint


def test_a_chain_with_classes_has_the_same_digest_without_their_code(air: Air) -> None:
    chain = air.load()
    module, models = sys.modules["air_views"], sys.modules["air_models"]
    made = Chain.of("air", [], models=[models.Airline, models.Flight], views=[module])
    (air.folder / "views" / "worst.sql").unlink()
    assert air.load().digest == made.digest != chain.digest
    for text in (f"import no_such_package\n{CLASSES}", CLASSES.replace("LATE = 15", "LATE = 16")):
        air.write("air_views.py", text)
        same = air.load(import_functions=False).digest == made.digest
        assert same == ("LATE = 15" in text)
        assert "air_views" not in sys.modules


def test_views_in_python_are_read_without_the_parser_of_sql(air: Air) -> None:
    assert air.imported_of("sqlglot", "air_views", "air_models", "pyarrow") == "set()"


def test_views_may_stand_beside_the_models_of_tables(air: Air) -> None:
    there = CLASSES.replace("from air_models import Airline, Flight\n", "")
    air.write("air_models.py", MODELS + there)
    air.write("air/chain.yaml", "version: 1\nchain: air\nschemas: air_models\nviews: air_models\n")
    chain = air.load()
    assert set(chain.views) == {"delays", "large", "named", "worst"}
    assert {one.name for one in chain.tables if one.is_typed} - set(chain.views) == {"airlines", "flights"}


def test_what_a_chain_lacks_is_reported_with_the_class(air: Air) -> None:
    air.write("air/views/named.sql", "CREATE VIEW named AS SELECT id FROM flights")
    assert "air_views.py:23: Named: air/views/named.sql is the view 'named', too" in air.problems()
    (air.folder / "views" / "named.sql").unlink()
    air.write("air_views.py", CLASSES.replace('name="named"', 'name="delays"'))
    assert "air_views.py:23: view: the name 'delays' is taken; rename one of the two" in air.problems()
    air.write("air_views.py", CLASSES.replace('name="named"', 'name="airlines"'))
    assert "Named: the chain has a table 'airlines', too: rename one of the two" in air.problems()
    air.write("air_views.py", CLASSES.replace("@percolator.view_function()\n", ""))
    assert "air_views.py:22: Named.size: there is no function 'size'" in air.problems()
    air.write("air_views.py", CLASSES)
    air.write("air_models.py", MODELS.replace("Indexed[str]", "str"))
    assert "air_views.py:23: a join finds the rows of 'flights' by carrier, which has no index" in (
        air.problems()
    )
    air.write("air_models.py", MODELS)
    later = "Later = type(View)('Later', (View,), {'__module__': __name__, 'id': Flight.id}, name='m')"
    air.write("air_views.py", f"{CLASSES}\n{later}\n")
    assert "Later is declared by code that has to run first" in air.problems()


def test_a_view_of_a_class_follows_its_tables_and_is_a_model(db: Database, air: Air) -> None:
    chain = air.load()
    module, models = sys.modules["air_views"], sys.modules["air_models"]
    chain.create_tables(db)
    draw = random.Random(3)
    delays: dict[str, list[int]] = {}
    for _ in range(6):
        with db.transaction() as t:
            for _ in range(8):
                key = draw.randrange(20)
                if draw.random() < 0.2:
                    t.remove(models.Flight, id=key)
                else:
                    delay = draw.choice([None, 1, 14, 15, 16, 70])
                    t.upsert(models.Flight(id=key, carrier=draw.choice("AB"), delay=delay))
            t.upsert(models.Airline(carrier="A", name=draw.choice(["Ada", "Alpha"])))
        Worker(db, chain).run_until_idle(PATIENCE)
        snapshot = db.snapshot()
        flights = list(snapshot.select(models.Flight))
        names = {one.carrier: one.name for one in snapshot.select(models.Airline)}
        delays = defaultdict(list)
        for one in flights:
            if one.delay is not None:
                delays[one.carrier].append(one.delay)
        assert {one.carrier: one for one in snapshot.select(module.Delays)} == {
            carrier: module.Delays(
                carrier=carrier,
                flights=len(some),
                late=sum(delay > 15 for delay in some),
                mean=sum(some) / len(some),
                worst=max(some),
            )
            for carrier, some in delays.items()
        }
        assert {(one.id, one.size, one.airline) for one in snapshot.select(module.Named)} == {
            (one.id, one.delay and ("large" if one.delay > 10 else "small"), names.get(one.carrier))
            for one in flights
        }
        large = {carrier for carrier, some in delays.items() if max(some) > 50}
        assert {one.carrier for one in snapshot.select(module.Large)} == large
        assert [one["worst"] for one in snapshot.select("worst")] == [
            max((max(some) for some in delays.values()), default=None)
        ]
    some = next(iter(delays))
    found = db.snapshot().find(module.Delays, carrier=some)
    assert found.flights == len(delays[some])
    assert found.is_bad() == (found.late * 2 > found.flights)
    few = db.snapshot().select(module.Delays, where=module.Delays.flights < 2)
    assert {one.carrier for one in few} == {name for name, some in delays.items() if len(some) < 2}


def test_a_notebook_has_views_and_observers_of_views(db: Database) -> None:
    class Counts(View, name="counts"):
        category = Product.category
        n = count()

    seen: list[tuple[str, int]] = []

    @observer(Counts.n)
    def look(t: Any, cell: Any) -> None:
        row = t.find(Counts, **Counts.key_of(cell.row))
        seen.append((row.category, row.n))

    chain = Chain.of("notes", [look], models=[Product], views=[Counts, initial])
    chain.create_tables(db)
    with db.transaction() as t:
        t.insert(Product(id=1, category="tea"))
        t.insert(Product(id=2, category="tea"))
    Worker(db, chain).run_until_idle(PATIENCE)
    assert seen[-1] == ("tea", 2)
    with pytest.raises(ConfigurationError, match="is neither a View nor a function with '@view_function"):
        Chain.of("notes", [], models=[Product], views=[Product])
    with pytest.raises(ConfigurationError, match="Counts: there is no typed table"):
        Chain.of("notes", [], models=[Country], views=[Counts])
