"""The data source ``percolator``: typed tables as DataFrames.

::

    spark.read.format("percolator").option("url", …).option("table", "documents").load()
    frame.write.format("percolator").option("url", …).option("table", "documents").mode("append").save()
    spark.readStream.format("percolator").option("since", "0")…
    frame.writeStream.format("percolator")…

`percolator_core.spark.tables.options` parses the options, which docs/how-to/spark.md lists. The source cannot
choose the machine of a task. The store evaluates the option ``filter``; Spark itself evaluates the filters of
a query.

Spark plans a DataFrame in the first query, and keeps the plan: later queries of the same DataFrame see the
same snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from percolator_core.errors import ConfigurationError
from percolator_core.schema.definitions import Column
from percolator_core.spark.tables.changes import CHANGE_COLUMNS, as_changed
from percolator_core.spark.tables.errors import as_sentence
from percolator_core.spark.tables.fields import spark_schema, typed_table
from percolator_core.spark.tables.options import read_options, write_options
from percolator_core.spark.tables.reading import TableReader
from percolator_core.spark.tables.writing import StreamWriter, TableWriter, begin_write

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from percolator_core.spark.tables.streaming import ChangeReader


class TableSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "percolator"

    def schema(self) -> StructType:
        """Return the schema of a read."""
        with as_sentence():
            options = read_options(self.options)
            with options.place.connect() as db:
                definition = typed_table(db, options.place.table).definition
            columns: list[Column] = list(definition.shown_columns)
            if options.columns is not None:
                columns = [definition.column(name) for name in options.columns]
            if options.since is not None:
                columns = [*as_changed(columns), *CHANGE_COLUMNS]
            return spark_schema(columns)

    def reader(self, schema: StructType) -> TableReader:
        """Plan a batch read."""
        with as_sentence():
            return TableReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Plan a batch write, and write nothing."""
        with as_sentence():
            if overwrite:
                raise ConfigurationError(
                    "the data source percolator does not overwrite tables: use mode('append'), which "
                    "upserts, and remove surplus rows with the option mode_of_rows=remove"
                )
            return TableWriter(begin_write(write_options(self.options), schema))

    def streamReader(self, schema: StructType) -> ChangeReader:
        """Plan a stream of changes."""
        from percolator_core.spark.tables.streaming import ChangeReader

        with as_sentence():
            options = read_options(self.options)
            if options.since is None:
                raise ConfigurationError(
                    "a stream of a table's changes needs a beginning: add .option('since', …), a "
                    "timestamp, or 0 for all rows"
                )
            return ChangeReader(options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Plan the write of a stream."""
        with as_sentence():
            if overwrite:
                raise ConfigurationError(
                    "the data source percolator does not overwrite tables: use outputMode('append'), which "
                    "upserts"
                )
            return StreamWriter(begin_write(write_options(self.options), schema, stream=True))
