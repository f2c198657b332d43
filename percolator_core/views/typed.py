"""Compiled expressions: a function of the rows of a branch's inputs, with the type of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from percolator_core.views.kinds import widening

Row: TypeAlias = tuple[Any, ...]
"""The Python values of the columns that a plan reads of one input, in the order of `Input.columns`."""

Rows: TypeAlias = Sequence[Row]
"""One row for each input of a branch. Where a left join finds no row, all values are None."""

Evaluate: TypeAlias = Callable[[Rows], Any]

Slot: TypeAlias = tuple[int, str]
"""The number of an input, and the name of its column."""


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression. ``slots`` are the columns that it reads; ``slot`` is set if it is one plain column.

    ``literal`` is the value of a constant that is written in the SQL; its ``is_literal`` is True.
    """

    kind: str
    nullable: bool
    value: Evaluate
    slots: frozenset[Slot] = frozenset()
    slot: Slot | None = None
    literal: Any = None
    is_literal: bool = False

    def widened(self, kind: str) -> Typed:
        """Return the expression as a value of a common kind."""
        if kind == self.kind:
            return self
        convert = widening(self.kind, kind)
        assert convert is not None, f"{self.kind} does not widen to {kind}"
        if self.is_literal:
            return constant(None if self.literal is None else convert(self.literal), kind)
        return mapped(self, kind, convert)


def constant(value: Any, kind: str) -> Typed:
    """Return the expression of one value."""
    return Typed(kind, value is None, lambda _rows: value, literal=value, is_literal=True)


def mapped(one: Typed, kind: str, function: Callable[[Any], Any], nullable: bool | None = None) -> Typed:
    """Return a function of a value; of null it is null."""
    inner = one.value

    def value(rows: Rows) -> Any:
        found = inner(rows)
        return None if found is None else function(found)

    return Typed(kind, one.nullable if nullable is None else nullable, value, one.slots)


def combined(
    parts: Sequence[Typed], kind: str, function: Callable[..., Any], nullable: bool = False
) -> Typed:
    """Return a function of several values; it is null if one of them is."""
    if len(parts) == 1:
        return mapped(parts[0], kind, function, nullable or parts[0].nullable)
    inner = [one.value for one in parts]

    def value(rows: Rows) -> Any:
        found = [one(rows) for one in inner]
        return None if None in found else function(*found)

    if len(parts) == 2:
        first, second = inner

        def value(rows: Rows) -> Any:
            left = first(rows)
            if left is None:
                return None
            right = second(rows)
            return None if right is None else function(left, right)

    return Typed(kind, nullable or any(one.nullable for one in parts), value, slots_of(parts))


def slots_of(parts: Sequence[Typed]) -> frozenset[Slot]:
    """Return the columns that some expressions read."""
    return frozenset().union(*(one.slots for one in parts))


def is_text(one: Typed) -> bool:
    """Return True for a text literal, which takes the type of what it is compared with."""
    return one.is_literal and one.kind == "str"
