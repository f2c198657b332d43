"""Batch and streaming writes: transactions of bounded size, which may be repeated.

The driver takes a timestamp when a write begins, and sends it to all tasks. A transaction reads its rows, and
writes only cells that differ. So a repeated task, or a concurrent copy of a task, writes nothing twice, and
an unchanged row starts no observer. By default (option ``newer``) the write leaves a row alone if another
client changed it after the write began. So a late copy of a task cannot undo newer changes. This check costs
a read of one cell of each new row, and of all cells of each existing row. It needs old versions, which a
lease pins (`percolator_core.spark.tables.lease`).

A stream has no such timestamp, because its batches may write the same rows several times. The last commit
wins, so a batch that is repeated after a failure may undo a change by another client.

If several rows have the same key, any one of them is written. A transaction is atomic, but a write is not: if
a write fails, committed transactions stay, and a repetition completes the write.
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

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.loading.repeatable import in_groups, run
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.partitions import whole
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
"""Concurrent transactions of a task."""

_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 1000
"""Limits of rows that are encoded together. Spark passes 10,000 rows of any length."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WriteJob:
    """The description of a write, for its tasks.

    The write looks for rows that another client changed after ``since``. None means that it does not look.
    """

    options: WriteOptions
    version: bytes
    lease: Lease
    since: int | None


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The outcome of a task: the number of rows by outcome (`merge`)."""

    counts: Counter[str] = field(default_factory=Counter)


def begin_write(options: WriteOptions, schema: StructType, *, stream: bool = False) -> WriteJob:
    """Check that rows of the schema can be written to the table; take the write's timestamp.

    Raises:
        UnknownTable, UnknownColumn, ConfigurationError: the schema does not fit. Nothing was written.
        SnapshotTooOld: garbage collection has passed the option ``since``.
    """
    with options.place.connect() as db:
        handle = typed_table(db, options.place.table)
        _check(handle.definition, schema, options)
        lease = take_lease(db, None, options.since, options.lease)
        must_be_whole(db, handle, whole(handle.definition), lease.oldest, None)
        since = None if stream or options.newer == "overwrite" else options.since or lease.at
        return WriteJob(options, handle.version, lease, since)


def _check(definition: TableDefinition, schema: StructType, options: WriteOptions) -> None:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    definition.refuse_of_view()
    # An empty batch shows errors of columns and types.
    empty: pa.RecordBatch = pa.RecordBatch.from_pylist([], schema=to_arrow_schema(schema, timezone="UTC"))
    encoded_rows(definition, empty)
    given = set(schema.names)
    beyond = given.difference(definition.key)
    if options.mode == "remove" and beyond:
        raise ConfigurationError(
            f"{definition.name}: mode_of_rows=remove takes only the key ({', '.join(definition.key)}): leave "
            f"{', '.join(sorted(beyond))} out"
        )
    if options.mode in {"upsert", "insert"}:
        for column in definition.value_columns:
            has_default = column.nullable or column.missing is not None or column.default is not None
            if column.name not in given and not has_default:
                raise ConfigurationError(
                    f"{definition.name}: the column {column.name!r} is missing, and a new row needs this "
                    "column: add it, or write with the option mode_of_rows=update"
                )


class _Writer:
    """The common part of both writers. Spark sends writers to tasks."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of one task."""
        with as_sentence():
            return write_rows(self.job, iterator)


class TableWriter(_Writer, DataSourceArrowWriter):
    """A batch write."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Report the outcome of all tasks."""
        _report(self.job, messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A write of a stream's batches."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """Report the outcome of a batch."""
        _report(self.job, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, because Spark writes an incomplete batch again."""


def _report(job: WriteJob, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Log the number of kept rows, in the driver."""
    kept = sum(message.counts["kept"] for message in messages if isinstance(message, Written))
    if kept:
        _log.warning(
            "%s: other clients have changed %d rows since the write began; the write did not change them",
            job.options.place.table,
            kept,
        )


def write_rows(job: WriteJob, given: Iterable[pa.RecordBatch]) -> Written:
    """Write the rows of one task, in an executor."""
    written = Written()
    with job.options.place.connect() as db, job.lease.kept(db):
        handle = typed_table(db, job.options.place.table)

        def write(rows: Sequence[Row]) -> Counter[str]:
            return run(db, partial(merge, job.options, job.version, job.since, rows))

        with db.concurrency(WIDTH) as executor:
            for counts in executor.map(write, chunks(handle, given)):
                written.counts.update(counts)
    return written


def chunks(handle: TableHandle, given: Iterable[pa.RecordBatch]) -> Iterator[list[Row]]:
    """Group rows so that one call of the store commits a group."""
    rows = (row for batch in given for part in _parts(batch) for row in encoded_rows(handle.definition, part))
    return in_groups(handle.definition, rows, _size)


def _size(row: Row) -> int:
    key, cells = row
    return len(key) + sum([len(value) for value in cells.values() if value is not None])


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch into parts of bounded size."""
    if not batch.num_rows:
        return
    step = max(1, min(_BATCH_ROWS, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
