"""The columnar base of a table: its older rows as Parquet files, beside the newer cells in the store.

A *row set* is a Parquet file of rows of one tablet, sorted by row key. It is never changed. A *manifest*
names the row sets of a tablet. The store names the manifest that is valid.
"""
