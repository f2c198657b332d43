"""Plans of views: keys, types, joins, lineage, fingerprints, Python functions."""

from __future__ import annotations

from datetime import date
from typing import Any
from uuid import UUID

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.tables.model import definition_of
from percolator_core.views.plan import RowRefused, ViewPlan
from percolator_core.views.planner import plan_view
from percolator_core.views.problems import ViewRefused
from percolator_core.views.python_functions import ViewFunction
from tests.views.queries import table
from tests.views.runner import Runner, Tables

TABLES = {
    one.name: one
    for one in (
        table(
            "orders",
            {"shop": "str", "number": "int"},
            {"customer": "int?", "kind": "str", "total": "decimal(9,2)?", "note": "json?"},
        ),
        table("customers", {"id": "int"}, {"name": "str", "region": "str?", "boss": "int?"}),
        table("regions", {"country": "str", "code": "str"}, {"label": "str"}),
        table(
            "all_types",
            {"k": "uuid"},
            {"b": "bytes?", "d": "date?", "t": "datetime?", "o": "bool?", "x": "float"},
        ),
    )
}


def view(select: str, **functions: ViewFunction) -> ViewPlan:
    return plan_view(f"CREATE VIEW v AS {select}", TABLES, functions)


@pytest.mark.parametrize(
    ("select", "key"),
    [
        ("SELECT * FROM orders", ("shop", "number")),
        ("SELECT number AS n, shop AS s, total FROM orders", ("s", "n")),
        ("SELECT shop, total FROM orders", ("row_",)),
        ("SELECT shop, number + 0 AS number FROM orders", ("row_",)),
        ("SELECT shop, number FROM orders UNION ALL SELECT shop, number FROM orders", ("row_",)),
        ("SELECT kind, shop, count(*) AS n FROM orders GROUP BY shop, kind", ("shop", "kind")),
        ("SELECT shop, count(*) AS n FROM orders GROUP BY shop, kind", ("row_",)),
        ("SELECT customer, count(*) AS n FROM orders GROUP BY customer", ("row_",)),
        ("SELECT lower(kind) AS k, count(*) AS n FROM orders GROUP BY 1", ("k",)),
        ("SELECT upper(kind) AS k, count(*) AS n FROM orders GROUP BY k", ("k",)),
        ("SELECT kind AS k, count(*) AS n FROM orders GROUP BY ALL", ("k",)),
        ("SELECT DISTINCT kind, shop FROM orders", ("kind", "shop")),
        ("SELECT DISTINCT kind AS a, kind AS b, 1 AS c FROM orders", ("a", "c")),
        ("SELECT kind AS a, kind AS b, count(*) AS n FROM orders GROUP BY kind, a", ("a",)),
        ("SELECT kind FROM orders UNION SELECT name FROM customers", ("kind",)),
        ("SELECT count(*) AS n FROM orders", ("row_",)),
        ("SELECT o.*, c.name FROM orders o JOIN customers c ON c.id = o.customer", ("shop", "number")),
        ("SELECT o.shop, number FROM customers c JOIN orders o ON c.id = o.customer", ("shop", "number")),
        ("SELECT x.id FROM (SELECT id FROM customers WHERE boss IS NULL) AS x", ("id",)),
        ("WITH x AS (SELECT id, name FROM customers) SELECT name, ID FROM x", ("id",)),
    ],
)
def test_the_key_of_a_view_is_that_of_its_rows_or_hidden(select: str, key: tuple[str, ...]) -> None:
    assert view(select).definition.key == key


def test_a_view_has_a_model_with_its_definition() -> None:
    for select in (
        "SELECT * FROM orders",
        "SELECT * FROM all_types",
        "SELECT total, count(*) AS n, array_agg(kind ORDER BY kind)[1:3] AS kinds FROM orders GROUP BY total",
        "SELECT kind AS a, shop, number FROM orders",
    ):
        plan = view(select)
        model = definition_of(plan.model)
        assert set(model.columns) == set(plan.definition.columns)
        assert (model.key, model.name, model.hashes) == (plan.definition.key, "v", plan.definition.hashes)
    model_of_all: Any = view("SELECT * FROM all_types").model
    row = model_of_all(k=UUID(int=1), x=1.5, d=date(2024, 1, 2))
    assert dict(row) == {"k": UUID(int=1), "b": None, "d": date(2024, 1, 2), "t": None, "o": None, "x": 1.5}


@pytest.mark.parametrize(
    ("expression", "kind", "nullable"),
    [
        ("number", "int", False),
        ("customer", "int", True),
        ("number / 2", "float", False),
        ("total * 2", "decimal(28,2)", True),
        ("total + 1.5", "decimal(10,2)", True),
        ("COALESCE(total, 0)", "decimal(21,2)", False),
        ("COALESCE(total, customer)", "decimal(21,2)", True),
        ("CASE WHEN customer = 1 THEN 1 ELSE 2 END", "int", False),
        ("CASE WHEN number = 1 THEN 1 END", "int", True),
        ("NULLIF(number, 1)", "int", True),
        ("customer IS NULL", "bool", False),
        ("customer = 1", "bool", True),
        ("customer IS DISTINCT FROM 1", "bool", False),
        ("TRY_CAST(kind AS BIGINT)", "int", True),
        ("CAST(kind AS DATE)", "date", False),
        ("concat(kind, customer)", "str", False),
        ("kind || customer", "str", True),
        ("note", "json", True),
        ("greatest(number, customer)", "int", False),
    ],
)
def test_types_and_nullability_are_inferred(expression: str, kind: str, nullable: bool) -> None:
    column = view(f"SELECT {expression} AS x FROM orders").definition.by_name["x"]
    assert (column.type, column.nullable) == (kind, nullable)


def test_a_left_join_may_give_nulls_and_an_inner_join_does_not() -> None:
    for how, nullable in (("LEFT JOIN", True), ("JOIN", False)):
        plan = view(f"SELECT shop, number, name FROM orders {how} customers ON customer = id")
        assert plan.definition.by_name["name"].nullable is nullable


def test_a_plan_names_what_it_reads_and_the_indexes_of_its_joins() -> None:
    plan = view(
        "SELECT o.shop, o.number, c.name, b.name AS boss, r.label FROM orders o "
        "JOIN customers c ON o.customer = c.id LEFT JOIN customers b ON c.boss = b.id "
        "LEFT JOIN regions r ON r.country = 'CH' AND c.region = r.code"
    )
    assert plan.sources == ("orders", "customers", "regions")
    assert plan.reads("orders") == {"shop", "number", "customer"}
    assert plan.reads("customers") == {"id", "name", "boss", "region"} - {"id"}
    assert plan.indexes == {("orders", ("customer",)), ("customers", ("boss",)), ("customers", ("region",))}
    assert plan.lineage == {
        "shop": {("orders", "shop")},
        "number": {("orders", "number")},
        "name": {("customers", "name")},
        "boss": {("customers", "name")},
        "label": {("regions", "label")},
    }
    assert [one.parent for one in plan.branches[0].lookups] == [0, 1, 1]


def test_no_index_is_needed_of_the_first_column_of_the_key() -> None:
    plan = view("SELECT c.id, b.name FROM customers c JOIN customers b ON c.id = b.id")
    assert plan.indexes == frozenset()


def test_a_lookup_and_its_inverse_agree() -> None:
    plan = view(
        "SELECT c.id, label FROM customers c JOIN regions r ON r.country = 'CH' AND c.region = r.code"
    )
    (lookup,) = plan.branches[0].lookups
    at = plan.branches[0].source.columns.index("region")
    row: list[Any] = [None] * len(plan.branches[0].source.columns)
    assert lookup.key((tuple(row),)) is None
    row[at] = "ZH"
    key = lookup.key((tuple(row),))
    assert key == b"CH\x00\x01ZH"
    assert lookup.referring(key) == {"region": b"ZH"}
    assert lookup.referring(b"DE\x00\x01ZH") is None


def test_lineage_of_aggregates_has_arguments_filters_and_orders() -> None:
    plan = view(
        "SELECT shop, sum(total) FILTER (WHERE kind = 'a') AS s, array_agg(kind ORDER BY number)[1:2] AS k, "
        "count(*) AS n FROM orders WHERE customer > 0 GROUP BY shop"
    )
    named = {name: {column for _, column in some} for name, some in plan.lineage.items()}
    assert named == {"shop": {"shop"}, "s": {"total", "kind"}, "k": {"kind", "number"}, "n": set()}
    assert "customer" in plan.reads("orders")
    assert "note" not in plan.reads("orders")


def test_a_fingerprint_changes_with_the_sql_but_not_with_its_layout() -> None:
    one = view("SELECT shop, number FROM orders WHERE kind = 'A'")
    assert (
        one.fingerprint == view("select shop,\n number -- a comment\nfrom orders where kind='A'").fingerprint
    )
    assert one.fingerprint != view("SELECT shop, number FROM orders WHERE kind = 'a'").fingerprint
    changed = {**TABLES, "orders": table("orders", {"shop": "str", "number": "int"}, {"kind": "str?"})}
    assert one.fingerprint != plan_view(f"CREATE VIEW v AS {one.sql}", changed).fingerprint


def score(text: str, times: int | None) -> float | None:
    return None if text == "none" else len(text) * float(times or 1)


def test_a_python_function_is_a_column() -> None:
    function = ViewFunction.of("score", score)
    assert (function.parameters, function.kind, function.nullable) == (
        (("str", False), ("int", True)),
        "float",
        True,
    )
    plan = view("SELECT shop, number, Score(kind, customer) AS x FROM orders", score=function)
    tables = Tables(*TABLES.values())
    runner = Runner(plan, tables)
    for number, (kind, customer) in enumerate([("ab", 3), ("ab", None), ("none", 1)]):
        key, cells = tables.encode(
            "orders",
            {"shop": "s", "number": number, "customer": customer, "kind": kind, "total": None, "note": None},
        )
        tables.rows["orders"][key] = cells
        runner.changed("orders", key)
    assert [row["x"] for row in runner.result()] == [6.0, 2.0, None]
    assert plan.fingerprint != view(plan.sql, score=ViewFunction.of("score", score, revision=2)).fingerprint


def test_a_null_that_a_python_function_does_not_take_is_its_result() -> None:
    plan = view("SELECT twice(customer) AS x FROM orders", twice=ViewFunction.of("twice", twice))
    assert plan.definition.by_name["x"].nullable
    tables = Tables(*TABLES.values())
    runner = Runner(plan, tables)
    values = {"shop": "s", "number": 1, "customer": None, "kind": "", "total": None, "note": None}
    key, cells = tables.encode("orders", values)
    tables.rows["orders"][key] = cells
    runner.changed("orders", key)
    assert runner.result() == [{"x": None}]


def twice(number: int) -> int:
    return 2 * number


def wrong(number: int) -> int:
    return str(number)  # type: ignore[return-value]


def test_a_python_function_that_returns_another_type_refuses_the_row() -> None:
    plan = view("SELECT shop, number, wrong(number) AS x FROM orders", wrong=ViewFunction.of("wrong", wrong))
    row = ["s"] * len(plan.branches[0].source.columns)
    row[plan.branches[0].source.columns.index("number")] = 1  # type: ignore[call-overload]
    with pytest.raises(
        RowRefused, match=r"view v, orders row shop='s', number=1: wrong: TypeError: '1' is no int"
    ):
        plan.branches[0].contribution(b"s\x00\x01" + (2**63 + 1).to_bytes(8, "big"), (tuple(row),))


def bare(number):  # type: ignore[no-untyped-def]
    return number


def unknown(number: NotThere) -> int:  # type: ignore[name-defined]  # noqa: F821 - it cannot be read
    return 1


def many(*numbers: int) -> int:
    return len(numbers)


def test_a_python_function_needs_types_and_a_name_of_its_own() -> None:
    with pytest.raises(
        ConfigurationError, match="annotations cannot be read: name 'NotThere' is not defined"
    ):
        ViewFunction.of("unknown", unknown)
    with pytest.raises(ConfigurationError, match="'numbers' gets no argument: write plain parameters"):
        ViewFunction.of("many", many)
    with pytest.raises(ConfigurationError, match="'number' has no type: annotate it"):
        ViewFunction.of("bare", bare)
    with pytest.raises(ConfigurationError, match="SQL has a function or a word of that name"):
        ViewFunction.of("lower", twice)
    with pytest.raises(ViewRefused, match="twice takes 1 arguments, not 2"):
        view("SELECT twice(number, 1) AS x FROM orders", twice=ViewFunction.of("twice", twice))
    with pytest.raises(ViewRefused, match="twice takes int, not str: write a CAST"):
        view("SELECT twice(kind) AS x FROM orders", twice=ViewFunction.of("twice", twice))


def test_names_are_found_in_any_case_and_stars_leave_the_hidden_key_out() -> None:
    plan = view('SELECT Shop, ORDERS.Number, "kind" FROM Orders')
    assert [one.name for one in plan.definition.columns] == ["shop", "number", "kind"]
    hidden = view("SELECT shop FROM orders")
    over = plan_view("CREATE VIEW w AS SELECT * FROM v", {"v": hidden.definition})
    assert [one.name for one in over.definition.columns] == ["row_", "shop"]
    assert over.branches[0].source.columns == ("shop",)


def test_a_condition_of_a_left_join_that_is_unknown_finds_no_row() -> None:
    """So the row stays, with nulls; an inner join leaves it out."""
    found = {}
    for how in ("LEFT JOIN", "JOIN"):
        plan = view(
            f"SELECT shop, number, name FROM orders {how} customers c ON customer = id AND c.boss > 1"
        )
        tables = Tables(*TABLES.values())
        runner = Runner(plan, tables)
        values = {"shop": "s", "number": 1, "customer": 7, "kind": "", "total": None, "note": None}
        for name, one in (
            ("orders", values),
            ("customers", {"id": 7, "name": "n", "region": None, "boss": None}),
        ):
            key, cells = tables.encode(name, one)
            tables.rows[name][key] = cells
            runner.changed(name, key)
        found[how] = [row["name"] for row in runner.result()]
    assert found == {"LEFT JOIN": [None], "JOIN": []}


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ("WHERE g IS NOT NULL", ("g",)),
        ("WHERE (g > 1 AND x < 2.0)", ("g",)),
        ("WHERE g > 1 OR x < 2.0", ("row_",)),
        ("WHERE NOT g > 1", ("row_",)),
        ("", ("row_",)),
    ],
)
def test_a_condition_that_no_null_meets_makes_a_key(where: str, key: tuple[str, ...]) -> None:
    t = table("t", {"id": "int"}, {"g": "int?", "x": "float?"})
    plan = plan_view(f"CREATE VIEW v AS SELECT g, count(*) AS n FROM t {where} GROUP BY g", {"t": t})
    assert plan.definition.key == key
