"""Scans: the rows of a tablet between two keys, in bounded steps.

The script replies with packed versions as long as the newest versions settle the read. The client unpacks the
values, which is faster than a script for which all other clients wait.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import (
    KIND,
    VALUE,
    VERSION_HEADER,
    VERSION_MARK,
    Version,
    unpack_version,
)
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Direction
from percolator_core.scripts.replies import Scanned

Row: TypeAlias = tuple[bytes, dict[str, bytes]]
"""A row key, and the values of its cells by column."""

PAGE_ROWS: Final = 512
PAGE_BYTES: Final = 1 << 20
"""Bounds of one step of a scan over one tablet."""

_JUDGED: Final = b"judged"
"""Precedes the cells of a whole row if the newest versions did not settle all of them."""


class TabletScan:
    """The rows of one tablet, fetched in bounded steps.

    ``columns`` are the columns to return; none means all. ``read_slowly`` reads a cell with a lock in its
    way, by tag, row and encoded column. ``cut`` is for scans of all columns: the most bytes of each value to
    fetch, except of values that needed ``read_slowly``. ``more`` is False after the last step.
    """

    __slots__ = (
        "_columns",
        "_direction",
        "_encoded",
        "_high",
        "_longest",
        "_low",
        "_page",
        "_read_slowly",
        "_tag",
        "more",
        "rows",
    )

    def __init__(  # noqa: PLR0917
        self,
        tag: bytes,
        low: bytes,
        high: bytes | None,
        columns: Sequence[ColumnFields],
        page: int,
        reverse: bool,
        read_slowly: Callable[[bytes, bytes, bytes], Version | None],
        cut: int | None = None,
    ) -> None:
        self._tag = tag
        self._low = b"[" + low
        self._high = b"+" if high is None else b"(" + high
        self._columns = columns
        self._encoded = [column.encoded for column in columns]
        self._page = page
        self._direction: Direction = "backward" if reverse else "forward"
        self._read_slowly = read_slowly
        self._longest = 0 if cut is None else VERSION_HEADER + cut
        self.rows: list[Row] = []
        """The rows of the last step."""
        self.more = True

    @property
    def reached(self) -> bytes:
        """In a forward scan: all rows below this key have been scanned."""
        return self._low[1:] + (b"\0" if self._low[:1] == b"(" else b"")

    def step(self, at: int) -> Call[Scanned | None]:
        """The call of the next step, at a timestamp."""
        bounds = self._low, self._high, self._page, PAGE_BYTES
        return calls.scan(self._tag, at, *bounds, self._direction, self._longest, self._encoded)

    def take(self, found: Scanned) -> int:
        """Take the reply to a step; returns the number of cells in it."""
        resume, row_keys, cells_of_rows = found
        self.more = bool(resume)
        if self._direction == "backward":
            self._high = resume
        else:
            self._low = resume
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
            self._add(cells, row, flat[position].decode(), flat[position], flat[position + 1])
        return cells

    def _add(
        self, cells: dict[str, bytes], row: bytes, name: str, column: bytes, cell: Sequence[bytes]
    ) -> None:
        """Add a cell from a reply of read.lua: a version, nothing, or the lock in its way."""
        if len(cell) == 2:
            found = self._read_slowly(self._tag, row, column)
        else:
            found = unpack_version(cell[0]) if cell else None
        if found is not None and found.value is not None:
            cells[name] = found.value


def scans_of_tablets(  # noqa: PLR0917
    handle: TableHandle,
    low: bytes,
    high: bytes | None,
    columns: Sequence[ColumnFields],
    page: int,
    reverse: bool,
    read_slowly: Callable[[bytes, bytes, bytes], Version | None],
    cut: int | None = None,
) -> list[TabletScan]:
    """A scan of each tablet that may have rows from ``low`` to below ``high``; one for a single row."""
    tags = (handle.tag(low),) if high == low + b"\0" else handle.tags
    return [TabletScan(tag, low, high, columns, page, reverse, read_slowly, cut) for tag in tags]


def merged(
    scans: Sequence[TabletScan],
    take_steps: Callable[[Sequence[TabletScan]], None],
    limit: int | None,
    reverse: bool,
) -> Iterator[Row]:
    """The rows of all scans in row order, at most ``limit``; ``take_steps`` fetches the next steps."""
    take_steps(scans)
    rows: Iterable[Row]
    if any([scan.more for scan in scans]):  # noqa: C419 - faster than a generator
        streams = [_rows_of(scan, take_steps) for scan in scans]
        rows = heapq.merge(*streams, key=itemgetter(0), reverse=reverse)
    else:
        # All rows are here; to sort them is faster than to merge.
        rows = sorted(chain.from_iterable([scan.rows for scan in scans]), key=itemgetter(0), reverse=reverse)
    yield from at_most(limit, rows)


def _rows_of(scan: TabletScan, take_steps: Callable[[Sequence[TabletScan]], None]) -> Iterator[Row]:
    while True:
        yield from scan.rows
        if not scan.more:
            return
        take_steps((scan,))


def settled_row(flat: Sequence[bytes]) -> dict[str, bytes]:
    """The cells of a row from all fields of its hash, if each newest version is visible and unlocked."""
    cells: dict[str, bytes] = {}
    fields = iter(flat)
    for field, version in zip(fields, fields, strict=True):
        column = field[1:]
        if field[:1] == VERSION_MARK and not version[KIND] and not is_internal(column):
            cells[column.decode()] = version[VALUE]
    return cells


def at_most(limit: int | None, rows: Iterable[Row]) -> Iterator[Row]:
    """Return the first rows, ``limit`` of them; None is all. `islice` refuses a larger number."""
    return islice(rows, None if limit is None else min(limit, sys.maxsize))


def first_page(limit: int | None, tablets: int) -> int:
    """The number of rows to fetch from each tablet in a step.

    A hash spreads rows over the tablets, so each tablet has its share of the first ``limit`` rows, and seldom
    more than three standard deviations above it. A tablet that has more takes another step.
    """
    if limit is None:
        return PAGE_ROWS
    share = limit / tablets
    return max(1, min(limit, PAGE_ROWS, math.ceil(share + 3 * math.sqrt(share))))
