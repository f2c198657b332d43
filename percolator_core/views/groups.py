"""Groups with aggregates: their state, and the arithmetic of its deltas.

The state of a group is a list of ints that are added up: the number of rows, and for each argument of
aggregates the number of values and their sum. A decimal is added as an int. A float is added as a multiple
of 2**-1074, which every finite float is, and the sum is rounded once, when it is read. So it depends on no
order, and taking back is exact. Infinities and NaN are counted apart.

`min`, `max`, `count(DISTINCT)` and lists need all values, which are in a multiset beside the state. The state
has the number of different values, the smallest and the largest value, so that most changes read nothing of
the multiset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.views.output import Cells, Encoder, cells_by_column
from percolator_core.views.packing import Packable, pack, split_sortable, unpack
from percolator_core.views.sinks import WHOLE, Multiset
from percolator_core.views.typed import Typed

_UNIT: Final = 1074
"""A finite float is a multiple of 2**-1074."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A value that aggregates take of each row.

    Its sums are in the state from ``at`` on: the number of values, then their sum if it is ``summed``. Of a
    float these are four ints: the sum, and the numbers of infinities, negative infinities and NaNs. If
    ``listed`` is True, the values are in a multiset, and if ``ends`` is True, the state has the
    smallest and the largest one.
    """

    kind: str
    at: int
    summed: bool = False
    listed: bool = False
    ends: bool = False

    @property
    def width(self) -> int:
        """The number of ints in the state."""
        return 1 + (0 if not self.summed else 4 if self.kind == "float" else 1)

    def add(self, sums: list[int], value: bytes, sign: int) -> None:
        """Add a value to the sums, or take it back."""
        sums[self.at] += sign
        if not self.summed:
            return
        if self.kind != "float":
            sums[self.at + 1] += sign * as_int(self.kind, value)
            return
        number: float = column_type("float").decode(value)
        if math.isfinite(number):
            sums[self.at + 1] += sign * units(number)
        else:
            sums[self.at + (4 if math.isnan(number) else 2 if number > 0 else 3)] += sign


def as_int(kind: str, value: bytes) -> int:
    """Return an encoded bool, int or decimal as an int; a decimal without its point."""
    if kind == "bool":
        return value[0]
    return int.from_bytes(value, "big") - (1 << (8 * len(value) - 1))


def units(number: float) -> int:
    """Return a finite float as a multiple of 2**-1074."""
    numerator, denominator = number.as_integer_ratio()
    return numerator << (_UNIT - denominator.bit_length() + 1)


def quotient(sums: Sequence[int], at: int, count: int = 1) -> float:
    """Return the sum of floats divided by ``count``, rounded once."""
    total, positive, negative, nans = sums[at : at + 4]
    if nans or (positive and negative):
        return math.nan
    if positive or negative:
        return math.inf if positive else -math.inf
    try:
        return total / (count << _UNIT)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


class Ends(NamedTuple):
    """The number of different values of an argument, the smallest and the largest one."""

    distinct: int = 0
    low: bytes | None = None
    high: bytes | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a group, from which aggregates read their results."""

    sums: Sequence[int]
    ends: Sequence[Ends]
    multiset: Multiset


Result = Callable[[Reading], Any]
"""The result of an aggregate."""


class Applied(NamedTuple):
    """The new state of a group, None if it has no rows; and its row, None if it is not visible.

    ``error`` says why a group that should be visible has no row.
    """

    state: bytes | None
    row: Cells | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class GroupSink:
    """One row of the view for each group.

    ``key_kinds`` are the types of the group's expressions. ``outputs`` and ``having`` are expressions over
    one row, which has the group's values and then the ``results``. If ``whole`` is True, there is one group,
    which exists without rows, too.
    """

    definition: TableDefinition
    key_kinds: tuple[str, ...]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    outputs: tuple[Typed, ...]
    having: Typed | None
    names: tuple[str, ...]
    encoder: Encoder
    whole: bool

    def target(self, contribution: bytes) -> bytes:
        """Return the group's key, which is the row key of its row."""
        found: bytes = unpack(contribution)[0]
        return found

    def delta(self, contribution: bytes, sign: int) -> bytes:
        """Return the delta that adds a contribution (1) or takes it back (-1)."""
        _, *values = unpack(contribution)
        sums = self._zeros()
        sums[0] = sign
        counts: list[Packable] = []
        for number, (argument, value) in enumerate(zip(self.arguments, values, strict=True)):
            if value is not None:
                argument.add(sums, value, sign)
                if argument.listed:
                    counts.append([number, value, sign])
        return pack([sums, counts])

    def combine(self, deltas: Iterable[bytes]) -> bytes | None:
        """Return the sum of the deltas of one group; None if they change nothing."""
        sums = self._zeros()
        counts: dict[tuple[int, bytes], int] = {}
        for delta in deltas:
            more, changes = unpack(delta)
            sums = [one + other for one, other in zip(sums, more, strict=True)]
            for number, value, count in changes:
                counts[number, value] = counts.get((number, value), 0) + count
        left: list[Packable] = [[*key, count] for key, count in sorted(counts.items()) if count]
        return pack([sums, left]) if left or any(sums) else None

    def values(self, delta: bytes) -> list[tuple[int, bytes]]:
        """Return the values of the group's multisets that a delta changes."""
        return [(number, value) for number, value, _ in unpack(delta)[1]]

    def apply(self, key: bytes, state: bytes | None, delta: bytes, multiset: Multiset) -> Applied:
        """Apply a delta to a group's state and multiset, and return the new state and row.

        If a result does not fit its column, the group has no row until a later delta mends it.
        """
        sums, ends = self._unpacked(state)
        more, changes = unpack(delta)
        sums = [one + other for one, other in zip(sums, more, strict=True)]
        counts = multiset.add({(number, value): count for number, value, count in changes}) if changes else {}
        for number, argument in enumerate(self.arguments):
            changed = {value: both for (at, value), both in counts.items() if at == number}
            if argument.listed and changed:
                ends[number] = _ends(ends[number], argument, number, changed, multiset)
        # A delta may come before one that it takes back. Until then, sums and rows may be below 0.
        is_there = any(sums) or any(one.distinct for one in ends)
        packed = pack([sums, [list(one) for one in ends]]) if is_there else None
        try:
            return Applied(packed, self.row(key, packed if sums[0] > 0 else None, multiset))
        except ValueError as error:
            return Applied(packed, None, str(error))

    def row(self, key: bytes, state: bytes | None, multiset: Multiset) -> Cells | None:
        """Return the cells of a group's row; None if it is not visible."""
        if state is None and not self.whole:
            return None
        sums, ends = self._unpacked(state)
        reading = Reading(sums, ends, multiset)
        rows = ((*self._key_values(key), *(result(reading) for result in self.results)),)
        if self.having is not None and self.having.value(rows) is not True:
            return None
        values = [one.value(rows) for one in self.outputs]
        return cells_by_column(self.definition, self.encoder.cells(values))

    def initial(self) -> tuple[bytes, Cells] | None:
        """Return the row of a view over empty tables, if it has one: a SELECT without GROUP BY."""
        cells = self.row(WHOLE, None, _EMPTY) if self.whole else None
        return None if cells is None else (WHOLE, cells)

    def _key_values(self, key: bytes) -> list[Any]:
        if self.whole:
            return []
        hidden = self.definition.key_columns[0].name not in self.names
        parts: Sequence[bytes | None] = (
            split_sortable(key) if hidden else KeyCodec(self.definition).split(key)
        )
        return [
            None if part is None else column_type(kind).decode(part)
            for kind, part in zip(self.key_kinds, parts, strict=True)
        ]

    def _zeros(self) -> list[int]:
        return [0] * (1 + sum(one.width for one in self.arguments))

    def _unpacked(self, state: bytes | None) -> tuple[list[int], list[Ends]]:
        if state is None:
            return self._zeros(), [Ends()] * len(self.arguments)
        sums, ends = unpack(state)
        return sums, [Ends(*one) for one in ends]


def _ends(
    old: Ends, argument: Argument, number: int, changed: dict[bytes, tuple[int, int]], multiset: Multiset
) -> Ends:
    """Return the new ends of a multiset; ``changed`` has the counts of a value before and after."""
    here = [value for value, (_, count) in changed.items() if count]
    gone = {value for value, (before, count) in changed.items() if before and not count}
    distinct = old.distinct - len(gone) + sum(1 for before, count in changed.values() if count and not before)
    if not argument.ends or not distinct:
        return Ends(distinct)
    low, high = old.low, old.high
    if low is None or high is None:
        low, high = min(here), max(here)
    low = multiset.first(number, 1)[0][0] if low in gone else min([low, *here])
    high = multiset.last(number, 1)[0][0] if high in gone else max([high, *here])
    return Ends(distinct, low, high)


class _Nothing:
    """The multisets of a group without rows."""

    def add(self, changes: Any) -> dict[tuple[int, bytes], tuple[int, int]]:
        raise NotImplementedError

    def first(self, argument: int, limit: int) -> list[tuple[bytes, int]]:
        del argument, limit
        return []

    last = first


_EMPTY: Final = _Nothing()
