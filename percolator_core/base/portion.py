"""A portion of the rows that a flush moves, in arrays. There is no Python object for each cell.

Import this module only after a call of `arrow_values.pyarrow`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from percolator_core.base.row_set import GROUP_ROWS, BaseRow, batches, order_of, schema_of
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import KIND, VERSION_HEADER
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.types import column_type
from percolator_core.scripts.replies import ColdRows
from percolator_core.tables.arrow_columns import (
    KeyParts,
    Numbers,
    gathered,
    keys_of,
    of_bytes,
    offsets_of,
    pieces,
    texts,
)

_EVICTED_BYTES: Final = 1 << 20
"""The rows that one step evicts have about this many bytes in total, because the script reads whole rows."""


def repeated(step: ColdRows) -> int:
    """Return the size of keys and column names in a raw table's file, which repeats both for each cell.

    With many cells or long names the size can exceed the 2 GiB that an Arrow column holds.
    """
    rows, cells = np.frombuffer(step.rows, ">u4"), np.frombuffer(step.cells, ">u4")
    names = np.array([len(name) for name in step.columns])
    return int(rows[::3].astype(np.int64) @ rows[1::3].astype(np.int64) + names[cells[::2]].sum())


class Portion:
    """Rows that were read by steps of `calls.cold`, in ascending order of key. Their indexes begin at 0.

    ``stamp`` is the stamp of the first step, for `calls.evict`. ``staying`` has the indexes of the rows that
    stay in the store.
    """

    def __init__(self, steps: Sequence[ColdRows]) -> None:
        self.stamp = steps[0].stamp
        self.staying: set[int] = set()
        self.columns: list[bytes] = sorted({name for step in steps for name in step.columns})
        self._versions = b"".join(step.versions for step in steps)
        rows = np.frombuffer(b"".join(step.rows for step in steps), ">u4").reshape(-1, 3).astype(np.int64)
        self._key_offsets = offsets_of(rows[:, 0])
        self.keys: pa.BinaryArray = keys_of(b"".join(step.keys for step in steps), self._key_offsets)
        # For each row: its number of fields, and the index of its first cell.
        self._fields = rows[:, 2]
        self._first_cells = np.cumsum(rows[:, 1]) - rows[:, 1]
        # For each cell: the indexes of its row and of its column, and the bounds of its version.
        self._rows = np.repeat(np.arange(len(rows)), rows[:, 1])
        self._columns, lengths = self._cells(steps)
        offsets = offsets_of(lengths)
        self._starts, self._ends = offsets[:-1], offsets[1:]

    def _cells(self, steps: Sequence[ColdRows]) -> tuple[Numbers, Numbers]:
        """Return the column and the length of each cell."""
        numbers = {name: number for number, name in enumerate(self.columns)}
        columns, lengths = [], []
        for step in steps:
            cells = np.frombuffer(step.cells, ">u4").reshape(-1, 2).astype(np.int64)
            columns.append(np.array([numbers[name] for name in step.columns], np.int64)[cells[:, 0]])
            lengths.append(cells[:, 1])
        return np.concatenate(columns), np.concatenate(lengths)

    def __len__(self) -> int:
        return len(self.keys)

    def deleting(self) -> Numbers:
        """The indexes of the rows that have a deletion."""
        kinds = np.frombuffer(self._versions, np.uint8)[self._starts + KIND]
        return np.unique(self._rows[kinds != 0])

    def without_marker(self) -> Numbers:
        """The indexes of the rows that lack the marker of a typed table."""
        marked = np.zeros(len(self), bool)
        if MARKER in self.columns:
            marked[self._rows[self._columns == self.columns.index(MARKER)]] = True
        return np.flatnonzero(~marked)

    def versions(self, row: int) -> dict[bytes, bytes]:
        """Return the packed versions of a row by column."""
        first = self._first_cells[row]
        end = self._first_cells[row + 1] if row + 1 < len(self) else len(self._rows)
        return {
            self.columns[self._columns[cell]]: self._versions[self._starts[cell] : self._ends[cell]]
            for cell in range(first, end)
        }

    def batches(
        self, definition: TableDefinition, special: Sequence[int], merged: Sequence[BaseRow]
    ) -> Iterator[pa.RecordBatch]:
        """Return batches for `row_set.write`. The rows ``merged`` replace those with the indexes ``special``.

        No other row may have a deletion. In a typed table, each other row must have a marker.

        Raises:
            ValueError: a key or a value does not match the table's definition.
        """
        chosen = np.ones(len(self), bool)
        chosen[list(special)] = False
        arrays = self._typed(definition, chosen) if definition.is_typed else self._raw(chosen)
        rows = pa.Table.from_arrays(arrays, schema=schema_of(definition))
        if merged:
            rows = pa.concat_tables([rows, pa.Table.from_batches(batches(definition, merged))])
            rows = rows.sort_by(order_of(rows.schema))
        return iter(rows.combine_chunks().to_batches(max_chunksize=GROUP_ROWS))

    def _typed(self, definition: TableDefinition, chosen: Numbers) -> list[pa.Array]:
        keys = self.keys.filter(pa.array(chosen))
        times = np.maximum.reduceat(self._times(), self._first_cells)[chosen]
        parts = KeyParts(definition, keys)
        arrays = [keys, pa.array(times)]
        for column in definition.columns:
            is_key = column.name in definition.key
            arrays.append(parts.column(column.name) if is_key else self._values(column, chosen))
        return arrays

    def _values(self, column: Column, chosen: Numbers) -> pa.Array:
        """Return a column of a typed table."""
        kind, name = column_type(column.type), column.stored.encode()
        starts, ends = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        if name in self.columns:
            cells = np.flatnonzero(self._columns == self.columns.index(name))
            rows = self._rows[cells]
            starts[rows], ends[rows] = self._starts[cells] + VERSION_HEADER, self._ends[cells]
        starts, ends = starts[chosen], ends[chosen]
        valid = ends > 0
        if kind.width is None:
            # The ranges must ascend, so the range of a null is empty, and at the end of the previous value.
            ends = np.maximum.accumulate(ends)
            return texts(kind, pieces(self._versions, np.where(valid, starts, ends), ends, valid))
        if (valid & (ends - starts != kind.width)).any():
            raise ValueError(f"a value of {column.name} is no {kind.name}")
        return of_bytes(kind, gathered(self._versions, starts, kind.width), valid)

    def _raw(self, chosen: Numbers) -> list[pa.Array]:
        """Return key, column, time and value of each cell, in order of key and column."""
        order = np.lexsort((self._columns, self._rows))
        order = order[chosen[self._rows[order]]]
        cells = pa.array(order)
        return [
            self.keys.take(pa.array(self._rows[order])),
            pa.array(self.columns, pa.binary()).take(pa.array(self._columns[order])),
            pa.array(self._times()).take(cells),
            pieces(self._versions, self._starts + VERSION_HEADER, self._ends).take(cells),
        ]

    def _times(self) -> Numbers:
        """Return the commit timestamp of each cell."""
        return gathered(self._versions, self._starts, KIND).view(">i8")[:, 0].astype(np.int64)

    def steps(self, most: int) -> Iterator[list[bytes | int]]:
        """Yield the rows that leave the store, for `calls.evict`: each key, then its number of fields.

        A step has at most ``most`` rows, and ends after about `_EVICTED_BYTES`.
        """
        names = np.array([len(name) for name in self.columns])
        cells = self._ends - self._starts + names[self._columns]
        sizes = np.add.reduceat(cells, self._first_cells) + np.diff(self._key_offsets)
        rows: list[bytes | int] = []
        step_size = 0
        every = zip(self.keys.to_pylist(), self._fields.tolist(), sizes.tolist(), strict=True)
        for number, (key, fields, size) in enumerate(every):
            if number in self.staying:
                continue
            rows += key, fields
            step_size += size
            if step_size >= _EVICTED_BYTES or len(rows) == 2 * most:
                yield rows
                rows, step_size = [], 0
        if rows:
            yield rows
