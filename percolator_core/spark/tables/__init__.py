"""Typed tables as a data source of Spark: ``spark.read.format("percolator")``.

Spark imports `source`.

- Reads: `reading` plans tasks and runs them, with a `lease` that pins the snapshot.
- Changes: `changes` reads changed rows, and `streaming` provides them as a stream.
- Writes: `writing` plans and runs tasks, and `merging` merges each row.
- `views` has functions for programs; all modules use `fields`, `options` and `errors`.
"""
