"""Functions for programs: reads with predicates, and several tables of one snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from percolator_core.database import connect
from percolator_core.errors import ConfigurationError
from percolator_core.schema.expression import parse, show
from percolator_core.schema.predicates import Predicate, bind
from percolator_core.spark.tables.fields import typed_table
from percolator_core.spark.tables.native import read_native

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table(
    spark: SparkSession,
    url: str,
    table: str,
    *,
    namespace: str = "default",
    columns: Sequence[str] | None = None,
    where: Predicate | str | None = None,
    at: int | datetime | None = None,
    partitions: int | None = None,
) -> DataFrame:
    """Read a table as a DataFrame: only ``columns`` of the rows that meet ``where``.

    Spark's own Parquet reader reads a table with a base on this machine's disk and at most 200,000 rows in
    the store. The source ``percolator`` reads all other tables. It also reads the table with ``partitions``,
    or if the names of two columns, including dropped ones, differ in case only.

    Args:
        spark: the session.
        url: the URL of the store.
        table: the name of a typed table.
        namespace: the namespace of the table.
        columns: the names of the columns, by default all.
        where: only rows for which this is true: a predicate of a model's columns, or a text as for
            ``percolator scan``.
        at: the snapshot: a timestamp in microseconds or an aware datetime. The default is the time of this
            call if Spark reads the base, else the time at which the first query begins.
        partitions: the maximum number of tasks.

    Raises:
        AnalysisException: Spark's wrapper of an error of the source; `plain_table_error` unwraps it.
        UnknownColumn: ``columns`` or ``where`` names an unknown column.
        SnapshotTooOld: garbage collection has passed ``at``.
        BaseDamaged: a file of the base is missing or damaged; restore the file.
        ConfigurationError: ``where`` cannot be written as a text; filter the DataFrame instead.
    """
    if partitions is None and (columns is None or columns):  # the source refuses a read of no columns
        native = _native(spark, url, namespace, table, columns, where, at)
        if native is not None:
            return native
    options = {"url": url, "namespace": namespace, "table": table}
    if columns is not None:
        options["columns"] = ",".join(columns)
    if where is not None:
        options["filter"] = where if isinstance(where, str) else _text(url, namespace, table, where)
    if at is not None:
        options["at"] = at.isoformat() if isinstance(at, datetime) else str(at)
    if partitions is not None:
        options["partitions"] = str(partitions)
    return spark.read.format("percolator").options(**options).load()


@contextmanager
def snapshot_views(
    spark: SparkSession,
    url: str,
    tables: Sequence[str] | Mapping[str, str],
    *,
    namespace: str = "default",
    at: int | datetime | None = None,
) -> Iterator[int]:
    """Create temporary views of several tables, all of one snapshot, for SQL that joins them.

    ``with snapshot_views(spark, url, ["orders", "customers"]): spark.sql("select … from orders join …")``

    Until the end of the block, this process pins the snapshot against garbage collection. Then the views are
    dropped.

    Args:
        spark: the session.
        url: the URL of the store. An embedded store stays open until the end of the block.
        tables: names of typed tables, which are also the names of the views; or a mapping of views to tables.
        namespace: the namespace of the tables.
        at: the snapshot: a timestamp in microseconds or an aware datetime; by default now.

    Yields:
        The timestamp of the snapshot.

    Raises:
        UnknownTable, ConfigurationError: a table does not exist, or is raw.
        SnapshotTooOld: garbage collection has passed ``at``.
    """
    views = dict(tables) if isinstance(tables, Mapping) else {table: table for table in tables}
    with connect(url, namespace) as db:
        for table in views.values():
            typed_table(db, table)
        with db.snapshot(at) as snapshot:
            try:
                for view, table in views.items():
                    frame = read_table(spark, url, table, namespace=namespace, at=snapshot.start_timestamp)
                    frame.createOrReplaceTempView(view)
                yield snapshot.start_timestamp
            finally:
                for view in views:
                    spark.catalog.dropTempView(view)


def _native(  # noqa: PLR0917
    spark: SparkSession,
    url: str,
    namespace: str,
    table: str,
    columns: Sequence[str] | None,
    where: Predicate | str | None,
    at: int | datetime | None,
) -> DataFrame | None:
    """Read the rows with Spark's own reader; return None if the source has to read the table."""
    with connect(url, namespace) as db:
        definition = next((one for one in db.catalog.tables() if one.name == table), None)
        if definition is None or definition.base is None or not definition.is_typed:
            return None
        with db.snapshot(at) as snapshot:
            handle = typed_table(db, table)
            definition = handle.definition
            names = dict.fromkeys(columns or [one.name for one in definition.shown_columns])
            wanted = [definition.column(name) for name in names]
            predicate = parse(where, definition) if isinstance(where, str) else where
            bound = None if predicate is None else bind(predicate, definition)
            return read_native(spark, snapshot, handle, wanted, bound)


def _text(url: str, namespace: str, table: str, where: Predicate) -> str:
    """Return the predicate as a text with the same meaning."""
    text = show(where)
    with connect(url, namespace) as db:
        definition = typed_table(db, table).definition
    wanted = bind(where, definition)
    with suppress(ValueError):
        if bind(parse(text, definition), definition) == wanted:
            return text
    raise ConfigurationError(
        f"the predicate {text} cannot be written as a text: filter the DataFrame instead"
    )
