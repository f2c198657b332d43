"""Spark imports the module of this name, and registers its ``DefaultSource`` as a data source."""

from percolator_core.spark.tables.source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
