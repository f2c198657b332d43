"""Batch reads: one snapshot, many tasks.

When the driver plans a query, it chooses the timestamp and pins it (`percolator_core.spark.tables.lease`). It
sends each task the timestamp and the pieces of the table to read. So all tasks of a read see the same
snapshot, also when they are repeated. Two reads in one query have two snapshots, unless both get the same
``at``, as with `percolator_core.spark.snapshot_views`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from percolator_core.catalog.table_handle import TableHandle, base_below
from percolator_core.database import Database
from percolator_core.errors import ConfigurationError, SnapshotTooOld
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.expression import parse
from percolator_core.schema.partitions import Piece, pieces
from percolator_core.schema.predicates import Bound, bind, columns_of
from percolator_core.spark.tables.changes import CHANGE_COLUMNS, changed_rows, too_old
from percolator_core.spark.tables.errors import as_sentence
from percolator_core.spark.tables.fields import spark_type, typed_table
from percolator_core.spark.tables.lease import Lease, take_lease
from percolator_core.spark.tables.options import ReadOptions
from percolator_core.tables.arrow import from_rows, read_batches
from percolator_core.tables.lookup import ByIndex, by_index, choose
from percolator_core.tables.query import Query
from percolator_core.transaction.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_BATCH_ROWS: Final = 4000
_BATCH_BYTES: Final = 4 << 20
"""The approximate size of the batches for Spark. Spark's own batches have 10,000 rows."""


@dataclass(frozen=True, repr=False)
class Share(InputPartition):
    """The work of one task, which the driver plans.

    ``version`` is the version of the table in the catalog; a task that finds another version fails.
    ``by_index`` is True if an index finds the rows with less work than a scan of the pieces. Then there is
    only one share, with all pieces.
    """

    lease: Lease
    version: bytes
    pieces: tuple[Piece, ...]
    since: int | None = None
    by_index: bool = False


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The plan of a read, without a snapshot. ``bound`` is the filter, bound to the table."""

    options: ReadOptions
    schema: StructType
    definition: TableDefinition
    columns: tuple[Column, ...]
    bound: Bound | None

    def shares(self, db: Database, at: int | None, since: int | None) -> list[InputPartition]:
        """Plan the tasks of a read of the snapshot at a timestamp, by default a fresh one.

        Raises:
            SnapshotTooOld: garbage collection has passed the snapshot.
            ConfigurationError: the snapshot is in the future, or before ``since``; or the table's definition
                has changed since the read was planned.
        """
        if at is not None and at > db.timestamp():
            raise ConfigurationError(
                f"the snapshot at {at} is in the future: leave the option 'at' out to read the newest "
                "snapshot"
            )
        lease = take_lease(db, at, since or None, self.options.lease)
        if since is not None and since > lease.at:
            raise ConfigurationError(
                f"the changes since {since} are after the snapshot at {lease.at}: give an earlier 'since', "
                "or a later 'at'"
            )
        snapshot = Snapshot(db.client, lease.at)
        handle = snapshot.handle_of(self.options.place.table)
        if handle.definition != self.definition:
            raise _changed(handle)
        wanted = pieces(self.definition, self.bound)
        must_be_whole(db, handle, wanted, lease.at, since or None)
        if since is None and _index(snapshot, self._query(handle)) is not None:
            return [Share(lease, handle.version, tuple(wanted), by_index=True)]
        shared = shared_out(wanted, self.options.partitions)
        return [Share(lease, handle.version, share, since) for share in shared]

    def read(self, share: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a share, in an executor, as batches in Spark's types."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        if not isinstance(share, Share):  # for an empty list of shares Spark runs one task
            return
        arrow_schema = to_arrow_schema(self.schema, timezone="UTC")
        with self.options.place.connect() as db, share.lease.kept(db):
            handle = typed_table(db, self.options.place.table)
            if handle.version != share.version:
                raise _changed(handle)
            snapshot = Snapshot(db.client, share.lease.at)
            query = self._query(handle)
            index = _index(snapshot, query) if share.by_index else None
            if share.since is not None:
                found = changed_rows(db, snapshot, query, share.pieces, share.since)
            elif index is not None:
                some = by_index(snapshot, index)
                found = (from_rows(query.columns, [values for _, values in rows]) for rows in some)
            else:
                found = (batch for piece in share.pieces for batch in read_batches(snapshot, query, [piece]))
            for batch in _join(found):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=arrow_schema)

    def _query(self, handle: TableHandle) -> Query:
        return Query(handle, self.columns, self.bound)


def plan_read(options: ReadOptions, schema: StructType) -> ReadPlan:
    """Plan a read by its options.

    Raises:
        UnknownTable, UnknownColumn, ConfigurationError: the table or column does not exist, or is not
        readable.
        ValueError: the filter is not valid.
    """
    with options.place.connect() as db:
        definition = typed_table(db, options.place.table).definition
    columns = _columns(definition, schema, changes=options.since is not None)
    bound = bind(parse(options.filter, definition), definition) if options.filter else None
    if options.since is not None and bound is not None and set(columns_of(bound)).difference(definition.key):
        raise ConfigurationError(
            "a filter of changes may use only columns of the key, because a deleted row has no others: "
            "filter the DataFrame instead"
        )
    return ReadPlan(options, schema, definition, columns, bound)


class TableReader(DataSourceReader):
    """Reads a snapshot, or the changes up to the snapshot. Spark sends the reader to tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.plan = plan_read(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks, over one pinned snapshot."""
        options = self.plan.options
        with as_sentence(), options.place.connect() as db:
            return self.plan.shares(db, options.at, options.since)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of one task."""
        with as_sentence():
            yield from self.plan.read(partition)


def _changed(handle: TableHandle) -> ConfigurationError:
    return ConfigurationError(
        f"the table {handle.name!r} has changed since the read was planned: read the table again, or start "
        "the stream again"
    )


def _index(snapshot: Snapshot, query: Query) -> ByIndex | None:
    """Return the index that finds the rows with less work than a scan, or None."""
    chosen = choose(snapshot, query, None)
    return chosen if isinstance(chosen, ByIndex) else None


def shared_out(wanted: Sequence[Piece], most: int) -> list[tuple[Piece, ...]]:
    """Divide the pieces into at most ``most`` groups of about equal length, and keep their order."""
    count = min(len(wanted), most)
    bounds = [len(wanted) * number // count for number in range(count + 1)] if count else []
    return [tuple(wanted[low:high]) for low, high in pairwise(bounds)]


def _join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, because each costs time; divide large ones, because each is wholly in memory."""
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield from _divided(some, rows, size)
            some, rows, size = [], 0, 0
    if some:
        yield from _divided(some, rows, size)


def _divided(some: Sequence[pa.RecordBatch], rows: int, size: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    most = max(1, min(_BATCH_ROWS, rows * _BATCH_BYTES // max(1, size)))
    yield from pa.Table.from_batches(some).combine_chunks().to_batches(max_chunksize=most)


def _columns(definition: TableDefinition, schema: StructType, *, changes: bool) -> tuple[Column, ...]:
    """Check the schema, which may come from the user, and return its columns."""
    added = [column.name for column in CHANGE_COLUMNS] if changes else []
    names = schema.names
    if changes and names[-len(added) :] != added:
        raise ConfigurationError(
            f"a schema for changes ends with the columns {' and '.join(added)}: add these columns, or leave "
            "the schema out"
        )
    columns = []
    for one in schema.fields[: len(names) - len(added)]:
        column = definition.column(one.name)
        if one.dataType != spark_type(column.type):
            raise ConfigurationError(
                f"{definition.name}.{column.name} is {spark_type(column.type).simpleString()}, not "
                f"{one.dataType.simpleString()}: leave the schema out, or cast the column afterwards"
            )
        columns.append(column)
    return tuple(columns)


def must_be_whole(
    db: Database, handle: TableHandle, wanted: Iterable[Piece], at: int, since: int | None
) -> None:
    """Raise SnapshotTooOld if garbage collection may have removed versions that a read needs."""
    commands = [handle.standings[number] for number in sorted({piece.tablet for piece in wanted})]
    standings = db.store.call_many(commands, 500)
    if since is not None and any(base_below(one, since) is None for one in standings):
        raise too_old(since)
    if any(base_below(one, at) is None for one in standings):
        raise SnapshotTooOld(
            f"the snapshot at {at} is below the safe point: garbage collection has passed it, or the table "
            "or one of its columns was dropped: read a newer snapshot, or leave the option 'at' out"
        )
