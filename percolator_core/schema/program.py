"""Predicates as arguments of `scripts/select.lua`, which evaluates them by the rules of `predicate.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from percolator_core.schema.definition import TableDefinition
from percolator_core.schema.predicate import Bound, Group, Test, columns_of
from percolator_core.schema.types import column_type


@dataclass(frozen=True, slots=True)
class Program:
    """A predicate as the script takes it.

    ``arguments`` go behind the columns of the select; ``columns`` counts the cells that the predicate reads
    of a row and ``tests`` what it does with them: a measure of the time that a row takes.
    """

    arguments: tuple[bytes | int, ...]
    columns: int = 0
    tests: int = 0


EVERYTHING: Final = Program((0, 0))
"""No predicate: every row is wanted."""


def program(bound: Bound | None, definition: TableDefinition) -> Program:
    """The program of a predicate over a table; None wants every row."""
    if bound is None:
        return EVERYTHING
    names = dict.fromkeys(columns_of(bound))
    cells = [column for column in definition.value_columns if column.name in names]
    widths = [column_type(column.type).width or 0 for column in definition.key_columns]
    if len(cells) == len(names):
        widths = []  # it asks for nothing of the key, which so need not be taken apart
    # Cells come first, the parts of the key behind them.
    numbers = {column.name: number for number, column in enumerate(cells, 1)}
    numbers |= {name: number for number, name in enumerate(definition.key, len(cells) + 1)}
    arguments: list[bytes | int] = [len(widths), *widths, len(cells)]
    for column in cells:
        default = column.missing
        arguments += (column.stored.encode(), b"" if default is None else b"=" + default)
    tests = list(_written(bound, numbers))
    arguments += [one for test in tests for one in test]
    return Program(tuple(arguments), len(cells), len(tests))


def _written(bound: Bound, numbers: dict[str, int]) -> Iterator[tuple[bytes | int, ...]]:
    """Each connective in front of its parts."""
    if isinstance(bound, Group):
        yield (b"not",) if bound.how == "not" else (bound.how.encode(), len(bound.parts))
        for part in bound.parts:
            yield from _written(part, numbers)
    else:
        yield _test(bound, numbers[bound.column])


def _test(test: Test, number: int) -> tuple[bytes | int, ...]:
    if test.op == "in":
        return (b"in", number, len(test.values), *test.values)
    return (test.op.encode(), number, *test.values)
