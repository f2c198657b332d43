"""The select of one tablet: the rows for which a predicate is true, in bounded steps.

The store evaluates the predicate and returns all stored cells in one string. The client splits this string
faster than the store could, and `percolator_core.tables.arrow` converts whole columns of it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, repeat
from typing import TYPE_CHECKING, Final, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import VERSION_HEADER
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.predicates import EVERYTHING, Bound, Program, program
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.scripts import calls
from percolator_core.scripts.calls import Call, Direction
from percolator_core.scripts.replies import Based, Selected

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_ROWS: Final = 4096
PAGE_BYTES: Final = 1 << 20
"""The limits of rows and bytes that one step returns."""

_STEP: Final = 1500.0
"""Microseconds that the server may spend on each half of a step: evaluating rows, and returning rows."""

_A_ROW: Final = 0.5
_A_CELL: Final = 0.4
_A_TEST: Final = 0.15
"""The approximate microseconds that the server needs for a row, a cell and a test."""

_FEWEST: Final = 16
"""A step evaluates at least this many rows."""


@dataclass(frozen=True)
class Layout:
    """The positions of the selected columns: in the row key, or among the cells of the reply.

    *Solid* cells come first. They are never null and have a fixed width, so the client knows their lengths.
    """

    definition: TableDefinition
    columns: tuple[Column, ...]

    @cached_property
    def codec(self) -> KeyCodec:
        """The codec of row keys."""
        return KeyCodec(self.definition)

    @cached_property
    def cells(self) -> tuple[Column, ...]:
        """The selected columns outside the key, in the order of the reply."""
        values = [column for column in self.columns if column.name not in self.definition.key]
        return tuple(sorted(values, key=lambda column: not _is_solid(column)))

    @cached_property
    def solid(self) -> tuple[int, ...]:
        """The lengths of the versions in solid cells."""
        widths = [column_type(column.type).width for column in self.cells if _is_solid(column)]
        return tuple(VERSION_HEADER + width for width in widths if width is not None)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The position of each column among the cells, by name."""
        return {column.name: number for number, column in enumerate(self.cells)}

    @cached_property
    def loose(self) -> int:
        """The number of cells that are not solid."""
        return len(self.cells) - len(self.solid)


def _is_solid(column: Column) -> bool:
    return not column.nullable and column.missing is None and column_type(column.type).width is not None


class Batch:
    """The rows that a step returned, in row order.

    ``row_keys`` has all row keys joined, and ``cells`` all versions, row by row. ``lengths`` has for each row
    the length of its key and of each cell that is not solid; 0 means null. ``unsettled`` has the keys of rows
    that the store could not evaluate because of a lock. The caller reads these rows one by one.
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
        """Yield each row's key and the encoded values of the selected columns; None means null.

        Raises ConfigurationError if the cells do not match the table's definition.
        """
        columns = [self.values(column) for column in self.layout.columns]
        rows = zip(*columns, strict=True) if columns else repeat((), len(self))
        return zip(self.keys, rows, strict=True)

    def values(self, column: Column) -> Sequence[bytes | None]:
        """Return the encoded values of a selected column, row by row. Raises as `rows`."""
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

    def _parts(self, position: int) -> Sequence[bytes]:
        if len(self.layout.definition.key) == 1:
            return self.keys
        split = self.layout.codec.split
        return [split(key)[position] for key in self.keys]

    def _locate(self) -> None:
        """Compute the size and the end of each cell."""
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
    """Return the error for cells that do not have the types of their columns."""
    return ConfigurationError(
        f"table {definition.name!r} has cells that do not fit its column types, because another program "
        "wrote to the store; restore a backup"
    )


class ArrowBatch:
    """The rows of a step in a tablet with a base, with the methods of `Batch`; ``unsettled`` is empty.

    ``table`` has the row keys, then the columns of ``layout``, in the types of `arrow_values.arrow_type`.
    The default of a column (`Column.missing`) is already in the place of nulls.
    """

    def __init__(self, layout: Layout, table: pa.Table) -> None:
        self.layout = layout
        self.unsettled: list[bytes] = []
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    @cached_property
    def keys(self) -> list[bytes]:
        """The row keys."""
        found: list[bytes] = self._table.column(0).to_pylist()
        return found

    def rows(self) -> Iterator[tuple[bytes, tuple[bytes | None, ...]]]:
        """Yield each row's key and the encoded values of the selected columns; None means null."""
        columns = [self.values(column) for column in self.layout.columns]
        rows = zip(*columns, strict=True) if columns else repeat((), len(self))
        return zip(self.keys, rows, strict=True)

    def values(self, column: Column) -> Sequence[bytes | None]:
        """Return the encoded values of a selected column, row by row."""
        from percolator_core.tables.arrow_columns import stored  # it needs pyarrow

        kind = column_type(column.type)
        return [value for chunk in self.column(column).chunks for value in stored(kind, chunk)]

    def column(self, column: Column) -> pa.ChunkedArray:
        """Return a selected column."""
        # The column is found by its position, because the column of the row keys may have the same name.
        names = [one.name for one in self.layout.columns]
        return self._table.column(1 + names.index(column.name))


RowBatch: TypeAlias = Batch | ArrowBatch
"""The rows that a step of a select returned."""


class TabletSelect:
    """A select of rows in one tablet, in bounded steps.

    ``bound`` is the predicate; None selects all rows. Row keys are from ``low`` to below ``high``; None means
    no upper bound. A step takes at most two or three milliseconds of the server's time. ``limit`` is the
    number of needed rows, if known. ``more`` is True if another step may return more rows.

    If a step returns None, the snapshot is below the safe point, and the caller must not call `take`.
    """

    __slots__ = (
        "_high",
        "_low",
        "_most",
        "_predicate",
        "_stored",
        "bound",
        "handle",
        "layout",
        "limit",
        "more",
        "reverse",
        "tag",
    )

    def __init__(  # noqa: PLR0917
        self,
        handle: TableHandle,
        tag: bytes,
        low: bytes,
        high: bytes | None,
        columns: Sequence[Column],
        bound: Bound | None,
        *,
        reverse: bool = False,
        limit: int | None = None,
    ) -> None:
        self.handle = handle
        self.tag = tag
        self.bound = bound
        self.limit = limit
        self._low = b"[" + low
        self._high = b"+" if high is None else b"(" + high
        self.reverse = reverse
        self.layout = layout = Layout(handle.definition, tuple(columns))
        asked = program(bound, handle.definition)
        self._most = _bounds(layout, asked, PAGE_ROWS if limit is None else min(PAGE_ROWS, limit))
        self._stored = [column.stored.encode() for column in layout.cells]
        self._predicate = asked.arguments
        self.more = True

    @property
    def reached(self) -> bytes:
        """A forward select has evaluated all rows below this key, a backward one this key and all above."""
        low, high = self.range
        return (high or b"") if self.reverse else low

    def step(self, at: int) -> Call[Selected | Based | None]:
        """Return the call of the next step at a timestamp."""
        direction: Direction = "backward" if self.reverse else "forward"
        bounds = (self.tag, at, self._low, self._high, direction)
        solid = len(self.layout.solid)
        return calls.select(*bounds, *self._most, PAGE_BYTES, solid, self._stored, self._predicate)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The selected columns."""
        return self.layout.columns

    @property
    def range(self) -> tuple[bytes, bytes | None]:
        """The first key that no step has evaluated yet, and the exclusive end of the range (or None)."""
        low = self._low[1:] + (b"\0" if self._low[:1] == b"(" else b"")
        return low, None if self._high == b"+" else self._high[1:]

    def reach(self, bound: bytes | None) -> None:
        """Set the range of the next step, after a step whose rows the caller has read itself.

        ``bound`` is its first key, or in a backward select its exclusive end. None ends the select.
        """
        self.more = bound is not None
        if bound is not None and self.reverse:
            self._high = b"(" + bound
        elif bound is not None:
            self._low = b"[" + bound

    def take(self, found: Selected) -> Batch:
        """Return the rows of a step's reply, and prepare the next step."""
        self.more = bool(found.resume)
        if self.reverse:
            self._high = found.resume
        else:
            self._low = found.resume
        return Batch(self.layout, found.row_keys, found.cells, found.lengths, found.unsettled)


def _bounds(layout: Layout, asked: Program, page: int) -> tuple[int, int]:
    """Return how many rows a step returns at most, and how many it evaluates at most."""
    brought = int(_STEP / (_A_ROW + _A_CELL * len(layout.cells)))
    most = max(1, min(page, max(_FEWEST, brought)))
    if asked is EVERYTHING:
        return most, most
    looked = int(_STEP / (_A_ROW + _A_CELL * asked.columns + _A_TEST * asked.tests))
    return most, max(_FEWEST, looked)
