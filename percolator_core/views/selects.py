"""Plan SELECT statements: FROM, joins, WHERE and the SELECT list become parts with output columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from sqlglot import expressions as exp

from percolator_core.schema.definitions import TableDefinition
from percolator_core.views.aggregates import aggregates_in
from percolator_core.views.expressions import Compiler
from percolator_core.views.joins import Joined, Joins, build
from percolator_core.views.kinds import NULL, common_kind
from percolator_core.views.names import column_at, column_of, conjuncts, identity, same, shortened, wrapped
from percolator_core.views.problems import Report
from percolator_core.views.python_functions import ViewFunction, caller
from percolator_core.views.relations import Part, Scope, near, never_null
from percolator_core.views.typed import Typed

MOST_BRANCHES: Final = 255

_CLAUSES: Final = {
    "order": ("ORDER BY", "a view has no order: leave ORDER BY out, and sort what you select from the view"),
    "limit": ("LIMIT", "write QUALIFY row_number() OVER (ORDER BY …) <= n for the first n rows"),
    "offset": ("OFFSET", "leave OFFSET out"),
    "windows": ("WINDOW", "windows are not supported: leave WINDOW out"),
    "laterals": ("LATERAL", "lateral joins are not supported: join a table by its primary key"),
    "into": ("INTO", "the view's table has the name of the view: leave INTO out"),
    "sample": ("SAMPLE", "a sample differs from run to run: leave it out"),
    "locks": ("FOR", "a view takes no locks: leave FOR out"),
}
_OWN_VIEW: Final = "put this SELECT into a file of its own beside this one, and read that view here"


class Selected(NamedTuple):
    """A column of a SELECT list."""

    name: str
    node: exp.Expr


@dataclass
class Select:
    """A SELECT with its FROM: the parts are branches with conditions, but without outputs.

    ``columns`` and the other nodes name columns by alias and name, so equal expressions have equal texts.
    """

    node: exp.Select
    parts: list[Part]
    columns: list[Selected]

    @property
    def is_grouped(self) -> bool:
        """True if the SELECT has groups: GROUP BY, DISTINCT or aggregates."""
        having = self.node.args.get("having")
        nodes = [one.node for one in self.columns] + ([having.this] if having else [])
        some = any(True for one in nodes for _ in aggregates_in(one))
        return bool(some or having or self.node.args.get("group") or self.node.args.get("distinct"))


@dataclass
class Linear:
    """A branch with its output columns."""

    part: Part
    columns: dict[str, Typed]


class Selects:
    """Plans the SELECTs of one view."""

    def __init__(
        self, report: Report, tables: Mapping[str, TableDefinition], functions: Mapping[str, ViewFunction]
    ) -> None:
        self.report = report
        self.python = caller(report, functions)
        self._tables = {name.lower(): one for name, one in tables.items()}
        self._ctes: dict[str, exp.Expr] = {}

    def define(self, query: exp.Expr) -> None:
        """Take the CTEs of a query."""
        ctes = query.args.get("with_")
        if ctes is None:
            return
        if ctes.args.get("recursive"):
            self.report.refuse(ctes, "recursive queries are not supported: leave RECURSIVE out", "recursive")
        for one in ctes.expressions:
            self.only(one, "this alias materialized")
            self._refuse_names(one)
            self._ctes[one.alias.lower()] = one.this
        query.set("with_", None)

    def linear(self, query: exp.Expr) -> list[Linear]:
        """Return the branches of a query without groups."""
        self.define(query)
        if isinstance(query, exp.Subquery):
            self.only(query, "this alias")
            return self.linear(query.this)
        if isinstance(query, exp.Union):
            return self.union(query)
        if not isinstance(query, exp.Select):
            self.report.refuse(query, f"{query.key.upper()} is not supported: write a SELECT")
        select = self.select(query)
        if select.is_grouped or query.args.get("qualify"):
            self.report.refuse(query, f"a SELECT with groups or QUALIFY is a view of its own: {_OWN_VIEW}")
        return [Linear(part, self.outputs(select, part)) for part in select.parts]

    def union(self, query: exp.Union) -> list[Linear]:
        """Return the branches of a UNION ALL, with columns of the same types."""
        self.only(query, "this expression distinct")
        if query.args.get("distinct"):
            self.report.refuse(query, "write UNION ALL, or only UNION, at the top of the view", "union")
        found = self.linear(query.this)
        found += self.linear(_with_names(query.expression))
        return self.unified(query, found)

    def unified(self, query: exp.Expr, found: list[Linear]) -> list[Linear]:
        """Return branches whose columns have the names of the first one, and common types."""
        self.report.stop_if_any()
        names = list(found[0].columns)
        if any(len(one.columns) != len(names) for one in found):
            self.report.refuse(query, "the SELECTs of a UNION have different numbers of columns", "union")
        if len(found) > MOST_BRANCHES:
            self.report.refuse(query, f"a view has at most {MOST_BRANCHES} SELECTs: split it", "union")
        columns = [list(one.columns.values()) for one in found]
        for at, name in enumerate(names):
            kind = NULL
            for each in columns:
                common = common_kind(kind, each[at].kind)
                if common is None:
                    self.report.refuse(
                        query, f"{name} is {kind} and {each[at].kind} in the SELECTs: write a CAST", "union"
                    )
                kind = common
            nullable = any(each[at].nullable for each in columns)
            for each in columns:
                each[at] = replace(each[at].widened(kind), nullable=nullable)
        return [
            Linear(one.part, dict(zip(names, each, strict=True)))
            for one, each in zip(found, columns, strict=True)
        ]

    def outputs(self, select: Select, part: Part) -> dict[str, Typed]:
        """Return the output columns of a part, and add the WHERE to its conditions."""
        compiler = Compiler(self.report, Scope(self.report, part), self.python)
        found: dict[str, Typed] = {}
        for name, node in select.columns:
            with self.report.collected():
                found[name] = compiler(node)
        return found

    def select(self, node: exp.Select) -> Select:
        """Return the SELECT with its tables, its conditions, and the names of its columns."""
        for name, (word, what) in _CLAUSES.items():
            if node.args.get(name):
                with self.report.collected():
                    clause = node.args[name]
                    self.report.refuse(clause[0] if isinstance(clause, list) else clause, what, word)
        known = "expressions from_ joins where group having qualify distinct " + " ".join(_CLAUSES)
        self.only(node, known)
        if node.args.get("from_") is None:
            self.report.refuse(node, "the SELECT has no FROM: read a table", "select")
        self._refuse_subqueries(node)
        parts = self._from(node)
        scope = Scope(self.report, parts[0])
        columns = self._columns(node, scope)
        for one in ("where", "group", "having", "qualify"):
            clause = node.args.get(one)
            if clause is not None:
                with self.report.collected():
                    self._qualify(clause, scope, columns if one != "where" else [])
        where = node.args.get("where")
        if where is not None:
            for part in parts:
                with self.report.collected():
                    compiler = Compiler(self.report, Scope(self.report, part), self.python)
                    if any(True for _ in aggregates_in(where.this)):
                        self.report.refuse(where, "WHERE has no aggregates: write HAVING", "where")
                    part.conditions.append(compiler.condition(where.this))
                    part.never_null.update(never_null(compiler, where.this))
        return Select(node, parts, columns)

    def only(self, node: exp.Expr, parts: str) -> None:
        """Refuse a node with other parts than these."""
        Compiler(self.report, lambda _node: None, self.python).only(node, parts)  # type: ignore[arg-type, return-value]

    def _refuse_subqueries(self, node: exp.Select) -> None:
        clauses = [
            *node.expressions,
            *(node.args.get(one) for one in ("where", "having", "qualify", "group")),
        ]
        clauses += [one.args.get("on") for one in node.args.get("joins") or ()]
        for clause in clauses:
            query = None if clause is None else clause.find(exp.Query, exp.Exists)
            if query is not None:
                self.report.refuse(
                    query, "subqueries stand only in FROM: join the table by its primary key", "select"
                )

    def _columns(self, node: exp.Select, scope: Scope) -> list[Selected]:
        found: list[Selected] = []
        for one in node.expressions:
            with self.report.collected():
                if isinstance(one, exp.Star) or (
                    isinstance(one, exp.Column) and isinstance(one.this, exp.Star)
                ):
                    found += self._star(one, scope)
                else:
                    found.append(self._column(one, scope))
        seen: set[str] = set()
        for name, one in found:
            if name.lower() in seen:
                with self.report.collected():
                    self.report.refuse(
                        one, f"the column {name!r} is there twice: give one another name with AS"
                    )
            seen.add(name.lower())
        return found

    def _column(self, node: exp.Expr, scope: Scope) -> Selected:
        inner = node.this if isinstance(node, exp.Alias) else node
        self._qualify(inner, scope, [])
        if isinstance(node, exp.Alias):
            # A column that is the whole expression was replaced within the alias.
            return Selected(node.alias, node.this)
        if isinstance(inner, exp.Column):
            return Selected(inner.name, inner)
        return self.report.refuse(node, f"{shortened(inner)} has no name: write AS and a name after it")

    def _star(self, node: exp.Expr, scope: Scope) -> list[Selected]:
        star: Any = node if isinstance(node, exp.Star) else node.this
        for name in ("replace", "rename", "except_condition"):
            if star.args.get(name):
                self.report.refuse(node, f"{name.upper()} is not supported: write the columns with AS", name)
        excluded = {one.name.lower() for one in star.args.get("except_") or ()}
        columns = scope.all_columns(node, "" if node is star else node.args["table"].name)
        unknown = excluded - {name.lower() for _, name in columns}
        if unknown:
            self.report.refuse(node, f"EXCLUDE: there is no column {min(unknown)!r}")
        return [
            Selected(name, column_at(alias, name, node))
            for alias, name in columns
            if name.lower() not in excluded
        ]

    def _qualify(self, node: exp.Expr, scope: Scope, columns: list[Selected]) -> None:
        """Write alias and name for each column; names of the SELECT list stand for their expressions."""
        by_name = {one.name.lower(): one.node for one in columns}
        for one in list(node.find_all(exp.Column)):
            alias = None if one.table else by_name.get(one.name.lower())
            if alias is not None:
                candidates = scope.candidates(one)
                if not candidates:
                    one.replace(wrapped(alias))
                    continue
                if identity(alias) not in [identity(column_at(*each, one)) for each in candidates]:
                    self.report.refuse(
                        one, f"{one.name!r} is a column and a name of the SELECT list: use different names"
                    )
            made = column_at(*scope.locate(one), one)
            one.set("table", made.args["table"])
            one.set("this", made.this)

    def _from(self, node: exp.Select) -> list[Part]:
        first: Any = node.args["from_"].this
        joins = node.args.get("joins") or []
        items = [self._item(first, None)]
        for join in joins:
            self._check_join(join)
            items.append(self._item(join.this, join))
        seen: set[str] = set()
        for one in items:
            if one.alias.lower() in seen:
                self.report.refuse(
                    one.node or first, f"{one.alias!r} is there twice: write AS and another name"
                )
            seen.add(one.alias.lower())
        bases = self._subquery(first, items[0].alias) if items[0].definition is None else []
        if not joins:
            return bases or [self._table_part(items[0])]
        names = Part()
        for one in items:
            if one.definition is not None:
                names.add_table(one.alias, one.definition)
            else:
                names.relations.update(bases[0].relations)
        merged = self._conjuncts(items, names)
        steps = Joins(self.report, items).order(Scope(self.report, names))
        parts = bases or [self._table_part(steps[0].joined)]
        for part in parts:
            build(self.report, steps, part, self.python)
            part.merged = merged
            # The order of * is that of the text.
            part.relations = {one.alias: part.relations[one.alias] for one in items}
        return parts

    @staticmethod
    def _table_part(item: Joined) -> Part:
        assert item.definition is not None
        part = Part()
        part.add_table(item.alias, item.definition)
        return part

    def _check_join(self, join: exp.Join) -> None:
        side, kind, method = (join.args.get(name) or "" for name in ("side", "kind", "method"))
        what = " ".join(one for one in (method, side, kind) if one)
        if method or side not in {"", "LEFT"} or kind not in {"", "INNER", "OUTER"}:
            mend = (
                "write it as a LEFT JOIN of the other table" if side == "RIGHT" else "write JOIN or LEFT JOIN"
            )
            self.report.refuse(join, f"a {what} JOIN is not supported: {mend} … ON the primary key")
        if not join.args.get("on") and not join.args.get("using"):
            self.report.refuse(join, "the join has no condition: write JOIN … ON the primary key")
        self.only(join, "this side kind on using")

    def _item(self, node: Any, join: exp.Join | None) -> Joined:
        if isinstance(node, exp.Subquery):
            self._refuse_names(node)
            if join is not None:
                self.report.refuse(node, "a subquery is the first in FROM, others are tables: join the table")
            if not node.alias:
                return Joined("subquery", None)
            return Joined(node.alias, None)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            self.report.refuse(node, f"{shortened(node)} is no table of the chain: read a table")
        self.only(node, "this alias")
        self._refuse_names(node)
        name = node.name.lower()
        if name in self._ctes:
            if join is not None:
                self.report.refuse(node, "a subquery is the first in FROM, others are tables: join the table")
            return Joined(node.alias_or_name, None)
        definition = self._tables.get(name)
        if definition is None:
            mend = near(name, self._tables) or f": there are {', '.join(sorted(self._tables)) or 'none'}"
            self.report.refuse(node, f"there is no typed table {node.name!r}{mend}")
        return Joined(node.alias_or_name, definition, join)

    def _refuse_names(self, node: exp.Expr) -> None:
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            self.report.refuse(
                node, "names of columns after an alias are not supported: use AS in its SELECT"
            )

    def _subquery(self, node: Any, alias: str) -> list[Part]:
        if isinstance(node, exp.Table):
            query = self._ctes.pop(node.name.lower())
            linear = self.linear(query.copy())
            self._ctes[node.name.lower()] = query
        else:
            self.only(node, "this alias")
            linear = self.linear(node.this)
        self.report.stop_if_any()
        for one in linear:
            one.part.relations = {alias: {name: same(typed) for name, typed in one.columns.items()}}
            one.part.merged = set()
        return [one.part for one in linear]

    def _conjuncts(self, items: list[Joined], names: Part) -> set[tuple[str, str]]:
        """Set the conditions of the joins; return the columns of the right sides of USING."""
        merged: set[tuple[str, str]] = set()
        scope = Scope(self.report, names)
        for number, item in enumerate(items):
            if item.node is None:
                continue
            on = item.node.args.get("on")
            if on is not None:
                self._qualify(on, scope, [])
                item.conjuncts = list(conjuncts(item.node.args["on"]))
            for using in item.node.args.get("using") or ():
                before = Part(relations={one.alias: names.relations[one.alias] for one in items[:number]})
                before.merged = merged
                column = column_of(using)
                here = Part(relations={item.alias: names.relations[item.alias]})
                left = column_at(*Scope(self.report, before).locate(column), using)
                right = Scope(self.report, here).locate(column)
                item.conjuncts.append(exp.EQ(this=left, expression=column_at(*right, using)))
                merged.add(right)
        return merged


def _with_names(query: exp.Expr) -> exp.Expr:
    """Give a name to each column of the second SELECT of a UNION, whose names do not count."""
    select = query.unnest()
    if isinstance(select, exp.Select):
        columns = [
            exp.alias_(one, f"column{at}") if not isinstance(one, exp.Alias | exp.Column | exp.Star) else one
            for at, one in enumerate(select.expressions)
        ]
        select.set("expressions", columns)
    return query
