"""Streams of a table's changes: offsets are timestamps.

A micro-batch has the rows that changed after its start, up to and including its end. Spark stores both before
it runs the batch, so a repeated batch reads the same changes. While the query runs, its process in the driver
pins the changes that were not read yet. A stopped query can continue if garbage collection has not passed its
last offset.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from percolator_core.database import Database
from percolator_core.schema.partitions import pieces
from percolator_core.spark.tables.changes import changed_keys
from percolator_core.spark.tables.errors import as_sentence
from percolator_core.spark.tables.fields import typed_table
from percolator_core.spark.tables.options import ReadOptions
from percolator_core.spark.tables.reading import plan_read
from percolator_core.tables.query import Query
from percolator_core.transaction.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

_IDLE: Final = 60.0
"""Seconds without changes after which an empty batch begins, so that old versions can be collected."""

_OFFSET: Final = "timestamp"


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads changes. For each query one process of the driver has a reader, and tasks get copies."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.plan = plan_read(options, schema)
        self._db: Database | None = None
        self._pinned = ExitStack()
        self._pin_at = 0
        self._last: int | None = None
        self._advanced = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan}

    def initialOffset(self) -> dict[str, int]:
        """Return the option ``since``."""
        return {_OFFSET: self.plan.options.since or 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Choose the timestamp at which the query ends. Later commits are not read."""
        with as_sentence():
            self._last = self._store().timestamp()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002
        """Return a fresh timestamp if a row has changed since ``start``, or after `_IDLE`; else ``start``."""
        with as_sentence():
            db, since = self._store(), start[_OFFSET]
            if since != self._pin_at:
                self._pin(since)
            now = self._last or db.timestamp()
            if now <= since:
                return start
            if time.monotonic() - self._advanced < _IDLE and not self._is_changed(db, since, now):
                return start
            self._advanced = time.monotonic()
            return {_OFFSET: now}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch."""
        with as_sentence():
            if start[_OFFSET] >= end[_OFFSET]:
                return []
            return self.plan.shares(self._store(), end[_OFFSET], start[_OFFSET])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the changed rows of one task."""
        with as_sentence():
            yield from self.plan.read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Release the old versions that were kept for the batches up to ``end``: Spark has processed them."""
        with as_sentence():
            self._pin(end[_OFFSET])

    def stop(self) -> None:
        """End the query."""
        self._pinned.close()
        if self._db is not None:
            self._db.close()
            self._db = None

    def _store(self) -> Database:
        if self._db is None:
            self._db = self.plan.options.place.connect()
        return self._db

    def _pin(self, since: int) -> None:
        """Pin the changes since a timestamp, and release the earlier pin."""
        before, self._pinned = self._pinned, ExitStack()
        if since:
            self._pinned.enter_context(Snapshot(self._store().client, since))
        self._pin_at = since
        before.close()

    def _is_changed(self, db: Database, since: int, now: int) -> bool:
        plan = self.plan
        query = Query(typed_table(db, plan.options.place.table), (), plan.bound)
        wanted = pieces(plan.definition, plan.bound)
        found = changed_keys(db, Snapshot(db.client, now), query, wanted, since)
        return next(found, None) is not None
