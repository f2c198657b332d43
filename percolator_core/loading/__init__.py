"""Bulk loads of files into tables. No module of this package imports pyspark.

The steps of a load, in their order:

1. `source.open_source` finds the files, or the `objects` of a bucket, and a `source.Source` divides them into
   `splits`.
2. `formats` has a reader for each format, which converts a split to fields.
3. `records` (raw tables) and `typed_records` (typed tables, with `values`) convert fields to a record, or to
   a malformed record with a reason. `put_aside` writes malformed records to a file.
4. `task` runs the `transactions` that write the records, concurrently.
5. `missing` deletes the rows that the source lacks, and `report` has the outcome.

`driver` has the order of these steps. The tasks run in the calling thread, or in Spark's executors
(`percolator_core.spark.loader`).

>>> from percolator_core.loading import load, open_source
>>> report = load(db, "documents", open_source("site/", base_url="https://example.org/"))
"""

from typing import TYPE_CHECKING

from percolator_core.runtime.lazy_imports import lazily

if TYPE_CHECKING:
    from percolator_core.loading.driver import load
    from percolator_core.loading.report import LoadProgress, LoadReport, TooManyBadRecords
    from percolator_core.loading.source import FORMATS, Source, open_source

__all__ = ["FORMATS", "LoadProgress", "LoadReport", "Source", "TooManyBadRecords", "load", "open_source"]

# Lazy imports: executors of Spark need only some of the modules.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "driver": ("load",),
        "report": ("LoadProgress", "LoadReport", "TooManyBadRecords"),
        "source": ("FORMATS", "Source", "open_source"),
    },
)
