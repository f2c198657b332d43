"""Tables with a base, read by Spark's own Parquet reader.

The row sets of a base are Parquet files, so Spark reads them without Python: only the columns that a query
needs, with its predicates and the statistics of row groups. The *delta* of a row is the part of it that the
store has. This module reads the deltas and joins them on by row key. Spark broadcasts them to all tasks, so
the source ``percolator`` reads tables with many rows in the store instead.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from percolator_core.base.location import Location
from percolator_core.base.row_set import KEY, column_name
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.keys import MARKER
from percolator_core.schema.definitions import Column
from percolator_core.schema.predicates import COMPARE, Bound, Group
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.spark.tables.fields import spark_type
from percolator_core.tables.arrow_values import of_values, pyarrow
from percolator_core.transaction.snapshot import Snapshot

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

MOST_DELTAS: Final = 200_000
"""The most rows in the store of a table that Spark reads: the deltas are broadcast to all tasks."""

_OPTIONS: Final[Mapping[str, str]] = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}
"""They override the session's settings, which could skip lost files, or shift times before 1900."""

_PATTERN: Final = frozenset("*?[]{}\\")
"""Characters that make a path a pattern for Spark."""

_KEY: Final = "delta.key"
_REMOVED: Final = "delta.removed"
_FRESH: Final = "delta.fresh"
_VALUE: Final = "delta.value."
_HAS: Final = "delta.has."
_FILE: Final = "removed.file"
_POSITION: Final = "removed.position"
"""Columns of the joined DataFrames; no column of a row set has these names."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a table: the files of its base, the positions of removed rows by file, and the deltas.

    ``fresh`` has the keys of rows that only the store has.
    """

    files: list[str] = field(default_factory=list)
    removed: dict[str, list[int]] = field(default_factory=dict)
    deltas: dict[bytes, Mapping[bytes, bytes | None]] = field(default_factory=dict)
    fresh: set[bytes] = field(default_factory=set)


def read_native(
    spark: SparkSession,
    snapshot: Snapshot,
    handle: TableHandle,
    columns: Sequence[Column],
    bound: Bound | None,
) -> DataFrame | None:
    """Return the rows of a typed table at a snapshot; None if the source has to read the table.

    The DataFrame can be used for an hour: replaced files of a base are removed after that time.

    Raises the errors of a select.
    """
    if not _is_readable(snapshot, handle):
        return None
    parts = _parts(snapshot, handle)
    rows = _of_base(spark, handle, parts)
    if parts.deltas:
        rows = _merged(rows, _delta_frame(spark, handle, parts), handle)
    rows = rows.select(*(_named(rows, one) for one in handle.definition.columns))
    if bound is not None:
        rows = rows.where(condition(bound, handle.definition.by_name))
    return rows.select(*(_column(rows, one.name) for one in columns))


def _is_readable(snapshot: Snapshot, handle: TableHandle) -> bool:
    """Return True if the base is in a folder that Spark can read, and few rows are in the store."""
    base = handle.definition.base
    folder = None if base is None else Location(base.location).folder
    return folder is not None and _PATTERN.isdisjoint(folder) and snapshot.stored_rows(handle) <= MOST_DELTAS


def _parts(snapshot: Snapshot, handle: TableHandle) -> _Parts:
    parts = _Parts()
    for tag in handle.tags:
        base, deltas = snapshot.deltas(handle, tag)
        parts.deltas.update(deltas)
        for reader in base.readers:
            parts.files.append(f"{base.location.folder}/{reader.entry.row_set.file}")
            removed = reader.removed()
            if removed is not None:
                parts.removed[reader.entry.row_set.file.rpartition("/")[2]] = removed.tolist()
        parts.fresh.update(
            key for key, cells in deltas.items() if cells.get(MARKER) is not None and base.find(key) is None
        )
    return parts


def _of_base(spark: SparkSession, handle: TableHandle, parts: _Parts) -> DataFrame:
    """Return the rows of the base, with the columns of its files."""
    from pyspark.sql import functions
    from pyspark.sql.types import BinaryType, StructField, StructType

    fields = [StructField(column_name(one), spark_type(one.type)) for one in handle.definition.columns]
    schema = StructType([StructField(KEY, BinaryType()), *fields])
    if not parts.files:
        return spark.createDataFrame([], schema)
    rows = spark.read.options(**_OPTIONS).schema(schema).parquet(*parts.files)
    if not parts.removed:
        return rows
    positions = [(file, position) for file, some in parts.removed.items() for position in some]
    removed = spark.createDataFrame(positions, f"`{_FILE}` string, `{_POSITION}` long")
    same = (functions.col("_metadata.file_name") == _column(removed, _FILE)) & (
        functions.col("_metadata.row_index") == _column(removed, _POSITION)
    )
    return rows.join(functions.broadcast(removed), same, "left_anti")


def _delta_frame(spark: SparkSession, handle: TableHandle, parts: _Parts) -> DataFrame:
    """Return the deltas: for each column its value, and True if the store has it; True for removed rows."""
    pa = pyarrow()
    split = KeyCodec(handle.definition).split
    keys = list(parts.deltas)
    arrays = {
        _KEY: pa.array(keys, pa.binary()),
        _REMOVED: pa.array([_is_removed(parts.deltas[key]) for key in keys]),
        _FRESH: pa.array([key in parts.fresh for key in keys]),
    }
    of_keys = zip(*map(split, keys), strict=True)
    for one, values in zip(handle.definition.key_columns, of_keys, strict=True):
        arrays[_VALUE + one.stored] = of_values(column_type(one.type), list(values))
    for one in handle.definition.value_columns:
        stored = one.stored.encode()
        cells = [delta.get(stored) for delta in parts.deltas.values()]
        arrays[_VALUE + one.stored] = of_values(column_type(one.type), cells)
        arrays[_HAS + one.stored] = pa.array([stored in delta for delta in parts.deltas.values()])
    return spark.createDataFrame(pa.table(arrays))


def _is_removed(delta: Mapping[bytes, bytes | None]) -> bool:
    return MARKER in delta and delta[MARKER] is None


def _merged(rows: DataFrame, deltas: DataFrame, handle: TableHandle) -> DataFrame:
    """Return the rows of the base with their deltas set, and the rows that only the store has."""
    from pyspark.sql import functions

    changed = rows.join(functions.broadcast(deltas), _column(rows, KEY) == _column(deltas, _KEY), "left")
    kept = functions.coalesce(~_column(deltas, _REMOVED), functions.lit(True))
    columns = []
    for one in handle.definition.columns:
        value = _column(rows, column_name(one))
        if one.name not in handle.definition.key:
            has = _column(deltas, _HAS + one.stored)
            value = functions.when(has, _column(deltas, _VALUE + one.stored)).otherwise(value)
        columns.append(value.alias(column_name(one)))
    fresh = deltas.where(_column(deltas, _FRESH)).select(
        *(_column(deltas, _VALUE + one.stored).alias(column_name(one)) for one in handle.definition.columns)
    )
    return changed.where(kept).select(*columns).unionByName(fresh)


def _column(rows: DataFrame, name: str) -> SparkColumn:
    """Return a column by its name, which may have dots."""
    return rows[f"`{name}`"]


def _named(rows: DataFrame, column: Column) -> SparkColumn:
    """Return a column under its name in the table; `Column.missing` replaces nulls."""
    from pyspark.sql import functions

    value = _column(rows, column_name(column))
    if column.missing is not None:
        value = functions.coalesce(value, _literal(column, column.missing))
    return value.alias(column.name)


def _literal(column: Column, encoded: bytes) -> SparkColumn:
    from pyspark.sql import functions

    kind = column_type(column.type)
    [value] = of_values(kind, [encoded]).to_pylist()
    return functions.lit(value).cast(spark_type(column.type))


def condition(bound: Bound, columns: Mapping[str, Column]) -> SparkColumn:
    """Return a predicate as a condition of Spark on the columns of the table.

    Spark's rules equal those of `Bound.holds`: SQL's logic of nulls, text in the order of its bytes, and NaN
    equal to itself and above all numbers.
    """
    from pyspark.sql import functions

    if isinstance(bound, Group):
        parts = [condition(part, columns) for part in bound.parts]
        if bound.how == "not":
            return ~parts[0]
        return reduce(operator.and_ if bound.how == "and" else operator.or_, parts)
    column = columns[bound.column]
    found = functions.col(f"`{bound.column}`")
    if bound.op == "null":
        return found.isNull()
    values = [_literal(column, value) for value in bound.values]
    if bound.op == "in":
        return found.isin(*values)
    if bound.op == "^=":
        return found.startswith(values[0])
    compare: Any = COMPARE[bound.op]  # on columns, the same operators make conditions
    compared: SparkColumn = compare(found, values[0])
    return compared
