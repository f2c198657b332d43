"""Typed tables as a data source of Spark: ``spark.read.format("percolator")``.

`source` is the entry point, which Spark imports; its docstring lists the options.

- Reads: `reading` plans tasks and runs them, with `filters` of Spark and a `lease` that pins the snapshot.
- Changes: `changes` reads changed rows, and `streaming` makes a stream of them.
- Writes: `writing` plans and runs tasks, and `merging` decides for each row.
- `views` are functions for programs; `fields`, `options` and `errors` serve all of these.
"""
