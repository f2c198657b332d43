"""Predicates: the conditions of a select on the columns of a row.

A predicate comes from the columns of a model, ``(Document.page_rank > 0.5) & (Document.url >= "a")``, from a
text, or from Spark. `bind` encodes the values in it. The store evaluates the bound predicate
(`scripts/select.lua` on the arguments of `program`). For rows with a lock, the client evaluates the predicate
(`Bound.holds`), by the same rules.

The logic is that of SQL: a comparison with null is unknown, neither true nor false. A select returns the rows
for which the predicate is true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NoReturn, TypeAlias

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.row_keys import least_above
from percolator_core.schema.types import ColumnType, column_type, encode_value, shown

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "^="]
OPERATORS: Final[tuple[Operator, ...]] = ("=", "!=", "<=", ">=", "^=", "<", ">")
"""``^=`` means: starts with."""

MOST_NODES: Final = 2000
"""The limit of comparisons and connectives in one predicate."""

MOST_VALUES: Final = 5000
"""The limit of values of one ``in_``, because every step of a select sends them to the store."""

MOST_DEPTH: Final = 50
"""The limit of the nesting of a predicate."""


class Predicate:
    """A condition on a row. Combine predicates with ``&``, ``|``, ``~``; put comparisons in parentheses."""

    __slots__ = ()

    def __and__(self, other: object) -> Predicate:
        return _joined("and", self, other)

    def __or__(self, other: object) -> Predicate:
        return _joined("or", self, other)

    def __invert__(self) -> Predicate:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a predicate has no truth value of its own: combine predicates with & | ~, not with and, or, "
            "not, and write a < x < b as (x > a) & (x < b)"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(Predicate):
    """True if ``column op value``. ``model`` is the class that was asked for the column, if it is known."""

    column: str
    op: Operator
    value: Any
    model: type | None = None


@dataclass(frozen=True, slots=True, eq=False)
class In(Predicate):
    """True if the column has one of the values."""

    column: str
    values: tuple[Any, ...]
    model: type | None = None


@dataclass(frozen=True, slots=True, eq=False)
class IsNull(Predicate):
    """True if the column has no value."""

    column: str
    model: type | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Not(Predicate):
    """True if ``part`` is false for the row."""

    part: Predicate


@dataclass(frozen=True, slots=True, eq=False)
class Joined(Predicate):
    """True if all parts are true (``and``), or if at least one part is true (``or``)."""

    how: Literal["and", "or"]
    parts: tuple[Predicate, ...]


class ColumnExpression:
    """A column in a predicate: ``Document.page_rank > 0.5``. ``model`` is the class that was asked for it."""

    __slots__ = ("model", "name")

    def __init__(self, name: str, model: type | None = None) -> None:
        self.name = name
        self.model = model

    def __eq__(self, other: object) -> Predicate:  # type: ignore[override]
        return self.is_null() if other is None else Comparison(self.name, "=", other, self.model)

    def __ne__(self, other: object) -> Predicate:  # type: ignore[override]
        return self.is_not_null() if other is None else Comparison(self.name, "!=", other, self.model)

    def __lt__(self, other: object) -> Predicate:
        return Comparison(self.name, "<", other, self.model)

    def __le__(self, other: object) -> Predicate:
        return Comparison(self.name, "<=", other, self.model)

    def __gt__(self, other: object) -> Predicate:
        return Comparison(self.name, ">", other, self.model)

    def __ge__(self, other: object) -> Predicate:
        return Comparison(self.name, ">=", other, self.model)

    __hash__ = None  # type: ignore[assignment]

    def in_(self, values: Iterable[Any]) -> Predicate:
        """Return the predicate "the column has one of the values"; None means null."""
        if isinstance(values, str | bytes):
            raise TypeError(f"{self.name}: in_ takes a list of values, not one {type(values).__name__}")
        wanted = tuple(values)
        some = In(self.name, tuple(value for value in wanted if value is not None), self.model)
        return some if len(some.values) == len(wanted) else some | self.is_null()

    def is_null(self) -> Predicate:
        """Return the predicate "the column has no value"."""
        return IsNull(self.name, self.model)

    def is_not_null(self) -> Predicate:
        """Return the predicate "the column has a value"."""
        return Not(self.is_null())

    def startswith(self, prefix: str | bytes) -> Predicate:
        """Return the predicate "the column's text or bytes start with ``prefix``"."""
        return Comparison(self.name, "^=", prefix, self.model)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the column {self.name} is no predicate: write a comparison, such as == True")

    def __repr__(self) -> str:
        return f"<column {self.name}>"


def col(column: object) -> ColumnExpression:
    """Return ``column``, with the type that type checkers need: ``col(Document.page_rank) > 0.5``.

    For a type checker ``Document.page_rank`` has the type of the field, without ``in_`` and possibly without
    ``>``. Raises TypeError unless ``column`` is a column of a model.
    """
    if not isinstance(column, ColumnExpression):
        raise TypeError(f"{shown(column)} is no column of a model: give one, such as Document.page_rank")
    return column


def _joined(how: Literal["and", "or"], left: Predicate, right: object) -> Predicate:
    if not isinstance(right, Predicate):
        raise TypeError(f"{shown(right)} is no predicate: put each comparison into parentheses")
    sides = [one.parts if isinstance(one, Joined) and one.how == how else (one,) for one in (left, right)]
    return Joined(how, (*sides[0], *sides[1]))


Cells: TypeAlias = Callable[[str], bytes | None]
"""A function that returns the encoded value of a row's column with that name; None means null."""


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison of a bound predicate; ``op`` is an `Operator`, ``in`` or ``null``."""

    column: str
    op: Literal["=", "!=", "<", "<=", ">", ">=", "^=", "in", "null"]
    values: tuple[bytes, ...] = ()

    def holds(self, cells: Cells) -> bool | None:
        """Return True or False for the row, or None if the cell is null."""
        found = cells(self.column)
        if self.op == "null":
            return found is None
        if found is None:
            return None
        if self.op == "in":
            return found in self.values
        return COMPARE[self.op](found, self.values[0])


@dataclass(frozen=True, slots=True)
class Group:
    """A connective of a bound predicate; ``not`` has one part."""

    how: Literal["and", "or", "not"]
    parts: tuple[Bound, ...]

    def holds(self, cells: Cells) -> bool | None:
        """Return True or False for the row, or None if the result is unknown because of a null."""
        if self.how == "not":
            found = self.parts[0].holds(cells)
            return None if found is None else not found
        settled = self.how == "or"
        answer: bool | None = not settled
        for part in self.parts:
            found = part.holds(cells)
            if found is settled:
                return settled
            if found is None:
                answer = None
        return answer


Bound: TypeAlias = Test | Group

COMPARE: Final[Mapping[str, Callable[[bytes, bytes], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "^=": bytes.startswith,
}


def bind(predicate: Predicate, definition: TableDefinition) -> Bound:
    """Return the predicate over encoded values of a table's columns.

    Raises:
        UnknownColumn: the table has no such column.
        TypeError: ``predicate`` is no predicate, a value does not have the column's type, or the type has no
        order.
        ValueError: a value does not fit the column, or the predicate has too many parts.
    """
    count = 0

    def bound(part: object, depth: int) -> Bound:
        nonlocal count
        count += 1
        if count > MOST_NODES or depth > MOST_DEPTH:
            raise ValueError(
                f"a predicate has at most {MOST_NODES} parts, nested at most {MOST_DEPTH} deep: split it up"
            )
        if isinstance(part, Not):
            return Group("not", (bound(part.part, depth + 1),))
        if isinstance(part, Joined):
            return Group(part.how, tuple(bound(one, depth + 1) for one in part.parts))
        if isinstance(part, IsNull):
            definition.column(part.column)
            return Test(part.column, "null")
        if isinstance(part, In | Comparison):
            return _bound_test(part, definition)
        raise TypeError(f"{shown(part)} is no predicate: write one such as (Document.page_rank > 0.5)")

    return bound(predicate, 0)


def _bound_test(part: In | Comparison, definition: TableDefinition) -> Test:
    kind = column_type(definition.column(part.column).type)
    if not kind.has_order:
        raise TypeError(f"{part.column} is {kind.name}, which can only be compared with None")
    if isinstance(part, In):
        if len(part.values) > MOST_VALUES:
            raise ValueError(
                f"{part.column} is compared with {len(part.values)} values, and at most {MOST_VALUES} are "
                "allowed: split the list"
            )
        values = {_encoded(part.column, kind, value) for value in part.values}
        return Test(part.column, "in", tuple(sorted(values)))
    if part.op not in OPERATORS:
        raise TypeError(f"{part.column} {part.op}: an operator is one of {' '.join(OPERATORS)}")
    if part.op == "^=" and kind.name not in {"str", "bytes"}:
        raise TypeError(f"{part.column} is {kind.name}: startswith is for str and bytes")
    if part.value is None:
        raise TypeError(f"{part.column} {part.op} None: only == and != compare with None")
    return Test(part.column, part.op, (_encoded(part.column, kind, part.value),))


def _encoded(name: str, kind: ColumnType, value: Any) -> bytes:
    return encode_value(name, kind.encode, value.value if isinstance(value, Enum) else value)


def columns_of(bound: Bound) -> Iterator[str]:
    """Yield the column of each test."""
    if isinstance(bound, Test):
        yield bound.column
    else:
        for part in bound.parts:
            yield from columns_of(part)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The encoded values that a predicate allows in a column.

    ``values`` has the allowed values; ``low`` and ``high`` are inclusive bounds. None means no limit.
    ``high`` need not be a value of the column. If the predicate contradicts itself, ``low`` may be above
    ``high``.
    """

    values: frozenset[bytes] | None = None
    low: bytes | None = None
    high: bytes | None = None


def bounds_of(bound: Bound | None) -> dict[str, Bounds]:
    """Return, by column, the bounds that follow from the `required` tests."""
    found: dict[str, Bounds] = {}
    for test in required(bound):
        if (narrowed := _narrowed(found.get(test.column, Bounds()), test)) is not None:
            found[test.column] = narrowed
    return found


def required(bound: Bound | None) -> Iterator[Test]:
    """Yield the tests that must all be true for the predicate to be true."""
    if isinstance(bound, Test):
        yield bound
    elif bound is not None and bound.how == "and":
        for part in bound.parts:
            yield from required(part)


def _narrowed(bounds: Bounds, test: Test) -> Bounds | None:
    match test.op:
        case "=" | "in":
            values = frozenset(test.values)
            more = Bounds(values if bounds.values is None else bounds.values & values)
        case ">" | ">=":
            more = Bounds(bounds.values, low=test.values[0])
        case "<" | "<=":
            more = Bounds(bounds.values, high=test.values[0])
        case "^=":
            # The upper bound is inclusive, so bounds also allow the least value above the prefix.
            more = Bounds(bounds.values, test.values[0], least_above(test.values[0]))
        case _:
            return None
    low = max((one for one in (bounds.low, more.low) if one is not None), default=None)
    high = min((one for one in (bounds.high, more.high) if one is not None), default=None)
    kept = more.values
    if kept is not None:
        kept = frozenset(one for one in kept if (low is None or one >= low) and (high is None or one <= high))
    return Bounds(kept, low, high)


@dataclass(frozen=True, slots=True)
class Program:
    """A bound predicate in the form of arguments: `scripts/select.lua` takes them after the selected columns.

    ``columns`` is the number of cells that the predicate reads in each row, ``tests`` the number of its tests
    and connectives. Both determine the time that a row takes.
    """

    arguments: tuple[bytes | int, ...]
    columns: int = 0
    tests: int = 0


EVERYTHING: Final = Program((0, 0))
"""The program that is true for every row."""


def program(bound: Bound | None, definition: TableDefinition) -> Program:
    """Return the program of a predicate over a table; a predicate of None selects every row."""
    if bound is None:
        return EVERYTHING
    names = set(columns_of(bound))
    cells = [column for column in definition.value_columns if column.name in names]
    widths = [column_type(column.type).width or 0 for column in definition.key_columns]
    if len(cells) == len(names):
        widths = []  # no test reads the key, so the script need not split it
    # The script numbers the cells first, then the columns of the key.
    numbers = {column.name: number for number, column in enumerate(cells, 1)}
    numbers |= {name: number for number, name in enumerate(definition.key, len(cells) + 1)}
    arguments: list[bytes | int] = [len(widths), *widths, len(cells)]
    for column in cells:
        arguments += (column.stored.encode(), b"" if column.missing is None else b"=" + column.missing)
    tests = list(_in_prefix_order(bound, numbers))
    arguments += [one for test in tests for one in test]
    return Program(tuple(arguments), len(cells), len(tests))


def _in_prefix_order(bound: Bound, numbers: dict[str, int]) -> Iterator[tuple[bytes | int, ...]]:
    if isinstance(bound, Group):
        yield (b"not",) if bound.how == "not" else (bound.how.encode(), len(bound.parts))
        for part in bound.parts:
            yield from _in_prefix_order(part, numbers)
    elif bound.op == "in":
        yield (b"in", numbers[bound.column], len(bound.values), *bound.values)
    else:
        yield (bound.op.encode(), numbers[bound.column], *bound.values)
