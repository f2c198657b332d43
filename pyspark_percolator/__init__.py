"""Spark looks for modules of such a name, and registers what they call ``DefaultSource`` as a data source."""

from percolator_core.spark.tables.source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
