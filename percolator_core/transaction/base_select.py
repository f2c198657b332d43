"""A step of a select above a base.

The store may have only a part of a row, so it cannot judge the row. A step reads what the store has of a
range of keys, and merges it with the row groups of the base in that range; then it judges whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from percolator_core.base import merge
from percolator_core.catalog.table_handle import ColumnFields
from percolator_core.schema.predicates import columns_of
from percolator_core.store.file_threads import file_threads
from percolator_core.tables.select import TabletSelect
from percolator_core.transaction.scan import Beside, Overlays, TabletScan

BASE_ROWS: Final = 65536
STORE_ROWS: Final = 4096
"""About the most rows of the base, and of the store, that one step merges."""

STORE_BYTES: Final = 8 << 20
"""About the most bytes of cells of the store that one step merges."""

Fetch = Callable[[TabletScan], bytes]
"""Asks the store for the next step of a scan, and returns the reference of the tablet's base then."""


def merged_step(select: TabletSelect, base: bytes, beside: Beside, fetch: Fetch) -> pa.Table:
    """Return the rows of the next step of a select, and prepare the step after it.

    ``base`` is the reference of the tablet's base, as the store has just told it. Raises the errors of a
    select.
    """
    handle, reverse = select.handle, select.reverse
    low, high = select.range
    rows = BASE_ROWS if select.limit is None else min(select.limit, BASE_ROWS)

    def split() -> bytes | None:
        return beside.bases.tablet(handle, select.tag, base).split(low, high, rows, reverse=reverse)

    bound = file_threads.run(split)
    if bound is not None:
        low, high = (bound, high) if reverse else (low, bound)
    scan = TabletScan(handle, select.tag, low, high, list(_needed(select)), STORE_ROWS, reverse, beside)
    deltas: Overlays = {}
    size = 0
    while scan.more and len(deltas) < STORE_ROWS and size < STORE_BYTES:
        base = fetch(scan)
        if not base:
            # It was taken away meanwhile. The next step finds the rows in the store.
            return merge.nothing(select.columns)
        deltas.update(scan.stored)
        size += sum(len(value or b"") for _, cells in scan.stored for value in cells.values())
    if scan.more:
        # The base may be newer than the first rows of the store: their cells are in it as they are here.
        bound = scan.rest[1] if reverse else scan.rest[0]
        low, high = (bound or low, high) if reverse else (low, bound)

    def merged() -> pa.Table:
        tablet = beside.bases.tablet(handle, select.tag, base)
        return merge.selected(tablet, low, high, deltas, select.columns, select.bound, reverse=reverse)

    found = file_threads.run(merged)
    select.reach(bound)
    return found


def _needed(select: TabletSelect) -> Iterable[ColumnFields]:
    """The cells of a row that a select needs: the marker, its columns and those of the predicate."""
    handle = select.handle
    asked = [] if select.bound is None else columns_of(select.bound)
    names = dict.fromkeys([*(column.name for column in select.columns), *asked])
    yield handle.marker
    for name in names:
        if name not in handle.definition.key:
            yield handle.columns[name]
