"""Plan the groups of a SELECT: GROUP BY, aggregates, HAVING and DISTINCT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sqlglot import expressions as exp

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.types import column_type
from percolator_core.views.aggregates import Aggregates, aggregates_in
from percolator_core.views.expressions import Compiler
from percolator_core.views.groups import Argument, GroupSink, Result
from percolator_core.views.kinds import NULL
from percolator_core.views.names import identity
from percolator_core.views.output import Encoder
from percolator_core.views.packing import pack, sortable
from percolator_core.views.plan import Contribute
from percolator_core.views.relations import Part, Scope
from percolator_core.views.selects import Linear, Select, Selects
from percolator_core.views.sinks import WHOLE
from percolator_core.views.typed import Rows, Typed


@dataclass
class _Branch:
    """A branch: the group's values and the arguments of a row, and the results over a group."""

    part: Part
    keys: list[Typed]
    readers: list[Callable[[Rows], bytes | None]]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    outputs: dict[str, Typed]
    having: Typed | None


@dataclass
class Grouping:
    """The planned groups. ``key`` has the output columns that are the group's key, or none."""

    node: exp.Expr
    branches: list[_Branch]
    key: list[str]
    whole: bool

    @property
    def outputs(self) -> dict[str, Typed]:
        """The output columns over a group; a column may be null if it is in one of the branches."""
        return self.branches[0].outputs

    @property
    def lineage(self) -> list[Mapping[str, Typed]]:
        """The output columns of each branch."""
        return [one.outputs for one in self.branches]

    @classmethod
    def of_select(cls, selects: Selects, select: Select) -> Grouping:
        """Plan a SELECT with groups."""
        keys = _group_nodes(selects, select)
        selects.report.stop_if_any()
        distinct = select.node.args.get("distinct")
        if distinct is not None:
            _check_distinct(selects, select)
            keys = list({identity(one.node): one.node for one in select.columns}.values())
        branches = [_branch(selects, select, part, keys) for part in select.parts]
        selects.report.stop_if_any()
        whole = not keys
        first = branches[0]
        names = {identity(one.node): one.name for one in reversed(select.columns)}
        found = [names.get(identity(node), "") for node in keys]
        fits = all(name and not typed.nullable for name, typed in zip(found, first.keys, strict=True))
        return cls(select.node, branches, found if fits else [], whole)

    @classmethod
    def of_distinct(cls, selects: Selects, linear: list[Linear], node: exp.Expr) -> Grouping:
        """Plan the distinct rows of some branches (UNION)."""
        branches = []
        for one in linear:
            keys = list(one.columns.values())
            for typed in keys:
                _check_key(selects, node, typed)
            outputs = {name: _at(number, typed) for number, (name, typed) in enumerate(one.columns.items())}
            branches.append(_Branch(one.part, keys, [], (), (), outputs, None))
        columns = linear[0].columns
        fits = not any(one.nullable for one in columns.values())
        return cls(node, branches, list(columns) if fits else [], whole=False)

    def sink(self, definition: TableDefinition) -> GroupSink:
        """Return the sink of the groups."""
        first = self.branches[0]
        assert all(one.arguments == first.arguments for one in self.branches), "branches have the same types"
        return GroupSink(
            definition,
            tuple(one.kind for one in first.keys),
            first.arguments,
            first.results,
            tuple(first.outputs.values()),
            first.having,
            tuple(first.outputs),
            Encoder(definition, list(first.outputs)),
            self.whole,
        )

    def contributes(self, definition: TableDefinition) -> list[tuple[Part, Contribute]]:
        """Return the contribution functions of the branches."""
        return [(one.part, self._contribute(one, definition)) for one in self.branches]

    def _contribute(self, branch: _Branch, definition: TableDefinition) -> Contribute:
        readers = branch.readers
        if self.whole:
            return lambda _key, rows: pack([WHOLE, *(one(rows) for one in readers)])
        values = [one.value for one in branch.keys]
        if self.key:
            encoder = Encoder(definition, _padded(definition, self.key))

            def visible(_key: bytes, rows: Rows) -> bytes:
                return pack([encoder.key([one(rows) for one in values]), *(one(rows) for one in readers)])

            return visible
        encoders = [column_type(one.kind).encode for one in branch.keys]

        def hidden(_key: bytes, rows: Rows) -> bytes:
            found = zip(values, encoders, strict=True)
            parts = [(one(rows), encode) for one, encode in found]
            key = b"".join(sortable(None if value is None else encode(value)) for value, encode in parts)
            return pack([key, *(one(rows) for one in readers)])

        return hidden


def _padded(definition: TableDefinition, key: Sequence[str]) -> list[str]:
    """Return the names of the key's columns, then the others, which the encoder of keys does not read."""
    return [*key, *(one.name for one in definition.value_columns)]


def _group_nodes(selects: Selects, select: Select) -> list[exp.Expr]:
    group = select.node.args.get("group")
    if group is None:
        return []
    if group.args.get("all"):
        selects.only(group, "all")
        nodes = [one.node for one in select.columns if not any(True for _ in aggregates_in(one.node))]
    else:
        selects.only(group, "expressions")
        nodes = [_group_node(selects, select, one) for one in group.expressions]
    found: dict[str, exp.Expr] = {}
    for node in nodes:
        if isinstance(node, exp.Literal | exp.Null | exp.Boolean):
            selects.report.refuse(
                group, "GROUP BY has columns and expressions of them: leave constants out", "group by"
            )
        found.setdefault(identity(node), node)
    return list(found.values())


def _group_node(selects: Selects, select: Select, node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Literal) and not node.is_string and node.this.isdigit():
        number = int(node.this)
        if not 1 <= number <= len(select.columns):
            selects.report.refuse(
                node, f"GROUP BY {number}: the SELECT list has {len(select.columns)} columns"
            )
        node = select.columns[number - 1].node
    if isinstance(node, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
        selects.report.refuse(
            node, "GROUP BY has columns and expressions: write one view for each set of them"
        )
    if any(True for _ in aggregates_in(node)):
        selects.report.refuse(node, "GROUP BY has no aggregates: leave it out of GROUP BY")
    return node


def _check_distinct(selects: Selects, select: Select) -> None:
    node = select.node
    if node.args["distinct"].args.get("on"):
        selects.report.refuse(
            node,
            "write QUALIFY row_number() OVER (PARTITION BY … ORDER BY …) <= 1 for DISTINCT ON",
            "distinct",
        )
    some = any(True for one in select.columns for _ in aggregates_in(one.node))
    if some or node.args.get("group") or node.args.get("having"):
        selects.report.refuse(
            node, "DISTINCT over groups is not supported: make the groups a view of their own", "distinct"
        )


def _check_key(selects: Selects, node: exp.Expr, typed: Typed) -> None:
    if typed.kind == "json":
        selects.report.refuse(
            node, "JSON values have no equality, so they make no groups: leave the column out"
        )
    if typed.kind == NULL:
        selects.report.refuse(node, "the column is always NULL: write CAST(NULL AS …) with a type")


def _at(number: int, typed: Typed) -> Typed:
    return Typed(typed.kind, typed.nullable, lambda rows: rows[0][number], typed.slots)


def _branch(selects: Selects, select: Select, part: Part, keys: list[exp.Expr]) -> _Branch:
    report = selects.report
    compiler = Compiler(report, Scope(report, part), selects.python)
    typed = []
    for node in keys:
        with report.collected():
            typed.append(compiler(node))
            _check_key(selects, node, typed[-1])
    report.stop_if_any()
    known = {
        identity(node): _at(number, one) for number, (node, one) in enumerate(zip(keys, typed, strict=True))
    }
    aggregates = Aggregates(compiler)
    having = select.node.args.get("having")
    nodes = [one.node for one in select.columns] + ([having.this] if having else [])
    for node in nodes:
        for one in aggregates_in(node):
            if identity(one) not in known:
                with report.collected():
                    known[identity(one)] = aggregates.add(one, len(typed) + len(aggregates.makers))
    report.stop_if_any()
    grouped = Compiler(report, _outside(selects), selects.python, known)
    outputs: dict[str, Typed] = {}
    for name, node in select.columns:
        with report.collected():
            outputs[name] = grouped(node)
    shown = None
    if having is not None:
        with report.collected():
            shown = grouped.condition(having.this)
    arguments = aggregates.arguments()
    results = tuple(one(arguments) for one in aggregates.makers)
    return _Branch(part, typed, aggregates.readers(), arguments, results, outputs, shown)


def _outside(selects: Selects) -> Callable[[exp.Column], Typed]:
    def refuse(node: Any) -> NoReturn:
        selects.report.refuse(
            node,
            f"{node.name!r} is neither in GROUP BY nor in an aggregate: add it, or write any_value(…)",
        )

    return refuse
