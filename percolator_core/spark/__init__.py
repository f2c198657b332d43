"""Bulk loads with Spark, observers run by it, and typed tables as its data source.

This package is the only one that imports pyspark, and only when it is used.

>>> from percolator_core.spark import load, open_source
>>> source = open_source("site/", base_url="https://example.org/")
>>> report = load("embedded:./state", "webindex", "documents", source)

Tables are read and written as ``spark.read.format("percolator")`` and ``frame.write.format("percolator")``;
`percolator_core.spark.tables.source` lists the options.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "drainer": ("DrainProgress", "NotIdle", "drain"),
    "loader": ("LoadProgress", "LoadReport", "TooManyBadRecords", "load"),
    "session": ("check_java", "default_master", "spark_context", "spark_session"),
    "sources": ("FORMATS", "Source", "open_source"),
    "tables.errors": ("plain_table_error",),
    "tables.views": ("read_table", "snapshot_views"),
}
_HOME_OF = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: each worker of Spark imports what it needs, and no more."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
