"""Expressions have the values of DuckDB."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import product
from random import Random
from typing import Any

import duckdb
import pytest

from percolator_core.views.plan import RowRefused
from percolator_core.views.planner import plan_view
from percolator_core.views.problems import ViewRefused
from percolator_core.views.texts import lower, substring, upper
from tests.views import queries
from tests.views.runner import Runner, Tables

ONE = queries.table(
    "one", {"id": "int"}, {"s": "str?", "f": "float?", "i": "int?", "n": "int?", "b": "bool?"}
)


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("CREATE TABLE one (id BIGINT, s VARCHAR, f DOUBLE, i BIGINT, n BIGINT, b BOOLEAN)")
    connection.execute("INSERT INTO one VALUES (1, 'aBc', 2.5, 7, NULL, TRUE)")
    return connection


def ours(expression: str) -> Any:
    """Return the value of an expression over the only row."""
    tables = Tables(ONE)
    runner = Runner(plan_view(f"CREATE VIEW v AS SELECT {expression} AS x FROM one", {"one": ONE}), tables)
    key, cells = tables.encode("one", {"id": 1, "s": "aBc", "f": 2.5, "i": 7, "n": None, "b": True})
    tables.rows["one"][key] = cells
    runner.changed("one", key)
    return runner.result()[0]["x"]


def same(duck: Any, expression: str) -> tuple[Any, Any]:
    theirs = duck.execute(f"SELECT {expression} FROM one").fetchone()[0]
    if isinstance(theirs, datetime):
        theirs = theirs.replace(tzinfo=UTC) if theirs.tzinfo is None else theirs.astimezone(UTC)
    found = ours(expression)
    if isinstance(found, float) and math.isnan(found) and math.isnan(theirs):
        return None, None
    return found, theirs


NULLS = {
    "n = n": None,
    "n = 1": None,
    "n <> n": None,
    "n IS NULL": True,
    "n IS NOT NULL": False,
    "n IS DISTINCT FROM NULL": False,
    "i IS DISTINCT FROM n": True,
    "i IS NOT DISTINCT FROM n": False,
    "n + 1": None,
    "n = 1 AND FALSE": False,
    "n = 1 AND TRUE": None,
    "n = 1 OR TRUE": True,
    "n = 1 OR FALSE": None,
    "NOT (n = 1)": None,
    "(n = 1) IS TRUE": False,
    "(n = 1) IS NOT TRUE": True,
    "n IN (1, 2)": None,
    "i IN (7, NULL)": True,
    "i IN (8, NULL)": None,
    "i NOT IN (8, NULL)": None,
    "i NOT IN (7, NULL)": False,
    "i BETWEEN n AND 3": False,
    "i BETWEEN n AND 9": None,
    "i NOT BETWEEN n AND 3": True,
    "s LIKE NULL": None,
    "CASE WHEN n = 1 THEN 1 ELSE 2 END": 2,
    "CASE WHEN n = 1 THEN 1 END": None,
    "CASE n WHEN NULL THEN 1 ELSE 2 END": 2,
    "COALESCE(n, i)": 7,
    "COALESCE(n, NULL)": None,
    "NULLIF(n, 1)": None,
    "NULLIF(i, n)": 7,
    "NULLIF(i, 7)": None,
    "greatest(n, i, 3)": 7,
    "least(n, n)": None,
    "s || NULL": None,
    "concat(s, NULL, 'x')": "aBcx",
    "concat_ws('-', s, NULL, 'x')": "aBc-x",
    "CAST(n AS VARCHAR)": None,
    "TRY_CAST(s AS BIGINT)": None,
    "substr(s, n)": None,
}


@pytest.mark.parametrize("expression", NULLS)
def test_null_has_the_rules_of_sql(duck: Any, expression: str) -> None:
    found, theirs = same(duck, expression)
    assert found == theirs == NULLS[expression]


VALUES = """
1 / 2; i / 0; -f / 0; 0.0::DOUBLE / 0; -7 // 2; -7 % 3; 5.5::DOUBLE % 2; i % 4.5; f % 0; i * 1.5 ; i + 0.25 - 1.125;
round(f); round(-f); round(2.675::DOUBLE, 2); round(0.285::DOUBLE, 2); round(25::DOUBLE, -1); round(i, -1);
round(-1.25, 1); round(125.5, -1); round(1.25); floor(-f); ceil(-2.5); floor(-2.5); abs(-i); abs(-1.50); floor(i);
CAST(2.5::DOUBLE AS BIGINT); CAST(3.5::DOUBLE AS BIGINT); CAST(2.5 AS BIGINT); CAST(-2.5 AS BIGINT);
CAST(1.25::DOUBLE AS DECIMAL(4,1)); CAST(1.005::DOUBLE AS DECIMAL(4,2)); CAST(-2.5::DOUBLE AS DECIMAL(2,0));
CAST(1.25 AS DECIMAL(4,1)); CAST(TRUE AS BIGINT); CAST(0 AS BOOLEAN); CAST(1e20 AS VARCHAR); CAST(1e15 AS VARCHAR);
CAST(0.00001::DOUBLE AS VARCHAR); CAST('inf'::DOUBLE AS VARCHAR); CAST(TRUE AS VARCHAR); CAST(1.50 AS VARCHAR);
CAST(TIMESTAMPTZ '2020-02-03 10:11:12.500+02' AS VARCHAR); CAST(TIMESTAMPTZ '2020-02-03 23:11:12-02' AS DATE);
9007199254740993 = 9007199254740992::DOUBLE; 9007199254740993 = 9007199254740992.0; 1.1 = 1.1::DOUBLE;
'nan'::DOUBLE = 'nan'::DOUBLE; 'nan'::DOUBLE > 'inf'::DOUBLE; greatest('nan'::DOUBLE, 1); least('nan'::DOUBLE, 1);
0.0::DOUBLE = -0.0::DOUBLE; s < 'b'; 'Z' < 'a'; 'a' < 'ä'; i = '7'; f IN (2.5, 3); i BETWEEN 6.5 AND 7.0;
s LIKE '_B%'; s LIKE 'a\\B%'; s ILIKE 'ABC'; 'a%c' LIKE 'a$%c' ESCAPE '$'; s NOT LIKE 'x%'; s NOT ILIKE 'A%';
trim('  a b '); trim('xxaxx', 'x'); ltrim(' a '); rtrim(' a '); trim(BOTH 'a' FROM 'aba'); replace(s, '', 'x'); replace(s, 'a', '');
left(s, -1); right(s, -1); left(s, 9); instr(s, 'B'); contains(s, 'Bc'); starts_with(s, ''); length('ß€'); concat(i, b, 1.50);
year(DATE '2020-02-03'); quarter(DATE '2020-05-03'); hour(TIMESTAMPTZ '2020-02-03 10:11:12+00'); dayofweek(DATE '2020-05-03');
extract(year FROM TIMESTAMPTZ '2019-12-31 23:59:59-01'); date_trunc('week', TIMESTAMPTZ '2020-03-01 10:00:00+00');
date_trunc('month', DATE '2020-02-03'); DATE '2020-02-03' + 30; DATE '2020-03-01' - DATE '2020-02-01'; DATE '2020-02-03' - 3;
DATE '2020-01-01' < TIMESTAMPTZ '2020-01-01 00:00:01+00'; if(b, 1, 2.5); nullif(2, 1.5); CASE i WHEN 7.0 THEN 'x' END;
COALESCE(n, 1.5); COALESCE(n, f); b IS NOT FALSE; NOT b = FALSE; -i * 2 - 3 % 2; 'x' || i + 1; NOT i = 3 AND b; -2.5 || 'x';
i - 2 - 1; 8 / 2 / 2; (i = 7) = b; 2 * i // 3; 5 % 3 * 2; i IS NULL = FALSE; NOT n IS NULL; i + 1 IN (8); i BETWEEN 1 AND 2 + 5;
s LIKE 'a' || '%'; i < 8 IS TRUE; b OR b AND FALSE; NOT b OR b; i + 1 < 9 AND b; - i; i::VARCHAR || 'x'
"""  # noqa: E501


@pytest.mark.parametrize("expression", [one.strip() for one in VALUES.split(";") if one.strip()])
def test_a_value_is_that_of_duckdb(duck: Any, expression: str) -> None:
    found, theirs = same(duck, expression)
    assert found == theirs
    assert isinstance(found, bool) == isinstance(theirs, bool)


TEXTS = {
    "BIGINT": [
        "12",
        " 12 ",
        "12.7",
        "12.5",
        "-12.5",
        "1e3",
        "",
        "x",
        "1_000",
        "5.",
        ".5",
        "+5",
        "1__0",
        "1e30",
        "1.2.3",
    ],
    "DOUBLE": ["1.5", " 1.5 ", "inf", "-Infinity", "nan", "1_0", ".5", "5.", "1e400", "x", ""],
    "BOOLEAN": ["true", "T", "yes", "1", "0", "no", "f", " true", "on", "maybe", ""],
    "DATE": ["2020-01-02", "2020-1-2", "2020-02-30", "2020-01-02x", "x", "", " 2020-01-02 "],
    "TIMESTAMPTZ": [
        "2020-01-02",
        "2020-01-02 10:00:00+02",
        "2020-01-02T10:00:00Z",
        "2020-01-02 10:00:00.5",
        "x",
    ],
    "DECIMAL(4,1)": ["1.25", "999.95", "-1.25", "1000", "x", "1e2"],
    "UUID": ["12345678123412341234123456789012", "12345678-1234-1234-1234-123456789012", "x"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, some in TEXTS.items() for text in some])
def test_a_text_is_converted_as_by_duckdb(duck: Any, kind: str, text: str) -> None:
    found, theirs = same(duck, f"TRY_CAST(concat('{text}', '') AS {kind})")
    assert found == theirs


def test_parts_of_texts_are_those_of_duckdb(duck: Any) -> None:
    cases = [
        (text, start, length)
        for text in ("", "h", "hello")
        for start, length in product(range(-8, 9), range(-8, 9))
    ]
    for text, start, length in cases:
        theirs = duck.execute(
            "SELECT substr(?, ?, ?), substr(?, ?)", [text, start, length, text, start]
        ).fetchone()
        assert (substring(text, start, length), substring(text, start)) == theirs, (text, start, length)


def test_letters_change_their_case_as_in_duckdb(duck: Any) -> None:
    """Letters that are newer than one of the two tables of Unicode may differ."""
    letters = [chr(code) for code in range(1, 0x2C00) if chr(code).isprintable()]
    found = duck.execute("SELECT c, upper(c), lower(c) FROM unnest(?) AS t(c)", [letters]).fetchall()
    assert [one for one in found if (upper(one[0]), lower(one[0])) != one[1:]] == []


def test_operators_bind_as_in_duckdb(duck: Any) -> None:
    rnd = Random(7)
    for _ in range(150):
        parts = [rnd.choice(["i", "2", "3", "f", "-1"])]
        for _ in range(rnd.randrange(1, 5)):
            parts += [rnd.choice(["+", "-", "*", "%"]), rnd.choice(["i", "2", "3", "5", "f"])]
        text = " ".join(parts)
        if rnd.random() < 0.5:
            text += rnd.choice(
                [" = 3", " < 4 AND b", " >= 2 OR NOT b", " IN (1, 2) IS NULL", " BETWEEN 1 AND 3 + 2"]
            )
            text = rnd.choice(["", "NOT "]) + text
        found, theirs = same(duck, text)
        assert found == theirs, text


FAILING = {
    "i // (i - 7)": "division by zero",
    "i % (i - 7)": "division by zero",
    "CAST(s AS BIGINT)": "'aBc' is no number",
    "i * 9223372036854775807": "64 bits",
    "CAST(i * 1000 AS DECIMAL(3,0))": "does not fit into decimal",
}


@pytest.mark.parametrize("expression", FAILING)
def test_a_row_without_a_value_is_refused_by_name(duck: Any, expression: str) -> None:
    with pytest.raises(duckdb.Error):
        duck.execute(f"SELECT {expression} FROM one").fetchall()
    with pytest.raises(RowRefused, match=FAILING[expression]) as caught:
        ours(expression)
    assert "view v, one row id=1" in str(caught.value)


def test_and_stops_at_the_first_false() -> None:
    assert ours("FALSE AND 1 // (i - 7) = 1") is False


def test_a_literal_that_is_no_value_is_refused_when_the_view_is_planned() -> None:
    with pytest.raises(ViewRefused, match="'x' is no number: write a value of the type int"):
        ours("i = 'x'")
