"""Spark: bulk loads, observers in Spark's executors, and typed tables as a data source of Spark.

Only this package imports pyspark, and only in functions that need it.

- `loader` runs the tasks of a load (`percolator_core.loading`), and `attempts` stops them.
- `drainer` runs observers; `project` sends their code to the executors.
- `tables` is the data source.
- `session` and `java` start Spark; `job` runs one job.

>>> from percolator_core.spark import load, open_source
>>> source = open_source("site/", base_url="https://example.org/")
>>> report = load("embedded:./state", "webindex", "documents", source)

Tables are read and written as ``spark.read.format("percolator")`` and ``frame.write.format("percolator")``.
"""

from typing import TYPE_CHECKING

from percolator_core.runtime.lazy_imports import lazily

if TYPE_CHECKING:
    from percolator_core.loading import (
        FORMATS,
        LoadProgress,
        LoadReport,
        Source,
        TooManyBadRecords,
        open_source,
    )
    from percolator_core.spark.drainer import DrainProgress, NotIdle, drain
    from percolator_core.spark.java import check_java
    from percolator_core.spark.loader import load
    from percolator_core.spark.session import default_master, spark_context, spark_session
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

# Lazy imports: a worker process of Spark needs only some of the modules.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "drainer": ("DrainProgress", "NotIdle", "drain"),
        "java": ("check_java",),
        "loader": ("load",),
        "percolator_core.loading": (
            *("FORMATS", "LoadProgress", "LoadReport", "Source", "TooManyBadRecords", "open_source"),
        ),
        "session": ("default_master", "spark_context", "spark_session"),
        "tables.errors": ("plain_table_error",),
        "tables.views": ("read_table", "snapshot_views"),
    },
)
