"""Where the rows of a table that is cut into ranges lie beside a value of the range's column."""

from __future__ import annotations

import math
from bisect import bisect_right

from percolator_core.schema.definition import RangeRule, TableDefinition
from percolator_core.schema.keys import KeyCodec


class Spread:
    """Rows of a table with ranges. ``in_order`` is whether they sort by the column: it is the key's first."""

    __slots__ = ("_buckets", "_codec", "_place", "_rule", "in_order")

    def __init__(self, definition: TableDefinition) -> None:
        assert definition.ranges is not None
        self._rule: RangeRule = definition.ranges
        self._codec = KeyCodec(definition)
        self._place = definition.key.index(self._rule.column)
        self._buckets = math.prod(rule.buckets for rule in definition.hashes)
        self.in_order = self._place == 0

    def tablets_with(self, value: bytes) -> range:
        """The numbers of the tablets whose range has the encoded value."""
        number = self._rule.numbers[bisect_right(self._rule.splits, value)]
        return range(number * self._buckets, (number + 1) * self._buckets)

    def least_row(self, value: bytes) -> bytes:
        """The least row key that is not below the value, if rows sort by it."""
        return self._codec.bounds((), low=value)[0]

    def is_below(self, row: bytes, value: bytes) -> bool:
        """Whether a row is below the value."""
        return self._codec.split(row)[self._place] < value

    def describe(self, row: bytes) -> str:
        """A row by its key, for a person."""
        return self._codec.describe(row)
