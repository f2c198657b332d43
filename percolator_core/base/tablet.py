"""The rows of one tablet's base: the rows of the row sets that the tablet's manifest names."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from percolator_core.base.cache import ByteCache
from percolator_core.base.columns import Values
from percolator_core.base.location import Location
from percolator_core.base.manifest import Manifest
from percolator_core.base.reader import RowSetReader, Span
from percolator_core.base.row_set import (
    KEY,
    RAW_COLUMN,
    RAW_VALUE,
    TIME,
    BaseRow,
    column_name,
    order_of,
    schema_of,
)
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import Version
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.types import ColumnType, column_type
from percolator_core.tables.arrow_values import pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

_GROUPS_AT_ONCE: Final = 8
"""A step of a select reads at most this many row groups, each of about `row_set.GROUP_BYTES` at most."""

_BYTES: Final = column_type("bytes")

_UNKNOWN: Final = "", _BYTES
"""The name and the type of a column that the table does not have."""

_WINDOW: Final = 8
"""About this many row groups of each row set are in memory during a compaction."""


class TabletBase:
    """The rows of one tablet's base. Threads may share it.

    ``definition`` is the table's present definition. Cells of dropped columns are not returned. A row set
    that is older than a column has no cells of that column.
    """

    def __init__(
        self,
        definition: TableDefinition,
        location: Location,
        manifest: Manifest,
        cache: ByteCache[Any],
    ) -> None:
        self.definition = definition
        self.manifest = manifest
        self.location = location
        self.cache = cache
        self.readers = [RowSetReader(location, entry, cache) for entry in manifest.entries]

    @cached_property
    def held_only(self) -> TabletBase:
        """The same base for callers that must not wait: it raises NotHeld instead of reading a file."""
        return TabletBase(self.definition, self.location, self.manifest, self.cache.held_only())

    def values(self, key: bytes, columns: Sequence[bytes]) -> list[bytes | None]:
        """Return values of cells of a row; in a typed table, one cell may be the marker. Raises as `row`."""
        found = self.find(key)
        if found is None:
            return [None] * len(columns)
        entry, spans = found
        if not self.definition.is_typed:
            return [self._raw_value(self.readers[entry], spans, column) for column in columns]
        [(group, position, _)] = spans
        arrays = self._arrays(entry, group, columns)
        return [b"" if column == MARKER else self._value(arrays, position, column) for column in columns]

    def versions(self, key: bytes, columns: Sequence[bytes]) -> list[Version | None]:
        """Return cells of a row with their timestamps. Raises as `row`.

        The base does not know when the transactions began, so both timestamps of a version are the commit
        timestamp. In a typed table, all cells of a row have the timestamp of the row's newest commit.
        """
        row = self.row(key, columns)
        return [None if row is None else version_of(self.definition, row, column) for column in columns]

    def row(self, key: bytes, columns: Sequence[bytes] | None = None) -> BaseRow | None:
        """Return a row, or None. ``columns`` are names in the store; None is all.

        Raises:
            BaseDamaged: a file is missing or damaged.
            StoreUnavailable: a file cannot be read now.
        """
        found = self.find(key)
        return None if found is None else self.row_at(*found, columns)

    def find(self, key: bytes) -> tuple[int, list[Span]] | None:
        """Return the position of the manifest's entry with the row, and the row's spans; None without a row.

        Raises as `row`.
        """
        for entry, reader in enumerate(self.readers):
            spans = reader.find(key)
            if spans:
                return entry, spans
        return None

    def row_at(self, entry: int, spans: Sequence[Span], columns: Sequence[bytes] | None = None) -> BaseRow:
        """Return the row that `find` found. Raises as `row`."""
        if self.definition.is_typed:
            return self._typed_row(entry, spans[0], [*self._fields] if columns is None else columns)
        lines: list[BaseRow] = []
        for group, start, stop in spans:
            whole = self.readers[entry].columns(group, self._names(columns))
            arrays = {name: array[start:stop] for name, array in whole.items()}
            lines += self._lines(pyarrow().RecordBatch.from_pydict(arrays), columns)
        return _joined(lines)

    def rows(
        self, low: bytes, high: bytes | None, columns: Sequence[bytes] | None = None, *, reverse: bool = False
    ) -> Iterator[BaseRow]:
        """Yield the rows from key ``low`` to below ``high`` in order of key, or in reverse with ``reverse``.

        ``columns`` is as for `row`; a row without these cells is yielded, too. Raises as `row`, also during
        the iteration.
        """
        names = self._names(columns)

        def lines(reader: RowSetReader) -> Iterator[BaseRow]:
            for batch in reader.batches(low, high, names, reverse=reverse):
                yield from self._lines(batch, columns)

        merged = heapq.merge(*map(lines, self.readers), key=itemgetter(0), reverse=reverse)
        if self.definition.is_typed:
            yield from merged
            return
        for _, some in groupby(merged, itemgetter(0)):
            yield _joined(list(some))

    def split(self, low: bytes, high: bytes | None, rows: int, *, reverse: bool = False) -> bytes | None:
        """Return a key that divides the range, so that the part before the key has about ``rows`` rows.

        With ``reverse``, the part from the key on has about ``rows`` rows. Large rows make this part smaller,
        because row groups are limited by bytes. Return None if the whole range has fewer rows. Raises as
        `row`.
        """
        firsts = sorted(
            (key, reader.entry.row_set.rows / len(reader.first_keys))
            for reader in self.readers
            for key in reader.first_keys
            if low < key and (high is None or key < high)
        )
        total = 0.0
        for groups, (key, share) in enumerate(reversed(firsts) if reverse else firsts, 1):
            total += share
            if total >= rows or groups == _GROUPS_AT_ONCE:
                return key
        return None

    def compacted(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows as batches for `row_set.write`, without dropped columns. Raises as `row`."""
        pa = pyarrow()
        schema = schema_of(self.definition)
        bounds = sorted({key for reader in self.readers for key in reader.first_keys[::_WINDOW]})
        for low, high in pairwise([*bounds, None]):
            assert low is not None
            parts = [
                _with_schema(batch, schema)
                for reader in self.readers
                for batch in reader.batches(low, high, schema.names)
            ]
            if parts:
                rows = pa.Table.from_batches(parts).sort_by(order_of(schema))
                yield from rows.combine_chunks().to_batches()

    def _arrays(self, entry: int, group: int, columns: Iterable[bytes], *more: str) -> Mapping[str, Values]:
        """Return columns of a row group of a typed table, by their names in the file.

        ``columns`` are names in the store. ``more`` are names in the file.
        """
        fields = self._fields
        names = [fields[column][0] for column in columns if column in fields]
        return self.readers[entry].values(group, [*more, *names])

    def _typed_row(self, entry: int, span: Span, columns: Sequence[bytes]) -> BaseRow:
        group, position, _ = span
        arrays = self._arrays(entry, group, columns, TIME)
        values = [(column, self._value(arrays, position, column)) for column in columns]
        time: int = arrays[TIME].array[position].as_py()
        cells = {column: value for column, value in values if value is not None}
        return BaseRow(self.readers[entry].keys(group)[position], time, cells, {})

    def _value(self, arrays: Mapping[str, Values], position: int, column: bytes) -> bytes | None:
        """Return the value of a cell of a typed table; ``arrays`` has the columns of its row group."""
        name, kind = self._fields.get(column, _UNKNOWN)
        found = arrays.get(name)
        return None if found is None else found.value(kind, position)

    @staticmethod
    def _raw_value(reader: RowSetReader, spans: Sequence[Span], column: bytes) -> bytes | None:
        for group, start, stop in spans:
            arrays = reader.values(group, (RAW_COLUMN, RAW_VALUE))
            name_at: Callable[[int], Any] = partial(arrays[RAW_COLUMN].value, _BYTES)
            position = start + bisect_left(range(start, stop), column, key=name_at)
            if position < stop and name_at(position) == column:
                return arrays[RAW_VALUE].value(_BYTES, position)
        return None

    @cached_property
    def _fields(self) -> dict[bytes, tuple[str, ColumnType]]:
        """For each value column of a typed table, by its stored name: the name in the files, and the type."""
        return {
            one.stored.encode(): (column_name(one), column_type(one.type))
            for one in self.definition.value_columns
        }

    def _names(self, columns: Sequence[bytes] | None) -> list[str]:
        if not self.definition.is_typed:
            return [KEY, RAW_COLUMN, TIME, RAW_VALUE]
        fields = self._fields
        wanted = fields if columns is None else [column for column in columns if column in fields]
        return [KEY, TIME, *(fields[column][0] for column in wanted)]

    def _lines(self, batch: pa.RecordBatch, columns: Sequence[bytes] | None) -> Iterator[BaseRow]:
        """Yield the lines of a batch: for a typed table whole rows, for a raw table rows of one cell each."""
        keys, times = batch.column(KEY).to_pylist(), batch.column(TIME).to_pylist()
        if not self.definition.is_typed:
            names, values = batch.column(RAW_COLUMN).to_pylist(), batch.column(RAW_VALUE).to_pylist()
            for key, time, column, value in zip(keys, times, names, values, strict=True):
                wanted = columns is None or column in columns
                yield BaseRow(key, time, {column: value} if wanted else {}, {column: time} if wanted else {})
            return
        from percolator_core.tables.arrow_columns import stored  # it needs pyarrow

        there = set(batch.schema.names)
        fields = {column: field for column, field in self._fields.items() if field[0] in there}
        arrays = [stored(kind, batch.column(name)) for name, kind in fields.values()]
        rows = zip(*arrays, strict=True) if arrays else ((),) * len(keys)
        for key, time, row in zip(keys, times, rows, strict=True):
            cells = {column: value for column, value in zip(fields, row, strict=True) if value is not None}
            yield BaseRow(key, time, cells, {})


def version_of(definition: TableDefinition, row: BaseRow, column: bytes) -> Version | None:
    """Return the version of a cell in a base's row, as `TabletBase.versions` does; None if it is null."""
    value = b"" if column == MARKER and definition.is_typed else row.cells.get(column)
    time = row.times.get(column, row.time)
    return None if value is None else Version(time, time, value)


def _joined(lines: Sequence[BaseRow]) -> BaseRow:
    """Join the lines of a raw table's row, each of which has one cell."""
    if len(lines) == 1:
        return lines[0]
    cells = {column: value for line in lines for column, value in line.cells.items()}
    times = {column: time for line in lines for column, time in line.times.items()}
    return BaseRow(lines[0].key, max(line.time for line in lines), cells, times)


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of ``schema``. Columns that ``batch`` does not have are null."""
    pa = pyarrow()
    there = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in there else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
