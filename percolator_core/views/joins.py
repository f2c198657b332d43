"""Joins: find, for each joined table, the columns that have its primary key.

Each joined table must be found by its whole primary key, so that a row of the first table gives at most one
row. An inner join that is written the other way round is turned: the branch then begins at another table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from sqlglot import expressions as exp

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.types import column_type
from percolator_core.views.expressions import Compiler
from percolator_core.views.plan import Lookup
from percolator_core.views.problems import Report
from percolator_core.views.relations import Part, Scope
from percolator_core.views.typed import Typed


@dataclass
class Joined:
    """A table of a FROM clause with its JOIN; the first one has none and may be a subquery."""

    alias: str
    definition: TableDefinition | None
    node: exp.Join | None = None
    conjuncts: list[exp.Expr] = field(default_factory=list)

    @property
    def is_left(self) -> bool:
        """True for a left join."""
        return self.node is not None and self.node.args.get("side") == "LEFT"


@dataclass(frozen=True)
class _Equal:
    """An equality of a column with a column of another table, or with a constant."""

    node: exp.Expr
    alias: str
    column: str
    other: exp.Expr
    other_alias: str


@dataclass
class _Step:
    joined: Joined
    used: list[_Equal]


class Joins:
    """Plans the joins of one FROM clause."""

    def __init__(self, report: Report, items: list[Joined]) -> None:
        self._report = report
        self._items = items

    def order(self, names: Scope) -> list[_Step]:
        """Return the tables in the order in which they are looked up; the first one is the source."""
        equal = {id(one): self._equalities(one, names) for one in self._items}
        inner = 1
        while inner < len(self._items) and not self._items[inner].is_left:
            inner += 1
        pooled = [pair for one in self._items[1:inner] for pair in equal[id(one)]]
        roots = self._items[:inner] if self._items[0].definition is not None else self._items[:1]
        found = (self._from(root, self._items[:inner], pooled) for root in roots)
        steps = next((one for one in found if one is not None), None)
        if steps is None:
            self._refuse_key(self._items[1])
        for one in self._items[inner:]:
            pairs = equal[id(one)] if one.is_left else pooled + equal[id(one)]
            used = _key_of(one, pairs, {step.joined.alias for step in steps})
            if used is None:
                self._refuse_key(one)
            steps.append(_Step(one, used))
        return steps

    def _refuse_key(self, joined: Joined) -> NoReturn:
        assert joined.definition is not None
        assert joined.node is not None
        key = ", ".join(joined.definition.key)
        self._report.refuse(
            joined.node,
            f"a table is joined by its whole primary key, and {joined.definition.name} has ({key}): write ON "
            f"{' AND '.join(f'{joined.alias}.{name} = …' for name in joined.definition.key)}, with columns "
            "of one other table and of the same types",
        )

    @staticmethod
    def _from(root: Joined, items: list[Joined], pairs: list[_Equal]) -> list[_Step] | None:
        steps = [_Step(root, [])]
        left = [one for one in items if one is not root]
        while left:
            known = {step.joined.alias for step in steps}
            for one in left:
                used = _key_of(one, pairs, known)
                if used is not None:
                    steps.append(_Step(one, used))
                    left.remove(one)
                    break
            else:
                return None
        return steps

    def _equalities(self, joined: Joined, names: Scope) -> list[_Equal]:
        found = []
        for node in joined.conjuncts:
            if not isinstance(node, exp.EQ):
                continue
            for one, other in ((node.this, node.expression), (node.expression, node.this)):
                if not isinstance(one, exp.Column):
                    continue
                alias, column = names.locate(one)
                if isinstance(other, exp.Column):
                    found.append(_Equal(node, alias, column, other, names.locate(other)[0]))
                elif isinstance(other, exp.Literal | exp.Boolean):
                    found.append(_Equal(node, alias, column, other, ""))
        return found


def _key_of(joined: Joined, pairs: list[_Equal], known: set[str]) -> list[_Equal] | None:
    """Return the equalities that give the whole key of a table, with columns of one known table."""
    definition = joined.definition
    if definition is None:
        return None
    for parent in sorted(known):
        used = []
        for name in definition.key:
            fitting = [
                one for one in pairs
                if one.alias == joined.alias and one.column == name and one.other_alias in {parent, ""}
            ]  # fmt: skip
            # A column is better than a constant, which is checked as a condition of its own.
            fitting.sort(key=lambda one: not one.other_alias)
            used += fitting[:1]
        if len(used) == len(definition.key) and any(one.other_alias for one in used):
            return used
    return None


def build(report: Report, steps: list[_Step], part: Part, python: Any) -> None:
    """Add the looked up tables to a part, which has the first table, and the conditions of the joins."""
    scope = Scope(report, part)
    compiler = Compiler(report, scope, python)
    used_anywhere = {id(pair.node) for step in steps for pair in step.used}
    for step in steps[1:]:
        joined = step.joined
        assert joined.definition is not None
        number = part.add_table(joined.alias, joined.definition, joined.is_left)
        part.lookups.append(_lookup(report, step, part, number, scope))
        if joined.is_left:
            used = {id(pair.node) for pair in step.used}
            rest = [compiler.condition(one) for one in joined.conjuncts if id(one) not in used]
            if rest:
                part.lookups[-1] = _matching(part.lookups[-1], rest)
    for step in steps:
        if not step.joined.is_left:
            conjuncts = [one for one in step.joined.conjuncts if id(one) not in used_anywhere]
            part.conditions += [compiler.condition(one) for one in conjuncts]


def _matching(lookup: Lookup, rest: list[Typed]) -> Lookup:
    def value(rows: Any) -> bool:
        return all(one.value(rows) is True for one in rest)

    match = Typed("bool", False, value)
    return Lookup(**{**lookup.__dict__, "match": match})


def _lookup(report: Report, step: _Step, part: Part, number: int, scope: Scope) -> Lookup:
    definition = step.joined.definition
    assert definition is not None
    on, constants, parents = [], [], set()
    for pair in step.used:
        kind = definition.by_name[pair.column].type
        if not pair.other_alias:
            constants.append((pair.column, _constant(report, pair, kind)))
            continue
        typed = scope(pair.other)  # type: ignore[arg-type]
        if typed.slot is None or typed.kind != kind:
            report.refuse(
                pair.node,
                f"{pair.column} is {kind}, and is joined with {typed.kind}: join it with a plain column of "
                "the same type",
            )
        parents.add(typed.slot[0])
        on.append((pair.column, typed.slot[1]))
    if len(parents) > 1:
        report.refuse(step.used[0].node, "the columns of a join belong to one table: join by columns of one")
    (parent,) = parents
    positions = tuple(part.position(parent, column) for _, column in on)
    return Lookup(
        number, parent, definition, tuple(on), tuple(constants), not step.joined.is_left, None, positions
    )


def _constant(report: Report, pair: _Equal, kind: str) -> bytes:
    typed = Compiler(report, lambda _node: report.refuse(pair.node, ""), lambda _node, _parts: None)
    made = typed(pair.other)
    made = typed.read(pair.node, made, kind)
    try:
        return column_type(kind).encode(made.literal)
    except (TypeError, ValueError) as error:
        report.refuse(pair.node, f"{pair.column} is {kind}: {error}; write a value of this type")
