"""The tablets of typed tables: the tablet of a row, and the tablets that can have rows for a predicate."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from percolator_core.schema.definitions import HashRule, RangeRule, TableDefinition
from percolator_core.schema.predicates import Bound, Bounds, bounds_of
from percolator_core.schema.row_keys import KeyCodec

MOST_COMBINATIONS: Final = 1000
"""The limit of combinations of values for one hash rule. Above the limit, the rule excludes no tablets."""

MOST_RANGES: Final = 1000
"""The limit of key ranges of a predicate. Above it, one range covers all values of a key column."""

_WORD: Final = 0xFFFFFFFF


class Partition:
    """The partition rules of a typed table.

    The number of a tablet is ``range number * buckets + bucket``; ``bucket`` combines all hash rules. A table
    without rules is hashed by the whole key.
    """

    __slots__ = ("_codec", "_hashes", "_ranges", "_whole", "buckets")

    def __init__(self, definition: TableDefinition) -> None:
        self._codec = KeyCodec(definition)
        self._whole = tuple(range(len(definition.key)))
        position_of = {name: position for position, name in enumerate(definition.key)}
        hashes = _hash_rules(definition)
        self._hashes = tuple(
            (tuple(position_of[name] for name in rule.columns), rule.buckets) for rule in hashes
        )
        self._ranges = (
            None if definition.ranges is None else (position_of[definition.ranges.column], definition.ranges)
        )
        self.buckets = math.prod(rule.buckets for rule in hashes)

    def tablet_of(self, row: bytes) -> int:
        """Return the number of the row's tablet. Raises ValueError if the row's key is not valid."""
        parts = self._codec.split(row)
        bucket = 0
        for seed, (positions, buckets) in enumerate(self._hashes):
            bucket = (
                bucket * buckets + self._bucket(positions, [parts[at] for at in positions], seed) % buckets
            )
        if self._ranges is None:
            return bucket
        position, rule = self._ranges
        return rule.numbers[bisect_right(rule.splits, parts[position])] * self.buckets + bucket

    def prune(self, bounds: Mapping[str, Bounds]) -> list[int]:
        """Return the tablets that can have rows within the bounds of some columns, in ascending order."""
        names = self._codec.columns
        buckets_left = [
            self._buckets_left(positions, [bounds.get(names[at]) for at in positions], seed, buckets)
            for seed, (positions, buckets) in enumerate(self._hashes)
        ]
        buckets = [0]
        for (_, count), some in zip(self._hashes, buckets_left, strict=True):
            buckets = [bucket * count + one for bucket in buckets for one in some]
        if self._ranges is None:
            return buckets
        position, rule = self._ranges
        numbers = _ranges_left(rule, bounds.get(names[position]))
        return sorted(number * self.buckets + bucket for number in numbers for bucket in buckets)

    def tablets_of_range(self, value: bytes) -> range:
        """Return the tablets of the range that contains an encoded value."""
        assert self._ranges is not None
        number = _range_number(self._ranges[1], value)
        return range(number * self.buckets, (number + 1) * self.buckets)

    def row_on_each_side(
        self, value: bytes, rows: Callable[[bytes, bytes | None], Iterator[bytes]]
    ) -> tuple[bytes | None, bytes | None]:
        """Return a row below a value of the range column, and a row at or above it; None means no such row.

        ``rows`` yields the rows from an inclusive lower to an exclusive upper bound; None means no bound.
        """
        assert self._ranges is not None
        position, _ = self._ranges
        if position == 0:
            bound, _ = self._codec.bounds((), low=value)
            return next(rows(b"", bound), None), next(rows(bound, None), None)
        below = above = None
        for row in rows(b"", None):
            if self._codec.split(row)[position] < value:
                below = row
            else:
                above = row
            if below is not None and above is not None:
                break
        return below, above

    def _bucket(self, positions: tuple[int, ...], parts: Sequence[bytes], seed: int) -> int:
        """Hash some parts of the key. The whole key is hashed like the row of a raw table."""
        if positions == self._whole:
            return crc32(self._codec.join(parts), seed)
        found = seed
        for part in parts:
            found = crc32(part, crc32(len(part).to_bytes(4, "big"), found))
        return _mixed(found)

    def _buckets_left(
        self, positions: tuple[int, ...], bounds: Sequence[Bounds | None], seed: int, buckets: int
    ) -> Sequence[int]:
        values = [one.values for one in bounds if one is not None and one.values is not None]
        if len(values) < len(bounds) or math.prod(map(len, values)) > MOST_COMBINATIONS:
            return range(buckets)
        found = (self._bucket(positions, parts, seed) for parts in itertools.product(*values))
        return sorted({one % buckets for one in found})


def _mixed(found: int) -> int:
    """Apply the last steps of MurmurHash3 for 32 bits.

    A CRC is linear: the bits in which two CRCs differ depend on the bits in which the values differ, but not
    on the seed. So without these steps some buckets would be empty if a column has few values, or if two
    columns have the same values.
    """
    found = (found ^ found >> 16) * 0x85EBCA6B & _WORD
    found = (found ^ found >> 13) * 0xC2B2AE35 & _WORD
    return found ^ found >> 16


def placement(definition: TableDefinition) -> Callable[[bytes], int] | None:
    """Return the function from row to tablet; None means the hash of the row key, as in raw tables."""
    if not definition.is_typed:
        return None
    if definition.ranges is None and [rule.columns for rule in _hash_rules(definition)] == [definition.key]:
        return None
    return Partition(definition).tablet_of


def _hash_rules(definition: TableDefinition) -> tuple[HashRule, ...]:
    if definition.hashes or definition.ranges is not None:
        return definition.hashes
    return (HashRule(definition.key, definition.tablets),)


def _range_number(rule: RangeRule, value: bytes) -> int:
    return rule.numbers[bisect_right(rule.splits, value)]


def _ranges_left(rule: RangeRule, bounds: Bounds | None) -> set[int]:
    if bounds is None:
        return set(rule.numbers)
    if bounds.values is not None:  # `bounds_of` keeps only values within ``low`` and ``high``
        return {_range_number(rule, value) for value in bounds.values}
    first = 0 if bounds.low is None else bisect_right(rule.splits, bounds.low)
    last = len(rule.splits) if bounds.high is None else bisect_right(rule.splits, bounds.high)
    return set(rule.numbers[first : last + 1])


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys of one tablet from ``low``, inclusive, to ``high``, exclusive; None means no upper bound."""

    tablet: int
    low: bytes
    high: bytes | None


def pieces(definition: TableDefinition, bound: Bound | None) -> list[Piece]:
    """Return the pieces of a table that can have rows for the predicate, ordered by tablet, then by key.

    If the predicate fixes the first columns of the key, each combination of their values is a range. Bounds
    of the next column narrow these ranges.
    """
    bounds = bounds_of(bound)
    partition, codec = Partition(definition), KeyCodec(definition)
    found = [
        Piece(tablet, low, high)
        for narrowed, low, high in _key_ranges(definition, codec, bounds)
        for tablet in partition.prune(narrowed)
    ]
    return sorted(found, key=lambda piece: (piece.tablet, piece.low))


def _key_ranges(
    definition: TableDefinition, codec: KeyCodec, bounds: Mapping[str, Bounds]
) -> Iterator[tuple[Mapping[str, Bounds], bytes, bytes | None]]:
    """Yield each range of keys, and the bounds of the columns within the range."""
    fixed: list[Sequence[bytes]] = []
    for name in definition.key:
        values = bounds[name].values if name in bounds else None
        if values is None or math.prod(map(len, fixed)) * len(values) > MOST_RANGES:
            break
        fixed.append(sorted(values))
    following = definition.key[len(fixed)] if len(fixed) < len(definition.key) else None
    next_bounds = bounds.get(following, Bounds()) if following is not None else Bounds()
    low, high = next_bounds.low, next_bounds.high
    if next_bounds.values is not None:  # too many values: one range covers all of them
        low, high = min(next_bounds.values), max(next_bounds.values)
    if low is not None and high is not None and low > high:
        return
    for equal in itertools.product(*fixed):
        narrowed = dict(bounds) | {
            name: Bounds(frozenset([value])) for name, value in zip(definition.key, equal, strict=False)
        }
        yield narrowed, *codec.bounds(equal, low, high)


def whole(definition: TableDefinition) -> list[Piece]:
    """Return the pieces of a whole table, one for each tablet."""
    return [Piece(tablet, b"", None) for tablet in range(definition.tablets)]
