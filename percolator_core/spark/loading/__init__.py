"""The part of bulk loads that needs no Spark: no module of this package imports pyspark.

The steps of a load, in their order:

1. `source.open_source` finds the files, and a `source.Source` divides them into `splits`.
2. `formats` has a reader for each format, which converts a split to fields.
3. `records` (raw tables) and `typed_records` (typed tables, with `values`) convert fields to a record, or to
   a malformed record with a reason. `put_aside` writes malformed records to a file.
4. `task` runs the `transactions` that write the records, concurrently. Before each commit it checks with
   `attempts` that the load has not ended.
5. `missing` deletes the rows that the source lacks, and `report` has the outcome.

`percolator_core.spark.loader` is the driver, which runs the tasks on Spark's executors.
"""
