"""Which tablet a row is in, and which tablets a predicate leaves."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from percolator_core.schema.definition import HashRule, RangeRule, TableDefinition
from percolator_core.schema.keys import KeyCodec

MOST_COMBINATIONS: Final = 1000
"""Combinations of values that pruning tries of the columns of one hash rule; beyond, it prunes nothing."""

_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a predicate leaves of a column, in encoded values: one of ``values`` between two inclusive bounds.

    None is no such bound. ``high`` may be no value of the column, and ``low`` is above ``high`` where the
    predicate contradicts itself.
    """

    values: frozenset[bytes] | None = None
    low: bytes | None = None
    high: bytes | None = None


class Partition:
    """The tablets of a typed table.

    A tablet's number is ``range number * buckets + bucket``, where ``bucket`` counts through all hash rules.
    Without any rule it is by a hash of the whole key.
    """

    __slots__ = ("_codec", "_hashes", "_ranges", "_whole", "buckets")

    def __init__(self, definition: TableDefinition) -> None:
        self._codec = KeyCodec(definition)
        self._whole = tuple(range(len(definition.key)))
        position = {name: place for place, name in enumerate(definition.key)}
        hashes = _hash_rules(definition)
        self._hashes = tuple(
            (tuple(position[name] for name in rule.columns), rule.buckets) for rule in hashes
        )
        self._ranges = (
            None if definition.ranges is None else (position[definition.ranges.column], definition.ranges)
        )
        self.buckets = math.prod(rule.buckets for rule in hashes)

    def tablet_of(self, row: bytes) -> int:
        """The number of the tablet that holds the row. Raises ValueError for what is no key of the table."""
        parts = self._codec.split(row)
        bucket = 0
        for seed, (places, buckets) in enumerate(self._hashes):
            bucket = (
                bucket * buckets + self._bucket(places, [parts[place] for place in places], seed) % buckets
            )
        if self._ranges is None:
            return bucket
        place, rule = self._ranges
        return rule.numbers[bisect_right(rule.splits, parts[place])] * self.buckets + bucket

    def prune(self, bounds: Mapping[str, Bounds]) -> list[int]:
        """The tablets in which rows within the bounds may be, by number, ascending.

        ``bounds`` has some columns by name; it is what every row that is wanted keeps.
        """
        names = self._codec.columns
        choices = [
            self._buckets_left(places, [bounds.get(names[place]) for place in places], seed, buckets)
            for seed, (places, buckets) in enumerate(self._hashes)
        ]
        buckets = [0]
        for (_, count), left in zip(self._hashes, choices, strict=True):
            buckets = [bucket * count + one for bucket in buckets for one in left]
        if self._ranges is None:
            return sorted(buckets)
        place, rule = self._ranges
        numbers = _ranges_left(rule, bounds.get(names[place]))
        return sorted(number * self.buckets + bucket for number in numbers for bucket in buckets)

    def _bucket(self, places: tuple[int, ...], parts: Sequence[bytes], seed: int) -> int:
        """The hash of some parts of the key; of the whole key the hash of the row, as in raw tables."""
        if places == self._whole:
            return crc32(self._codec.join(parts), seed)
        found = seed
        for part in parts:
            found = crc32(part, crc32(len(part).to_bytes(4, "big"), found))
        return _mixed(found)

    def _buckets_left(
        self, places: tuple[int, ...], bounds: Sequence[Bounds | None], seed: int, buckets: int
    ) -> Sequence[int]:
        values = [one.values for one in bounds if one is not None and one.values is not None]
        if len(values) < len(bounds) or math.prod(map(len, values)) > MOST_COMBINATIONS:
            return range(buckets)
        return sorted({self._bucket(places, parts, seed) % buckets for parts in itertools.product(*values)})


def _mixed(found: int) -> int:
    """The last steps of MurmurHash3, for 32 bits.

    CRCs of values that differ in the same bits differ in the same bits themselves, whatever the seed: alone
    they would leave buckets empty where the values are few, and where two columns have the same ones.
    """
    found = (found ^ found >> 16) * 0x85EBCA6B & _WORD
    found = (found ^ found >> 13) * 0xC2B2AE35 & _WORD
    return found ^ found >> 16


def tablets(hashes: Sequence[HashRule], ranges: RangeRule | None) -> int:
    """How many tablets the rules make."""
    return math.prod(rule.buckets for rule in hashes) * (len(ranges.numbers) if ranges else 1)


def placement(definition: TableDefinition) -> Callable[[bytes], int] | None:
    """What tells a row's tablet; None where it is the hash of the whole row key, as in raw tables."""
    if not definition.is_typed:
        return None
    if definition.ranges is None and [rule.columns for rule in _hash_rules(definition)] == [definition.key]:
        return None
    return Partition(definition).tablet_of


def _hash_rules(definition: TableDefinition) -> tuple[HashRule, ...]:
    if definition.hashes or definition.ranges is not None:
        return definition.hashes
    return (HashRule(definition.key, definition.tablets),)


def _ranges_left(rule: RangeRule, bounds: Bounds | None) -> set[int]:
    if bounds is None:
        return set(rule.numbers)
    # Values that the bounds leave out are none: `bounds_of` keeps none such.
    if bounds.values is not None:
        return {rule.numbers[bisect_right(rule.splits, value)] for value in bounds.values}
    first = 0 if bounds.low is None else bisect_right(rule.splits, bounds.low)
    last = len(rule.splits) if bounds.high is None else bisect_right(rule.splits, bounds.high)
    return set(rule.numbers[first : last + 1])
