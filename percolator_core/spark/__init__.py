"""Bulk loads with Spark, observers run by it, and typed tables as its data source.

This package is the only one that imports pyspark, and only when it is used.

>>> from percolator_core.spark import load, open_source
>>> source = open_source("site/", base_url="https://example.org/")
>>> report = load("embedded:./state", "webindex", "documents", source)

Tables are read and written as ``spark.read.format("percolator")`` and ``frame.write.format("percolator")``;
`percolator_core.spark.tables.source` lists the options.
"""

from typing import TYPE_CHECKING

from percolator_core.runtime.lazy_imports import lazily

if TYPE_CHECKING:
    from percolator_core.spark.drainer import DrainProgress, NotIdle, drain
    from percolator_core.spark.loader import LoadProgress, LoadReport, TooManyBadRecords, load
    from percolator_core.spark.session import check_java, default_master, spark_context, spark_session
    from percolator_core.spark.sources import FORMATS, Source, open_source
    from percolator_core.spark.tables.errors import plain_table_error
    from percolator_core.spark.tables.views import read_table, snapshot_views

__all__ = [
    "FORMATS",
    "DrainProgress",
    "LoadProgress",
    "LoadReport",
    "NotIdle",
    "Source",
    "TooManyBadRecords",
    "check_java",
    "default_master",
    "drain",
    "load",
    "open_source",
    "plain_table_error",
    "read_table",
    "snapshot_views",
    "spark_context",
    "spark_session",
]

# Each worker of Spark imports what it needs, and no more.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "drainer": ("DrainProgress", "NotIdle", "drain"),
        "loader": ("LoadProgress", "LoadReport", "TooManyBadRecords", "load"),
        "session": ("check_java", "default_master", "spark_context", "spark_session"),
        "sources": ("FORMATS", "Source", "open_source"),
        "tables.errors": ("plain_table_error",),
        "tables.views": ("read_table", "snapshot_views"),
    },
)
