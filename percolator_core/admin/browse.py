"""Browsing: one page of a table's rows, and the key at which the next page begins.

The cost of a page depends on its rows, not on the size of the table: rows come in the order of their keys, or
of an index. If few rows meet a filter, a page ends after a limited time, and the next page continues there.

>>> from percolator_core.admin.browse import browse
>>> page = browse(db.snapshot(), "documents", limit=50)
>>> page.rows[0], page.following
((b'http://a/', {'contents': b'...'}), b'http://x/')
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Final, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.database import Database
from percolator_core.layout.key_ranges import scan_bounds
from percolator_core.layout.keys import BASE, meta_key, rows_key
from percolator_core.schema.expression import RawFilter
from percolator_core.schema.partitions import pieces
from percolator_core.schema.predicates import Predicate, bind
from percolator_core.store.packing import Command
from percolator_core.tables.indexes import Index, indexes_of
from percolator_core.tables.lookup import ByIndex, by_index, choose
from percolator_core.tables.query import Found, Query, settled
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

_ENTRIES: Final = 500
"""With conditions, a page in the order of an index reads this many entries and their rows at a time."""


@dataclass(frozen=True, slots=True)
class RowsPage:
    """Rows in the requested order, with their cells.

    ``following`` is the ``start`` of the next page, None at the end of the table. ``in_time`` is False if the
    time was over before the page was full.
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
    order_by: str | None = None,
    reverse: bool = False,
    limit: int = 50,
    seconds: float = SECONDS,
    cut: int | None = None,
) -> RowsPage:
    """Return the first ``limit`` rows whose keys begin with ``prefix``, in the order of their keys.

    Only rows for which ``where`` is true are returned. It is a predicate; for a raw table it may also be a
    `RawFilter`. Values of a raw table that are longer than ``cut`` bytes may be cut off there.

    The page begins at the key ``start``; with ``reverse``, it begins with the last row below ``start``. With
    ``order_by``, a column of `orders`, rows come in the order of its values, and ``start`` is
    `RowsPage.following` of the page before. Rows with null in this column are left out.

    Raises:
        UnknownTable, UnknownColumn: no such table or column.
        LockTimeout, SnapshotTooOld, StoreUnavailable: as `Snapshot.get`.
        TypeError, ValueError: ``where`` compares a column with a value of another type.
        ValueError: ``order_by`` is not in `orders`.
    """
    handle = snapshot.handle_of(table)
    bounds = scan_bounds(None, None, prefix)
    if order_by is None:
        bounds = scan_bounds(None, start, prefix) if reverse else scan_bounds(start, None, prefix)
    asked = _Asked(snapshot, handle, bounds, limit, seconds, reverse)
    if not handle.is_typed:
        if order_by is not None:
            raise _no_order(handle, order_by)
        chosen = (
            where if isinstance(where, RawFilter) else RawFilter.of([] if where is None else [where], table)
        )
        return _raw(asked, chosen, cut)
    if isinstance(where, RawFilter):
        raise TypeError(f"{table} is a typed table: give a predicate over its columns")
    definition = handle.definition
    columns = tuple(one for one in definition.value_columns if one.copy is None)
    query = Query(handle, columns, None if where is None else bind(where, definition))
    if order_by is None:
        return _typed(asked, query)
    return _by_values(asked, query, _index_of(snapshot, handle, order_by), start)


def orders(snapshot: Snapshot, table: str) -> tuple[str, ...]:
    """Return the columns by which `browse` can order the rows: those with an index that is complete.

    Raises UnknownTable, StoreUnavailable.
    """
    return tuple(one.rule.column for one in _usable(snapshot, snapshot.handle_of(table)))


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


@dataclass(frozen=True, slots=True)
class _Asked:
    """A page to read. ``bounds`` are the first key and the exclusive end of the rows."""

    snapshot: Snapshot
    handle: TableHandle
    bounds: tuple[bytes, bytes | None]
    limit: int
    seconds: float
    reverse: bool

    def cut_out(self, rows: Sequence[tuple[bytes, Cells]]) -> RowsPage:
        """Return the page that begins with the first of these rows."""
        if len(rows) <= self.limit:
            return RowsPage(tuple(rows))
        # The start of a page in descending order is an exclusive end.
        return RowsPage(tuple(rows[: self.limit]), rows[self.limit - self.reverse][0])


_Steps: TypeAlias = TabletScan | TabletSelect
"""A scan of one tablet, step by step."""


@dataclass(slots=True)
class _Search:
    """Scans the tablets together: at any time, all rows before a certain key have been read."""

    asked: _Asked
    steps: Sequence[_Steps]
    take: Callable[[Sequence[_Steps]], list[tuple[bytes, Cells]]]
    found: list[tuple[bytes, Cells]] = field(default_factory=list)

    def page(self) -> RowsPage:
        """Return the page. The first step of each tablet is always made."""
        limit, reverse = self.asked.limit, self.asked.reverse
        began = time.monotonic()
        until = began + self.asked.seconds
        if self.steps:
            self.found += self.take(self.steps)
        while True:
            open_ones = [one for one in self.steps if one.more]
            open_ones.sort(key=lambda one: one.reached, reverse=reverse)
            frontier = open_ones[0].reached if open_ones else None
            ready = [one for one in self.found if frontier is None or (one[0] < frontier) != reverse]
            # Assume that the next step takes as long as the last one.
            now = time.monotonic()
            is_late = now + (now - began) > until
            if not open_ones or len(ready) > limit or is_late:
                break
            began = now
            self.found += self.take(open_ones[:_AT_ONCE])
        ready.sort(key=itemgetter(0), reverse=reverse)
        if len(ready) > limit:
            return self.asked.cut_out(ready)
        return RowsPage(tuple(ready), frontier, in_time=frontier is None)


def _raw(asked: _Asked, where: RawFilter, cut: int | None) -> RowsPage:
    ranges = where.key_ranges()
    if not ranges:
        return RowsPage(())
    snapshot, handle = asked.snapshot, asked.handle
    low, high = max(asked.bounds[0], ranges[0][0]), _least(asked.bounds[1], ranges[-1][1])
    if high is not None and low >= high:
        return RowsPage(())
    # The scan reads only the columns that are compared. The other columns are read later, and only of the
    # rows that are shown.
    tests = where.columns if where.needs_cell else ()
    looked_at = max(1, min(_LOOKED_AT, _LOOKED_AT_TOGETHER // len(handle.tags)))
    size = looked_at if where.columns else first_page(asked.limit + 1, len(handle.tags))
    # A compared value must be complete, so the values of chosen rows are cut off after the comparison.
    first_cut = None if where.columns else cut
    steps = snapshot.tablet_scans(handle, low, high, tests, size, first_cut, reverse=asked.reverse)

    def take(some: Sequence[_Steps]) -> list[tuple[bytes, Cells]]:
        scans = [one for one in some if isinstance(one, TabletScan)]
        snapshot.take_scans(scans)
        return _cut_off([row for scan in scans for row in scan.rows if where.holds(*row)], cut)

    page = _Search(asked, steps, take).page()
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


def _typed(asked: _Asked, query: Query) -> RowsPage:
    plan = choose(asked.snapshot, query, asked.limit) if query.bound is not None else None
    if isinstance(plan, ByIndex) and (plan.entries or 0) <= _FEW_ENTRIES:
        low, high = asked.bounds
        batches = by_index(asked.snapshot, plan, reverse=asked.reverse)
        every = [one for batch in batches for one in _with_names(query, batch)]
        return asked.cut_out([one for one in every if low <= one[0] and (high is None or one[0] < high)])
    return _in_key_order(asked, query)


def _in_key_order(asked: _Asked, query: Query) -> RowsPage:
    low, high = asked.bounds
    steps = [
        TabletSelect(
            query.handle,
            query.handle.tags[one.tablet],
            max(low, one.low),
            end,
            query.columns,
            query.bound,
            reverse=asked.reverse,
            limit=asked.limit + 1,
        )
        for one in pieces(query.handle.definition, query.bound)
        for end in [_least(high, one.high)]
        if end is None or max(low, one.low) < end
    ]

    def take(some: Sequence[_Steps]) -> list[tuple[bytes, Cells]]:
        batches = asked.snapshot.take_batches([one for one in some if isinstance(one, TabletSelect)])
        return [row for batch in batches for row in _with_names(query, settled(asked.snapshot, query, batch))]

    return _Search(asked, steps, take).page()


def _with_names(query: Query, found: Iterable[Found]) -> list[tuple[bytes, Cells]]:
    names = [column.name for column in query.columns]
    return [(row, dict(zip(names, values, strict=True))) for row, values in found]


def _usable(snapshot: Snapshot, handle: TableHandle) -> list[Index]:
    return [
        one for one in indexes_of(handle) if one.column.copy is None and one.has_all(snapshot.start_timestamp)
    ]


def _index_of(snapshot: Snapshot, handle: TableHandle, column: str) -> Index:
    found = next((one for one in _usable(snapshot, handle) if one.rule.column == column), None)
    if found is None:
        raise _no_order(handle, column)
    return found


def _no_order(handle: TableHandle, column: str) -> ValueError:
    return ValueError(
        f"{handle.name} cannot be ordered by {column!r}: order it by its key, or by a column whose index was "
        "complete at that time"
    )


def _by_values(asked: _Asked, query: Query, index: Index, start: bytes | None) -> RowsPage:
    """Return the page in the order of an index: read entries, then their rows, until the page is full."""
    entries = asked.snapshot.handle_of(index.rule.table)
    holder = entries.definition.value_columns if index.rule.unique else ()
    low, high = asked.bounds
    is_narrow = query.bound is not None or bool(low)
    until = time.monotonic() + asked.seconds
    found: list[tuple[bytes, Cells]] = []
    while True:
        bounds = scan_bounds(None, start, None) if asked.reverse else scan_bounds(start, None, None)
        limit = max(asked.limit, _ENTRIES) if is_narrow else asked.limit
        step = replace(asked, bounds=bounds, limit=limit, seconds=max(0.0, until - time.monotonic()))
        page = _in_key_order(step, Query(entries, holder))
        entry_of = {
            row: entry
            for entry, cells in page.rows
            if (row := index.row_of(entry, next(iter(cells.values()), None))) is not None and low <= row
        }
        rows = query.judge_many(asked.snapshot, list(entry_of))
        found += [one for one in _with_names(query, rows) if high is None or one[0] < high]
        if len(found) > asked.limit:
            last = found[asked.limit - asked.reverse][0]
            return RowsPage(tuple(found[: asked.limit]), entry_of[last])
        start = page.following
        if start is None or len(found) == asked.limit or time.monotonic() > until:
            is_full = start is None or len(found) == asked.limit
            return RowsPage(tuple(found), start, in_time=is_full)


def _least(one: bytes | None, other: bytes | None) -> bytes | None:
    return other if one is None else one if other is None else min(one, other)
