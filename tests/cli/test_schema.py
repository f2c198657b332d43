"""``schema``, and typed tables in ``check``, ``graph`` and ``tables``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pydantic.errors import PydanticInvalidForJsonSchema

from percolator_core.cli.output import Failure
from percolator_core.cli.schema import json_schema_of, partition_text
from percolator_core.schema.definitions import TableDefinition
from percolator_core.tables.model import Hash, PrimaryKey, Range, Table, definition_of
from tests.cli import typed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Project


@pytest.fixture
def shop(project: Project) -> Iterator[Any]:
    yield typed.make(project)
    sys.modules.pop("cli_models", None)


def squeezed(text: str) -> list[str]:
    """The lines without the frame and without the width of columns."""
    return [line for line in (" ".join(line.strip("│╭╮╰╯─ ").split()) for line in text.splitlines()) if line]


ORDERS = [
    "column type key null default index",
    "shop str key 1",
    "number int key 2",
    "customer str yes",
    "receipt str null unique",
    "amount decimal(10,2) 0.00",
    "weight float null",
    "paid bool false",
    "scan bytes null",
    "4 tablets: hash(shop) in 2, range(number) at 100",
    "notify-only: late",
]


def test_the_tables_of_a_chain(project: Project, shop: Any) -> None:
    lines = squeezed(project.ok("schema", "shop").out)
    assert lines[0] == "shop: 3 tables"
    assert (
        lines[lines.index("orders ") + 1 if "orders " in lines else lines.index("orders") + 1 :][:11]
        == ORDERS
    )
    assert "since datetime 2026-01-01T00:00:00Z" in lines
    assert "name str ''" in lines
    assert "tags json list()" in lines
    assert lines[-3:] == ["sums", "2 tablets: hash of the row key, cells of bytes", "notify-only: stale"]


def test_the_tables_of_a_store(project: Project, shop: Any) -> None:
    lines = squeezed(project.ok("schema").out)
    assert lines[0].endswith(": 3 tables")  # an index is shown with its table
    assert "amount decimal(10,2)" in lines
    with project.connect() as db:
        db.drop_table("orders")
    assert "orders" not in squeezed(project.ok("schema").out)


def test_as_json(project: Project, shop: Any) -> None:
    found = project.ok("schema", "shop", "--json").json
    assert found == json.loads(project.ok("schema", "shop", "--format", "json").out)
    assert found["chain"] == "shop"
    customers, orders, sums = found["tables"]
    assert sums == {"name": "sums", "tablets": 2, "notify_only": ["stale"]}
    assert customers["columns"][2] == {
        "name": "since",
        "type": "datetime",
        "nullable": False,
        "default": "2026-01-01T00:00:00Z",
    }
    assert orders["key"] == ["shop", "number"]
    assert orders["partition"] == [{"hash": ["shop"], "buckets": 2}, {"range": "number", "splits": [100]}]
    assert orders["indexes"] == [
        {"column": "customer", "unique": False, "table": "orders(customer)"},
        {"column": "receipt", "unique": True, "table": "orders(receipt)"},
    ]


def test_as_mermaid(project: Project, shop: Any) -> None:
    lines = project.ok("schema", "shop", "--format", "mermaid").out.splitlines()
    assert lines[0] == "erDiagram"
    start = lines.index('    "orders" {')
    assert lines[start + 1 : start + 11] == [
        "        str shop PK",
        "        int number PK",
        '        str customer "indexed"',
        '        str receipt UK "null, indexed"',
        '        decimal(10-2) amount "default 0.00"',
        '        float weight "null"',
        '        bool paid "default false"',
        '        bytes scan "null"',
        '        notify late "notify-only"',
        "    }",
    ]


def test_json_schemas_of_models_and_of_the_catalog(project: Project, shop: Any, tmp_path: Path) -> None:
    written = project.ok("schema", "shop", "--json-schema", "of/chain", "--json").json["written"]
    assert written == [
        f"of/chain/{name}.schema.json" for name in ("chain", "observer", "customers", "orders")
    ]
    model = json.loads((tmp_path / "of/chain/customers.schema.json").read_text())
    assert model["description"] == "Who buys."
    assert model["properties"]["tags"]["items"] == {"type": "string"}
    assert "of/store/orders.schema.json written" in project.ok("schema", "--json-schema", "of/store").out
    stored = json.loads((tmp_path / "of/store/orders.schema.json").read_text())
    assert stored["required"] == ["shop", "number", "customer", "amount", "paid"]
    assert stored["properties"]["number"] == {"type": "integer"}
    assert stored["properties"]["scan"] == {
        "anyOf": [{"type": "string", "format": "binary"}, {"type": "null"}]
    }
    assert stored["additionalProperties"] is False


def test_what_has_no_json_schema(project: Project) -> None:
    with project.connect() as db:
        db.create_table("raw")
    ended = project("schema", "--json-schema", "out")
    assert (ended.code, ended.error) == (
        1,
        "there are no typed tables: raw tables hold bytes and have no JSON Schema",
    )
    (project.folder / "file").touch()
    typed.make(project)
    ended = project("schema", "shop", "--json-schema", "file/out", store=False)
    assert ended.error == "file/out cannot be written (Not a directory): name another folder"


def test_a_bad_chain_is_exit_code_two(project: Project) -> None:
    (project.folder / "chain" / "chain.yaml").write_text("version: 1\nchain: words\nschemas: cli_nothing\n")
    ended = project("schema", "chain", store=False)
    assert ended.code == 2
    assert "chain/chain.yaml:3: schemas: there is no module 'cli_nothing'" in ended.err


def test_many_splits_are_cut_short() -> None:
    class Many(Table, name="many", partition=[Range("n", splits=range(9))]):
        n: PrimaryKey[int]

    class Uncut(Table, name="none", partition=[Hash("n", buckets=2), Range("n")]):
        n: PrimaryKey[int]

    assert partition_text(definition_of(Many)) == "range(n) at 0, 1, 2, 3, … 5 more"
    assert partition_text(definition_of(Uncut)) == "hash(n) in 2, range(n) at nothing yet"
    assert partition_text(TableDefinition("raw")) == ""


def test_a_model_without_a_json_schema_is_told_in_a_sentence() -> None:
    class Odd(Table, name="odd"):
        n: PrimaryKey[int]

        @classmethod
        def model_json_schema(cls, *_: Any, **__: Any) -> dict[str, Any]:
            raise PydanticInvalidForJsonSchema("Cannot do it\nand more")

    with pytest.raises(Failure, match=r"no JSON Schema can be made of Odd: Cannot do it$"):
        json_schema_of(definition_of(Odd), Odd)


def test_typed_tables_in_check_graph_and_tables(project: Project, shop: Any) -> None:
    checked = project.ok("check", "shop", "--json").json
    assert [one["name"] for one in checked["tables"]] == ["customers", "orders", "sums"]
    assert [column["name"] for column in checked["tables"][0]["columns"]] == [
        "email",
        "name",
        "since",
        "tags",
    ]
    assert project.ok("check", "shop").out.startswith("chain shop: 3 tables, 1 observer\n")
    unseen = project.ok("check", "shop", "--no-import").out.splitlines()[0]
    assert unseen == "chain shop: 1 table, 1 observer; the typed tables of cli_models were not checked"
    assert checked["schemas"] == ["cli_models"]
    assert '(["orders.paid"]):::column' in project.ok("graph", "shop").out
    (project.folder / "shop" / "total.yaml").write_text(
        typed.FILES["shop/total.yaml"].replace("paid", "payd")
    )
    assert project("check", "shop", store=False).error == (
        "shop/total.yaml:3: observe: Order, table 'orders', has no column 'payd'; did you mean 'paid'?"
    )


def test_tables_lists_what_is_typed(project: Project, shop: Any) -> None:
    rows = squeezed(project.ok("tables").out)
    assert rows[0] == "table tablets columns key partition notify-only columns"
    assert "customers 2 4 email hash(email) in 2" in rows
    assert "orders 4 8 shop, number hash(shop) in 2, range(number) at 100 late" in rows
    assert "sums 2 stale" in rows
    assert any(row.startswith("orders(customer) (index of orders)") for row in rows)
    listed = {one["name"]: one for one in project.ok("tables", "--json").json["tables"]}
    assert listed["orders(receipt)"]["index_of"] == "orders"
    assert listed["sums"] == {"name": "sums", "tablets": 2, "notify_only": ["stale"]}
