"""Spark's types and schemas for the columns of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.schema.definitions import Column
from percolator_core.schema.types import column_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def spark_type(type_name: str) -> DataType:
    """Return the Spark type of a column's type; ``uuid`` and ``json`` are text."""
    from pyspark.sql import types

    kind = column_type(type_name)
    if kind.digits:
        return types.DecimalType(kind.digits, kind.places)
    plain: dict[str, type[DataType]] = {
        "bool": types.BooleanType,
        "int": types.LongType,
        "float": types.DoubleType,
        "bytes": types.BinaryType,
        "datetime": types.TimestampType,
        "date": types.DateType,
    }
    return plain.get(kind.name, types.StringType)()


def spark_schema(columns: Iterable[Column]) -> StructType:
    """Return the Spark schema of some columns."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(one.name, spark_type(one.type), one.nullable) for one in columns])


def typed_table(db: Database, table: str) -> TableHandle:
    """Find a typed table. Raises UnknownTable, and ConfigurationError if the table is raw."""
    handle = db.catalog.table(table)
    if not handle.is_typed:
        raise ConfigurationError(
            f"{table} is a raw table, and Spark needs the columns of a typed table: write raw tables with "
            "percolator load, and read them with db.snapshot().scan"
        )
    return handle
