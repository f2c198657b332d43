"""Selects over all tablets: the rows of a typed table for which a predicate is true, in the order of keys.

The store evaluates the predicate in bounded steps of one tablet (`percolator_core.tables.select`). Some rows
are read cell by cell, and evaluated here by the same rules: rows with a lock that hides the value, and rows
that the transaction has written.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Protocol, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.key_ranges import KeyRange
from percolator_core.schema.definitions import Column
from percolator_core.schema.partitions import Piece
from percolator_core.schema.predicates import Bound, columns_of
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.tables import rows
from percolator_core.tables.indexes import Reader
from percolator_core.tables.select import RowBatch, TabletSelect

Found: TypeAlias = tuple[bytes, Sequence[bytes | None]]
"""A row key, and the encoded values of the selected columns; None means null."""


class Selector(Reader, Protocol):
    """The methods of a snapshot or transaction that a select calls."""

    __slots__ = ()

    @property
    def start_timestamp(self) -> int:
        """The timestamp of the snapshot."""

    def take_batches(self, selects: Sequence[TabletSelect]) -> list[RowBatch]:
        """Return the next step of each select, in one round trip."""

    def count_rows(self, ranges: Sequence[KeyRange]) -> list[int]:
        """Return the approximate number of rows in each key range; removed rows may be included."""

    def own_rows(self, table: str) -> Collection[bytes]:
        """Return the rows of a table that the transaction has written."""


@dataclass(frozen=True, slots=True)
class Query:
    """A select: ``columns`` of the rows for which ``bound`` is true, or of all rows."""

    handle: TableHandle
    columns: tuple[Column, ...]
    bound: Bound | None = None

    def select(self, piece: Piece, *, limit: int | None = None, reverse: bool = False) -> TabletSelect:
        """Return the select of one piece; ``limit`` is the number of needed rows, if known."""
        handle = self.handle
        where = (handle, handle.tags[piece.tablet], piece.low, piece.high)
        return TabletSelect(*where, self.columns, self.bound, reverse=reverse, limit=limit)

    def judge_many(self, t: Reader, some: Sequence[bytes]) -> list[Found]:
        """Read rows cell by cell; return the rows that exist and satisfy the predicate, in the same order."""
        definition = self.handle.definition
        codec = KeyCodec(definition)
        names = [column.name for column in self.columns]
        asked = [] if self.bound is None else columns_of(self.bound)
        needed = [name for name in dict.fromkeys([*names, *asked]) if name not in definition.key]
        found: list[Found] = []
        for row, cells in zip(some, rows.read_many(t, self.handle, some, needed), strict=True):
            if cells is None:
                continue
            known: dict[str, bytes | None] = dict(zip(definition.key, codec.split(row), strict=True))
            known.update(cells)
            if self.bound is None or self.bound.holds(known.__getitem__) is True:
                found.append((row, [known[name] for name in names]))
        return found


def in_order(
    t: Selector,
    query: Query,
    pieces: Iterable[Piece],
    *,
    limit: int | None,
    reverse: bool,
    own: Collection[bytes] = (),
) -> Iterator[Found]:
    """Yield at most ``limit`` rows of the query in the order of their keys.

    ``own`` has the keys of the rows that the transaction has written. These rows are evaluated with the
    transaction's writes.
    """
    chosen = list(pieces)
    most = None if limit is None else limit + len(own)
    selects = [query.select(piece, limit=most, reverse=reverse) for piece in chosen]
    batches = t.take_batches(selects) if selects else []
    found = [settled(t, query, batch, own, reverse=reverse) for batch in batches]
    streams = [_rows_of(t, query, one, own, reverse) for one in zip(selects, found, strict=True)]
    mine = sorted((row for row in own if _is_in(chosen, query.handle, row)), reverse=reverse)
    judged = query.judge_many(t, mine) if mine else []
    return islice(heapq.merge(*streams, judged, key=itemgetter(0), reverse=reverse), limit)


def _is_in(pieces: Sequence[Piece], handle: TableHandle, row: bytes) -> bool:
    tablet = handle.tablet(row)
    return any(
        piece.tablet == tablet and piece.low <= row and (piece.high is None or row < piece.high)
        for piece in pieces
    )


def _rows_of(
    t: Selector, query: Query, begun: tuple[TabletSelect, list[Found]], own: Collection[bytes], reverse: bool
) -> Iterator[Found]:
    select, found = begun
    while True:
        yield from found
        if not select.more:
            return
        (batch,) = t.take_batches([select])
        found = settled(t, query, batch, own, reverse=reverse)


def settled(
    t: Reader, query: Query, batch: RowBatch, own: Collection[bytes] = (), *, reverse: bool = False
) -> list[Found]:
    """Return the rows of a batch in order, including rows that the store could not evaluate."""
    found: list[Found] = [one for one in batch.rows() if one[0] not in own] if own else list(batch.rows())
    late = [row for row in batch.unsettled if row not in own]
    if late:
        found += query.judge_many(t, late)
        found.sort(key=itemgetter(0), reverse=reverse)
    return found
