"""A view, kept by deltas, equals DuckDB's answer to the same SQL after any changes.

PERCOLATOR_VIEW_EXAMPLES sets the number of examples (default 100).
"""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from percolator_core.schema.definitions import TableDefinition
from percolator_core.views.plan import RowRefused
from percolator_core.views.planner import plan_view
from tests.views import queries
from tests.views.runner import Runner, Tables

SCALE = 1e6
"""About the sum of the magnitudes of the floats of an example; a difference of 1e-7 is allowed."""

EXAMPLES = int(os.environ.get("PERCOLATOR_VIEW_EXAMPLES", "100"))


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET threads = 1")
    return connection


def schema(rnd: Random) -> dict[str, TableDefinition]:
    """Return the tables t, with references to u and to itself, u with references to r, and r."""
    null = [rnd.choice(["", "?"]) for _ in range(8)]
    kinds = rnd.sample(queries.KINDS, 5)
    t = queries.table(
        "t",
        {"id": "int"},
        {"fk": "int" + null[0]} | {f"c{at}": one + null[at] for at, one in enumerate(kinds)},
    )
    u = queries.table(
        "u",
        {"k": "int"},
        {"v": "int?", "fr": "int" + null[6], "fz": "int", "w": rnd.choice(queries.KINDS) + "?"},
    )
    r = queries.table("r", {"id": "int", "z": "int"}, {"x": rnd.choice(queries.KINDS) + null[7]})
    return {one.name: one for one in (t, u, r)}


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    return value


def alike(one: Any, other: Any, scale: float) -> bool:
    """Return True for equal values, and for floats that differ by a few units in the last place of a sum.

    DuckDB rounds after each addition, so its error is relative to the sum of the magnitudes, not to the sum.
    """
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(lambda a, b: alike(a, b, scale), one, other))
    if isinstance(one, float) and isinstance(other, float):
        if not (math.isfinite(one) and math.isfinite(other)):
            return one == other or (math.isnan(one) and math.isnan(other))
        return abs(one - other) <= 1e-13 * max(scale, abs(one), abs(other))
    if one is None or other is None:
        return one is other
    return bool(one == other)


def difference(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]], scale: float) -> str:
    left = list(theirs)
    for row in ours:
        for at, other in enumerate(left):
            if all(alike(a, b, scale) for a, b in zip(row, other, strict=True)):
                del left[at]
                break
        else:
            return f"ours has {row}, DuckDB has {left}"
    return f"DuckDB also has {left}" if left else ""


def test_the_comparison_tells_special_floats_apart() -> None:
    special: list[float] = [math.inf, -math.inf, math.nan, 1.0, 1.001]
    assert [[alike(one, other, SCALE) for other in special] for one in special] == [
        [number == place for place in range(5)] for number in range(5)
    ]
    assert alike(1.0, 1.0 + 1e-9, SCALE)
    assert not alike(None, 0.0, SCALE)
    assert "ours has" in difference([(math.inf,)], [(1.0,)], SCALE)
    assert "DuckDB also has" in difference([], [(1.0,)], SCALE)


def show(duck: Any, tables: Tables, names: set[str]) -> None:
    """Give the rows of tables to DuckDB."""
    for name in names:
        rows = [tables.decode(name, key, cells) for key, cells in tables.rows[name].items()]
        duck.register(name, pa.Table.from_pylist(rows, queries.arrow_schema(tables.definitions[name])))


@settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_a_view_equals_the_same_sql_after_any_changes(duck: Any, seed: int) -> None:
    """A seed is not made smaller, because another one is another query; the message has the query."""
    rnd = Random(seed)
    definitions = schema(rnd)
    sql = queries.query(rnd, definitions)
    check(duck, rnd, definitions, sql)


def check(duck: Any, rnd: Random, definitions: dict[str, TableDefinition], sql: str) -> None:
    plan = plan_view(f"CREATE VIEW v AS {sql}", definitions)
    assert plan.model is not None
    tables = Tables(*definitions.values())
    runner = Runner(plan, tables)
    touched = set(definitions)
    for _ in range(rnd.randrange(1, 5)):
        for _ in range(rnd.randrange(1, 8)):
            name = rnd.choice(["t", "t", "t", "u", "r"])
            touched.add(name)
            key = change(rnd, tables, name)
            try:
                runner.changed(name, key)
            except RowRefused as error:
                event(f"refused: {type(error.__cause__).__name__}")
                show(duck, tables, touched)
                with pytest.raises(duckdb.Error):
                    duck.execute(sql).fetchall()
                return
        try:
            runner.settle()
        except ValueError as error:
            assert "does not fit" in str(error)  # noqa: PT017 - a sum beyond 64 bits
            event("sum does not fit")
            return
        show(duck, tables, touched)
        touched.clear()
        try:
            theirs = [tuple(map(plain, row)) for row in duck.execute(sql).fetchall()]
        except duckdb.Error as error:
            event(f"DuckDB: {str(error)[:40]}")
            return
        ours = [tuple(map(plain, row.values())) for row in runner.result()]
        assert not (found := difference(ours, theirs, SCALE)), f"{sql}\n{found}"


def change(rnd: Random, tables: Tables, name: str) -> bytes:
    """Insert, update or remove a random row, and return its row key."""
    definition = tables.definitions[name]
    values = queries.row(rnd, definition, {definition.key[0]: rnd.randrange(5)})
    for one in ("fk", "fr", "fz", "z"):
        if values.get(one) is not None:
            values[one] = rnd.randrange(2 if "z" in one else 5)
    key, cells = tables.encode(name, values)
    if rnd.random() < 0.25:
        tables.rows[name].pop(key, None)
    else:
        tables.rows[name][key] = cells
    return key
