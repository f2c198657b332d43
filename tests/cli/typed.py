"""A project with typed tables, beside the one of all tests of the command line."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from percolator_core import Chain

if TYPE_CHECKING:
    from tests.cli.conftest import Project

FILES = {
    "shop/chain.yaml": """\
version: 1
chain: shop
schemas: cli_models
tables:
  sums: {tablets: 2, notify_only: [stale]}
""",
    "shop/total.yaml": """\
version: 1
observer: total
observe: orders.paid
function: cli_models:total
reads: [orders.amount]
writes: [sums.total]
""",
    "cli_models.py": '''\
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from percolator_core import Hash, Indexed, PrimaryKey, Range, Table, Unique


class Customer(Table, name="customers", partition=[Hash("email", buckets=2)]):
    """Who buys."""

    email: PrimaryKey[str]
    name: str = ""
    since: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    tags: list[str] = Field(default_factory=list)


class Order(
    Table,
    name="orders",
    partition=[Hash("shop", buckets=2), Range("number", splits=[100])],
    notify_only=["late"],
):
    shop: PrimaryKey[str]
    number: PrimaryKey[int]
    customer: Indexed[str]
    receipt: Unique[str] | None = None
    amount: Annotated[Decimal, Field(max_digits=10, decimal_places=2)] = Decimal(0)
    weight: float | None = None
    paid: bool = False
    scan: bytes | None = None


def total(t, cell):
    pass
''',
}


def make(project: Project) -> Any:
    """Write the project, and fill its tables; returns the module of the models."""
    for name, text in FILES.items():
        (project.folder / name).parent.mkdir(exist_ok=True)
        (project.folder / name).write_text(text)
    sys.modules.pop("cli_models", None)
    chain = Chain.load("shop")
    models = importlib.import_module("cli_models")
    with project.connect() as db:
        chain.create_tables(db)
        with db.transaction() as t:
            t.insert(models.Customer(email="ada@a", name="Ada", tags=["new", "ä"]))
            t.insert(models.Customer(email="bob@b"))
            t.insert(models.Order(shop="north", number=-7, customer="ada@a", amount="1.50", scan=b"\xff\x00"))
            t.insert(models.Order(shop="north side", number=7, customer="bob@b", weight=0.25, paid=True))
            t.insert(models.Order(shop="south", number=120, customer="ada@a", amount="20", receipt="r1"))
            t.set("sums", "ada@a", "total", b"21.50")
            t.set("sums", "bob@b", "total", b"0")
    return models
