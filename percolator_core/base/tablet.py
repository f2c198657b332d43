"""The base of one tablet as its rows: a manifest, and the row sets that it names."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from percolator_core.base.cache import ByteCache, HeldOnly
from percolator_core.base.columns import Values
from percolator_core.base.location import Location
from percolator_core.base.manifest import Manifest
from percolator_core.base.reader import Place, RowSetReader
from percolator_core.base.row_set import KEY, RAW_COLUMN, RAW_VALUE, TIME, BaseRow, column_name, schema_of
from percolator_core.layout.keys import MARKER
from percolator_core.layout.records import Version
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.types import ColumnType, column_type
from percolator_core.tables.arrow_values import pyarrow, stored

if TYPE_CHECKING:
    import pyarrow as pa

_GROUPS_AT_ONCE: Final = 8
"""Most row groups of one step of a select: each has `row_set.GROUP_BYTES` at most."""

_BYTES: Final = column_type("bytes")

_UNKNOWN: Final = "", _BYTES
"""Stands for the name and the type of a column that the table does not have."""

_WINDOW: Final = 8
"""Row groups of one row set that a compaction has in memory, about."""


class TabletBase:
    """The rows of one tablet's base. Threads may share it.

    ``definition`` is the table's definition now: columns that were dropped since are not returned, and a row
    set that is older than a column has no cells of it.
    """

    def __init__(
        self,
        definition: TableDefinition,
        location: Location,
        manifest: Manifest,
        cache: ByteCache[Any] | HeldOnly[Any],
    ) -> None:
        self.definition = definition
        self.manifest = manifest
        self.location = location
        self._cache = cache
        self.readers = [RowSetReader(location, entry, cache) for entry in manifest.entries]

    def with_manifest(self, manifest: Manifest) -> TabletBase:
        """Return the base as another manifest has it."""
        return TabletBase(self.definition, self.location, manifest, self._cache)

    @cached_property
    def held(self) -> TabletBase:
        """The same base for a caller that must not wait for files: instead it gets NotHeld."""
        cache = HeldOnly(self._cache) if isinstance(self._cache, ByteCache) else self._cache
        return TabletBase(self.definition, self.location, self.manifest, cache)

    def values(self, key: bytes, columns: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of cells of a row; the marker of a typed table is a cell. Raises as `row`."""
        found = self.find(key)
        if found is None:
            return [None] * len(columns)
        number, places = found
        if not self.definition.is_typed:
            return [self._raw_value(self.readers[number], places, column) for column in columns]
        [(group, position, _)] = places
        held = self._held(number, group, columns)
        return [b"" if column == MARKER else self._value(held, position, column) for column in columns]

    def versions(self, key: bytes, columns: Sequence[bytes]) -> list[Version | None]:
        """Return cells of a row as versions, as `values`. Raises as `row`.

        The base does not know when the transactions began, so both timestamps are that of the commit. In a
        typed table it is the newest one of the row.
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

    def find(self, key: bytes) -> tuple[int, list[Place]] | None:
        """Return the number of the entry in the manifest that has the row, and its places; None if none has.

        Raises as `row`.
        """
        for number, reader in enumerate(self.readers):
            places = reader.find(key)
            if places:
                return number, places
        return None

    def row_at(self, entry: int, places: Sequence[Place], columns: Sequence[bytes] | None = None) -> BaseRow:
        """Return the row that `find` found. Raises as `row`."""
        if self.definition.is_typed:
            return self._typed_row(entry, places[0], [*self._kinds] if columns is None else columns)
        reader = self.readers[entry]
        names = self._names(columns)
        lines: list[BaseRow] = []
        for group, start, stop in places:
            held = {name: reader.column(group, name) for name in names}
            arrays = {name: array[start:stop] for name, array in held.items() if array is not None}
            lines += self._rows(pyarrow().RecordBatch.from_pydict(arrays), columns)
        return _joined(lines)

    def rows(
        self, low: bytes, high: bytes | None, columns: Sequence[bytes] | None = None, *, reverse: bool = False
    ) -> Iterator[BaseRow]:
        """The rows from key ``low`` to below ``high``, in the order of their keys, or with ``reverse``.

        ``columns`` as for `row`; a row without these cells is returned, too. Raises as `row`, also while it
        is consumed.
        """
        names = self._names(columns)

        def lines(reader: RowSetReader) -> Iterator[BaseRow]:
            for batch in reader.batches(low, high, names, reverse=reverse):
                yield from self._rows(batch, columns)

        merged = heapq.merge(*map(lines, self.readers), key=itemgetter(0), reverse=reverse)
        if self.definition.is_typed:
            yield from merged
            return
        for _, cells in groupby(merged, itemgetter(0)):
            yield _joined(list(cells))

    def split(self, low: bytes, high: bytes | None, rows: int, *, reverse: bool = False) -> bytes | None:
        """Return a key with about ``rows`` rows of the range in front of it; with ``reverse``, behind it.

        There are fewer rows if they are large, since row groups are limited by bytes. None if the range has
        no more rows than that. Raises as `row`.
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
        """The rows of all row sets as batches for `row_set.write`: what remains when they become one.

        Columns that were dropped are left out. Raises as `row`, while it is consumed.
        """
        pa = pyarrow()
        schema = schema_of(self.definition)
        order = [(name, "ascending") for name in (KEY, RAW_COLUMN) if name in schema.names]
        bounds = sorted({key for reader in self.readers for key in reader.first_keys[::_WINDOW]})
        for low, high in pairwise([*bounds, None]):
            assert low is not None
            parts = [
                _with_schema(batch, schema)
                for reader in self.readers
                for batch in reader.batches(low, high, schema.names)
            ]
            if parts:
                yield from pa.Table.from_batches(parts).sort_by(order).combine_chunks().to_batches()

    def _held(self, entry: int, group: int, columns: Iterable[bytes], *more: str) -> Mapping[str, Values]:
        """Return the columns of a row group of a typed table by their names in the file, and ``more``."""
        kinds = self._kinds
        names = [kinds[column][0] for column in columns if column in kinds]
        return self.readers[entry].values(group, [*more, *names])

    def _typed_row(self, entry: int, place: Place, columns: Sequence[bytes]) -> BaseRow:
        group, position, _ = place
        held = self._held(entry, group, columns, TIME)
        values = [(column, self._value(held, position, column)) for column in columns]
        time: int = held[TIME].array[position].as_py()
        cells = {column: value for column, value in values if value is not None}
        return BaseRow(self.readers[entry].keys(group)[position], time, cells, {})

    def _value(self, held: Mapping[str, Values], position: int, column: bytes) -> bytes | None:
        """Return the value of a cell of a typed table; ``held`` has the columns of its row group."""
        name, kind = self._kinds.get(column, _UNKNOWN)
        found = held.get(name)
        return None if found is None else found.value(kind, position)

    @staticmethod
    def _raw_value(reader: RowSetReader, places: Sequence[Place], column: bytes) -> bytes | None:
        """Return the value of a cell of a raw table. The lines of a row are in the order of their columns."""
        for group, start, stop in places:
            held = reader.values(group, (RAW_COLUMN, RAW_VALUE))
            names: Callable[[int], Any] = partial(held[RAW_COLUMN].value, _BYTES)
            position = start + bisect_left(range(start, stop), column, key=names)
            if position < stop and names(position) == column:
                return held[RAW_VALUE].value(_BYTES, position)
        return None

    @cached_property
    def _kinds(self) -> dict[bytes, tuple[str, ColumnType]]:
        """The name in the files, and the type, of each value column of a typed table."""
        return {
            one.stored.encode(): (column_name(one), column_type(one.type))
            for one in self.definition.value_columns
        }

    def _names(self, columns: Sequence[bytes] | None) -> list[str]:
        """The columns of the files that have the wanted cells."""
        if not self.definition.is_typed:
            return [KEY, RAW_COLUMN, TIME, RAW_VALUE]
        kinds = self._kinds
        wanted = kinds if columns is None else [column for column in columns if column in kinds]
        return [KEY, TIME, *(kinds[column][0] for column in wanted)]

    def _rows(self, batch: pa.RecordBatch, columns: Sequence[bytes] | None) -> Iterator[BaseRow]:
        """The lines of a batch: rows of a typed table, or single cells of a raw table."""
        keys, times = batch.column(KEY).to_pylist(), batch.column(TIME).to_pylist()
        if not self.definition.is_typed:
            lines = zip(
                batch.column(RAW_COLUMN).to_pylist(), batch.column(RAW_VALUE).to_pylist(), strict=True
            )
            for key, time, (column, value) in zip(keys, times, lines, strict=True):
                wanted = columns is None or column in columns
                yield BaseRow(key, time, {column: value} if wanted else {}, {column: time} if wanted else {})
            return
        held = set(batch.schema.names)
        kinds = {column: kind for column, kind in self._kinds.items() if kind[0] in held}
        arrays = [stored(kind, batch.column(name)) for name, kind in kinds.values()]
        cells = zip(*arrays, strict=True) if arrays else ((),) * len(keys)
        for key, time, row in zip(keys, times, cells, strict=True):
            found = {column: value for column, value in zip(kinds, row, strict=True) if value is not None}
            yield BaseRow(key, time, found, {})


def version_of(definition: TableDefinition, row: BaseRow, column: bytes) -> Version | None:
    """Return a cell of a row of a base as a version, as `TabletBase.versions`; None if it is null."""
    value = b"" if column == MARKER and definition.is_typed else row.cells.get(column)
    time = row.times.get(column, row.time)
    return None if value is None else Version(time, time, value)


def _joined(cells: Sequence[BaseRow]) -> BaseRow:
    """Return the row of the lines of one key."""
    if len(cells) == 1:
        return cells[0]
    found = {column: value for line in cells for column, value in line.cells.items()}
    times = {column: time for line in cells for column, time in line.times.items()}
    return BaseRow(cells[0].key, max(line.time for line in cells), found, times)


def _with_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema``; those that the batch does not have are null."""
    pa = pyarrow()
    held = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in held else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
