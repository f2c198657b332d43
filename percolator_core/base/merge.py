"""Merge the rows of a tablet's base with those of the store, as Arrow columns, for a select.

The *delta* of a row is the part of it that the store has. Each row group becomes a piece of the result: the
deltas of its rows are applied one column at a time, and the predicate is evaluated over these columns. If no
row matches, only the columns of the predicate are decoded. Rows that only the store has are inserted
afterwards.

Import this module only after a call of `arrow_values.pyarrow`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute

from percolator_core.base.columns import Keys
from percolator_core.base.predicate import Spread, may_be_true, rows_where, spread_of
from percolator_core.base.reader import RowGroup
from percolator_core.base.row_set import KEY, Delta, column_name
from percolator_core.base.tablet import TabletBase
from percolator_core.layout.keys import MARKER
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.predicates import Bound
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow import arrow_schema
from percolator_core.tables.arrow_columns import KeyParts, of_values
from percolator_core.tables.arrow_values import arrow_type
from percolator_core.tables.select import misfit

_UNCHANGED: Final = object()


def selected(  # noqa: PLR0917
    base: TabletBase,
    low: bytes,
    high: bytes | None,
    deltas: Mapping[bytes, Delta],
    columns: Sequence[Column],
    bound: Bound | None,
    *,
    reverse: bool = False,
) -> pa.Table:
    """Return the rows of a typed table from key ``low`` to below ``high`` for which ``bound`` is true.

    The ``deltas`` of the store are applied to the rows of the base. The rows are in ascending order of their
    keys, or in descending order with ``reverse``. The first column of the result has the keys. The
    ``columns`` follow under their names; one of them may be named like the first column. `Column.missing`
    replaces nulls.

    Raises:
        BaseDamaged: a file of the base is missing or damaged.
        StoreUnavailable: a file of the base cannot be read now.
        ConfigurationError: a delta does not match the table's definition.
    """
    keys = sorted(key for key in deltas if low <= key and (high is None or key < high))
    merge = _Merge(base.definition, columns, bound, deltas, keys)
    found = [merge.of_group(group) for reader in base.readers for group in reader.groups(low, high)]
    schema = _schema(columns)
    pieces = [pa.RecordBatch.from_arrays(piece, schema=schema) for piece in found if piece is not None]
    fresh = merge.of_store() or [pa.array([], field.type) for field in schema]
    ordered = list(_in_order(pieces, pa.RecordBatch.from_arrays(fresh, schema=schema)))
    if reverse:
        ordered = [piece.take(pa.array(np.arange(len(piece))[::-1])) for piece in reversed(ordered)]
    return pa.Table.from_batches([piece for piece in ordered if len(piece)], schema)


def nothing(columns: Sequence[Column]) -> pa.Table:
    """Return a result of `selected` that has no rows."""
    return _schema(columns).empty_table()


def _schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(KEY, pa.binary(), False), *arrow_schema(columns)])


class _Merge:
    """The columns and the predicate of a select, the deltas, and their keys in the range, which ascend."""

    def __init__(
        self,
        definition: TableDefinition,
        columns: Sequence[Column],
        bound: Bound | None,
        deltas: Mapping[bytes, Delta],
        keys: list[bytes],
    ) -> None:
        self._definition = definition
        self._columns = columns
        self._bound = bound
        self._deltas = deltas
        self._keys = keys
        self._in_base: set[bytes] = set()

    def of_group(self, group: RowGroup) -> list[pa.Array] | None:
        """Return the keys and columns of the matching rows of a row group; None if no row matches."""
        if not len(group):
            return None
        rows = _GroupRows(self._definition, group)
        some = self._keys[bisect_left(self._keys, group.first) : bisect_right(self._keys, group.last)]
        if some:
            positions = compute.index_in(rows.keys, pa.array(some, pa.binary()))
            touched = np.flatnonzero(positions.is_valid())
            found = [some[position] for position in positions.take(touched).to_pylist()]
            self._in_base.update(found)
            rows.set_deltas(touched, [self._deltas[key] for key in found])
        if not may_be_true(self._bound, rows.spread):
            return None
        return self._matching(rows)

    def of_store(self) -> list[pa.Array] | None:
        """Return the keys and columns of the matching rows that no row group has; None if no row matches."""
        keys: list[bytes] = [
            key
            for key in self._keys
            if key not in self._in_base and self._deltas[key].get(MARKER) is not None
        ]
        return self._matching(_StoreRows(self._definition, keys, self._deltas)) if keys else None

    def _matching(self, rows: _Rows) -> list[pa.Array] | None:
        chosen = None if rows.exists is None else pa.array(rows.exists)
        if self._bound is not None:
            true = rows_where(self._bound, self._definition, rows.column, len(rows))
            chosen = true if chosen is None else compute.and_(chosen, true)
        if chosen is not None and not chosen.true_count:
            return None
        rows.load(self._columns)
        arrays = [rows.keys, *(rows.column(column.name) for column in self._columns)]
        if chosen is None or chosen.true_count == len(rows):
            return arrays
        positions = pa.array(np.flatnonzero(chosen))
        return [array.take(positions) for array in arrays]


class _Rows:
    """Rows, column by column; ``exists`` has False for each removed row, and is None without removed rows."""

    keys: pa.Array
    exists: Any = None

    def __init__(self, definition: TableDefinition) -> None:
        self._definition = definition
        self._arrays: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def column(self, name: str) -> pa.Array:
        """Return a column by its name in the table; `Column.missing` replaces nulls."""
        found = self._arrays.get(name)
        if found is None:
            column = self._definition.column(name)
            found = self._read(column)
            if column.missing is not None and found.null_count:
                found = found.fill_null(_array(self._definition, column, [column.missing])[0])
            self._arrays[name] = found
        return found

    def load(self, columns: Sequence[Column]) -> None:
        """Read columns together, which is faster than one by one."""

    def _read(self, column: Column) -> pa.Array:
        raise NotImplementedError


class _GroupRows(_Rows):
    """The rows of a row group, with their deltas."""

    def __init__(self, definition: TableDefinition, group: RowGroup) -> None:
        super().__init__(definition)
        self._group = group
        self._held: dict[str, pa.Array] = {}
        self._positions: Any = ()
        self._deltas: Sequence[Delta] = ()

    def __len__(self) -> int:
        return len(self._group)

    @property
    def keys(self) -> pa.Array:
        """The row keys."""
        return self._of_group(KEY)

    def set_deltas(self, positions: Any, deltas: Sequence[Delta]) -> None:
        """Set the deltas of the rows at these positions, which ascend."""
        self._positions, self._deltas = positions, deltas
        removed = [MARKER in delta and delta[MARKER] is None for delta in deltas]
        if any(removed):
            self.exists = np.ones(len(self), bool)
            self.exists[positions[removed]] = False

    def spread(self, name: str) -> Spread | None:
        """Return the bounds of a column's values in these rows."""
        column = self._definition.column(name)
        stored = column_name(column)
        if self._group.has_column(stored):
            found = spread_of(column, self._group.statistics(stored))
        else:
            found = Spread.of([column.missing])
        cells = [cell for cell in self._cells(column) if cell is not _UNCHANGED]
        return found and found | Spread.of([column.missing if cell is None else cell for cell in cells])

    def load(self, columns: Sequence[Column]) -> None:
        names = [KEY, *(column_name(column) for column in columns)]
        missing = [name for name in names if name not in self._held]
        if missing:
            self._held |= self._group.columns(missing)

    def _of_group(self, name: str) -> pa.Array:
        if name not in self._held:
            self._held |= self._group.columns([name])
        return self._held[name]

    def _read(self, column: Column) -> pa.Array:
        if self._group.has_column(column_name(column)):
            found = self._of_group(column_name(column))
        else:
            found = pa.nulls(len(self), arrow_type(column.type))
        cells = self._cells(column)
        changed = [position for position, cell in enumerate(cells) if cell is not _UNCHANGED]
        if not changed:
            return found
        mask = np.zeros(len(self), bool)
        mask[self._positions[changed]] = True
        values = _array(self._definition, column, [cells[position] for position in changed])
        return compute.replace_with_mask(found, mask, values)

    def _cells(self, column: Column) -> list[Any]:
        """Return the cell of a column in each delta; `_UNCHANGED` if the delta has no such cell."""
        stored = column.stored.encode()
        return [delta.get(stored, _UNCHANGED) for delta in self._deltas]


class _StoreRows(_Rows):
    """Rows that only the store has."""

    def __init__(
        self, definition: TableDefinition, keys: Sequence[bytes], deltas: Mapping[bytes, Delta]
    ) -> None:
        super().__init__(definition)
        self.keys = pa.array(keys, pa.binary())
        self._deltas = [deltas[key] for key in keys]
        try:
            self._parts = KeyParts(definition, self.keys)
        except ValueError:
            raise misfit(definition) from None

    def _read(self, column: Column) -> pa.Array:
        if column.name in self._definition.key:
            return self._parts.column(column.name)
        stored = column.stored.encode()
        return _array(self._definition, column, [delta.get(stored) for delta in self._deltas])


def _array(definition: TableDefinition, column: Column, values: Sequence[Any]) -> pa.Array:
    """Return the Arrow column of encoded values. Raises ConfigurationError for cells of another type."""
    kind = column_type(column.type)
    if kind.width is not None and {len(value) for value in values if value is not None} - {kind.width}:
        raise misfit(definition)
    try:
        return of_values(kind, values)
    except pa.ArrowInvalid:
        raise misfit(definition) from None


def _in_order(pieces: Iterable[pa.RecordBatch], fresh: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``pieces`` and of ``fresh`` in the order of their keys.

    Each piece, and ``fresh``, has this order already. Key ranges of pieces may overlap. No key occurs twice.
    """
    keys = Keys(fresh.column(0))
    at = 0
    for piece in _without_overlap(pieces):
        start = bisect_left(keys, piece.column(0)[0].as_py(), at)
        stop = bisect_left(keys, piece.column(0)[-1].as_py(), start)
        yield fresh.slice(at, start - at)
        yield _inserted(piece, fresh.slice(start, stop - start))
        at = stop
    yield fresh.slice(at)


def _without_overlap(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut and join pieces so that they do not overlap, and yield them in the order of their keys."""
    waiting: list[pa.RecordBatch] = []
    for piece in sorted(pieces, key=lambda one: one.column(0)[0].as_py()):
        first = piece.column(0)[0].as_py()
        ends = [bisect_left(Keys(one.column(0)), first) for one in waiting]
        yield from _sorted([one.slice(0, end) for one, end in zip(waiting, ends, strict=True)])
        waiting = [one.slice(end) for one, end in zip(waiting, ends, strict=True) if end < len(one)]
        waiting.append(piece)
    yield from _sorted(waiting)


def _sorted(pieces: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return one piece with the rows of ``pieces`` in the order of their keys; no piece without rows."""
    some = [piece for piece in pieces if len(piece)]
    if len(some) <= 1:
        return some
    joined = pa.concat_batches(some)
    return [joined.take(compute.sort_indices(joined.column(0)))]


def _inserted(piece: pa.RecordBatch, fresh: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of both batches in the order of their keys."""
    if not len(fresh):
        return piece
    keys = Keys(piece.column(0))
    at = [bisect_left(keys, key) for key in fresh.column(0).to_pylist()]
    positions = np.insert(np.arange(len(piece)), at, np.arange(len(piece), len(piece) + len(fresh)))
    return pa.concat_batches([piece, fresh]).take(pa.array(positions))
