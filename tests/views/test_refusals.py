"""What a view cannot be is refused with line, column and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from percolator_core.errors import ConfigurationError
from percolator_core.views.loading import plan_views
from percolator_core.views.planner import plan_view
from percolator_core.views.problems import ViewRefused
from tests.views.queries import table

TABLES = {
    one.name: one
    for one in (
        table(
            "t",
            {"id": "int"},
            {"a": "int?", "b": "str?", "f": "float?", "k": "int?", "j": "json?", "at": "datetime"},
        ),
        table("u", {"k": "int"}, {"name": "str", "v": "int?", "a": "int"}),
        table("w", {"x": "int", "y": "str"}, {"z": "int?"}),
    )
}

REFUSED = [
    ("SELECT a FROM t ORDER BY a", "2:17: a view has no order"),
    ("SELECT a FROM t LIMIT 3", "2:17: write QUALIFY row_number()"),
    ("SELECT a FROM t OFFSET 3", "2:17: leave OFFSET out"),
    ("SELECT a, now() AS n FROM t", "2:11: now() differs from call to call"),
    ("SELECT a, random() AS n FROM t", "2:11: random() differs"),
    ("SELECT a FROM t WHERE at < current_timestamp", "2:28: current_timestamp() differs from call"),
    ("SELECT a, (SELECT max(v) FROM u WHERE u.k = t.k) AS m FROM t", "2:12: subqueries stand only in FROM"),
    ("SELECT a FROM t WHERE k IN (SELECT k FROM u)", "2:29: subqueries stand only in FROM"),
    ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u)", "2:31: subqueries stand only in FROM"),
    (
        "SELECT t.id FROM t JOIN u ON t.a = u.v",
        "2:25: a table is joined by its whole primary key, and u has (k)",
    ),
    (
        "SELECT t.id FROM t JOIN w ON t.a = w.x",
        "2:25: a table is joined by its whole primary key, and w has (x, y)",
    ),
    ("SELECT t.id FROM t JOIN u ON t.k > u.k", "2:25: a table is joined by its whole primary key"),
    ("SELECT t.id FROM t JOIN u ON t.f = u.k", "k is int, and is joined with float"),
    ("SELECT t.id FROM t FULL JOIN u ON t.k = u.k", "2:30: a FULL JOIN is not supported"),
    (
        "SELECT t.id FROM u RIGHT JOIN t ON t.k = u.k",
        "2:31: a RIGHT JOIN is not supported: write it as a LEFT",
    ),
    ("SELECT t.id FROM t CROSS JOIN u", "2:31: a CROSS JOIN is not supported"),
    ("SELECT t.id FROM t NATURAL JOIN u", "a NATURAL JOIN is not supported"),
    ("SELECT t.id FROM t SEMI JOIN u ON t.k = u.k", "a SEMI JOIN is not supported"),
    ("SELECT t.id FROM t, u", "2:21: the join has no condition"),
    (
        "SELECT t.id FROM u LEFT JOIN t ON t.k = u.k",
        "a table is joined by its whole primary key, and t has (id)",
    ),
    ("SELECT a, rank() OVER (ORDER BY a) AS r FROM t", "only QUALIFY row_number()"),
    ("SELECT a, sum(a) OVER () AS s FROM t", "only QUALIFY row_number()"),
    ("SELECT a FROM t QUALIFY rank() OVER (ORDER BY a) <= 3", "QUALIFY is supported as QUALIFY row_number()"),
    ("SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) <= a", "QUALIFY is supported as"),
    ("SELECT a FROM t QUALIFY row_number() OVER (PARTITION BY a) <= 2", "row_number() needs an order"),
    ("SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 2", "QUALIFY is supported as"),
    (
        "SELECT a, count(*) AS n FROM t GROUP BY a QUALIFY row_number() OVER (ORDER BY a) <= 2",
        "QUALIFY over groups",
    ),
    (
        "SELECT x FROM (SELECT count(*) AS x FROM t) AS s",
        "a SELECT with groups or QUALIFY is a view of its own",
    ),
    ("SELECT DISTINCT count(*) AS n FROM t", "2:8: DISTINCT over groups is not supported"),
    ("SELECT DISTINCT ON (a) b FROM t", "2:8: write QUALIFY row_number()"),
    ("SELECT a FROM t UNION SELECT v FROM u UNION ALL SELECT k FROM u", "write UNION ALL, or only UNION"),
    ("SELECT a FROM t INTERSECT SELECT v FROM u", "INTERSECT is not supported"),
    ("SELECT a FROM t UNION ALL SELECT name FROM u", "a is int and str in the SELECTs"),
    ("SELECT a, b FROM t UNION ALL SELECT v FROM u", "different numbers of columns"),
    ("SELECT a, b FROM t GROUP BY a", "2:11: 'b' is neither in GROUP BY nor in an aggregate"),
    ("SELECT a, count(*) AS n FROM t GROUP BY ROLLUP(a)", "2:48: GROUP BY has columns and expressions"),
    ("SELECT a, count(*) AS n FROM t GROUP BY 3", "2:41: GROUP BY 3: the SELECT list has 2 columns"),
    ("SELECT j, count(*) AS n FROM t GROUP BY j", "JSON values have no equality"),
    ("SELECT a FROM t WHERE count(*) > 1", "WHERE has no aggregates: write HAVING"),
    ("SELECT sum(count(*)) AS x FROM t", "an aggregate stands in the SELECT list"),
    ("SELECT string_agg(b, ',') AS x FROM t", "it grows without limit: write array_to_string"),
    ("SELECT array_agg(b) AS x FROM t", "it grows without limit: write array_agg(x ORDER BY y)[1:10]"),
    ("SELECT array_agg(b)[1:3] AS x FROM t", "a list has an order"),
    ("SELECT array_agg(at ORDER BY a)[1:3] AS x FROM t", "a list has values of bool, int, float or str"),
    ("SELECT array_agg(a ORDER BY a)[1:5000] AS x FROM t", "a list of an aggregate has 1 to 1000 values"),
    (
        "SELECT stddev(a) AS x FROM t",
        'the aggregate \'STDDEV("t"."a")\' is not supported: write it with count',
    ),
    ("SELECT first(a) AS x FROM t", "rows have no order: write any_value"),
    ("SELECT count_if(a > 1) AS x FROM t", "write count(*) FILTER"),
    ("SELECT sum(DISTINCT a) AS x FROM t", "is not supported in a view"),
    ("SELECT count(DISTINCT a, b) AS x FROM t", "count(DISTINCT …) takes one expression"),
    ("SELECT sum(b) AS x FROM t", "sum takes bool, int, decimal, float, not str"),
    ("SELECT a + 1 FROM t", "has no name: write AS"),
    ("SELECT a, a FROM t", "2:11: the column 'a' is there twice"),
    ("SELECT aa FROM t", "2:8: there is no column 'aa': did you mean 'a'?"),
    (
        "SELECT t.id, a FROM t JOIN u ON t.k = u.k",
        "2:14: 'a' is a column of t, u: write one of them before it",
    ),
    ("SELECT a FROM tt", "2:15: there is no typed table 'tt': did you mean 't'?"),
    ("SELECT a FROM 'x.parquet'", "2:15: there is no typed table 'x.parquet'"),
    ("SELECT a FROM range(3)", "is no table of the chain"),
    ("SELECT a FROM t TABLESAMPLE 10%", "leave out 'sample'"),
    ("SELECT foo(a) AS x FROM t", "2:8: there is no function 'foo'"),
    ("SELECT md5(b) AS x FROM t", "2:8: 'MD5"),
    ("SELECT sqrt(a) AS x FROM t", "is not supported in a view"),
    ("SELECT a + b AS x FROM t", "str has no arithmetic"),
    ("SELECT a = b AS x FROM t", "int and str do not mix: write a CAST"),
    ("SELECT a FROM t WHERE a", "2:23: a condition is a bool, and this is int"),
    ("SELECT j = j AS x FROM t", "JSON values have no order and no equality"),
    ("SELECT f // 2 AS x FROM t", "// is for ints"),
    ("SELECT a AS x FROM t WHERE a < 3 < 4", "comparisons are not chained"),
    ("SELECT CAST(a AS FLOAT) AS x FROM t", "use DOUBLE"),
    ("SELECT CAST(b AS INTEGER) AS x FROM t", "no values of the type INT: use BIGINT"),
    ("SELECT array_to_string(j, ',') AS x FROM t", "array_to_string takes a list of an aggregate"),
    ("SELECT CAST(at AS TIMESTAMP) AS x FROM t", "use TIMESTAMPTZ"),
    ("SELECT at + INTERVAL 1 DAY AS x FROM t", "is not supported in a view"),
    ("SELECT b LIKE 'a' || $1 AS x FROM t", "a view has no parameters"),
    ("SELECT NULL AS x FROM t", "x is always NULL: write CAST(NULL AS …)"),
    ("SELECT a AS row_ FROM t", "'row_' is reserved for the key of views"),
    ("SELECT * REPLACE (a + 1 AS a) FROM t", "2:10: REPLACE is not supported"),
    ("SELECT * EXCLUDE (zz) FROM t", "EXCLUDE: there is no column 'zz'"),
    ("WITH RECURSIVE q AS (SELECT a FROM t) SELECT a FROM q", "2:6: recursive queries are not supported"),
    ("SELECT t.id FROM t JOIN (SELECT k FROM u) AS s ON t.k = s.k", "a subquery is the first in FROM"),
    ("SELECT a AS k, count(*) AS n FROM t GROUP BY k", "2:46: 'k' is a column and a name of the SELECT list"),
    ("SELECT b FROM (SELECT a, b FROM t) AS s(b, a)", "names of columns after an alias are not supported"),
    ("WITH s(b, a) AS (SELECT a, b FROM t) SELECT b FROM s", "names of columns after an alias are not"),
    ("SELECT b FROM t AS x(b)", "names of columns after an alias are not supported"),
    ("SELECT array_agg(a IGNORE NULLS ORDER BY a)[1:2] AS x FROM t", "is not supported"),
    ("SELECT a FROM t UNION ALL BY NAME SELECT v FROM u", "leave out 'by_name'"),
    ("SELECT a FROM t UNION ALL SELECT v FROM u LIMIT 3", "leave out 'limit'"),
    ("SELECT a FROM t WHERE a BETWEEN SYMMETRIC 3 AND 1", "leave out 'symmetric'"),
    ("SELECT sum(a ORDER BY b) AS x FROM t", "is not supported"),
    ("SELECT any_value(a HAVING MAX b) AS x FROM t", "is not supported"),
    ("SELECT a FROM t WHERE a = ANY (SELECT k FROM u)", "subqueries stand only in FROM"),
    ("SELECT 1 AS x", "the SELECT has no FROM"),
    ("VALUES (1)", "VALUES is not supported: write a SELECT"),
    ("SELECT a FROM t WHERE (a = ", "no valid SQL"),
    ("SELECT 'a FROM t", "a quote or comment is not closed"),
]


@pytest.mark.parametrize(("sql", "expected"), REFUSED, ids=[sql for sql, _ in REFUSED])
def test_a_select_is_refused_with_its_place(sql: str, expected: str) -> None:
    with pytest.raises(ViewRefused) as caught:
        plan_view(f"CREATE VIEW v AS\n{sql}", TABLES, label="views/v.sql")
    message = str(caught.value)
    assert expected in message
    assert all(line.startswith("views/v.sql:") for line in message.splitlines())
    assert all(one.line in {1, 2} and one.column >= 1 for one in caught.value.problems)
    assert isinstance(caught.value, ConfigurationError)


STATEMENTS = [
    ("", "v.sql:1:1: the file is empty"),
    ("SELECT a FROM t", "v.sql:1:1: the file has a view: write CREATE VIEW"),
    ("CREATE TABLE v AS SELECT a FROM t", "v.sql:1:1: the file has a view"),
    ("CREATE OR REPLACE VIEW v AS SELECT a FROM t", "without REPLACE"),
    ("CREATE VIEW s.v AS SELECT a FROM t", "the view has a plain name"),
    ("CREATE VIEW v (x) AS SELECT a FROM t", "the view has a plain name, without columns"),
    ("CREATE VIEW other AS SELECT a FROM t", "v.sql:1:13: the view of this file is 'v', not 'other'"),
    ("CREATE VIEW v AS SELECT a FROM t; SELECT 1", "a file has one view"),
    ("-- only\n/* a comment", "a quote or comment is not closed"),
]


@pytest.mark.parametrize(("text", "expected"), STATEMENTS, ids=[text for text, _ in STATEMENTS])
def test_a_file_that_is_no_view_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "views").mkdir()
    (tmp_path / "views" / "v.sql").write_text(text)
    found = plan_views(tmp_path, TABLES)
    assert not found.plans
    assert expected in found.problems[0]


def test_all_problems_are_reported_at_once_in_the_order_of_the_text() -> None:
    with pytest.raises(ViewRefused) as caught:
        plan_view("CREATE VIEW v AS SELECT zz, now() AS n\nFROM t\nWHERE yy\nORDER BY 1", TABLES)
    assert [(one.line, one.column) for one in caught.value.problems] == [(1, 25), (1, 29), (3, 7), (4, 1)]


def test_views_may_read_views_and_are_planned_in_that_order(tmp_path: Path) -> None:
    folder = tmp_path / "views"
    folder.mkdir()
    (folder / "a.sql").write_text("CREATE VIEW a AS SELECT n, count(*) AS m FROM z GROUP BY n")
    (folder / "z.sql").write_text("CREATE VIEW z AS SELECT a, count(*) AS n FROM t GROUP BY a")
    found = plan_views(tmp_path, TABLES)
    assert found.problems == ()
    assert [one.name for one in found.plans] == ["z", "a"]
    assert found.plans[1].sources == (found.plans[0].stored.name,)


def test_views_that_read_each_other_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "views"
    folder.mkdir()
    (folder / "a.sql").write_text("CREATE VIEW a AS SELECT x FROM z")
    (folder / "z.sql").write_text("CREATE VIEW z AS SELECT x FROM a")
    assert "a.sql:1:1: the views read each other: a → z → a" in plan_views(tmp_path, TABLES).problems[0]


def test_a_view_of_a_refused_view_has_no_problem_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "views"
    folder.mkdir()
    (folder / "a.sql").write_text("CREATE VIEW a AS SELECT x FROM z")
    (folder / "z.sql").write_text("CREATE VIEW z AS SELECT qq FROM t")
    assert len(plan_views(tmp_path, TABLES).problems) == 1
