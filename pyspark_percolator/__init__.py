"""Spark imports all modules named ``pyspark_…``, and registers their ``DefaultSource`` as a data source."""

from percolator_core.spark.tables.source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
