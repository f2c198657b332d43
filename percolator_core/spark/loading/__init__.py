"""The part of bulk loads that needs no Spark: no module of this package imports pyspark.

The steps of a load, in their order:

1. `source.open_source` finds the files, and a `source.Source` cuts them into `splits`.
2. `formats` has one reader a format, which turns a split into fields.
3. `records` (raw tables) and `typed_records` (typed tables, with `values`) turn fields into a record, or into
   a malformed record with its reason, which `put_aside` writes to a file.
4. `task` runs the `transactions` that write the records, many at a time. Before each commit it asks
   `attempts` if the load still goes on.
5. `missing` deletes the rows that the source no longer has, and `report` has the outcome.

`percolator_core.spark.loader` is the driver, which runs the tasks on Spark's executors.
"""
