"""Predicates over the columns of a row: what a select asks for.

A predicate is written with columns of a model, ``(Document.page_rank > 0.5) & (Document.url >= "a")``, parsed
from a text, or handed over by Spark. `bind` turns it into one over encoded values, which the store evaluates
(`scripts/select.lua`) and, where it cannot, the client (`Bound.holds`), by the same rules.

The logic is SQL's: a comparison with a null is neither true nor false, and so is what hangs on it alone. A
row is wanted where the predicate is true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NoReturn, TypeAlias

from percolator_core.schema.definition import TableDefinition
from percolator_core.schema.keys import least_above
from percolator_core.schema.partition import Bounds
from percolator_core.schema.types import ColumnType, column_type, encode_value, shown

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "^="]
OPERATORS: Final[tuple[Operator, ...]] = ("=", "!=", "<=", ">=", "^=", "<", ">")
"""``^=`` is: starts with."""

MOST_NODES: Final = 2000
"""Comparisons and connectives of one predicate, at most."""

MOST_VALUES: Final = 5000
"""Values of one ``in_``, at most: the store is sent them with each step of a select."""

MOST_DEPTH: Final = 50
"""How deeply they may be nested."""


class Predicate:
    """Whether a row is wanted. ``&``, ``|`` and ``~`` combine predicates; put comparisons in parentheses."""

    __slots__ = ()

    def __and__(self, other: object) -> Predicate:
        return _joined("and", self, other)

    def __or__(self, other: object) -> Predicate:
        return _joined("or", self, other)

    def __invert__(self) -> Predicate:
        return Not(self)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a predicate is neither true nor false before it is asked of a row: combine predicates with "
            "& | ~, not with and, or, not, and write a < x < b as (x > a) & (x < b)"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(Predicate):
    """``column op value``; the value is of the column's Python type."""

    column: str
    op: Operator
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class In(Predicate):
    """The column has one of the values."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class IsNull(Predicate):
    """The column has no value."""

    column: str


@dataclass(frozen=True, slots=True, eq=False)
class Not(Predicate):
    """The part is false."""

    part: Predicate


@dataclass(frozen=True, slots=True, eq=False)
class Joined(Predicate):
    """All parts are true, or one of them is."""

    how: Literal["and", "or"]
    parts: tuple[Predicate, ...]


class ColumnExpression:
    """A column of a table, to be compared: ``Document.page_rank > 0.5``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> Predicate:  # type: ignore[override]
        return IsNull(self.name) if other is None else Comparison(self.name, "=", other)

    def __ne__(self, other: object) -> Predicate:  # type: ignore[override]
        return Not(IsNull(self.name)) if other is None else Comparison(self.name, "!=", other)

    def __lt__(self, other: object) -> Predicate:
        return Comparison(self.name, "<", other)

    def __le__(self, other: object) -> Predicate:
        return Comparison(self.name, "<=", other)

    def __gt__(self, other: object) -> Predicate:
        return Comparison(self.name, ">", other)

    def __ge__(self, other: object) -> Predicate:
        return Comparison(self.name, ">=", other)

    __hash__ = None  # type: ignore[assignment]

    def in_(self, values: Iterable[Any]) -> Predicate:
        """The column has one of the values; None among them is the null."""
        if isinstance(values, str | bytes):
            raise TypeError(f"{self.name}: in_ takes a list of values, not one {type(values).__name__}")
        wanted = tuple(values)
        some = In(self.name, tuple(value for value in wanted if value is not None))
        return some if len(some.values) == len(wanted) else some | IsNull(self.name)

    def is_null(self) -> Predicate:
        """The column has no value."""
        return IsNull(self.name)

    def startswith(self, prefix: str | bytes) -> Predicate:
        """The text or bytes of the column begin so."""
        return Comparison(self.name, "^=", prefix)

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the column {self.name} is no predicate: compare it, such as with == True")

    def __repr__(self) -> str:
        return f"<column {self.name}>"


def col(column: object) -> ColumnExpression:
    """The column itself, ``col(Document.page_rank) > 0.5``, for type checkers.

    They take ``Document.page_rank`` for a value of the field's type, so they find no ``>`` in ``| None``, and
    no ``in_`` in anything. While a program runs there is no difference.

    Raises TypeError for what is no column of a model, such as a row's value.
    """
    if not isinstance(column, ColumnExpression):
        raise TypeError(f"{shown(column)} is no column: give one of a model, such as Document.page_rank")
    return column


def _joined(how: Literal["and", "or"], left: Predicate, right: object) -> Predicate:
    if not isinstance(right, Predicate):
        raise TypeError(f"{shown(right)} is no predicate: put each comparison into parentheses")
    parts: list[Predicate] = []
    for part in (left, right):
        parts += part.parts if isinstance(part, Joined) and part.how == how else (part,)
    return Joined(how, tuple(parts))


# Bound to a table: values are encoded, columns known.

Cells: TypeAlias = Callable[[str], bytes | None]
"""Gives the encoded value of a column of one row, by the column's name; None is null."""


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison of a bound predicate; ``op`` is one more than `Operator`: ``in``, ``null``."""

    column: str
    op: Literal["=", "!=", "<", "<=", ">", ">=", "^=", "in", "null"]
    values: tuple[bytes, ...] = ()

    def holds(self, cells: Cells) -> bool | None:
        """True, false, or None: it cannot be told of a null."""
        found = cells(self.column)
        if self.op == "null":
            return found is None
        if found is None:
            return None
        if self.op == "in":
            return found in self.values
        return _COMPARE[self.op](found, self.values[0])


@dataclass(frozen=True, slots=True)
class Group:
    """Connected tests of a bound predicate; ``not`` has one part."""

    how: Literal["and", "or", "not"]
    parts: tuple[Bound, ...]

    def holds(self, cells: Cells) -> bool | None:
        """True, false, or None: it cannot be told."""
        if self.how == "not":
            found = self.parts[0].holds(cells)
            return None if found is None else not found
        settled, result = self.how == "or", self.how == "and"
        answer: bool | None = result
        for part in self.parts:
            found = part.holds(cells)
            if found is settled:
                return settled
            if found is None:
                answer = None
        return answer


Bound: TypeAlias = Test | Group

_COMPARE: Final[Mapping[str, Callable[[bytes, bytes], bool]]] = {
    "=": lambda found, wanted: found == wanted,
    "!=": lambda found, wanted: found != wanted,
    "<": lambda found, wanted: found < wanted,
    "<=": lambda found, wanted: found <= wanted,
    ">": lambda found, wanted: found > wanted,
    ">=": lambda found, wanted: found >= wanted,
    "^=": lambda found, wanted: found.startswith(wanted),
}


def bind(predicate: Predicate, definition: TableDefinition) -> Bound:
    """The predicate over encoded values of a table's columns.

    Raises:
        UnknownColumn: the table has no such column.
        TypeError: it is no predicate, or a value is not of the column's type, or the type has no order.
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
            _type_of(part.column, definition)
            return Test(part.column, "null")
        if isinstance(part, In):
            kind = _ordered(part.column, definition)
            if len(part.values) > MOST_VALUES:
                raise ValueError(f"{part.column}: one of {len(part.values)} values is asked for: split it up")
            values = {_encoded(part.column, kind, value) for value in part.values}
            return Test(part.column, "in", tuple(sorted(values)))
        if isinstance(part, Comparison):
            return _bound_comparison(part, definition)
        raise TypeError(f"{shown(part)} is no predicate: write for instance (Document.page_rank > 0.5)")

    return bound(predicate, 0)


def _bound_comparison(part: Comparison, definition: TableDefinition) -> Test:
    if part.op not in OPERATORS:
        raise TypeError(f"{part.column} {part.op}: an operator is one of {' '.join(OPERATORS)}")
    kind = _ordered(part.column, definition)
    if part.op == "^=" and kind.name not in {"str", "bytes"}:
        raise TypeError(f"{part.column} is {kind.name}: only str and bytes can start with something")
    if part.value is None:
        raise TypeError(f"{part.column} {part.op} None: only == and != compare with None")
    return Test(part.column, part.op, (_encoded(part.column, kind, part.value),))


def _type_of(name: str, definition: TableDefinition) -> ColumnType:
    return column_type(definition.column(name).type)


def _ordered(name: str, definition: TableDefinition) -> ColumnType:
    kind = _type_of(name, definition)
    if not kind.has_order:
        raise TypeError(f"{name} is {kind.name}, which is compared with nothing but None")
    return kind


def _encoded(name: str, kind: ColumnType, value: Any) -> bytes:
    return encode_value(name, kind, value.value if isinstance(value, Enum) else value)


def columns_of(bound: Bound) -> Iterator[str]:
    """The columns that the predicate asks for, as often as it does."""
    if isinstance(bound, Test):
        yield bound.column
    else:
        for part in bound.parts:
            yield from columns_of(part)


def bounds_of(bound: Bound | None) -> dict[str, Bounds]:
    """What each row that is wanted keeps, by column: from the parts that all have to be true."""
    found: dict[str, Bounds] = {}
    for test in _required(bound):
        narrowed = _narrowed(found.get(test.column, Bounds()), test)
        if narrowed is not None:
            found[test.column] = narrowed
    return found


def _required(bound: Bound | None) -> Iterator[Test]:
    if isinstance(bound, Test):
        yield bound
    elif bound is not None and bound.how == "and":
        for part in bound.parts:
            yield from _required(part)


def _narrowed(bounds: Bounds, test: Test) -> Bounds | None:
    values: Sequence[bytes] | None = None
    low = high = None
    if test.op in {"=", "in"}:
        values = test.values
    elif test.op in {">", ">="}:
        low = test.values[0]
    elif test.op in {"<", "<="}:
        high = test.values[0]
    elif test.op == "^=":
        # What begins so ends below the least key above the prefix, which as a bound may be met: no harm.
        low, high = test.values[0], least_above(test.values[0])
    else:
        return None
    kept = bounds.values
    if values is not None:
        kept = frozenset(values) if kept is None else kept.intersection(values)
    low = max((one for one in (bounds.low, low) if one is not None), default=None)
    high = min((one for one in (bounds.high, high) if one is not None), default=None)
    if kept is not None:
        kept = frozenset(one for one in kept if (low is None or one >= low) and (high is None or one <= high))
    return Bounds(kept, low, high)
