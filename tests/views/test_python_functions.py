"""Python functions that a chain declares for its views: found without running them, called for each row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from percolator_core import Chain, ConfigurationError, view_function
from percolator_core.admin.quarantine import Quarantine
from percolator_core.admin.views import compare
from percolator_core.observers.stamps import stamps
from percolator_core.testing import run_until_idle
from tests.views.chain_folder import ChainFolder, imported_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from percolator_core import Database

MODELS = """\
from percolator_core import PrimaryKey, Table

class Product(Table, name="products"):
    id: PrimaryKey[int]
    title: str | None = None
    price: int = 0
"""
FUNCTIONS = '''\
import percolator_core as percolator

RATES = {1: 10, 2: 20, 3: 30}

@percolator.view_function(revision=2)
def brand(title: str) -> str:
    """Return the first word."""
    return title.split()[0].casefold()

@percolator.view_function()
def rated(price: int) -> int:
    return RATES[price]
'''
VIEWS = {
    "branded": "SELECT id, Brand(title) AS brand FROM products",
    "brands": "SELECT brand(title) AS brand, sum(rated(price)) AS total FROM products GROUP BY 1",
    "plain": "SELECT id, price FROM products",
}


class Shop(ChainFolder):
    def __init__(self, top: Path) -> None:
        super().__init__(top, "shop")
        self.write("shop_models.py", MODELS)
        self.write("shop_functions.py", FUNCTIONS)
        self.write(
            "shop/chain.yaml", "version: 1\nchain: shop\nschemas: shop_models\nviews: [shop_functions]\n"
        )
        for name, sql in VIEWS.items():
            self.write(f"shop/views/{name}.sql", f"CREATE VIEW {name} AS\n{sql}\n")

    def problems(self) -> list[str]:
        with pytest.raises(ConfigurationError) as refused:
            self.load()
        return [line.removeprefix(f"{self.top}/") for line in str(refused.value).splitlines()]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    with imported_from(Shop, tmp_path, monkeypatch) as made:
        yield made


def rows(db: Database, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[one] for one in columns) for row in db.snapshot().select(table))


def test_a_function_is_a_column_a_group_and_an_argument(db: Database, shop: Shop) -> None:
    chain = shop.load()
    chain.create_tables(db)
    product: Any = chain.models["products"]
    with db.transaction() as t:
        for number, (title, price) in enumerate([("Acme one", 1), ("ACME two", 2), (None, 3), ("Zeta", 3)]):
            t.insert(product(id=number, title=title, price=price))
    run_until_idle(db, chain)
    assert rows(db, "branded", "id", "brand") == [(0, "acme"), (1, "acme"), (2, None), (3, "zeta")]
    assert {(row["brand"], row["total"]) for row in db.snapshot().select("brands")} == {
        ("acme", 30),
        ("zeta", 30),
        (None, 30),
    }
    for name in chain.views:
        found = compare(db, chain, name)
        assert (found.missing, found.extra, found.different) == (0, 0, 0)


def test_a_row_for_which_a_function_raises_is_in_quarantine_and_keeps_what_it_gave(
    db: Database, shop: Shop
) -> None:
    chain = shop.load()
    chain.create_tables(db)
    product: Any = chain.models["products"]
    with db.transaction() as t:
        t.insert(product(id=1, title="Acme one", price=1))
        t.insert(product(id=2, title="Acme two", price=2))
    run_until_idle(db, chain)
    with db.transaction() as t:
        t.update(product, id=1, title="Zeta", price=99)
        t.update(product, id=2, price=3)
    run_until_idle(db, chain, fail=False)
    assert rows(db, "branded", "id", "brand") == [(1, "zeta"), (2, "acme")]
    assert rows(db, "brands", "brand", "total") == [("acme", 40)], "the first row still gives 10, not nothing"
    [failed] = Quarantine(db, chain).cells()
    assert failed.observer.startswith("brands")
    assert "view brands, products row id=1: rated: KeyError: 99" in failed.error
    with db.transaction() as t:
        t.update(product, id=1, price=2)
    run_until_idle(db, chain)
    assert rows(db, "brands", "brand", "total") == [("acme", 30), ("zeta", 20)]


def test_a_revision_is_part_of_the_fingerprints_of_the_views_that_call_the_function(shop: Shop) -> None:
    before = shop.load()
    for old, new, calling in (
        ("(revision=2)", "(revision=3)", {"branded", "brands"}),
        ("view_function()", "view_function(revision=7)", {"brands"}),
    ):
        shop.write("shop_functions.py", FUNCTIONS.replace(old, new))
        after = shop.load()
        changed = {one for one in VIEWS if after.views[one].fingerprint != before.views[one].fingerprint}
        assert changed == calling
        assert after.digest != before.digest


def test_a_chain_has_the_same_digest_without_the_code_of_its_functions(shop: Shop) -> None:
    with_code = shop.load()
    shop.write("shop_functions.py", f"import no_such_package\n{FUNCTIONS}")
    assert shop.load(import_functions=False).digest == with_code.digest
    assert "shop_functions" not in sys.modules
    shop.write("shop_functions.py", FUNCTIONS.replace("revision=2", "revision=4"))
    assert shop.load(import_functions=False).digest != with_code.digest


def test_declarations_are_read_without_the_parser_of_sql(shop: Shop) -> None:
    shop.write("shop/chain.yaml", "version: 1\nchain: shop\ntables: {t: {}}\nviews: shop_functions\n")
    for one in (shop.folder / "views").iterdir():
        one.unlink()
    assert shop.imported_of("sqlglot", "shop_functions", "pyarrow") == "set()"


def test_a_change_of_a_function_or_a_view_changes_the_stamps(shop: Shop) -> None:
    names = {Path(name).name for name, _ in stamps(shop.folder)}
    assert names == {"chain.yaml", "shop_functions.py", *(f"{name}.sql" for name in VIEWS)}


def test_an_unknown_function_is_refused_with_its_place(shop: Shop) -> None:
    shop.write("shop/views/plain.sql", "CREATE VIEW plain AS\nSELECT id,\n  brnd(title) AS b FROM products")
    [problem] = shop.problems()
    assert problem == (
        "shop/views/plain.sql:3:3: there is no function 'brnd': use one of SQL, or declare it in Python with "
        "'@view_function()', in a module that 'views' in chain.yaml names"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(revision=0)", "shop_functions.py:5: revision: 0 is out of range; write a number from 1 to"),
        ("(revision='2')", "shop_functions.py:5: revision: expected a whole number, not the text '2'"),
        ("(revison=2)", "shop_functions.py:5: revison: is not a known key; did you mean 'revision'?"),
        ("(2)", "shop_functions.py:5: the arguments of '@view_function' have names; write revision=2"),
        ("(revision=len(RATES))", "shop_functions.py:5: 'len(RATES)' cannot be read without running code"),
    ],
)
def test_a_declaration_that_cannot_be_read_is_refused_with_its_line(
    shop: Shop, text: str, problem: str
) -> None:
    shop.write("shop_functions.py", FUNCTIONS.replace("(revision=2)", text))
    shop.forget()
    with pytest.raises(ConfigurationError) as refused:
        Chain.load(shop.folder, import_functions=False)
    assert problem in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_function_without_types_and_one_that_is_declared_twice(shop: Shop) -> None:
    shop.write("shop_functions.py", FUNCTIONS.replace("title: str", "title"))
    [problem] = shop.problems()
    assert problem == (
        "shop_functions.py:6: function 'brand' of views: 'title' has no type: annotate it, such as "
        "'text: str'"
    )
    shop.write("shop_functions.py", FUNCTIONS.replace("def rated", "def BRAND"))
    assert "the name 'BRAND' is taken; rename one of the two" in shop.problems()[0]
    shop.write("shop_functions.py", "x = 1\n")
    assert "module 'shop_functions' has no view and no function for views; write" in shop.problems()[0]
    shop.write("shop_functions.py", f"{FUNCTIONS}\nlater = percolator.view_function()(lambda x: x)\n")
    assert "later is declared by code that has to run first" in shop.problems()[0]
    with pytest.raises(ConfigurationError, match="as a function of views twice"):
        view_function()(view_function()(lambda x: x))


def test_a_row_for_which_a_function_raises_holds_back_no_other_row_of_a_join(
    db: Database, shop: Shop
) -> None:
    shop.write(
        "shop_models.py",
        MODELS.replace("price: int = 0", "price: Indexed[int] = 0").replace("import", "import Indexed,")
        + "\nclass Price(Table, name='prices'):\n"
        "    amount: PrimaryKey[int]\n    name: str = ''\n    at: int = 1\n",
    )
    shop.write(
        "shop/views/priced.sql",
        "CREATE VIEW priced AS SELECT p.id, a.name, CASE p.id WHEN 1 THEN rated(a.at) END AS rate "
        "FROM products p JOIN prices a ON p.price = a.amount",
    )
    chain = shop.load()
    chain.create_tables(db)
    product: Any = chain.models["products"]
    price: Any = chain.models["prices"]
    with db.transaction() as t:
        t.insert(price(amount=1, name="one"))
        t.insert(product(id=1, title="a", price=1))
        t.insert(product(id=2, title="a", price=1))
    run_until_idle(db, chain)
    with db.transaction() as t:
        t.update(price, amount=1, name="uno", at=99)
    run_until_idle(db, chain, fail=False)
    assert rows(db, "priced", "id", "name", "rate") == [(1, "one", 10), (2, "uno", None)]
