"""Tables with a base, read by Spark's own Parquet reader.

The row sets of a base are Parquet files, so Spark reads them without Python, and only the columns and row
groups that a query needs. The *delta* of a row is the part of the row that the store has. This module reads
the deltas and joins them to the rows of the base by row key. Spark broadcasts the deltas to all tasks, so a
table with many rows in the store is read by the source ``percolator`` instead.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from percolator_core.base.location import Location
from percolator_core.base.row_set import KEY, column_name
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.keys import MARKER
from percolator_core.schema.definitions import Column
from percolator_core.schema.predicates import COMPARE, Bound, Group, columns_of
from percolator_core.schema.types import column_type
from percolator_core.spark.tables.fields import spark_type
from percolator_core.tables.arrow_values import pyarrow
from percolator_core.transaction.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

MOST_DELTAS: Final = 200_000
"""A table with more rows than this in the store is read by the source ``percolator`` instead."""

_OPTIONS: Final[Mapping[str, str]] = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
}
"""Options that override the session's settings, which could skip lost files or shift times before 1900."""

_PATTERN: Final = frozenset("*?[]{}\\")
"""Characters that make a path a pattern for Spark."""

_KEY: Final = "delta.key"
_REMOVED: Final = "delta.removed"
_FRESH: Final = "delta.fresh"
_VALUE: Final = "delta.value."
_HAS: Final = "delta.has."
_FILE: Final = "removed.file"
_POSITION: Final = "removed.position"
"""Columns of the DataFrames that are joined to the base; no column of a row set has these names."""


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
    """Return the rows of a typed table at a snapshot; None if the source ``percolator`` has to read them.

    The DataFrame can be used for an hour: then files that the base no longer needs are removed. Raises the
    errors of a select.
    """
    if not _is_readable(snapshot, handle):
        return None
    names = {one.name for one in columns}.union(() if bound is None else columns_of(bound))
    table = _Table(handle, [one for one in handle.definition.columns if one.name in names])
    parts = table.parts(snapshot)
    rows = table.of_base(spark, parts)
    if parts.deltas:
        rows = table.merged(rows, table.deltas(spark, parts))
    else:
        rows = rows.select(*(_named(one, _quoted(column_name(one))) for one in table.columns))
    if bound is not None:
        rows = rows.where(condition(bound, handle.definition.by_name))
    return rows.select(*(_quoted(one.name) for one in columns))


def _is_readable(snapshot: Snapshot, handle: TableHandle) -> bool:
    """Return True if Spark can find the files and their columns, and few rows are in the store."""
    definition = handle.definition
    folder = None if definition.base is None else Location(definition.base.location).folder
    return (
        folder is not None
        and _PATTERN.isdisjoint(folder)
        and _differ(one.name for one in definition.columns)
        and _differ([*(one.stored for one in definition.columns), *definition.retired])
        and snapshot.stored_rows(handle) <= MOST_DELTAS
    )


def _differ(names: Iterable[str]) -> bool:
    """Return True if Spark can distinguish the names; Spark ignores their case, also in files."""
    return max(Counter(name.upper().casefold() for name in names).values()) == 1


@dataclass(frozen=True, slots=True)
class _Table:
    """A table, and its ``columns`` that a query needs."""

    handle: TableHandle
    columns: Sequence[Column]

    def parts(self, snapshot: Snapshot) -> _Parts:
        """Read the deltas, and find the files of the base. Raises the errors of a select."""
        parts = _Parts()
        for base, deltas in snapshot.deltas(self.handle, filter(self._is_value, self.columns)):
            parts.deltas.update(deltas)
            for reader in base.readers:
                parts.files.append(f"{base.location.folder}/{reader.entry.row_set.file}")
                removed = reader.removed_positions()
                if removed is not None:
                    parts.removed[reader.entry.row_set.file.rpartition("/")[2]] = removed.tolist()
            parts.fresh.update(
                key
                for key, cells in deltas.items()
                if cells.get(MARKER) is not None and base.find(key) is None
            )
        return parts

    def of_base(self, spark: SparkSession, parts: _Parts) -> DataFrame:
        """Return the rows of the base, with the columns of its files."""
        from pyspark.sql import functions
        from pyspark.sql.types import BinaryType, StructField, StructType

        every = self.handle.definition.columns
        fields = [StructField(column_name(one), spark_type(one.type)) for one in every]
        schema = StructType([StructField(KEY, BinaryType()), *fields])
        if not parts.files:
            return spark.createDataFrame([], schema)
        rows = spark.read.options(**_OPTIONS).schema(schema).parquet(*parts.files)
        if not parts.removed:
            return rows
        positions = [(file, position) for file, some in parts.removed.items() for position in some]
        removed = spark.createDataFrame(positions, f"`{_FILE}` string, `{_POSITION}` long")
        same = functions.expr(f"_metadata.file_name = `{_FILE}` and _metadata.row_index = `{_POSITION}`")
        return rows.join(functions.broadcast(removed), same, "left_anti")

    def deltas(self, spark: SparkSession, parts: _Parts) -> DataFrame:
        """Return the deltas, one row for each.

        Each column has a value, and a flag that is True if the store has this value. Two more flags: one is
        True if the row is removed, the other if only the store has the row.
        """
        pa = pyarrow()
        from percolator_core.tables.arrow_columns import KeyParts, of_values  # it needs pyarrow

        keys = pa.array(parts.deltas, pa.binary())
        cells: dict[bytes, tuple[list[int], list[bytes | None]]] = defaultdict(lambda: ([], []))
        for position, delta in enumerate(parts.deltas.values()):
            for column, value in delta.items():
                positions, values = cells[column]
                positions.append(position)
                values.append(value)
        removed = [position for position, value in zip(*cells[MARKER], strict=True) if value is None]
        arrays = {
            _KEY: keys,
            _REMOVED: _true_at(removed, len(keys)),
            _FRESH: pa.array([key in parts.fresh for key in parts.deltas]),
        }
        of_keys = KeyParts(self.handle.definition, keys)
        for one in self.handle.definition.key_columns:
            arrays[_VALUE + one.stored] = of_keys.column(one.name)
        for one in filter(self._is_value, self.columns):
            positions, values = cells[one.stored.encode()]
            has = _true_at(positions, len(keys))
            arrays[_HAS + one.stored] = has
            arrays[_VALUE + one.stored] = _spread(of_values(column_type(one.type), values), has)
        return spark.createDataFrame(pa.table(arrays))

    def merged(self, rows: DataFrame, deltas: DataFrame) -> DataFrame:
        """Return the rows of the base with their deltas applied, and the rows that only the store has."""
        from pyspark.sql import functions

        # Expressions are SQL texts: each operation on Column objects would be a call to Spark's own process.
        changed, fresh = [], []
        for one in self.columns:
            base, delta = _quoted(column_name(one)), _quoted(_VALUE + one.stored)
            fresh.append(_named(one, delta))
            if self._is_value(one):
                base = f"if({_quoted(_HAS + one.stored)}, {delta}, {base})"
            changed.append(_named(one, base))
        number = self._number_key
        pair = (KEY, _KEY) if number is None else (column_name(number), _VALUE + number.stored)
        same = functions.expr(" = ".join(map(_quoted, pair)))
        kept = f"coalesce(not {_quoted(_REMOVED)}, true)"
        found = rows.join(functions.broadcast(deltas), same, "left").where(kept).select(*changed)
        return found.union(deltas.where(_quoted(_FRESH)).select(*fresh))

    def _is_value(self, column: Column) -> bool:
        return column.name not in self.handle.definition.key

    @property
    def _number_key(self) -> Column | None:
        """The key's column if the key is one integer, by which Spark joins faster; otherwise None."""
        [first, *more] = self.handle.definition.key_columns
        return first if not more and first.type == "int" else None


def _true_at(positions: Sequence[int], length: int) -> pa.BooleanArray:
    """Return a column that is True at the positions, and otherwise False."""
    import numpy as np

    found = np.zeros(length, bool)
    found[positions] = True
    return pyarrow().array(found)


def _spread(values: pa.Array, has: pa.BooleanArray) -> pa.Array:
    """Return a column that has the values, in their order, where ``has`` is True, and null elsewhere."""
    pa = pyarrow()
    from pyarrow import compute

    return compute.replace_with_mask(pa.nulls(len(has), values.type), has, values)


def _quoted(name: str) -> str:
    """Return the name of a column as SQL; the name may have dots and backticks."""
    return f"`{name.replace('`', '``')}`"


def _named(column: Column, expression: str) -> SparkColumn:
    """Return an SQL expression under the column's name in the table; `Column.missing` replaces nulls."""
    from pyspark.sql import functions

    value = functions.expr(expression)
    if column.missing is not None:
        value = functions.coalesce(value, _literal(column, column.missing))
    return value.alias(column.name)


def _literal(column: Column, encoded: bytes) -> SparkColumn:
    from pyspark.sql import functions

    from percolator_core.tables.arrow_columns import of_values  # it needs pyarrow

    kind = column_type(column.type)
    [value] = of_values(kind, [encoded]).to_pylist()
    return functions.lit(value).cast(spark_type(column.type))


def condition(bound: Bound, columns: Mapping[str, Column]) -> SparkColumn:
    """Return a predicate as a condition of Spark on the columns of the table.

    Spark and `Bound.holds` have the same rules: SQL's logic of nulls, text in the order of its bytes, and NaN
    equal to itself and above all numbers.
    """
    from pyspark.sql import functions

    if isinstance(bound, Group):
        parts = [condition(part, columns) for part in bound.parts]
        if bound.how == "not":
            return ~parts[0]
        return reduce(operator.and_ if bound.how == "and" else operator.or_, parts)
    column = columns[bound.column]
    found = functions.col(_quoted(bound.column))
    if bound.op == "null":
        return found.isNull()
    values = [_literal(column, value) for value in bound.values]
    if bound.op == "in":
        return found.isin(*values)
    if bound.op == "^=":
        return found.startswith(values[0])
    compare: Any = COMPARE[bound.op]  # with Spark's columns, these operators return conditions
    compared: SparkColumn = compare(found, values[0])
    return compared
