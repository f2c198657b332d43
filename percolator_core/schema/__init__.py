"""Table definitions, column types, row keys, predicates and partitions, without a store and without pydantic.

`percolator_core.tables` turns each model of a table into one of these definitions.
"""
