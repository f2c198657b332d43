"""A step of a select in a tablet with a base.

The store may have only a part of a row, so it cannot evaluate the predicate. A step reads the deltas of a
range of keys, merges them with the row groups of the base in that range, and evaluates whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import pyarrow as pa

from percolator_core.base import merge
from percolator_core.base.row_set import Delta
from percolator_core.catalog.table_handle import ColumnFields
from percolator_core.schema.predicates import columns_of
from percolator_core.store.file_threads import file_threads
from percolator_core.tables.select import TabletSelect
from percolator_core.transaction.scan import OtherReads, TabletScan

BASE_ROWS: Final = 65536
"""One step merges about this many rows of the base at most."""

STORE_ROWS: Final = 4096
STORE_BYTES: Final = 8 << 20
"""One step merges at most about this many deltas, with at most about this many bytes."""

Fetch = Callable[[TabletScan], bytes]
"""Fetches the next step of a scan, and returns the reference of the tablet's base at that time."""


def merged_step(select: TabletSelect, base: bytes, others: OtherReads, fetch: Fetch) -> pa.Table:
    """Return the rows of the next step of a select, and prepare the step after it.

    ``base`` is the reference of the tablet's base from the store. Raises the errors of a select.
    """
    handle, reverse = select.handle, select.reverse
    low, high = select.range
    rows = BASE_ROWS if select.limit is None else min(select.limit, BASE_ROWS)

    def split() -> bytes | None:
        return others.bases.tablet(handle, select.tag, base).split(low, high, rows, reverse=reverse)

    end = file_threads.run(split)
    if end is not None:
        low, high = (end, high) if reverse else (low, end)
    scan = TabletScan(handle, select.tag, low, high, list(_needed(select)), STORE_ROWS, reverse, others)
    deltas: dict[bytes, Delta] = {}
    size = 0
    while scan.more and len(deltas) < STORE_ROWS and size < STORE_BYTES:
        base = fetch(scan)
        if not base:
            # The base was removed during the step. The next step finds the rows in the store.
            return merge.nothing(select.columns)
        deltas.update(scan.deltas)
        size += sum(len(value or b"") for _, delta in scan.deltas for value in delta.values())
    if scan.more:
        end = scan.rest[1] if reverse else scan.rest[0]
        low, high = (end or low, high) if reverse else (low, end)

    def merged() -> pa.Table:
        # This base may be newer than the first deltas. Then it also has the cells of those deltas, but with
        # equal values.
        tablet = others.bases.tablet(handle, select.tag, base)
        return merge.selected(tablet, low, high, deltas, select.columns, select.bound, reverse=reverse)

    found = file_threads.run(merged)
    select.reach(end)
    return found


def _needed(select: TabletSelect) -> Iterable[ColumnFields]:
    """The cells of a row that a select needs: the marker, and the columns of select and predicate."""
    handle = select.handle
    asked = [] if select.bound is None else columns_of(select.bound)
    names = dict.fromkeys([*(column.name for column in select.columns), *asked])
    yield handle.marker
    for name in names:
        if name not in handle.definition.key:
            yield handle.columns[name]
