"""Filters of raw tables, in the language of `expression`: ``row`` is the row key, and values are bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final

from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.expression import parse
from percolator_core.schema.predicates import (
    Bound,
    Bounds,
    Joined,
    Predicate,
    bind,
    bounds_of,
    columns_of,
    required,
)

ROW: Final = "row"
"""The name of the row key in a filter."""


class _RawRow(TableDefinition):
    """The definition of a raw table for a filter: every name is a column of bytes."""

    def column(self, name: str) -> Column:
        return Column(name, "bytes", nullable=True)


@dataclass(frozen=True, slots=True)
class RawFilter:
    """A predicate over the row key and the cells of a raw row; a missing cell is null.

    ``columns`` are the columns that the filter compares. If ``needs_cell`` is True, every row that meets the
    filter has a cell in one of these columns, so a scan may read only these columns.
    """

    bound: Bound
    columns: tuple[str, ...]
    needs_cell: bool
    key: Bounds

    @classmethod
    def of(cls, conditions: Iterable[str | Predicate], table: str) -> RawFilter:
        """Return the conjunction of the conditions.

        Raises:
            TypeError: a predicate compares with a value that is not bytes.
            ValueError: an expression cannot be read, or the filter has too many parts.
        """
        row = _RawRow(table)
        found = [parse(one, row) if isinstance(one, str) else one for one in conditions]
        bound = bind(reduce(and_, found, Joined("and", ())), row)
        tested = dict.fromkeys(columns_of(bound))
        needs_cell = any(test.column != ROW and test.op != "null" for test in required(bound))
        key = bounds_of(bound).get(ROW, Bounds())
        return cls(bound, tuple(name for name in tested if name != ROW), needs_cell, key)

    def holds(self, row: bytes, cells: Mapping[str, bytes | None]) -> bool:
        """Return True if the row meets the filter."""
        return self.bound.holds(lambda name: row if name == ROW else cells.get(name)) is True

    def key_ranges(self) -> list[tuple[bytes, bytes | None]]:
        """Return the ranges of row keys that may meet the filter: inclusive lower, exclusive upper bounds."""
        low, high = self.key.low or b"", self.key.high
        if self.key.values is not None:
            return [(one, one + b"\0") for one in sorted(self.key.values)]
        if high is not None and low > high:
            return []
        return [(low, None if high is None else high + b"\0")]
