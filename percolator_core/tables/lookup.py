"""The plan of a select: read ranges of keys, or use a secondary index that finds fewer rows.

An index is usable if the predicate requires some values, or a range of values, in the indexed column. The
plan depends on the present data: row keys are in sorted sets, so the store counts in one round trip the
entries and rows that each plan would read. Entries are read at the select's snapshot. Their rows are fetched
in batches, and the client evaluates the whole predicate.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import Final

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.key_ranges import KeyRange
from percolator_core.schema.partitions import Piece, pieces
from percolator_core.schema.predicates import Bound, Group, Test, bounds_of
from percolator_core.tables.indexes import Index, holder_of, indexes_of
from percolator_core.tables.query import Found, Query, Selector, in_order

A_FETCH: Final = 8
"""The number of rows that a select evaluates in the time of a fetch of one row by its key.

In a measurement with 100,000 rows of 8 columns, both plans took the same time if a tenth of the rows matched.
"""

FEW: Final = 200
"""If the ranges of keys have at most this many rows, no index is used: one round trip reads the rows."""

MOST_SORTED: Final = 200_000
"""At most this many entries are sorted by their rows in memory."""

MOST_COUNTED: Final = 64
"""Rows are counted in at most this many pieces of a table: a sample, if the table has more pieces."""

_FIRST_FETCH: Final = 64
_MOST_FETCHED: Final = 1000
"""The rows in the first and in the largest fetch. The first is small: a limit may soon be reached."""


@dataclass(frozen=True, slots=True)
class ByKey:
    """Read the pieces of the table that can have rows for the predicate."""

    query: Query
    pieces: Sequence[Piece]

    def __str__(self) -> str:
        definition = self.query.handle.definition
        tablets = len({piece.tablet for piece in self.pieces})
        narrowed = sum(1 for piece in self.pieces if piece.low or piece.high is not None)
        what = f"{narrowed} ranges of keys in " if narrowed else ""
        return f"{definition.name}: {what}{tablets} of {definition.tablets} tablets"


@dataclass(frozen=True, slots=True)
class ByIndex:
    """Read the entries of an index that can have rows for the predicate, and fetch their rows.

    ``values`` has the encoded values of the indexed column; None means a range of values. ``entries`` is the
    approximate number of entries, or None if they were not counted.
    """

    query: Query
    index: Index
    handle: TableHandle
    bound: Bound
    values: Sequence[bytes] | None
    entries: int | None = None

    @property
    def comes_in_order(self) -> bool:
        """True if the entries are sorted by their rows."""
        return self.values is not None and len(self.values) == 1

    def __str__(self) -> str:
        values = self.values
        what = "a range" if values is None else "1 value" if len(values) == 1 else f"{len(values)} values"
        about = "" if self.entries is None else f", about {self.entries} rows"
        return f"{self.query.handle.name}: index {self.handle.name}, {what}{about}"


def choose(t: Selector, query: Query, limit: int | None) -> ByKey | ByIndex:
    """Return the plan of a query for the first ``limit`` rows; None means all rows."""
    definition = query.handle.definition
    by_key = ByKey(query, pieces(definition, query.bound))
    candidates = _candidates(t, query) if definition.indexes else []
    if not candidates or all(piece.high == piece.low + b"\x00" for piece in by_key.pieces):
        return by_key
    for one in candidates:
        if one.index.rule.unique and one.values is not None and len(one.values) <= MOST_COUNTED:
            return one
    of_indexes = [(one.handle, pieces(one.handle.definition, one.bound)) for one in candidates]
    rows, *entries = _counted(t, [(query.handle, by_key.pieces), *of_indexes])
    if rows <= FEW:
        return by_key
    fewest, best = min(zip(entries, candidates, strict=True), key=itemgetter(0))
    fetched = fewest if limit is None else min(fewest, limit)
    looked_at = rows if limit is None else min(rows, limit * rows // max(fewest, 1))
    sorted_first = 0 if best.comes_in_order else fewest
    if fetched * A_FETCH + sorted_first > looked_at or (best.values is None and fewest > MOST_SORTED):
        return by_key
    return replace(best, entries=fewest)


def found_rows(t: Selector, query: Query, *, limit: int | None, reverse: bool) -> Iterator[Found]:
    """Yield at most ``limit`` rows of the query in the order of their keys.

    Writes of the same transaction during the iteration may be seen or not.
    """
    plan = choose(t, query, limit)
    if isinstance(plan, ByKey):
        own = frozenset(t.own_rows(query.handle.name))
        return in_order(t, query, plan.pieces, limit=limit, reverse=reverse, own=own)
    found = by_index(t, plan, limit=limit, reverse=reverse)
    return islice(itertools.chain.from_iterable(found), limit)


def _candidates(t: Selector, query: Query) -> list[ByIndex]:
    bounds = bounds_of(query.bound)
    found: list[ByIndex] = []
    for index in indexes_of(query.handle):
        known = bounds.get(index.rule.column)
        if known is None or not index.has_all(t.start_timestamp):
            continue
        handle = t.handle_of(index.rule.table)
        column = handle.definition.key[0]
        if known.values is not None:
            values = tuple(sorted(known.values))
            found.append(ByIndex(query, index, handle, Test(column, "in", values), values))
        else:
            low = () if known.low is None else (Test(column, ">=", (known.low,)),)
            high = () if known.high is None else (Test(column, "<=", (known.high,)),)
            found.append(ByIndex(query, index, handle, Group("and", (*low, *high)), None))
    return found


def _counted(t: Selector, wanted: Sequence[tuple[TableHandle, Sequence[Piece]]]) -> list[int]:
    """Return the approximate number of rows in the pieces of each table, in one round trip."""
    asked: list[KeyRange] = []
    shares: list[tuple[int, int, int]] = []
    for handle, every in wanted:
        some = every[:: -(-len(every) // MOST_COUNTED) or 1]
        shares.append((len(asked), len(some), len(every)))
        asked += [(handle.tags[piece.tablet], piece.low, piece.high) for piece in some]
    counts = t.count_rows(asked) if asked else []
    return [sum(counts[first : first + some]) * every // some if some else 0 for first, some, every in shares]


def by_index(
    t: Selector, plan: ByIndex, *, limit: int | None = None, reverse: bool = False
) -> Iterator[list[Found]]:
    """Yield the rows of the query in the order of their keys, one list for each fetch.

    ``limit`` is the number of needed rows, if known.
    """
    size = _FIRST_FETCH if limit is None else min(max(limit, 1), _MOST_FETCHED)
    rows = _rows(t, plan, reverse)
    while some := list(islice(rows, size)):
        yield plan.query.judge_many(t, some)
        size = min(2 * size, _MOST_FETCHED)


def _rows(t: Selector, plan: ByIndex, reverse: bool) -> Iterator[bytes]:
    """Yield the keys of the rows with entries, in order."""
    index, values = plan.index, plan.values
    if index.rule.unique and values is not None:
        holder = holder_of(plan.handle)
        found = t.values_of((plan.handle, value, [holder]) for value in values)
        return iter(sorted((row for (row,) in found if row is not None), reverse=reverse))
    if values is not None and (plan.comes_in_order or (plan.entries or 0) > MOST_SORTED):
        column = plan.handle.definition.key[0]
        streams = [_of_entries(t, plan, Test(column, "=", (one,)), reverse) for one in values]
        return streams[0] if len(streams) == 1 else heapq.merge(*streams, reverse=reverse)
    return iter(sorted(_of_entries(t, plan, plan.bound, reverse=False), reverse=reverse))


def _of_entries(t: Selector, plan: ByIndex, bound: Bound, reverse: bool) -> Iterator[bytes]:
    """Yield the row key of each entry, in the order of the entries."""
    index, definition = plan.index, plan.handle.definition
    columns = definition.value_columns if index.rule.unique else ()
    query = Query(plan.handle, columns, bound)
    own = frozenset(t.own_rows(plan.handle.name))
    found = in_order(t, query, pieces(definition, bound), limit=None, reverse=reverse, own=own)
    rows = (index.row_of(entry, next(iter(cells), None)) for entry, cells in found)
    return (row for row in rows if row is not None)
