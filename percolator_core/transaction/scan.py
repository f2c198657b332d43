"""Scans: the rows of a tablet between two keys, in bounded steps.

If the newest versions are the visible ones, the script returns them packed and the client unpacks them,
because all other clients wait while a script runs. In a tablet with a base, a step returns what the store has
in a range of keys: the *deltas* of rows. They are merged with the base while the caller consumes the result.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from percolator_core.base.bases import Bases, above_base
from percolator_core.base.row_set import BaseRow, Delta
from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import BaseDamaged
from percolator_core.layout.keys import MARKER, is_internal
from percolator_core.layout.records import KIND, VALUE, VERSION_HEADER, VERSION_MARK, Version, unpack_version
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Direction
from percolator_core.scripts.replies import Scanned

Row: TypeAlias = tuple[bytes, dict[str, bytes]]
"""A row key, and the values of its cells by column."""

PAGE_ROWS: Final = 512
PAGE_BYTES: Final = 1 << 20
"""The limits of one step of a scan over one tablet."""

_JUDGED: Final = b"judged"
"""In a reply, this marks a whole row in which a newest version is not the visible one."""


class OtherReads(NamedTuple):
    """The reads that a scan needs for cells that its steps do not return.

    ``locked`` reads a cell that a lock blocks; its arguments are the table, row and encoded column.
    """

    locked: Callable[[TableHandle, bytes, bytes], Version | None]
    bases: Bases


class TabletScan:
    """The rows of one tablet, fetched in bounded steps.

    ``columns`` are the columns to return; none means all. ``cut`` is for scans of all columns: a step fetches
    at most this many bytes of each value, but `OtherReads` fetches whole values. ``rows`` and, in a tablet
    with a base, ``deltas`` are those of the last step. ``more`` is False after the last step.
    """

    __slots__ = (
        "_columns",
        "_direction",
        "_encoded",
        "_handle",
        "_high",
        "_longest",
        "_low",
        "_merged",
        "_others",
        "_page",
        "_store_has_more",
        "_tag",
        "deltas",
        "more",
        "rows",
    )

    def __init__(  # noqa: PLR0917
        self,
        handle: TableHandle,
        tag: bytes,
        low: bytes,
        high: bytes | None,
        columns: Sequence[ColumnFields],
        page: int,
        reverse: bool,
        others: OtherReads,
        cut: int | None = None,
    ) -> None:
        self._handle = handle
        self._tag = tag
        self._low = b"[" + low
        self._high = b"+" if high is None else b"(" + high
        self._columns = columns
        self._encoded = [column.encoded for column in columns]
        self._page = page
        self._direction: Direction = "backward" if reverse else "forward"
        self._others = others
        self._merged: Iterator[Row] | None = None
        """The rows of the last step, merged with the base, that are not in ``rows`` yet."""
        self._store_has_more = True
        self._longest = 0 if cut is None else VERSION_HEADER + cut
        self.rows: list[Row] = []
        self.deltas: list[tuple[bytes, Delta]] = []
        self.more = True

    @property
    def reached(self) -> bytes:
        """A forward scan has returned all rows below this key, a backward one this key and all above."""
        backward = self._direction == "backward"
        if self._merged is not None and self.rows:
            return self.rows[-1][0] + (b"" if backward else b"\0")
        low, high = self.rest
        return (high or b"") if backward else low

    def step(self, at: int) -> Call[Scanned | None]:
        """Return the call of the next step, at a timestamp."""
        bounds = self._low, self._high, self._page, PAGE_BYTES
        return calls.scan(self._tag, at, *bounds, self._direction, self._longest, self._encoded)

    def next_page(self) -> bool:
        """Set ``rows`` to the next rows of the last step; return False if the step has no more rows."""
        if self._merged is None:
            return False
        reached = self.rows[-1][0]
        try:
            self._take_page(self._merged)
        except BaseDamaged:
            # The scan may have paused for so long that the files of its manifest were replaced and removed.
            # The next step asks for the present manifest, and finds out if the snapshot is too old.
            self._merged = None
            self._continue_from(b"(" + reached)
            return False
        return True

    def _take_page(self, merged: Iterator[Row]) -> None:
        self.rows = list(islice(merged, self._page))
        self._merged = merged if len(self.rows) == self._page else None
        self.more = self._merged is not None or self._store_has_more

    def take(self, found: Scanned) -> int:
        """Take the reply to a step; return the number of cells in it."""
        resume, base, row_keys, cells_of_rows = found
        if base:
            low, high = self._range(self._low, self._high, resume)
            count = self.take_deltas(found)
            self._take_page(self._above_base(base, low, high))
            return count
        self._continue_from(resume)
        self.rows = rows = []
        cells_of = self._named if self._columns else self._whole
        count = 0
        for row, flat in zip(row_keys, cells_of_rows, strict=True):
            cells = cells_of(row, flat)
            if cells:
                rows.append((row, cells))
                count += len(cells)
        return count

    def _named(self, row: bytes, flat: Sequence[Any]) -> dict[str, bytes]:
        cells: dict[str, bytes] = {}
        for column, version in zip(self._columns, flat[::2], strict=True):
            if type(version) is list:
                self._add(cells, row, column.name, column.encoded, version)
            elif version is not None and not version[KIND]:
                cells[column.name] = version[VALUE]
        return cells

    def _whole(self, row: bytes, flat: Sequence[Any]) -> dict[str, bytes]:
        if not flat or flat[0] != _JUDGED:
            return settled_row(flat)
        cells: dict[str, bytes] = {}
        for position in range(1, len(flat), 2):
            if flat[position] != MARKER:
                self._add(cells, row, flat[position].decode(), flat[position], flat[position + 1])
        return cells

    def _add(
        self, cells: dict[str, bytes], row: bytes, name: str, column: bytes, cell: Sequence[bytes]
    ) -> None:
        """Add a cell. ``cell`` has a version, or is empty, or has two elements if a lock blocks the read."""
        found = self._visible(row, column, cell)
        if found is not None and found.value is not None:
            cells[name] = found.value

    def _visible(self, row: bytes, column: bytes, cell: Sequence[bytes]) -> Version | None:
        if len(cell) == 2:
            return self._others.locked(self._handle, row, column)
        return unpack_version(cell[0]) if cell else None

    def _continue_from(self, resume: bytes) -> None:
        self.more = self._store_has_more = bool(resume)
        if self._direction == "backward":
            self._high = resume
        else:
            self._low = resume

    # Tablets with a base.

    @property
    def rest(self) -> tuple[bytes, bytes | None]:
        """The range that no step has scanned yet: its first key, and its exclusive end (None: no end)."""
        return self._range(self._low, self._high, b"")

    def take_deltas(self, found: Scanned) -> int:
        """Take the reply to a step without reading the base; return the number of cells in the reply."""
        resume, _, row_keys, cells_of_rows = found
        self._continue_from(resume)
        self.deltas = [
            (row, self._delta(row, flat)) for row, flat in zip(row_keys, cells_of_rows, strict=True)
        ]
        return sum(len(delta) for _, delta in self.deltas)

    def _range(self, low: bytes, high: bytes, resume: bytes) -> tuple[bytes, bytes | None]:
        """Return the range that a step covered, in the form of `rest`; ``resume`` is from its reply."""
        first = low[1:] + b"\0" if low[:1] == b"(" else low[1:]
        end = None if high == b"+" else high[1:]
        if not resume:
            return first, end
        return (resume[1:], end) if self._direction == "backward" else (first, resume[1:] + b"\0")

    def _delta(self, row: bytes, flat: Sequence[Any]) -> Delta:
        pairs: Iterable[tuple[bytes, Any]]
        if self._columns:
            pairs = zip(self._encoded, flat[::2], strict=True)
        elif flat and flat[0] == _JUDGED:
            pairs = zip(flat[1::2], flat[2::2], strict=True)
        else:
            return delta_of(flat)
        cells: dict[bytes, bytes | None] = {}
        for column, cell in pairs:
            if type(cell) is list:
                found = self._visible(row, column, cell)
            else:
                found = None if cell is None else unpack_version(cell)
            if found is not None:
                cells[column] = found.value
        return cells

    def _above_base(self, base: bytes, low: bytes, high: bytes | None) -> Iterator[Row]:
        """Merge the deltas of a range of rows with the base."""
        backward = self._direction == "backward"
        where = self._handle, self._tag, base, low, high
        below = self._others.bases.rows(*where, self._encoded or None, reverse=backward)
        for key, delta, row in above_base(self.deltas, below, reverse=backward):
            cells = merged_cells(self._handle, delta or {}, row)
            if cells:
                yield key, cells


def scans_of_tablets(  # noqa: PLR0917
    handle: TableHandle,
    low: bytes,
    high: bytes | None,
    columns: Sequence[ColumnFields],
    page: int,
    reverse: bool,
    others: OtherReads,
    cut: int | None = None,
) -> list[TabletScan]:
    """Return a scan of each tablet that may have rows from ``low`` to below ``high``."""
    is_one_row = high == low + b"\0"
    tags = (handle.tag(low),) if is_one_row else handle.tags
    return [TabletScan(handle, tag, low, high, columns, page, reverse, others, cut) for tag in tags]


def merged(
    scans: Sequence[TabletScan],
    take_steps: Callable[[Sequence[TabletScan]], None],
    limit: int | None,
    reverse: bool,
) -> Iterator[Row]:
    """Yield at most ``limit`` rows of all scans in row order; ``take_steps`` fetches the next steps."""
    take_steps(scans)
    rows: Iterable[Row]
    if any([scan.more for scan in scans]):  # noqa: C419 - faster than a generator
        streams = [_rows_of(scan, take_steps) for scan in scans]
        rows = heapq.merge(*streams, key=itemgetter(0), reverse=reverse)
    else:
        # All rows have arrived; sorting them is faster than merging.
        rows = sorted(chain.from_iterable([scan.rows for scan in scans]), key=itemgetter(0), reverse=reverse)
    yield from at_most(limit, rows)


def _rows_of(scan: TabletScan, take_steps: Callable[[Sequence[TabletScan]], None]) -> Iterator[Row]:
    while True:
        yield from scan.rows
        if not scan.more:
            return
        take_steps((scan,))


def settled_row(flat: Sequence[bytes]) -> dict[str, bytes]:
    """Return a row's cells from all fields of its hash. The newest versions must be visible and unlocked."""
    cells: dict[str, bytes] = {}
    fields = iter(flat)
    for field, version in zip(fields, fields, strict=True):
        column = field[1:]
        if field[:1] == VERSION_MARK and not version[KIND] and not is_internal(column):
            cells[column.decode()] = version[VALUE]
    return cells


def delta_of(flat: Sequence[bytes]) -> Delta:
    """Return a row's delta, with its marker, from all fields of its hash, as `settled_row` does."""
    return {
        field[1:]: None if version[KIND] else version[VALUE]
        for field, version in zip(flat[::2], flat[1::2], strict=True)
        if field[:1] == VERSION_MARK and (field[1:] == MARKER or not is_internal(field[1:]))
    }


def merged_cells(handle: TableHandle, delta: Delta, row: BaseRow | None) -> dict[str, bytes]:
    """Return the cells of a row by column. A cell of the delta replaces the cell of the base's row."""
    cells = delta if row is None else {**row.cells, **delta}
    names = handle.by_encoded
    return {
        names.get(column) or column.decode(): value
        for column, value in cells.items()
        if value is not None and column != MARKER
    }


def at_most(limit: int | None, rows: Iterable[Row]) -> Iterator[Row]:
    """Return the first ``limit`` rows; None means all. `islice` refuses numbers above `sys.maxsize`."""
    return islice(rows, None if limit is None else min(limit, sys.maxsize))


def first_page(limit: int | None, tablets: int) -> int:
    """The number of rows to fetch from each tablet in a step.

    A hash spreads rows over the tablets, so a tablet seldom has more of the first ``limit`` rows than its
    share plus three standard deviations. If it does, it needs another step.
    """
    if limit is None:
        return PAGE_ROWS
    share = limit / tablets
    return max(1, min(limit, PAGE_ROWS, math.ceil(share + 3 * math.sqrt(share))))
