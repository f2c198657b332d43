"""The SQL text of nodes, and nodes that name columns, with their places in the text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import ErrorLevel
from sqlglot import expressions as exp

from percolator_core.errors import abbreviated
from percolator_core.views.typed import Typed


def identity(node: exp.Expr) -> str:
    """Return the SQL of a node; it is equal for equal expressions."""
    return node.sql(dialect="duckdb", comments=False, unsupported_level=ErrorLevel.IGNORE)


def shortened(node: exp.Expr) -> str:
    """Return the SQL of a node in quotes for a message."""
    return repr(abbreviated(identity(node), 60))


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a condition that are joined by AND."""
    if isinstance(node, exp.Paren):
        return conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    return [node]


def same(typed: Typed) -> Callable[[], Typed]:
    """Return a function that returns the expression."""
    return lambda: typed


def column_of(identifier: Any) -> exp.Column:
    """Return the column that an identifier names."""
    found = exp.Column(this=identifier.copy())
    found.this.meta.update(identifier.meta)
    return found


def column_at(alias: str, name: str, place: exp.Expr) -> exp.Column:
    """Return the node of a column with its alias. It has the place of another node."""
    found = exp.column(name, table=alias, quoted=True)
    source = place.find(exp.Identifier) or place
    found.this.meta.update(
        {one: source.meta[one] for one in ("line", "col", "start", "end") if one in source.meta}
    )
    return found


def wrapped(node: exp.Expr) -> exp.Expr:
    """Return a copy of an expression that may stand in another one."""
    copied = node.copy()
    return copied if isinstance(copied, exp.Column) else exp.Paren(this=copied)
