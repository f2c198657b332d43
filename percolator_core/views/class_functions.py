"""The functions that `View` classes call: aggregates of columns, and expressions in SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from percolator_core.schema.predicates import ColumnExpression, Predicate


@dataclass(frozen=True, slots=True)
class SqlExpression:
    """An expression in SQL."""

    text: str


Operand: TypeAlias = ColumnExpression | SqlExpression


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function of the rows of a group; without ``operand`` it is ``count(*)``."""

    function: str
    operand: Operand | None
    distinct: bool = False
    where: Predicate | SqlExpression | None = None


def count(column: Any = None, *, distinct: bool = False, where: Any = None) -> Any:
    """Return the aggregate "number of rows" for a `View`; of a column, the number of its values.

    Args:
        column: a column of a model, or `sql`; nulls do not count.
        distinct: equal values of the column count once.
        where: only the rows count for which this predicate is true.

    Raises TypeError for an argument of another type.
    """
    if column is None and distinct:
        raise TypeError("count(distinct=True) counts the different values of a column: give the column")
    return _aggregate("count", column, where, distinct=distinct, may_be_none=True)


def sum_(column: Any, *, where: Any = None) -> Any:
    """Return the aggregate "sum" of a column for a `View`; null for a group without values. See `count`."""
    return _aggregate("sum", column, where)


def avg(column: Any, *, where: Any = None) -> Any:
    """Return the aggregate "mean" of a column, a float, for a `View`; null without values. See `count`."""
    return _aggregate("avg", column, where)


def min_(column: Any, *, where: Any = None) -> Any:
    """Return the aggregate "least value" of a column for a `View`; null without values. See `count`."""
    return _aggregate("min", column, where)


def max_(column: Any, *, where: Any = None) -> Any:
    """Return the aggregate "greatest value" of a column for a `View`; null without values. See `count`."""
    return _aggregate("max", column, where)


def sql(text: str) -> Any:
    """Return an expression in SQL, for a `View`: a column, a group, an argument or a condition.

    It may name columns of the view's tables, and call the Python functions of the module that are declared by
    `view_function`: ``word = sql("plain(text)")``.
    """
    return SqlExpression(text)


def _aggregate(
    function: str, operand: Any, where: Any, *, distinct: bool = False, may_be_none: bool = False
) -> Aggregate:
    if not isinstance(operand, Operand) and not (operand is None and may_be_none):
        raise TypeError(f"{function}: {operand!r} is no column of a model: give one, such as Product.price")
    if where is not None and not isinstance(where, Predicate | SqlExpression):
        raise TypeError(f"{function}: {where!r} is no predicate: write one such as Product.price > 5")
    return Aggregate(function, operand, distinct, where)
