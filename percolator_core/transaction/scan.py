"""Scans: the rows of a tablet between two keys, a bounded step at a time.

The server passes on what it has, as long as the newest versions answer; taking values out of it is quicker
here than in a script that everybody waits for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

from percolator_core.catalog.table_handle import ColumnFields
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
from percolator_core.scripts.calls import Call, Scanned

Row: TypeAlias = tuple[bytes, dict[str, bytes]]
"""A row key, and the values of its cells by column."""

PAGE_ROWS: Final = 512
PAGE_BYTES: Final = 1 << 20
"""Bounds of one step of a scan over one tablet."""

_JUDGED: Final = b"judged"
"""In front of a whole row's cells where some needed more than a look at the newest version."""


class TabletScan:
    """The rows of one tablet, fetched a bounded step at a time.

    ``columns`` are those wanted, none of them means all. ``read_slowly`` reads a cell with a lock in its way,
    by tag, row and encoded column. With ``cut``, of whole rows that many bytes of each value are fetched, and
    all of a value that needed ``read_slowly``.
    """

    __slots__ = (
        "_columns",
        "_cut",
        "_high",
        "_low",
        "_page",
        "_read_slowly",
        "_reverse",
        "_rows",
        "_script",
        "_tag",
        "more",
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
        self._page = page
        self._reverse = reverse
        self._read_slowly = read_slowly
        self._cut = cut
        self._rows: list[Row] = []
        self.more = True
        """Whether another step may bring more rows."""

    @property
    def rows(self) -> list[Row]:
        """What the last step brought."""
        return self._rows

    @property
    def reached(self) -> bytes:
        """Forward: all rows below this key have been looked at."""
        return self._low[1:] + (b"\0" if self._low[:1] == b"(" else b"")

    def step(self, at: int) -> Call[Scanned | None]:
        """The next step, at a timestamp."""
        bounds = (at, self._low, self._high, self._page, PAGE_BYTES)
        longest = VERSION_HEADER + self._cut if self._cut is not None else 0
        columns = (column.encoded for column in self._columns)
        return calls.scan(self._tag, *bounds, "backward" if self._reverse else "forward", longest, columns)

    def take(self, found: Scanned) -> int:
        """Take in the answer to a step; returns how many cells it brought."""
        self.more = bool(found.resume)
        if self._reverse:
            self._high = found.resume
        else:
            self._low = found.resume
        self._rows = rows = []
        cells_of = self._named if self._columns else self._whole
        count = 0
        for row, flat in zip(found.rows, found.cells, strict=True):
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
        """Add a cell as read.lua replies it: a version, nothing, or a lock that stands in the way."""
        if len(cell) == 2:
            found = self._read_slowly(self._tag, row, column)
        else:
            found = unpack_version(cell[0]) if cell else None
        if found is not None and found.value is not None:
            cells[name] = found.value


def merged(
    scans: Sequence[TabletScan],
    take_steps: Callable[[Sequence[TabletScan]], None],
    limit: int | None,
    reverse: bool,
) -> Iterator[Row]:
    """The rows of all scans in row order, at most ``limit``; ``take_steps`` fetches the next step of each."""
    take_steps(scans)
    streams = [_rows_of(scan, take_steps) for scan in scans]
    for count, found in enumerate(heapq.merge(*streams, key=itemgetter(0), reverse=reverse), 1):
        yield found
        if count == limit:
            return


def _rows_of(scan: TabletScan, take_steps: Callable[[Sequence[TabletScan]], None]) -> Iterator[Row]:
    while True:
        yield from scan.rows
        if not scan.more:
            return
        take_steps((scan,))


def settled_row(flat: Sequence[bytes]) -> dict[str, bytes]:
    """The cells of a row from all fields of its hash, where each newest version is visible and unlocked."""
    cells: dict[str, bytes] = {}
    fields = iter(flat)
    for field, version in zip(fields, fields, strict=True):
        column = field[1:]
        if field[:1] == VERSION_MARK and not version[KIND] and not is_internal(column):
            cells[column.decode()] = version[VALUE]
    return cells


def first_page(limit: int | None, tablets: int) -> int:
    """How many rows to fetch of each tablet at a time.

    Rows are spread over the tablets by a hash, so of the first ``limit`` rows each tablet has its share, and
    seldom more than three standard deviations above it. A tablet that has more is asked once more.
    """
    if limit is None:
        return PAGE_ROWS
    share = limit / tablets
    return max(1, min(limit, PAGE_ROWS, math.ceil(share + 3 * math.sqrt(share))))
