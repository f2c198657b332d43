"""Selects over typed tables: rows that a predicate wants, of one tablet, a bounded step at a time.

The store evaluates the predicate and passes on the cells as it has them, all in one string: taking that apart
is quicker here, and `percolator_core.tables.arrow` does so without touching each cell.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import Final

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import VERSION_HEADER
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.predicates import EVERYTHING, Bound, Program, program
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Direction, Selected

PAGE_ROWS: Final = 4096
PAGE_BYTES: Final = 1 << 20
"""Bounds of what one step brings."""

_STEP: Final = 1500.0
"""Microseconds of the server that a step's rows may take, of those looked at and of those brought each."""

_A_ROW: Final = 0.5
_A_CELL: Final = 0.4
_A_TEST: Final = 0.15
"""Microseconds that these take the server, about."""

_FEWEST: Final = 16
"""Rows that a step looks at, at least."""


@dataclass(frozen=True)
class Layout:
    """Where a select finds the columns that are wanted: in the row key, or among the cells of its reply.

    ``solid`` cells come first: they are never null and all of one width, so their lengths are known.
    """

    definition: TableDefinition
    columns: tuple[Column, ...]

    @cached_property
    def codec(self) -> KeyCodec:
        """Takes row keys apart."""
        return KeyCodec(self.definition)

    @cached_property
    def cells(self) -> tuple[Column, ...]:
        """The columns that have cells, in the order of the reply."""
        values = [column for column in self.columns if column.name not in self.definition.key]
        return tuple(sorted(values, key=lambda column: not _is_solid(column)))

    @cached_property
    def solid(self) -> tuple[int, ...]:
        """The lengths of the solid cells, as versions."""
        widths = [column_type(column.type).width for column in self.cells if _is_solid(column)]
        return tuple(VERSION_HEADER + width for width in widths if width is not None)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The place of each wanted column among the cells."""
        return {column.name: number for number, column in enumerate(self.cells)}

    @cached_property
    def loose(self) -> int:
        """How many cells are not solid."""
        return len(self.cells) - len(self.solid)


def _is_solid(column: Column) -> bool:
    return not column.nullable and column.missing is None and column_type(column.type).width is not None


class Batch:
    """The rows that a step brought, in row order.

    ``row_keys`` and ``cells`` are those of all rows one behind the other, the cells as versions and row by
    row; ``lengths`` has for each row that of its key, and of each cell that is not solid, 0 for a null.
    ``unsettled`` are keys of rows that the store could not judge, because a lock stands in the way: they have
    to be read, and tested, one by one.
    """

    __slots__ = ("_ends", "_keys", "_sizes", "cells", "layout", "lengths", "row_keys", "unsettled")

    def __init__(
        self, layout: Layout, row_keys: bytes, cells: bytes, lengths: bytes, unsettled: list[bytes]
    ) -> None:
        self.layout = layout
        self.row_keys = row_keys
        self.cells = cells
        self.lengths = lengths
        self.unsettled = unsettled
        self._keys: list[bytes] | None = None
        self._sizes: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths) // (4 * (1 + self.layout.loose))

    @property
    def keys(self) -> list[bytes]:
        """The row keys."""
        if self._keys is None:
            lengths = self._unpacked()[:: 1 + self.layout.loose]
            self._keys = [self.row_keys[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
        return self._keys

    def rows(self) -> Iterator[tuple[bytes, tuple[bytes | None, ...]]]:
        """Each row's key, and the encoded values of the columns that are wanted; None is a null.

        Raises:
            ConfigurationError: the cells are not as the table's definition has them.
        """
        columns = [self.values(column) for column in self.layout.columns]
        rows = zip(*columns, strict=True) if columns else repeat((), len(self))
        return zip(self.keys, rows, strict=True)

    def values(self, column: Column) -> Sequence[bytes | None]:
        """The encoded values of a wanted column, row by row. Raises as `rows`."""
        number = self.layout.numbers.get(column.name)
        if number is None:
            return self._parts(self.layout.definition.key.index(column.name))
        if not self._ends:
            self._locate()
        count, cells, missing = len(self.layout.cells), self.cells, column.missing
        return [
            cells[end - size + VERSION_HEADER : end] if size else missing
            for size, end in zip(self._sizes[number::count], self._ends[number::count], strict=True)
        ]

    def _parts(self, place: int) -> Sequence[bytes]:
        if len(self.layout.definition.key) == 1:
            return self.keys
        split = self.layout.codec.split
        return [split(key)[place] for key in self.keys]

    def _locate(self) -> None:
        """Find the size and the end of each cell."""
        layout, lengths = self.layout, self._unpacked()
        count, solid, step = len(layout.cells), layout.solid, 1 + layout.loose
        sizes = [0] * (count * len(self))
        for number in range(count):
            if number < len(solid):
                sizes[number::count] = [solid[number]] * len(self)
            else:
                sizes[number::count] = lengths[1 + number - len(solid) :: step].tolist()
        self._sizes, self._ends = sizes, list(accumulate(sizes))
        if sizes and self._ends[-1] != len(self.cells):
            raise misfit(layout.definition)

    def _unpacked(self) -> array[int]:
        lengths = array("I", self.lengths)
        if sys.byteorder == "little":
            lengths.byteswap()
        return lengths


def misfit(definition: TableDefinition) -> ConfigurationError:
    """What is raised for cells that cannot be of their columns' types."""
    return ConfigurationError(
        f"table {definition.name!r} has cells that are not of its columns' types: "
        "another program has written to the store, restore a backup"
    )


class TabletSelect:
    """The rows of one tablet that are wanted, fetched a bounded step at a time.

    ``columns`` are of the value and the key, in the order wanted; ``bound`` tells which rows, None is all;
    ``low`` and ``high`` bound the row keys, inclusive and exclusive, None is no upper bound. A step brings at
    most ``page`` rows, and takes the server two or three milliseconds at most. ``limit`` is how many rows of
    the tablet will be asked for at most, if that is known.

    A step whose reply is None is none to `take`: the snapshot is below the safe point.
    """

    __slots__ = ("_high", "_layout", "_low", "_most", "_predicate", "_reverse", "_stored", "_tag", "more")

    def __init__(  # noqa: PLR0917
        self,
        handle: TableHandle,
        tag: bytes,
        low: bytes,
        high: bytes | None,
        columns: Sequence[Column],
        bound: Bound | None,
        *,
        page: int = PAGE_ROWS,
        reverse: bool = False,
        limit: int | None = None,
    ) -> None:
        self._tag = tag
        self._low = b"[" + low
        self._high = b"+" if high is None else b"(" + high
        self._reverse = reverse
        self._layout = layout = Layout(handle.definition, tuple(columns))
        asked = program(bound, handle.definition)
        self._most = _bounds(layout, asked, page if limit is None else min(page, limit))
        self._stored = [column.stored.encode() for column in layout.cells]
        self._predicate = asked.arguments
        self.more = True
        """Whether another step may bring more rows."""

    @property
    def table(self) -> str:
        """The table's name."""
        return self._layout.definition.name

    @property
    def reached(self) -> bytes:
        """Forward: all rows below this key have been looked at."""
        return self._low[1:] + (b"\0" if self._low[:1] == b"(" else b"")

    def step(self, at: int) -> Call[Selected | None]:
        """The next step, at a timestamp."""
        direction: Direction = "backward" if self._reverse else "forward"
        bounds = (self._tag, at, self._low, self._high, direction)
        solid = len(self._layout.solid)
        return calls.select(*bounds, *self._most, PAGE_BYTES, solid, self._stored, self._predicate)

    def take(self, found: Selected) -> Batch:
        """What a step brought."""
        self.more = bool(found.resume)
        if self._reverse:
            self._high = found.resume
        else:
            self._low = found.resume
        return Batch(self._layout, found.row_keys, found.cells, found.lengths, found.unsettled)


def _bounds(layout: Layout, asked: Program, page: int) -> tuple[int, int]:
    """Rows that a step brings at most, and rows that it looks at."""
    brought = int(_STEP / (_A_ROW + _A_CELL * len(layout.cells)))
    most = max(1, min(page, max(_FEWEST, brought)))
    if asked is EVERYTHING:
        return most, most
    looked = int(_STEP / (_A_ROW + _A_CELL * asked.columns + _A_TEST * asked.tests))
    return most, max(_FEWEST, looked)
