"""A portion of the rows of a tablet that a flush moves: their cells by column, without an object for each.

Import this module only after a call of `arrow_values.pyarrow`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from percolator_core.base.row_set import GROUP_ROWS, KEY, RAW_COLUMN, BaseRow, batches, schema_of
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import KIND, VERSION_HEADER
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.types import column_type
from percolator_core.scripts.replies import Cold
from percolator_core.tables.arrow_keys import KeyParts, gathered, keys_of, offsets_of, pieces
from percolator_core.tables.arrow_values import of_bytes, texts

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_STEP_BYTES: Final = 1 << 20
"""Bound of one step of evicting rows, as in `flush`."""


def repeated(step: Cold) -> int:
    """Return the bytes that a raw table's columns repeat: for each cell its row's key and its column's name.

    An Arrow column has less than 2 GiB, and rows have many cells, or columns long names.
    """
    rows, cells = np.frombuffer(step.rows, ">u4"), np.frombuffer(step.cells, ">u4")
    names = np.array([len(name) for name in step.columns])
    return int(rows[::3].astype(np.int64) @ rows[1::3].astype(np.int64) + names[cells[::2]].sum())


class Portion:
    """Rows that were read by the steps of `calls.cold`, in ascending order of key.

    ``stamp`` is that of the first step. The rows at ``staying`` do not leave the store.
    """

    def __init__(self, steps: Sequence[Cold]) -> None:
        self.stamp = steps[0].stamp
        self.staying: set[int] = set()
        self.columns: list[bytes] = sorted({name for step in steps for name in step.columns})
        self._versions = b"".join(step.versions for step in steps)
        rows = np.frombuffer(b"".join(step.rows for step in steps), ">u4").reshape(-1, 3).astype(np.int64)
        self._key_offsets = offsets_of(rows[:, 0])
        self.keys: pa.BinaryArray = keys_of(b"".join(step.keys for step in steps), self._key_offsets)
        self._fields = rows[:, 2]
        self._firsts = np.cumsum(rows[:, 1]) - rows[:, 1]
        """The first cell of each row."""
        self._row = np.repeat(np.arange(len(rows)), rows[:, 1])
        self._column, lengths = self._cells(steps)
        offsets = offsets_of(lengths)
        self._starts, self._ends = offsets[:-1], offsets[1:]
        """The row, the column, and the bounds of the version of each cell."""

    def _cells(self, steps: Sequence[Cold]) -> tuple[Numbers, Numbers]:
        """Return the column and the length of each cell."""
        places = {name: place for place, name in enumerate(self.columns)}
        columns, lengths = [], []
        for step in steps:
            cells = np.frombuffer(step.cells, ">u4").reshape(-1, 2).astype(np.int64)
            columns.append(np.array([places[name] for name in step.columns], np.int64)[cells[:, 0]])
            lengths.append(cells[:, 1])
        return np.concatenate(columns), np.concatenate(lengths)

    def __len__(self) -> int:
        return len(self.keys)

    def deleting(self) -> Numbers:
        """The places of rows with a deletion."""
        kinds = np.frombuffer(self._versions, np.uint8)[self._starts + KIND]
        return np.unique(self._row[kinds != 0])

    def without_marker(self) -> Numbers:
        """The places of rows without the marker of a typed table."""
        marked = np.zeros(len(self), bool)
        if MARKER in self.columns:
            marked[self._row[self._column == self.columns.index(MARKER)]] = True
        return np.flatnonzero(~marked)

    def versions(self, place: int) -> dict[bytes, bytes]:
        """Return the packed versions of a row by column."""
        first = self._firsts[place]
        last = self._firsts[place + 1] if place + 1 < len(self) else len(self._row)
        return {
            self.columns[self._column[cell]]: self._versions[self._starts[cell] : self._ends[cell]]
            for cell in range(first, last)
        }

    def batches(
        self, definition: TableDefinition, special: Sequence[int], merged: Sequence[BaseRow]
    ) -> Iterator[pa.RecordBatch]:
        """The rows as batches for `row_set.write`: those at the places ``special`` as ``merged`` has them.

        The other rows have no deletion, and those of a typed table have a marker.

        Raises:
            ValueError: a key or a value is none of the table.
        """
        chosen = np.ones(len(self), bool)
        chosen[list(special)] = False
        arrays = self._typed(definition, chosen) if definition.is_typed else self._raw(chosen)
        rows = pa.Table.from_arrays(arrays, schema=schema_of(definition))
        if merged:
            order = [(name, "ascending") for name in (KEY, RAW_COLUMN) if name in rows.schema.names]
            rows = pa.concat_tables([rows, pa.Table.from_batches(batches(definition, merged))]).sort_by(order)
        return iter(rows.combine_chunks().to_batches(max_chunksize=GROUP_ROWS))

    def _typed(self, definition: TableDefinition, chosen: Numbers) -> list[pa.Array]:
        keys = self.keys.filter(pa.array(chosen))
        times = np.maximum.reduceat(self._times(), self._firsts)[chosen]
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
            cells = np.flatnonzero(self._column == self.columns.index(name))
            rows = self._row[cells]
            starts[rows], ends[rows] = self._starts[cells] + VERSION_HEADER, self._ends[cells]
        starts, ends = starts[chosen], ends[chosen]
        valid = ends > 0
        if kind.width is None:
            # Nulls are between their neighbours, because the pieces ascend.
            ends = np.maximum.accumulate(ends)
            return texts(kind, pieces(self._versions, np.where(valid, starts, ends), ends, valid))
        if (valid & (ends - starts != kind.width)).any():
            raise ValueError(f"a value of {column.name} is no {kind.name}")
        return of_bytes(kind, gathered(self._versions, starts, kind.width), valid)

    def _raw(self, chosen: Numbers) -> list[pa.Array]:
        """Return key, column, time and value of each cell, in order of key and column."""
        order = np.lexsort((self._column, self._row))
        order = order[chosen[self._row[order]]]
        cells = pa.array(order)
        return [
            self.keys.take(pa.array(self._row[order])),
            pa.array(self.columns, pa.binary()).take(pa.array(self._column[order])),
            pa.array(self._times()).take(cells),
            pieces(self._versions, self._starts + VERSION_HEADER, self._ends).take(cells),
        ]

    def _times(self) -> Numbers:
        """Return the commit timestamp of each cell."""
        return gathered(self._versions, self._starts, KIND).view(">i8")[:, 0].astype(np.int64)

    def steps(self, most: int) -> Iterator[list[bytes | int]]:
        """The rows that leave the store, in steps of ``most`` for `calls.evict`: it may read whole rows."""
        names = np.array([len(name) for name in self.columns])
        cells = self._ends - self._starts + names[self._column]
        sizes = np.add.reduceat(cells, self._firsts) + np.diff(self._key_offsets)
        rows: list[bytes | int] = []
        size = 0
        every = zip(self.keys.to_pylist(), self._fields.tolist(), sizes.tolist(), strict=True)
        for place, (key, fields, bytes_) in enumerate(every):
            if place in self.staying:
                continue
            rows += key, fields
            size += bytes_
            if size >= _STEP_BYTES or len(rows) == 2 * most:
                yield rows
                rows, size = [], 0
        if rows:
            yield rows
