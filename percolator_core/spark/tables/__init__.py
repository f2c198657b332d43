"""Typed tables as a data source of Spark: ``spark.read.format("percolator")``.

Spark imports `percolator_core.spark.tables.source` by itself; see there for what can be read and written.
"""
