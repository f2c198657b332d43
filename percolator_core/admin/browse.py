"""Browsing: one page of a table's rows, and the key at which the next page begins.

The cost of a page depends on its rows, not on the size of the table. If few rows meet a filter, a page ends
after a limited time, and the next page continues there.

>>> from percolator_core.admin.browse import browse
>>> page = browse(db.snapshot(), "documents", limit=50)
>>> page.rows[0], page.following
((b'http://a/', {'contents': b'...'}), b'http://x/')
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Final, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.database import Database
from percolator_core.layout.key_ranges import scan_bounds
from percolator_core.layout.keys import BASE, meta_key, rows_key
from percolator_core.schema.expression import RawFilter
from percolator_core.schema.partitions import pieces
from percolator_core.schema.predicates import Bound, Predicate, bind
from percolator_core.store.packing import Command
from percolator_core.tables.lookup import ByIndex, by_index, choose
from percolator_core.tables.query import Query, settled
from percolator_core.tables.select import TabletSelect
from percolator_core.transaction.scan import Row, TabletScan, first_page
from percolator_core.transaction.snapshot import Snapshot

Cells: TypeAlias = Mapping[str, bytes | None]
"""The values of a row by column. The values of a typed row are encoded, and None is a null."""

SECONDS: Final = 1.0
"""After this time a page ends even if it is not full."""

_AT_ONCE: Final = 8
"""One request reads at most this many tablets: those whose scans are the furthest behind."""

_LOOKED_AT: Final = 512
"""With conditions, one step reads this many rows in a tablet of a raw table."""

_LOOKED_AT_TOGETHER: Final = 4_096
"""The first step reads this many rows in all tablets together."""

_FEW_ENTRIES: Final = 5_000
"""An index with at most this many matching entries is read and sorted for each page."""


@dataclass(frozen=True, slots=True)
class RowsPage:
    """Rows in the order of their keys, with their cells.

    ``following`` is the key at which the next page begins, None at the end of the table. ``in_time`` is False
    if the time was over before the page was full.
    """

    rows: tuple[tuple[bytes, Cells], ...]
    following: bytes | None = None
    in_time: bool = True


def browse(
    snapshot: Snapshot,
    table: str,
    *,
    start: bytes | None = None,
    prefix: bytes | None = None,
    where: Predicate | RawFilter | None = None,
    limit: int = 50,
    seconds: float = SECONDS,
    cut: int | None = None,
) -> RowsPage:
    """Return the first ``limit`` rows, from the key ``start`` on, whose keys begin with ``prefix``.

    Only rows for which ``where`` is true are returned. It is a predicate; for a raw table it may also be a
    `RawFilter`. Values of a raw table that are longer than ``cut`` bytes may be cut off there.

    Raises:
        UnknownTable, UnknownColumn: no such table or column.
        LockTimeout, SnapshotTooOld, StoreUnavailable: as `Snapshot.get`.
        TypeError, ValueError: ``where`` compares a column with a value of another type.
    """
    handle = snapshot.handle_of(table)
    low, high = scan_bounds(start, None, prefix)
    if not handle.is_typed:
        chosen = (
            where if isinstance(where, RawFilter) else RawFilter.of([] if where is None else [where], table)
        )
        return _raw(snapshot, handle, (low, high), chosen, limit, seconds, cut)
    if isinstance(where, RawFilter):
        raise TypeError(f"{table} is a typed table: give a predicate over its columns")
    return _typed(snapshot, handle, (low, high), where, limit, seconds)


def page_before(
    db: Database, table: str, end: bytes, *, prefix: bytes | None = None, limit: int = 50
) -> bytes:
    """Return the key at which the page before ``end`` begins.

    For the first page this is ``prefix``, or b"" without a prefix. This function reads only keys, and does
    not check if their rows exist in the snapshot that `browse` reads. So the page may have fewer than
    ``limit`` rows before ``end``, or none. To go further back, call this again with the returned key.

    Raises UnknownTable, StoreUnavailable, BaseDamaged.
    """
    low, _ = scan_bounds(None, None, prefix)
    handle = db.catalog.table(table)
    asked: list[Command] = [
        (b"ZREVRANGEBYLEX", rows_key(tag), b"(" + end, b"[" + low, b"LIMIT", 0, limit) for tag in handle.tags
    ]
    # The bases are read last: a row leaves the store only after a base that has the row was published.
    asked += [(b"HGET", meta_key(tag), BASE) for tag in handle.tags]
    replies = db.store.call_many(asked, 1000)
    keys = {key for keys in replies[: len(handle.tags)] for key in keys}
    for tag, base in zip(handle.tags, replies[len(handle.tags) :], strict=True):
        if base is not None and low < end:
            rows = db.client.bases.rows(handle, tag, base, low, end, (), reverse=True)
            keys.update(row.key for row in islice(rows, limit))
    before = heapq.nlargest(limit, keys)
    return before[-1] if len(before) == limit else low


_Steps: TypeAlias = TabletScan | TabletSelect
"""A scan of one tablet, step by step."""


@dataclass(slots=True)
class _Search:
    """Scans the tablets together: at any time, all rows below a certain key have been read."""

    steps: Sequence[_Steps]
    take: Callable[[Sequence[_Steps]], list[tuple[bytes, Cells]]]
    limit: int
    until: float
    found: list[tuple[bytes, Cells]] = field(default_factory=list)

    def page(self) -> RowsPage:
        """Return the page. The first step of each tablet is always made."""
        began = time.monotonic()
        if self.steps:
            self.found += self.take(self.steps)
        while True:
            open_ones = sorted((one for one in self.steps if one.more), key=lambda one: one.reached)
            frontier = open_ones[0].reached if open_ones else None
            ready = [one for one in self.found if frontier is None or one[0] < frontier]
            # Assume that the next step takes as long as the last one.
            now = time.monotonic()
            is_late = now + (now - began) > self.until
            if not open_ones or len(ready) > self.limit or is_late:
                break
            began = now
            self.found += self.take(open_ones[:_AT_ONCE])
        ready.sort(key=itemgetter(0))
        if len(ready) > self.limit:
            return RowsPage(tuple(ready[: self.limit]), ready[self.limit][0])
        return RowsPage(tuple(ready), frontier, in_time=frontier is None)


def _raw(  # noqa: PLR0917
    snapshot: Snapshot,
    handle: TableHandle,
    bounds: tuple[bytes, bytes | None],
    where: RawFilter,
    limit: int,
    seconds: float,
    cut: int | None,
) -> RowsPage:
    ranges = where.key_ranges()
    if not ranges:
        return RowsPage(())
    low, high = max(bounds[0], ranges[0][0]), _least(bounds[1], ranges[-1][1])
    if high is not None and low >= high:
        return RowsPage(())
    # The scan reads only the columns that are compared. The other columns are read later, and only of the
    # rows that are shown.
    tests = where.columns if where.needs_cell else ()
    looked_at = max(1, min(_LOOKED_AT, _LOOKED_AT_TOGETHER // len(handle.tags)))
    size = looked_at if where.columns else first_page(limit + 1, len(handle.tags))
    # A compared value must be complete, so the values of chosen rows are cut off after the comparison.
    steps = snapshot.tablet_scans(handle, low, high, tests, size, None if where.columns else cut)

    def take(some: Sequence[_Steps]) -> list[tuple[bytes, Cells]]:
        scans = [one for one in some if isinstance(one, TabletScan)]
        snapshot.take_scans(scans)
        return _cut_off([row for scan in scans for row in scan.rows if where.holds(*row)], cut)

    page = _Search(steps, take, limit, time.monotonic() + seconds).page()
    if not tests or not page.rows:
        return page
    scans = [
        scan for row, _ in page.rows for scan in snapshot.tablet_scans(handle, row, row + b"\0", (), 1, cut)
    ]
    snapshot.take_scans(scans)
    rows = _cut_off([row for scan in scans for row in scan.rows], cut)
    return RowsPage(tuple(rows), page.following, page.in_time)


def _cut_off(rows: Iterable[Row], cut: int | None) -> list[tuple[bytes, Cells]]:
    return [(row, {name: value[:cut] for name, value in cells.items()}) for row, cells in rows]


def _typed(  # noqa: PLR0917
    snapshot: Snapshot,
    handle: TableHandle,
    bounds: tuple[bytes, bytes | None],
    where: Predicate | None,
    limit: int,
    seconds: float,
) -> RowsPage:
    definition, (low, high) = handle.definition, bounds
    bound: Bound | None = None if where is None else bind(where, definition)
    columns = tuple(one for one in definition.value_columns if one.copy is None)
    query = Query(handle, columns, bound)
    plan = choose(snapshot, query, limit) if bound is not None else None
    names = [column.name for column in columns]
    if isinstance(plan, ByIndex) and (plan.entries or 0) <= _FEW_ENTRIES:
        batches = by_index(snapshot, plan)
        every = [
            (row, dict(zip(names, values, strict=True)))
            for batch in batches
            for row, values in batch
            if low <= row and (high is None or row < high)
        ]
        rest = every[limit][0] if len(every) > limit else None
        return RowsPage(tuple(every[:limit]), rest)
    steps = [
        TabletSelect(
            handle,
            handle.tags[one.tablet],
            max(low, one.low),
            end,
            columns,
            bound,
            limit=limit + 1,
        )
        for one in pieces(definition, bound)
        for end in [_least(high, one.high)]
        if end is None or max(low, one.low) < end
    ]

    def take(some: Sequence[_Steps]) -> list[tuple[bytes, Cells]]:
        batches = snapshot.take_batches([one for one in some if isinstance(one, TabletSelect)])
        return [
            (row, dict(zip(names, values, strict=True)))
            for batch in batches
            for row, values in settled(snapshot, query, batch)
        ]

    return _Search(steps, take, limit, time.monotonic() + seconds).page()


def _least(one: bytes | None, other: bytes | None) -> bytes | None:
    return other if one is None else one if other is None else min(one, other)
