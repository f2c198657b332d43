"""Typed tables as Arrow: conversion of rows that are read or written.

numpy converts whole columns, so a cell costs nanoseconds. Import this module only where it is needed,
because pyarrow and numpy take long to import.

=================  ===========================================================================
column             Arrow
=================  ===========================================================================
``bool``           bool
``int``            int64
``float``          float64
``str``            string
``bytes``          binary
``datetime``       timestamp[us, tz=UTC]
``date``           date32
``decimal(p,s)``   decimal128(p, s)
``uuid``, ``json`` string: the canonical text of the UUID, or the JSON
=================  ===========================================================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import VERSION_HEADER
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.partitions import Piece
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.tables.arrow_columns import (
    KeyParts,
    Refused,
    encoded,
    gathered,
    keys_of,
    of_bytes,
    of_values,
    offsets_of,
    pieces,
    texts,
)
from percolator_core.tables.arrow_values import arrow_type
from percolator_core.tables.query import Found, Query, Selector
from percolator_core.tables.select import ArrowBatch, Batch, RowBatch, misfit

_AT_ONCE: Final = 4
"""This many pieces of a table are read in one round trip."""


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the Arrow schema of columns. Raises as `arrow_type`."""
    return pa.schema([pa.field(one.name, arrow_type(one.type), nullable=one.nullable) for one in columns])


def record_batch(columns: Sequence[Column], batch: RowBatch) -> pa.RecordBatch:
    """Return some ``columns`` of a batch, without its ``unsettled`` rows.

    Raises ConfigurationError if the cells do not match the table's definition.
    """
    if not columns:
        return _only_rows(len(batch))
    if isinstance(batch, ArrowBatch):
        arrays = [batch.column(column).combine_chunks() for column in columns]
    else:
        rows = _Rows(batch)
        try:
            arrays = [rows.column(column) for column in columns]
        except pa.ArrowInvalid:
            raise misfit(batch.layout.definition) from None
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def from_rows(columns: Sequence[Column], rows: Sequence[Sequence[bytes | None]]) -> pa.RecordBatch:
    """Return rows from the encoded values of the columns; None means null."""
    if not columns:
        return _only_rows(len(rows))
    arrays = [
        of_values(column_type(column.type), [row[position] for row in rows])
        for position, column in enumerate(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def read_batches(
    t: Selector, query: Query, pieces: Iterable[Piece], own: Collection[bytes] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in some pieces of a table, in no particular order.

    ``own`` has the keys of the rows that the transaction has written. The filter sees these rows with the
    transaction's writes. Raises the errors of a select.
    """
    selects = [query.select(piece) for piece in pieces]
    while selects:
        for batch in t.take_batches(selects[:_AT_ONCE]):
            late = [row for row in batch.unsettled if row not in own]
            found = query.judge_many(t, late) if late else []
            if own:
                found += [one for one in batch.rows() if one[0] not in own]
            else:
                yield record_batch(query.columns, batch)
            yield from of_found(query, found)
        selects = [select for select in selects if select.more]
    if own:
        yield from of_found(query, query.judge_many(t, sorted(own)))


def of_found(query: Query, found: Sequence[Found]) -> list[pa.RecordBatch]:
    """Return the rows as a batch, or no batch if there are no rows."""
    return [from_rows(query.columns, [values for _, values in found])] if found else []


def encoded_rows(
    definition: TableDefinition, batch: pa.RecordBatch
) -> list[tuple[bytes, dict[str, bytes | None]]]:
    """Return, for each row of an Arrow batch, its row key and its encoded cells by column; None means null.

    The batch has some or all columns of the table, under the same names. Raises UnknownColumn or
    ConfigurationError for a column that does not fit the table, and ValueError for such a value.
    """
    names = batch.schema.names
    for name in names:
        definition.column(name)
        if names.count(name) > 1:
            raise ConfigurationError(f"{definition.name}: the column {name!r} occurs twice: leave one out")
    for name in definition.key:
        if name not in names:
            raise ConfigurationError(
                f"{definition.name}: the column {name!r}, which is part of the key, is missing"
            )
    codec = KeyCodec(definition)
    parts: list[Any] = [_encoded(definition, column, batch, None) for column in definition.key_columns]
    keys: list[bytes] = parts[0] if len(parts) == 1 else list(map(codec.join, zip(*parts, strict=True)))
    columns = [column for column in definition.value_columns if column.name in names]
    if not columns:
        return [(key, {}) for key in keys]
    stored = tuple(column.name for column in columns)
    cells = zip(*[_encoded(definition, column, batch, keys) for column in columns], strict=True)
    return [(key, dict(zip(stored, values, strict=True))) for key, values in zip(keys, cells, strict=True)]


def _encoded(
    definition: TableDefinition, column: Column, batch: pa.RecordBatch, keys: Sequence[bytes] | None
) -> list[bytes | None]:
    """Encode the values of one column. Without ``keys``, errors name rows by their number."""
    nullable = column.nullable and keys is not None
    try:
        return encoded(column_type(column.type), nullable, batch.column(column.name))
    except TypeError as error:
        raise ConfigurationError(f"{definition.name}, column {column.name!r}: {error}") from None
    except Refused as error:
        if keys is None:
            row = f"number {error.position} of the batch"
        else:
            row = KeyCodec(definition).describe(keys[error.position])
        raise ValueError(f"{definition.name}, row {row}: {column.name}: {error}") from None


def _only_rows(count: int) -> pa.RecordBatch:
    """Return a batch of ``count`` rows without columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


class _Rows:
    """The positions of all keys and cells in a batch."""

    def __init__(self, batch: Batch) -> None:
        layout = batch.layout
        self._batch = batch
        self._layout = layout
        self._count = count = len(batch)
        lengths = np.frombuffer(batch.lengths, ">u4").reshape(count, 1 + layout.loose)
        self._key_offsets = offsets_of(lengths[:, 0])
        self._sizes = sizes = np.empty((count, len(layout.cells)), np.int32)
        sizes[:, : len(layout.solid)] = layout.solid
        sizes[:, len(layout.solid) :] = lengths[:, 1:]
        self._offsets = offsets_of(sizes.reshape(-1))
        if self._offsets[-1] != len(batch.cells) or self._key_offsets[-1] != len(batch.row_keys):
            raise misfit(layout.definition)

    def column(self, column: Column) -> pa.Array:
        number = self._layout.numbers.get(column.name)
        kind = column_type(column.type)
        if number is None:
            return self._keys.column(column.name)
        ends = self._offsets[1:].reshape(self._sizes.shape)[:, number]
        sizes = self._sizes[:, number] - VERSION_HEADER
        valid = sizes >= 0
        if kind.width is None:
            found = pieces(self._batch.cells, ends - np.maximum(sizes, 0), ends, valid)
            return texts(kind, found if column.missing is None else found.fill_null(column.missing))
        if not bool((valid <= (sizes == kind.width)).all()):
            raise misfit(self._layout.definition)
        values = gathered(self._batch.cells, ends - kind.width, kind.width)
        if column.missing is not None:
            values[~valid] = np.frombuffer(column.missing, np.uint8)
            return of_bytes(kind, values)
        return of_bytes(kind, values, valid)

    @cached_property
    def _keys(self) -> KeyParts:
        try:
            return KeyParts(self._layout.definition, keys_of(self._batch.row_keys, self._key_offsets))
        except ValueError:
            raise misfit(self._layout.definition) from None
