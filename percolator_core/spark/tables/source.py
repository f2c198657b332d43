"""The data source ``percolator``: typed tables as DataFrames.

::

    spark.read.format("percolator").option("url", …).option("table", "documents").load()
    frame.write.format("percolator").option("url", …).option("table", "documents").mode("append").save()
    spark.readStream.format("percolator").option("since", "0")…
    frame.writeStream.format("percolator")…

==================  ==========================================================================================
``url``             the store
``namespace``       the table's namespace; ``default`` when left out
``table``           the table, a typed one
``at``              read: the snapshot, in microseconds or as a time with its zone; when left out, the table
                    as it is when the first query of the DataFrame begins
``since``           read: the rows that were changed after this timestamp, up to ``at``; ``0`` is from the
                    beginning. Adds the columns ``_commit_timestamp`` and ``_deleted``; a stream needs it
``columns``         read: only these, with commas between them
``filter``          read: only rows for which this is true, as ``percolator scan`` takes it
``partitions``      read: tasks at most; when left out two for each core of the driver's machine, but 4 at
                    least
``lease``           seconds for which a snapshot stays pinned while no task of its read runs; 600 when left
                    out
``mode_of_rows``    write: ``upsert`` (when left out), ``insert``, ``update`` or ``remove``
``newer``           write: what becomes of a row that somebody else has changed since the write began:
                    ``keep`` it as it is (when left out), ``overwrite`` it, or ``fail``
``since``           write: what ``newer`` takes for the begin of the write: the timestamp of the snapshot that
                    the rows were made of
``skip_unchanged``  write: ``true`` (when left out) writes only cells that differ
==================  ==========================================================================================

Spark's Python data sources know nothing of the columns that a query needs, hence ``columns``; nor of the
machines that tasks had better run on. What is said with ``filter`` the store evaluates. Filters of queries
reach it only in a Spark that keeps the scans of a DataFrame apart (`reading.SCANS_ARE_APART`).

A DataFrame is planned when the first query reads it, and Spark keeps the plan: later queries of the same
DataFrame see the same snapshot.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from percolator_core.database import connect
from percolator_core.errors import ConfigurationError
from percolator_core.schema.definitions import Column
from percolator_core.spark.tables.changes import CHANGE_COLUMNS, as_changed
from percolator_core.spark.tables.errors import as_sentence
from percolator_core.spark.tables.fields import spark_schema, typed_table
from percolator_core.spark.tables.options import read_options, write_options
from percolator_core.spark.tables.reading import SCANS_ARE_APART, PushingReader, TableReader
from percolator_core.spark.tables.writing import StreamWriter, TableWriter, begin_write

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from percolator_core.spark.tables.streaming import ChangeReader

_PUSHDOWN: str = "pyspark.sql.worker.data_source_pushdown_filters"
"""The program that Spark runs to have filters taken over; another one plans reads without it."""


class TableSource(DataSource):
    """The data source; see the module."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "percolator"

    def schema(self) -> StructType:
        """The columns that are read."""
        with as_sentence():
            options = read_options(self.options)
            with connect(options.place.url, options.place.namespace) as db:
                definition = typed_table(db, options.place.table).definition
            columns: list[Column] = list(definition.columns)
            if options.columns is not None:
                columns = [definition.column(name) for name in options.columns]
            if options.since is not None:
                columns = [*as_changed(columns), *CHANGE_COLUMNS]
            return spark_schema(columns)

    def reader(self, schema: StructType) -> TableReader:
        """A batch read."""
        with as_sentence():
            kind = PushingReader if _may_push() else TableReader
            return kind(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """A batch write; nothing is written yet."""
        with as_sentence():
            if overwrite:
                raise ConfigurationError(
                    "the data source percolator does not overwrite tables: use mode('append'), which "
                    "upserts, and remove the rows that are too many with the option mode_of_rows=remove"
                )
            return TableWriter(begin_write(write_options(self.options), schema))

    def streamReader(self, schema: StructType) -> ChangeReader:
        """A stream of changes."""
        from percolator_core.spark.tables.streaming import ChangeReader

        with as_sentence():
            options = read_options(self.options)
            if options.since is None:
                raise ConfigurationError(
                    "a stream of a table's changes needs to know where to begin: add .option('since', …), a "
                    "timestamp, or 0 for all rows"
                )
            return ChangeReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A stream of rows to be written."""
        with as_sentence():
            if overwrite:
                raise ConfigurationError(
                    "the data source percolator overwrites no tables: use outputMode('append'), which upserts"
                )
            return StreamWriter(begin_write(write_options(self.options), schema, stream=True))


def _may_push() -> bool:
    """Whether a reader may take filters over; one that offers it where the session does not is refused."""
    if not SCANS_ARE_APART:
        return False
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHDOWN in sys.modules or (main is not None and main.name == _PUSHDOWN)
