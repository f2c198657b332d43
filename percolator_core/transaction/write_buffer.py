"""A transaction's buffered writes, applied to rows that were read."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from operator import itemgetter
from typing import TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import NOTIFY, PUT, Write
from percolator_core.transaction.scan import Row

RowWrites: TypeAlias = dict[bytes, Write]
"""Writes to one row, by encoded column."""

TableWrites: TypeAlias = dict[bytes, RowWrites]
"""Writes to one table, by row."""


def rows_between(
    writes: TableWrites, handle: TableHandle, low: bytes, high: bytes | None, reverse: bool
) -> list[tuple[bytes, RowWrites]]:
    """The written rows from ``low`` to below ``high``, sorted by key, with the present names of columns."""
    rows = sorted((row for row in writes if low <= row and (high is None or row < high)), reverse=reverse)
    return [(row, handle.named(writes[row])) for row in rows]


def with_writes(cells: dict[str, bytes], writes: RowWrites, wanted: list[str] | None) -> dict[str, bytes]:
    """Change the cells of a row as the writes say, and return the cells.

    Only writes to the ``wanted`` columns are used; None means all columns.
    """
    for encoded, (kind, value) in writes.items():
        if kind == NOTIFY or is_internal(encoded):
            continue
        column = encoded.decode()
        if wanted is not None and column not in wanted:
            continue
        if kind == PUT:
            cells[column] = value
        else:
            cells.pop(column, None)
    return cells


def merge(
    stored: Iterator[Row], written: list[tuple[bytes, RowWrites]], wanted: list[str] | None, reverse: bool
) -> Iterator[Row]:
    """Yield stored and written rows in key order. A row that is in both comes once, with writes applied."""
    tagged = heapq.merge(
        ((row, 0, cells) for row, cells in stored),
        ((row, 1, writes) for row, writes in written),
        key=itemgetter(0),
        reverse=reverse,
    )
    for row, group in itertools.groupby(tagged, key=itemgetter(0)):
        cells: dict[str, bytes] = {}
        writes: RowWrites = {}
        for _, is_written, found in group:
            if is_written:
                writes = found  # type: ignore[assignment]
            else:
                cells = found  # type: ignore[assignment]
        visible = with_writes(cells, writes, wanted)
        if visible:
            yield row, visible
