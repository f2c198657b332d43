"""Plan a view: parse its SQL, choose what becomes of its rows, and make the definition of its table.

>>> plan_view("CREATE VIEW sums AS SELECT shop, sum(price) AS total FROM offers GROUP BY shop", tables)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import sqlglot
from sqlglot import expressions as exp
from sqlglot.errors import ParseError, TokenError

from percolator_core.errors import ConfigurationError
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.types import column_type
from percolator_core.views.aggregates import OrderKey, order_keys
from percolator_core.views.expressions import Compiler
from percolator_core.views.grouping import Grouping
from percolator_core.views.kinds import NULL
from percolator_core.views.names import identity
from percolator_core.views.output import HIDDEN, Encoder, OutputColumn, packed_row, view_definition
from percolator_core.views.packing import sortable
from percolator_core.views.plan import Branch, Contribute, Sink, ViewPlan
from percolator_core.views.problems import Positions, Problem, Refusal, Report, Stopped, ViewRefused
from percolator_core.views.python_functions import ViewFunction
from percolator_core.views.relations import Part, Scope
from percolator_core.views.selects import Linear, Select, Selects
from percolator_core.views.sinks import RowSink, TopSink, ranked
from percolator_core.views.typed import Rows, Typed

VERSION: Final = 1
"""Part of each fingerprint; raised if the same SQL has to be computed anew."""

MOST_TOP: Final = 1000
"""The limit of rows of a partition of a top-n view."""


class Parsed:
    """A file with a view: its name, its query, and the names of the tables that it may read."""

    def __init__(self, sql: str, label: str = "view", name: str = "") -> None:
        """Raises `ViewRefused` if the text is no CREATE VIEW, or not of the view ``name``."""
        self.label = label
        try:
            tokens = sqlglot.tokenize(sql, dialect="duckdb")
        except TokenError:
            line = sql.count("\n") + 1
            raise ViewRefused(
                label, [Problem(line, 1, "a quote or comment is not closed: close it")]
            ) from None
        self.report = Report(Positions(sql, list(tokens)))
        self._start = tokens[0].start if tokens else 0
        with self.report.collected():
            self._create(self._statement(sql), name)
        self.report.raise_if_any(label)

    def _statement(self, sql: str) -> exp.Expr:
        try:
            found = [one for one in sqlglot.parse(sql, dialect="duckdb") if one is not None]
        except ParseError as error:
            first = error.errors[0]
            # The parser counts up to the end of a token.
            column = max(1, int(first["col"]) - len(first["highlight"]) + 1)
            what = str(first["description"]).rstrip(".")
            raise Refusal(Problem(int(first["line"]), column, f"no valid SQL: {what}; correct it")) from None
        if not found:
            raise Refusal(Problem(1, 1, "the file is empty: write CREATE VIEW name AS SELECT …"))
        if len(found) > 1:
            self.report.refuse(
                found[1], "a file has one view: put the second statement into a file of its own"
            )
        return found[0]

    def _create(self, node: exp.Expr, name: str) -> None:
        if not isinstance(node, exp.Create) or node.args.get("kind") != "VIEW":
            self._refuse("the file has a view: write CREATE VIEW name AS SELECT …")
        for word, value in node.args.items():
            if value and word not in {"this", "kind", "expression"}:
                self._refuse(f"write only CREATE VIEW name AS SELECT …, without {word.upper()}")
        table = node.this
        if not isinstance(table, exp.Table) or table.args.get("db"):
            self._refuse("the view has a plain name, without columns: name the columns with AS")
        if name and table.name != name:
            self.report.refuse(
                table, f"the view of this file is {name!r}, not {table.name!r}: rename one of them"
            )
        self.name: str = table.name
        self.query: exp.Expr = node.expression

    def _refuse(self, what: str) -> NoReturn:
        raise Refusal(Problem(*self.report.positions.at(self._start), what))

    @property
    def tables(self) -> set[str]:
        """The names of tables in the query, as they are written, also those of CTEs."""
        return {one.name for one in self.query.find_all(exp.Table)}


def plan_view(
    sql: str | Parsed,
    tables: Mapping[str, TableDefinition],
    functions: Mapping[str, ViewFunction] | None = None,
    label: str = "view",
) -> ViewPlan:
    """Return the plan of a view.

    ``tables`` has the typed tables, and the tables of the views that may be read. ``label`` names the file in
    messages.

    Raises ViewRefused (a ConfigurationError) with all problems, each with line, column and remedy.
    """
    parsed = Parsed(sql, label) if isinstance(sql, str) else sql
    planner = _Planner(parsed, tables, functions or {})
    plan: ViewPlan | None = None
    try:
        with parsed.report.collected():
            plan = planner.plan()
    except Stopped:
        pass
    except RecursionError:
        parsed.report.problems.append(Problem(1, 1, "an expression is nested too deeply: split it"))
    parsed.report.raise_if_any(parsed.label)
    assert plan is not None, "a view without problems has a plan"
    return plan


class _Planner:
    def __init__(
        self, parsed: Parsed, tables: Mapping[str, TableDefinition], functions: Mapping[str, ViewFunction]
    ) -> None:
        self._parsed = parsed
        self._report = parsed.report
        self._functions = functions
        self._selects = Selects(self._report, tables, functions)

    def plan(self) -> ViewPlan:
        query = self._parsed.query
        self._text = identity(query)
        self._called = {one.name.lower() for one in query.find_all(exp.Anonymous)}
        self._selects.define(query)
        while isinstance(query, exp.Subquery):
            self._selects.only(query, "this")
            query = query.this
            self._selects.define(query)
        if isinstance(query, exp.Union):
            return self._union(query)
        if not isinstance(query, exp.Select):
            self._report.refuse(query, f"{query.key.upper()} is not supported: write a SELECT")
        select = self._selects.select(query)
        if select.is_grouped:
            if query.args.get("qualify"):
                self._report.refuse(query, "QUALIFY over groups is not supported: make the groups a view of "
                                    "their own, and read that view here", "qualify")  # fmt: skip
            return self._grouped(Grouping.of_select(self._selects, select))
        if query.args.get("qualify"):
            return self._top(select)
        return self._rows([Linear(part, self._selects.outputs(select, part)) for part in select.parts], query)

    def _union(self, query: exp.Union) -> ViewPlan:
        sides: list[exp.Expr] = [query]
        while isinstance(sides[0], exp.Union) and sides[0].args.get("distinct"):
            self._selects.only(sides[0], "this expression distinct")
            sides[:1] = [sides[0].this, sides[0].expression]
        if len(sides) == 1:
            return self._rows(self._selects.linear(query), query)
        linear = [one for side in sides for one in self._selects.linear(side)]
        return self._grouped(Grouping.of_distinct(self._selects, self._selects.unified(query, linear), query))

    def _rows(self, linear: list[Linear], query: exp.Expr) -> ViewPlan:
        if len(linear) > 1:
            linear = self._selects.unified(query, linear)
        outputs = self._outputs(linear[0].columns, query)
        key = _source_key(linear[0]) if len(linear) == 1 else []
        definition = self._definition(outputs, key, query)
        contributes = []
        for number, one in enumerate(linear):
            encode = _row_encoder(definition, one.columns, bytes([number]) if len(linear) > 1 else b"")
            contributes.append(_packing(encode))
        return self._finish(
            definition,
            RowSink(definition),
            [(one.part, contribute) for one, contribute in zip(linear, contributes, strict=True)],
            [one.columns for one in linear],
        )

    def _top(self, select: Select) -> ViewPlan:
        qualify = select.node.args["qualify"]
        window, limit = self._window(qualify.this)
        contributes: list[tuple[Part, Contribute]] = []
        columns = []
        definition: TableDefinition | None = None
        for number, part in enumerate(select.parts):
            compiler = Compiler(self._report, Scope(self._report, part), self._selects.python)
            outputs = self._selects.outputs(select, part)
            partition = [compiler(one) for one in window.args.get("partition_by") or ()]
            keys = order_keys(compiler, window.args["order"])
            for one in partition:
                if one.kind in {"json", NULL}:
                    self._report.refuse(
                        window, f"a partition has no values of {one.kind or 'NULL'}", "partition"
                    )
            self._report.stop_if_any()
            if definition is None:
                named = self._outputs(outputs, select.node)
                key = _source_key(Linear(part, outputs)) if len(select.parts) == 1 else []
                nodes = [identity(one) for one in window.args.get("partition_by") or ()]
                definition = self._definition(named, _top_key(key, nodes, select, outputs), select.node)
            prefix = bytes([number]) if len(select.parts) > 1 else b""
            contributes.append((part, _ranking(definition, outputs, partition, keys, prefix)))
            columns.append(outputs)
        assert definition is not None
        return self._finish(definition, TopSink(definition, limit), contributes, columns)

    def _window(self, node: exp.Expr) -> tuple[exp.Window, int]:
        while isinstance(node, exp.Paren):
            node = node.this
        fits = isinstance(node, exp.LTE | exp.LT | exp.EQ) and isinstance(node.this, exp.Window)
        if fits and isinstance(node.this.this, exp.RowNumber) and isinstance(node.expression, exp.Literal):
            window = node.this
            limit = int(node.expression.this) if node.expression.this.isdigit() else 0
            limit -= isinstance(node, exp.LT)
            self._selects.only(window, "this partition_by order over")
            if not window.args.get("order"):
                self._report.refuse(window, "row_number() needs an order: write OVER (… ORDER BY …)", "over")
            if 1 <= limit <= MOST_TOP and (not isinstance(node, exp.EQ) or limit == 1):
                return window, limit
        return self._report.refuse(
            node,
            "QUALIFY is supported as QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) <= n, with n from "
            f"1 to {MOST_TOP}: write it so",
            "qualify",
        )

    def _grouped(self, grouping: Grouping) -> ViewPlan:
        self._report.stop_if_any()
        outputs = self._outputs(grouping.outputs, grouping.node)
        definition = self._definition(outputs, grouping.key, grouping.node)
        sink = grouping.sink(definition)
        contributes = grouping.contributes(definition)
        return self._finish(definition, sink, contributes, grouping.lineage)

    def _outputs(self, columns: Mapping[str, Typed], node: exp.Expr) -> list[OutputColumn]:
        self._report.stop_if_any()
        for name, typed in columns.items():
            if typed.kind == NULL:
                self._report.refuse(node, f"{name} is always NULL: write CAST(NULL AS …) with a type", name)
            if name == HIDDEN:
                self._report.refuse(
                    node, f"{HIDDEN!r} is reserved for the key of views: write another name", name
                )
        return [OutputColumn(name, one.kind, one.nullable) for name, one in columns.items()]

    def _definition(
        self, outputs: Sequence[OutputColumn], key: Sequence[str], node: exp.Expr
    ) -> TableDefinition:
        try:
            return view_definition(self._parsed.name, outputs, key)
        except ConfigurationError as error:
            self._report.refuse(node, f"the view cannot be a table: {error}")

    def _finish(
        self,
        definition: TableDefinition,
        sink: Sink,
        parts: Sequence[tuple[Part, Contribute]],
        columns: Sequence[Mapping[str, Typed]],
    ) -> ViewPlan:
        self._report.stop_if_any()
        name = self._parsed.name
        branches = tuple(
            Branch(name, number, part.inputs(), tuple(part.lookups), tuple(part.conditions), contribute)
            for number, (part, contribute) in enumerate(parts)
        )
        lineage: dict[str, frozenset[tuple[str, str]]] = {}
        for branch, outputs in zip(branches, columns, strict=True):
            for column, typed in outputs.items():
                read = {(branch.inputs[number].table, source) for number, source in typed.slots}
                lineage[column] = lineage.get(column, frozenset()) | read
        return ViewPlan(name, self._text, definition, branches, sink, lineage, self._fingerprint(branches))

    def _fingerprint(self, branches: Sequence[Branch]) -> str:
        found = [str(VERSION), self._text]
        for branch in branches:
            for one in branch.inputs:
                columns = [one.definition.by_name[name] for name in (*one.definition.key, *one.columns)]
                found += [
                    one.table,
                    *(f"{column.name} {column.type} {column.nullable}" for column in columns),
                ]
        for function in self._functions.values():
            if function.name.lower() in self._called:
                found.append(f"{function.name} {function.revision}")
        return hashlib.sha256("\n".join(found).encode()).hexdigest()[:32]


def _source_key(linear: Linear) -> list[str]:
    """Return the output columns that are the source's primary key; none if one is missing."""
    by_slot: dict[Any, str] = {}
    for name, typed in linear.columns.items():
        if typed.slot is not None:
            by_slot.setdefault(typed.slot, name)
    slots = [(0, name) for name in linear.part.sources[0].definition.key]
    return [by_slot[slot] for slot in slots] if all(slot in by_slot for slot in slots) else []


def _top_key(key: list[str], partition: list[str], select: Select, outputs: Mapping[str, Typed]) -> list[str]:
    """Return the key of a top-n view: the partition, then the source's key.

    A row that moves to another partition is another row, because the two partitions change one after the
    other.
    """
    by_node = {identity(one.node): one.name for one in reversed(select.columns)}
    names = [by_node.get(one, "") for one in partition]
    if not key or any(not name or outputs[name].nullable for name in names):
        return []
    return list(dict.fromkeys([*names, *key]))


RowEncoder = Callable[[bytes, Rows, bytes], tuple[bytes, list[bytes | None]]]


def _row_encoder(definition: TableDefinition, columns: Mapping[str, Typed], prefix: bytes) -> RowEncoder:
    encoder = Encoder(definition, list(columns))
    values = [one.value for one in columns.values()]

    def encode(key: bytes, rows: Rows, partition: bytes) -> tuple[bytes, list[bytes | None]]:
        found = [one(rows) for one in values]
        row_key = partition + prefix + key if encoder.is_hidden else encoder.key(found)
        return row_key, encoder.cells(found)

    return encode


def _packing(encode: RowEncoder) -> Contribute:
    return lambda key, rows: packed_row(*encode(key, rows, b""))


def _ranking(
    definition: TableDefinition,
    outputs: Mapping[str, Typed],
    partition: Sequence[Typed],
    keys: Sequence[OrderKey],
    prefix: bytes,
) -> Contribute:
    encode = _row_encoder(definition, outputs, prefix)
    parts = [(one.value, column_type(one.kind).encode) for one in partition]

    def contribute(key: bytes, rows: Rows) -> bytes:
        found = [(value(rows), encoded) for value, encoded in parts]
        target = b"".join(sortable(None if value is None else encoded(value)) for value, encoded in found)
        return ranked(target, b"".join(one(rows) for one in keys), prefix + key, encode(key, rows, target))

    return contribute
