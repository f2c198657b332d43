"""Where the rows that a predicate asks for can be: which tablets, and which keys in each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from percolator_core.schema.definition import TableDefinition
from percolator_core.schema.keys import KeyCodec
from percolator_core.schema.partition import Bounds, Partition
from percolator_core.schema.predicate import Bound, bounds_of

MOST_RANGES: Final = 1000
"""Ranges of keys that a predicate is taken apart into; beyond, one that covers all of them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys of one tablet: from ``low``, inclusive, to ``high``, exclusive; None is its end."""

    tablet: int
    low: bytes
    high: bytes | None


def pieces(definition: TableDefinition, bound: Bound | None) -> list[Piece]:
    """The pieces of a table in which rows may be for which the predicate is true, by tablet, then key.

    Where the predicate says which values the first columns of the key have, there is a range for each
    combination of them; bounds of the next column narrow it.
    """
    bounds = bounds_of(bound)
    partition, codec = Partition(definition), KeyCodec(definition)
    found = [
        Piece(tablet, low, high)
        for narrowed, low, high in _ranges(definition, codec, bounds)
        for tablet in partition.prune(narrowed)
    ]
    return sorted(found, key=lambda piece: (piece.tablet, piece.low))


def _ranges(
    definition: TableDefinition, codec: KeyCodec, bounds: Mapping[str, Bounds]
) -> Iterator[tuple[Mapping[str, Bounds], bytes, bytes | None]]:
    """Each range of keys, with the bounds that hold within it."""
    fixed: list[Sequence[bytes]] = []
    for name in definition.key:
        values = bounds[name].values if name in bounds else None
        if values is None or math.prod(map(len, fixed)) * len(values) > MOST_RANGES:
            break
        fixed.append(sorted(values))
    following = definition.key[len(fixed)] if len(fixed) < len(definition.key) else None
    next_bounds = bounds.get(following, Bounds()) if following is not None else Bounds()
    low, high = next_bounds.low, next_bounds.high
    if next_bounds.values is not None:  # too many to be told apart
        low, high = min(next_bounds.values), max(next_bounds.values)
    if low is not None and high is not None and low > high:
        return
    for equal in itertools.product(*fixed):
        narrowed = dict(bounds) | {
            name: Bounds(frozenset([value])) for name, value in zip(definition.key, equal, strict=False)
        }
        yield narrowed, *codec.bounds(equal, low, high)


def whole(definition: TableDefinition) -> list[Piece]:
    """All of a table, a piece a tablet."""
    return [Piece(tablet, b"", None) for tablet in range(definition.tablets)]
