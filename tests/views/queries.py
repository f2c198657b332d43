"""Random tables, rows and queries of the grammar of views, as SQL text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from percolator_core.schema.definitions import Column, HashRule, TableDefinition

KINDS = ["int", "float", "str", "bool", "date", "datetime", "decimal(9,2)"]
_ARROW = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us", "UTC"),
    "decimal(9,2)": pa.decimal128(9, 2),
}
_UNITS = ["year", "quarter", "month", "week", "day", "hour"]
_PATTERNS = ["sub", "a%", "%b", "_", "A%", "b$%"]
_WORDS = ["", "a", "A", "ab", "b%", "ß", "Zürich", "a_b", "\x00", "zz", "1", "éé"]


def table(name: str, key: dict[str, str], values: dict[str, str]) -> TableDefinition:
    """Return a definition; a type with ``?`` may be null."""
    columns = [Column(one, kind) for one, kind in key.items()]
    columns += [Column(one, kind.rstrip("?"), kind.endswith("?")) for one, kind in values.items()]
    return TableDefinition(
        name, 16, columns=tuple(columns), key=tuple(key), hashes=(HashRule(tuple(key), 16),)
    )


def arrow_schema(definition: TableDefinition) -> pa.Schema:
    """Return the types of a table for DuckDB."""
    return pa.schema([(one.name, _ARROW[one.type]) for one in definition.columns])


def value(rnd: Random, kind: str) -> Any:
    """Return a value of a few, so that groups have several rows. Floats are multiples of 1/8, so that sums of
    DuckDB are exact, or special."""
    match kind:
        case "int":
            return rnd.choice([0, 1, 2, 3, -1, -7, 10, 1 << 40])
        case "float":
            special = [float("inf"), float("-inf"), float("nan")]
            return rnd.choice(
                [0.0, -0.0, 0.5, 1.0, -2.5, 1.125, 3.0, 1e6, *special[: rnd.choice([0, 0, 0, 3])]]
            )
        case "str":
            return rnd.choice(_WORDS)
        case "bool":
            return rnd.choice([True, False])
        case "date":
            return date(2024, 2, 27) + timedelta(days=rnd.randrange(5))
        case "datetime":
            start = datetime(2024, 12, 30, 23, tzinfo=UTC)
            return start + timedelta(minutes=rnd.randrange(200) * 37, microseconds=rnd.choice([0, 5000]))
        case _:
            return rnd.choice(
                [Decimal("0.00"), Decimal("1.50"), Decimal("-2.25"), Decimal("0.05"), Decimal("999.99")]
            )


def row(rnd: Random, definition: TableDefinition, key: dict[str, Any]) -> dict[str, Any]:
    """Return a row with random values."""
    return {
        one.name: key[one.name]
        if one.name in key
        else None
        if one.nullable and rnd.random() < 0.25
        else value(rnd, one.type)
        for one in definition.columns
    }


def literal(rnd: Random, kind: str) -> str:
    """Return a literal of a kind."""
    found: Any = value(rnd, kind)
    match kind:
        case "str":
            return "'" + str(found).replace("\x00", "") + "'"
        case "date":
            return f"DATE '{found}'"
        case "datetime":
            return f"TIMESTAMPTZ '{found}'"
        case "float":
            return (
                f"CAST('{found}' AS DOUBLE)"
                if rnd.random() < 0.3
                else f"{rnd.choice([0.5, 2.0, 1.25])}::DOUBLE"
            )
        case "bool":
            return str(found).upper()
        case _:
            return str(
                rnd.choice([0, 1, 2, 3, -1]) if kind == "int" else rnd.choice(["1.5", "0.25", "-2.00"])
            )


@dataclass
class Columns:
    """The columns that expressions may use, by kind."""

    by_kind: dict[str, list[str]]

    def pick(self, rnd: Random, kind: str) -> str | None:
        some = self.by_kind.get(kind)
        return rnd.choice(some) if some else None

    def kinds(self) -> list[str]:
        return [kind for kind, some in self.by_kind.items() if some]


def expression(rnd: Random, kind: str, columns: Columns, depth: int = 2) -> str:
    """Return an expression of a kind."""
    column = columns.pick(rnd, kind)
    if depth <= 0 or rnd.random() < 0.25:
        return column if column is not None and rnd.random() < 0.85 else literal(rnd, kind)

    def sub(other: str) -> str:
        return expression(rnd, other, columns, depth - 1)

    any_kind = rnd.choice(KINDS)
    common: list[Callable[[], str]] = [
        lambda: f"CASE WHEN {sub('bool')} THEN {sub(kind)} ELSE {sub(kind)} END",
        lambda: f"CASE WHEN {sub('bool')} THEN {sub(kind)} END",
        lambda: f"COALESCE({sub(kind)}, {sub(kind)})",
        lambda: f"NULLIF({sub(kind)}, {sub(kind)})",
        lambda: f"greatest({sub(kind)}, {sub(kind)})",
        lambda: f"least({sub(kind)}, {sub(kind)})",
        lambda: f"if({sub('bool')}, {sub(kind)}, {sub(kind)})",
    ]
    own: dict[str, list[Callable[[], str]]] = {
        "int": [
            lambda: f"({sub('int')} + {sub('int')})",
            lambda: f"({sub('int')} - {sub('int')})",
            lambda: f"({sub('int')} * {rnd.choice([2, 3, -1])})",
            lambda: f"({sub('int')} % {rnd.choice([2, 3, 7])})",
            lambda: f"({sub('int')} // {rnd.choice([2, 3])})",
            lambda: f"length({sub('str')})",
            lambda: f"abs({sub('int')})",
            lambda: f"CAST({sub('bool')} AS BIGINT)",
            lambda: f"TRY_CAST({sub('str')} AS BIGINT)",
            lambda: f"CAST({sub('decimal(9,2)')} AS BIGINT)",
            lambda: f"TRY_CAST({sub('float')} AS BIGINT)",
            lambda: f"{rnd.choice(['year', 'month', 'day', 'quarter'])}({sub('date')})",
            lambda: f"hour({sub('datetime')})",
            lambda: f"extract(minute FROM {sub('datetime')})",
            lambda: f"instr({sub('str')}, {sub('str')})",
            lambda: f"({sub('date')} - {sub('date')})",
            lambda: f"-({sub('int')})",
        ],
        "float": [
            lambda: f"({sub('float')} + {sub('float')})",
            lambda: f"({sub('float')} * {sub('float')})",
            lambda: f"({sub('int')} / {rnd.choice([2, 4, 0])})",
            lambda: f"({sub('decimal(9,2)')} + {sub('float')})",
            lambda: f"floor({sub('float')})",
            lambda: f"ceil({sub('float')})",
            lambda: f"round({sub('float')}, {rnd.choice([0, 1, -1])})",
            lambda: f"CAST({sub('int')} AS DOUBLE)",
            lambda: f"TRY_CAST({sub('str')} AS DOUBLE)",
        ],
        "str": [
            lambda: f"({sub('str')} || {sub(rnd.choice(['str', 'int', 'bool']))})",
            lambda: f"lower({sub('str')})",
            lambda: f"upper({sub('str')})",
            lambda: f"trim({sub('str')}, 'a')",
            lambda: f"substr({sub('str')}, {rnd.randrange(-3, 4)}, {rnd.randrange(0, 4)})",
            lambda: f"replace({sub('str')}, 'a', {sub('str')})",
            lambda: f"left({sub('str')}, {rnd.randrange(-2, 3)})",
            lambda: f"concat({sub('str')}, {sub('str')})",
            lambda: (
                f"CAST({sub(rnd.choice(['int', 'bool', 'date', 'decimal(9,2)', 'datetime']))} AS VARCHAR)"
            ),
        ],
        "bool": [
            lambda: f"({sub(any_kind)} {rnd.choice(['=', '<>', '<', '<=', '>', '>='])} {sub(any_kind)})",
            lambda: f"({sub('int')} {rnd.choice(['=', '<', '>='])} {sub('decimal(9,2)')})",
            lambda: f"({sub('bool')} AND {sub('bool')})",
            lambda: f"({sub('bool')} OR {sub('bool')})",
            lambda: f"(NOT {sub('bool')})",
            lambda: f"({sub(any_kind)} IS {rnd.choice(['', 'NOT '])}NULL)",
            lambda: f"({sub('bool')} IS {rnd.choice(['TRUE', 'NOT TRUE', 'FALSE', 'NOT FALSE'])})",
            lambda: (
                f"({sub(any_kind)} {rnd.choice(['IN', 'NOT IN'])} ({sub(any_kind)}, "
                f"{literal(rnd, any_kind)}, {rnd.choice(['NULL', literal(rnd, any_kind)])}))"
            ),
            lambda: (
                f"({sub(any_kind)} {rnd.choice(['', 'NOT '])}BETWEEN {sub(any_kind)} AND {sub(any_kind)})"
            ),
            lambda: (
                f"({sub('str')} {rnd.choice(['', 'NOT '])}LIKE {rnd.choice(_PATTERNS)!r}"
                f"{rnd.choice(['', ' ESCAPE ' + repr('$')])})"
            ),
            lambda: f"({sub('str')} ILIKE 'A%')",
            lambda: f"({sub(any_kind)} IS {rnd.choice(['', 'NOT '])}DISTINCT FROM {sub(any_kind)})",
            lambda: f"starts_with({sub('str')}, {sub('str')})",
        ],
        "date": [
            lambda: f"({sub('date')} + {rnd.choice([1, 3, 30])})",
            lambda: f"CAST({sub('datetime')} AS DATE)",
            lambda: f"TRY_CAST({sub('str')} AS DATE)",
        ],
        "datetime": [
            lambda: f"date_trunc('{rnd.choice(_UNITS)}', {sub('datetime')})",
            lambda: f"CAST({sub('date')} AS TIMESTAMPTZ)",
        ],
        "decimal(9,2)": [
            lambda: f"CAST(({sub('decimal(9,2)')} + 1.05) AS DECIMAL(9,2))",
            lambda: f"abs({sub('decimal(9,2)')})",
            lambda: f"CAST(({sub('decimal(9,2)')} * 1.5) AS DECIMAL(9,2))",
            lambda: f"CAST(round({sub('decimal(9,2)')}, 1) AS DECIMAL(9,2))",
            lambda: f"CAST(floor({sub('decimal(9,2)')}) AS DECIMAL(9,2))",
        ],
    }
    made: Callable[[], str] = rnd.choice(rnd.choice([common, own[kind], own[kind]]))
    return made()


def aggregate(rnd: Random, columns: Columns) -> str:
    """Return an aggregate, or an expression of one."""

    def sub(kind: str) -> str:
        return expression(rnd, kind, columns, 1)

    kind = rnd.choice(KINDS)
    number = rnd.choice(["int", "float", "decimal(9,2)"])
    simple = rnd.choice(["int", "str", "bool"])
    made = rnd.choice(
        [
            "count(*)",
            f"count({sub(kind)})",
            f"sum({sub(number)})",
            f"avg({sub(number)})",
            f"min({sub(kind)})",
            f"max({sub(kind)})",
            f"count(DISTINCT {sub(kind)})",
            f"bool_and({sub('bool')})",
            f"bool_or({sub('bool')})",
            f"{rnd.choice(['min', 'max'])}({sub(simple)}, {rnd.randrange(1, 4)})",
            "list",
        ]
    )
    where = f" FILTER (WHERE {sub('bool')})" if rnd.random() < 0.25 else ""
    if made == "list":
        one = columns.pick(rnd, simple) or f"({columns.pick(rnd, columns.kinds()[0])} IS NULL)"
        order = sub(kind) if kind not in {"int", "decimal(9,2)", "str"} else one
        turn = rnd.choice(["", " DESC", " NULLS FIRST", " DESC NULLS FIRST"])
        return f"(array_agg({one} ORDER BY {order}{turn}, {one}){where})[1:{rnd.randrange(1, 4)}]"
    return made + where


def from_clause(rnd: Random, tables: dict[str, TableDefinition]) -> tuple[str, Columns]:
    """Return a FROM clause over t, u and r, and its columns."""
    form = rnd.choice(
        ["t", "t", "join", "left", "turned", "chain", "chain left", "subquery", "union", "self"]
    )
    used = {"t": ["t"], "subquery": ["t"], "union": ["t"], "self": ["t", "t2"]}.get(form, ["t", "u"])
    extra = rnd.choice(["", " AND u.v > 0", " AND t.id <> 2"]) if form in {"join", "left"} else ""
    text = {
        "t": "t",
        "join": f"t JOIN u ON t.fk = u.k{extra}",
        "left": f"t LEFT JOIN u ON u.k = t.fk{extra}",
        "turned": "u JOIN t ON u.k = t.fk",
        "chain": "t JOIN u ON t.fk = u.k JOIN r ON u.fr = r.id AND r.z = u.fz",
        "chain left": "t LEFT JOIN u ON t.fk = u.k LEFT JOIN r ON u.fr = r.id AND r.z = u.fz",
        "self": "t LEFT JOIN t AS t2 ON t.fk = t2.id",
    }.get(form, "")
    if "chain" in form:
        used = [*used, "r"]
    found: dict[str, list[str]] = {}
    for alias in used:
        for column in tables[alias.rstrip("2")].columns:
            found.setdefault(column.type, []).append(f"{alias}.{column.name}")
    columns = Columns(found)
    if form in {"subquery", "union"}:
        kinds = rnd.sample(KINDS, 3)

        def inner() -> str:
            items = ", ".join(
                f"{expression(rnd, kind, columns, 1)} AS x{at}" for at, kind in enumerate(kinds)
            )
            return f"SELECT {items} FROM t WHERE {expression(rnd, 'bool', columns, 1)}"

        body = inner() if form == "subquery" else f"{inner()} UNION ALL {inner()}"
        columns = Columns({})
        for at, kind in enumerate(kinds):
            columns.by_kind.setdefault(kind, []).append(f"s.x{at}")
        text = f"({body}) AS s"
    return text, columns


def query(rnd: Random, tables: dict[str, TableDefinition]) -> str:
    """Return a random SELECT."""
    form = rnd.choice(["rows", "group", "group", "group", "whole", "distinct", "union all", "union", "top"])
    if form in {"union all", "union"}:
        kinds = [rnd.choice(KINDS) for _ in range(rnd.randrange(1, 3))]
        return f" {form.upper()} ".join(_plain(rnd, tables, kinds) for _ in range(rnd.choice([2, 2, 3])))
    if form == "distinct":
        kinds = [rnd.choice(KINDS) for _ in range(rnd.randrange(1, 3))]
        return _plain(rnd, tables, kinds).replace("SELECT", "SELECT DISTINCT", 1)
    if form == "rows":
        kinds = [rnd.choice(KINDS) for _ in range(rnd.randrange(1, 4))]
        return _plain(rnd, tables, kinds)
    text, columns = from_clause(rnd, tables)
    where = f" WHERE {expression(rnd, 'bool', columns)}" if rnd.random() < 0.5 else ""
    if form == "top":
        return _top(rnd, text, where, columns)
    return _grouped(rnd, text, where, columns, 0 if form == "whole" else rnd.randrange(1, 3))


def _plain(rnd: Random, tables: dict[str, TableDefinition], kinds: list[str]) -> str:
    text, columns = from_clause(rnd, tables)
    items = ", ".join(f"{expression(rnd, kind, columns)} AS c{at}" for at, kind in enumerate(kinds))
    if "JOIN" not in text and not text.startswith("(") and rnd.random() < 0.3:
        items += ", t.id AS id"
    where = f" WHERE {expression(rnd, 'bool', columns)}" if rnd.random() < 0.6 else ""
    if "UNION" in items:
        return f"SELECT {items} FROM {text}{where}"
    return f"SELECT {items.removesuffix(', t.id AS id')} FROM {text}{where}"


def _top(rnd: Random, text: str, where: str, columns: Columns) -> str:
    """The order ends with all columns of the output, so that equal rows are alike."""
    kinds = [rnd.choice(KINDS) for _ in range(rnd.randrange(1, 3))]
    items = [expression(rnd, kind, columns, 1) for kind in kinds]
    partition = (
        f"PARTITION BY {expression(rnd, rnd.choice(KINDS), columns, 1)} " if rnd.random() < 0.7 else ""
    )
    order = ", ".join(
        f"{one}{rnd.choice(['', ' DESC', ' NULLS FIRST', ' DESC NULLS FIRST', ' NULLS LAST'])}"
        for one in [expression(rnd, rnd.choice(KINDS), columns, 1), *items]
        if any(f"{name}" in one for some in columns.by_kind.values() for name in some)
    )
    some = columns.pick(rnd, columns.kinds()[0])
    order = order or str(some)
    limit = rnd.randrange(1, 4)
    shown = ", ".join(f"{one} AS c{at}" for at, one in enumerate(items))
    return (
        f"SELECT {shown} FROM {text}{where} "
        f"QUALIFY row_number() OVER ({partition}ORDER BY {order}) <= {limit}"
    )


def _grouped(rnd: Random, text: str, where: str, columns: Columns, count: int) -> str:
    keys = []
    for _ in range(count):
        made = expression(rnd, rnd.choice(KINDS), columns, rnd.choice([0, 1]))
        if any(name in made for some in columns.by_kind.values() for name in some) and made not in keys:
            keys.append(made)
    items = [f"{one} AS g{at}" for at, one in enumerate(keys) if rnd.random() < 0.8]
    items += [f"{aggregate(rnd, columns)} AS a{at}" for at in range(rnd.randrange(1, 4))]
    if rnd.random() < 0.3:
        items.append(f"{aggregate_of_numbers(rnd, columns)} AS n")
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    having = f" HAVING count(*) > {rnd.randrange(0, 2)}" if rnd.random() < 0.2 else ""
    return f"SELECT {', '.join(items)} FROM {text}{where}{group}{having}"


def aggregate_of_numbers(rnd: Random, columns: Columns) -> str:
    """Return an expression of aggregates."""
    number = expression(rnd, "int", columns, 1)
    return rnd.choice(
        [
            f"sum({number}) / count(*)",
            f"COALESCE(max({number}), 0) - COALESCE(min({number}), 0)",
            f"CASE WHEN count({number}) > 1 THEN 'many' ELSE 'few' END",
        ]
    )
