"""Batch and streaming writes: transactions of bounded size, which may run any number of times.

A write takes a timestamp when it begins, in the driver, and all its tasks know it. A transaction reads what
its rows have and writes the cells that differ, so a task that is run again, or twice at the same time, finds
its work done, and an unchanged row wakes no observer. A row whose cells somebody changed after the write
began is left as it is, unless the option ``newer`` says otherwise: the write counts as done at the moment it
began. That is what keeps a late copy of a task from undoing what others have made of its rows meanwhile. It
costs a look at one cell of each row that is new, and at all cells of each row that is there. Rows that were
made of a snapshot are written with the option ``since``, its timestamp: then what others have changed since
the snapshot stays, too.

The versions by which this is told are pinned as those of a read are (`percolator_core.spark.tables.lease`).

A stream has no such moment, because its batches may write the same rows again and again: there the last one
to commit wins, and a batch that is run again after a failure may undo a change that came in between.

Of several rows with one key some one is written. A transaction is written as a whole or not at all, a write
is not: of one that fails, what was done stays, and the same write again completes it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from percolator_core.catalog.catalog import TableHandle
from percolator_core.database import connect
from percolator_core.errors import ConfigurationError
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.partitions import whole
from percolator_core.spark.loading.repeatable import in_groups, run
from percolator_core.spark.tables.errors import as_sentence
from percolator_core.spark.tables.fields import typed_table
from percolator_core.spark.tables.lease import Lease, take_lease
from percolator_core.spark.tables.merging import Row, merge
from percolator_core.spark.tables.options import WriteOptions
from percolator_core.spark.tables.reading import must_be_whole
from percolator_core.tables.arrow import encoded_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

WIDTH: Final = 6
"""Transactions of a task that are under way at a time."""

_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 1000
"""Bounds of what is encoded at a time; Spark hands over 10,000 rows, however long they are."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteJob:
    """A write, as its tasks know it. ``since`` is when it began, None in a stream."""

    options: WriteOptions
    version: bytes
    lease: Lease
    since: int | None


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task did: how many rows were new, changed, unchanged, removed, or kept as others made them.

    Rows that were written without a look count as ``written``.
    """

    counts: Counter[str] = field(default_factory=Counter)


def begin_write(options: WriteOptions, schema: StructType, *, stream: bool = False) -> WriteJob:
    """Check that rows of the schema can be written to the table; take the write's timestamp.

    Raises:
        UnknownTable, UnknownColumn, ConfigurationError: they cannot; nothing was written.
        SnapshotTooOld: garbage collection has passed the option ``since``.
    """
    place = options.place
    with connect(place.url, place.namespace) as db:
        handle = typed_table(db, place.table)
        _check(handle.definition, schema, options)
        lease = take_lease(db, None, options.since, options.lease)
        must_be_whole(db, handle, whole(handle.definition), lease.oldest, None)
        since = None if stream or options.newer == "overwrite" else options.since or lease.at
        return WriteJob(options, handle.version, lease, since)


def _check(definition: TableDefinition, schema: StructType, options: WriteOptions) -> None:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    # It says what is wrong with columns and their types, and no rows are wrong.
    empty: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=to_arrow_schema(schema, timezone="UTC"))
    encoded_rows(definition, empty)
    given = set(schema.names)
    beyond = given.difference(definition.key)
    if options.mode == "remove" and beyond:
        raise ConfigurationError(
            f"{definition.name}: rows are removed by their keys ({', '.join(definition.key)}): leave "
            f"{', '.join(sorted(beyond))} out"
        )
    if options.mode in {"upsert", "insert"}:
        for column in definition.value_columns:
            if column.name not in given and not column.nullable and column.missing is None:
                raise ConfigurationError(
                    f"{definition.name}: the column {column.name!r} is missing, and a new row cannot be "
                    "without it: add it, or write with the option mode_of_rows=update"
                )


class TableWriter(DataSourceArrowWriter):
    """A batch write. Travels to the tasks."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        with as_sentence():
            return write_rows(self.job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written."""
        report(self.job, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """A write of a stream's batches. Travels to the tasks."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        with as_sentence():
            return write_rows(self.job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """A batch was written."""
        report(self.job, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """A batch was not written as a whole; Spark writes it again."""


def report(job: WriteJob, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Say in the driver's log what was left as others made it."""
    counts: Counter[str] = Counter()
    for message in messages:
        if isinstance(message, Written):
            counts.update(message.counts)
    if counts["kept"]:
        _log.warning(
            "%s: %d rows were changed by others since the write began and stay as they are",
            job.options.place.table,
            counts["kept"],
        )


def write_rows(job: WriteJob, given: Iterable[pa.RecordBatch]) -> Written:
    """What an executor does."""
    place = job.options.place
    written = Written()
    with connect(place.url, place.namespace) as db, job.lease.kept(db):
        handle = typed_table(db, place.table)

        def write(rows: Sequence[Row]) -> Counter[str]:
            return run(db, partial(merge, job.options, job.version, job.since, rows))

        with db.concurrency(WIDTH) as executor:
            for counts in executor.map(write, chunks(handle, given)):
                written.counts.update(counts)
    return written


def chunks(handle: TableHandle, given: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
    """The rows in groups that one call to the store commits."""
    rows = (row for batch in given for part in _parts(batch) for row in encoded_rows(handle.definition, part))
    return in_groups(handle.definition, rows, _size)


def _size(row: Row) -> int:
    key, cells = row
    return len(key) + sum([len(value) for value in cells.values() if value is not None])


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts of bounded size."""
    if not batch.num_rows:
        return
    step = max(1, min(_BATCH_ROWS, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
