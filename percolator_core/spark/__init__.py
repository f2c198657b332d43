"""Bulk loads with Spark, and observers run by it.

This package is the only one that imports pyspark, and only when it is used.

>>> from percolator_core.spark import load, open_source
>>> source = open_source("site/", base_url="https://example.org/")
>>> report = load("embedded:./state", "webindex", "documents", source)
"""

from percolator_core.spark.drainer import DrainProgress, NotIdle, drain
from percolator_core.spark.loader import LoadProgress, LoadReport, TooManyBadRecords, load
from percolator_core.spark.session import check_java, default_master, spark_context
from percolator_core.spark.sources import FORMATS, Source, open_source

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
    "spark_context",
]
