"""The result of a step of a select in a tablet with a base: Arrow columns instead of packed cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

from percolator_core.schema.definitions import Column
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow_values import stored
from percolator_core.tables.select import Batch, Layout

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowBatch:
    """The rows of a step, in row order, as an Arrow table: the row keys, then the columns of ``layout``.

    The default of a column (`Column.missing`) is already in the place of nulls. The columns have the types of
    `arrow_values.arrow_type`. The methods are those of `Batch`; ``unsettled`` is empty.
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
        kind = column_type(column.type)
        return [value for chunk in self.column(column).chunks for value in stored(kind, chunk)]

    def column(self, column: Column) -> pa.ChunkedArray:
        """Return a selected column."""
        # The column is found by its position, because the column of the row keys may have the same name.
        names = [one.name for one in self.layout.columns]
        return self._table.column(1 + names.index(column.name))


RowBatch: TypeAlias = Batch | ArrowBatch
"""The rows that a step of a select returned."""
