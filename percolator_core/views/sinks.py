"""Sinks turn the contributions of source rows into the rows of a view: one by one, by group, or the first n.

A contribution is what one source row gives to the view, packed. It is kept with the source row, so that a
later change takes back exactly what the row gave. A delta is what one or several changes do to a group or
partition. Deltas of one target may be combined in any order and any grouping.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from percolator_core.schema.definitions import TableDefinition
from percolator_core.views.output import Cells, packed_row, unpacked_row
from percolator_core.views.packing import Packable, pack, unpack

_LENGTH: Final = struct.Struct(">I")

RowWrite = tuple[bytes, Cells | None]
"""A write to the view: the row key of one of its rows, and the new cells; None removes the row."""


class Multiset(Protocol):
    """The ordered multisets of one group, one for each number of an argument.

    A delta that takes a value back may arrive before the delta that has added it. Then the value has a
    *debt*: its count is below 0. The methods return such a count as 0.
    """

    def add(self, changes: Mapping[tuple[int, bytes], int]) -> Mapping[tuple[int, bytes], tuple[int, int]]:
        """Add to the counts of ``(argument, value)``; return the counts before and after, at least 0 each."""

    def first(self, argument: int, limit: int) -> Sequence[tuple[bytes, int]]:
        """Return the ``limit`` smallest values with their counts, in ascending order, after `add`."""

    def last(self, argument: int, limit: int) -> Sequence[tuple[bytes, int]]:
        """Return the ``limit`` largest values with their counts, in descending order."""


@dataclass(frozen=True, slots=True)
class RowSink:
    """One row of the view for each source row that gives one; the contribution is that row."""

    definition: TableDefinition

    def row(self, contribution: bytes) -> tuple[bytes, Cells]:
        """Return the row key and the cells of the view's row."""
        return unpacked_row(self.definition, contribution)

    def changes(self, before: bytes | None, after: bytes | None) -> list[RowWrite]:
        """Return the writes to the view when a source row's contribution changes."""
        if before == after:
            return []
        old = None if before is None else self.row(before)
        new = None if after is None else self.row(after)
        found: list[RowWrite] = []
        if old is not None and (new is None or new[0] != old[0]):
            found.append((old[0], None))
        return found if new is None else [*found, new]


@dataclass(frozen=True, slots=True)
class TopSink:
    """The first ``limit`` rows of each partition."""

    definition: TableDefinition
    limit: int

    def target(self, contribution: bytes) -> bytes:
        """Return the partition of a contribution, as a key."""
        found: bytes = unpack(contribution)[0]
        return found

    def delta(self, contribution: bytes, sign: int) -> bytes:
        """Return the delta that adds a contribution (1) or takes it back (-1)."""
        _, entry, row = unpack(contribution)
        return pack([[entry, row, sign]])

    def combine(self, deltas: Iterable[bytes]) -> bytes | None:
        """Return the sum of the deltas of one partition; None if they change nothing."""
        counts: dict[tuple[bytes, bytes], int] = {}
        for delta in deltas:
            for entry, row, count in unpack(delta):
                counts[entry, row] = counts.get((entry, row), 0) + count
        left: list[Packable] = [
            [entry, row, count] for (entry, row), count in sorted(counts.items()) if count
        ]
        return pack(left) if left else None

    def values(self, delta: bytes) -> list[tuple[int, bytes]]:
        """Return the elements of the partition's multiset that a delta changes."""
        return [(0, _element(entry, row)) for entry, row, _ in unpack(delta)]

    def apply(self, delta: bytes, multiset: Multiset) -> list[RowWrite]:
        """Apply a delta to the partition's entries, and return the writes to the view."""
        before = self._rows(multiset)
        multiset.add({(0, _element(entry, row)): count for entry, row, count in unpack(delta)})
        after = self._rows(multiset)
        changes: list[RowWrite] = [(key, None) for key in before if key not in after]
        return changes + [(key, cells) for key, cells in after.items() if before.get(key) != cells]

    def _rows(self, multiset: Multiset) -> dict[bytes, Cells]:
        elements = (element for element, _ in multiset.first(0, self.limit))
        return dict(unpacked_row(self.definition, _row_of(element)) for element in elements)


def _element(entry: bytes, row: bytes) -> bytes:
    """Return an element of a partition's multiset: it sorts like the entry, and ends with the row."""
    return entry + row + _LENGTH.pack(len(row))


def _row_of(element: bytes) -> bytes:
    [length] = _LENGTH.unpack(element[-_LENGTH.size :])
    return element[-_LENGTH.size - length : -_LENGTH.size]


def ranked(
    partition: bytes, order: bytes, identity: bytes, row: tuple[bytes, Sequence[bytes | None]]
) -> bytes:
    """Return the contribution to a `TopSink`; ``identity`` decides between rows with the same order."""
    return pack([partition, order + identity, packed_row(*row)])


WHOLE: Final = b"\x00"
"""The key of the only group of a SELECT without GROUP BY."""
