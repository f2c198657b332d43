"""The relations of a FROM clause: the rows that a branch reads, and the names of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import expressions as exp

from percolator_core.schema.definitions import TableDefinition
from percolator_core.views.expressions import Compiler
from percolator_core.views.names import conjuncts, identity
from percolator_core.views.output import HIDDEN
from percolator_core.views.plan import Input, Lookup
from percolator_core.views.problems import Report
from percolator_core.views.typed import Slot, Typed


@dataclass
class Source:
    """A table of a branch; ``columns`` grows with each column that is read."""

    definition: TableDefinition
    is_optional: bool = False
    columns: list[str] = field(default_factory=list)


@dataclass
class Part:
    """A branch while it is planned.

    ``relations`` has, by alias, functions that return the columns. ``merged`` are the columns of the right
    side of a USING, which a name without alias does not mean. ``never_null`` are columns that are not null in
    the rows for which the conditions are true.
    """

    sources: list[Source] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    conditions: list[Typed] = field(default_factory=list)
    relations: dict[str, dict[str, Callable[[], Typed]]] = field(default_factory=dict)
    merged: set[tuple[str, str]] = field(default_factory=set)
    never_null: set[Slot] = field(default_factory=set)

    def add_table(self, alias: str, definition: TableDefinition, is_optional: bool = False) -> int:
        """Add an input, and return its number."""
        number = len(self.sources)
        self.sources.append(Source(definition, is_optional))
        self.relations[alias] = {
            column.name: self._reader(number, column.name) for column in definition.shown_columns
        }
        return number

    def _reader(self, number: int, name: str) -> Callable[[], Typed]:
        return lambda: self.read(number, name)

    def read(self, number: int, name: str) -> Typed:
        """Return a column of an input as an expression."""
        source = self.sources[number]
        at = self.position(number, name)
        column = source.definition.by_name[name]

        def value(rows: Any) -> Any:
            return rows[number][at]

        nullable = (column.nullable or source.is_optional) and (number, name) not in self.never_null
        return Typed(column.type, nullable, value, frozenset({(number, name)}), (number, name))

    def position(self, number: int, name: str) -> int:
        """Return the position of a column in the rows of an input, and read the column from now on."""
        columns = self.sources[number].columns
        if name not in columns:
            columns.append(name)
        return columns.index(name)

    def inputs(self) -> tuple[Input, ...]:
        """Return the inputs, after all expressions are compiled."""
        return tuple(Input(one.definition, tuple(one.columns)) for one in self.sources)


class Scope:
    """Finds the columns that names mean in a SELECT. Names may be written in other cases, as in DuckDB."""

    def __init__(self, report: Report, part: Part) -> None:
        self._report = report
        self._part = part

    def __call__(self, node: exp.Column) -> Typed:
        """Return the expression of a column. Refuses a name that means none or several."""
        alias, name = self.locate(node)
        return self._part.relations[alias][name]()

    def locate(self, node: exp.Column) -> tuple[str, str]:
        """Return alias and name of a column."""
        found = self.candidates(node)
        if len(found) == 1:
            return found[0]
        text = identity(node)
        if found:
            aliases = ", ".join(alias for alias, _ in found)
            self._report.refuse(node, f"{text!r} is a column of {aliases}: write one of them before it")
        known = [name for columns in self._part.relations.values() for name in columns]
        mend = near(node.name, known) or f": there are {', '.join(dict.fromkeys(known))}"
        return self._report.refuse(node, f"there is no column {text!r}{mend}")

    def candidates(self, node: exp.Column) -> list[tuple[str, str]]:
        """Return what a column's name may mean."""
        found = [
            (alias, name)
            for alias, columns in self._part.relations.items()
            if not node.table or alias.lower() == node.table.lower()
            for name in columns
            if name.lower() == node.name.lower() and (node.table or (alias, name) not in self._part.merged)
        ]
        exact = [one for one in found if one[1] == node.name]
        return exact or found

    def all_columns(self, node: exp.Expr, table: str = "") -> list[tuple[str, str]]:
        """Return the columns of ``*``, or of ``table.*``."""
        found = [
            (alias, name)
            for alias, columns in self._part.relations.items()
            if not table or alias.lower() == table.lower()
            for name in columns
            if name != HIDDEN and (table or (alias, name) not in self._part.merged)
        ]
        if not found:
            self._report.refuse(
                node, f"there is no table {table!r} in FROM: there is {', '.join(self._part.relations)}"
            )
        return found


def near(word: str, known: list[str] | Mapping[str, Any]) -> str:
    """Return a hint at the most similar known word, or nothing."""
    import difflib

    spelt = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), spelt, n=1, cutoff=0.6)
    return f": did you mean {spelt[close[0]]!r}?" if close else ""


def never_null(compiler: Compiler, condition: exp.Expr) -> Iterator[Slot]:
    """Yield the columns that are not null where a condition is true: because it compares them, or says so."""
    for part in conjuncts(condition):
        one = part.unnest()
        inner = one.this.unnest() if isinstance(one, exp.Not) else None
        operands: tuple[exp.Expr, ...] = ()
        if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
            operands = (inner.this,)
        elif isinstance(one, exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE):
            operands = (one.this, one.expression)
        for operand in operands:
            slot = compiler(operand.unnest()).slot if isinstance(operand.unnest(), exp.Column) else None
            if slot is not None:
                yield slot
