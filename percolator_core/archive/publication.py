"""Publications: consistent versions of one table for programs that do not know this library.

A version is written from a pinned snapshot, in batches. The first version is full: all rows are written. If
garbage collection has kept all changes since the previous publication, the next version is incremental: only
the rows that have changed in between are written.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from percolator_core.archive.cells import RowCells, settle, tablet_cells
from percolator_core.archive.delta import OpenTable, Overtaken, changes_schema
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import PercolatorError, SnapshotTooOld
from percolator_core.layout.keys import MARKER, decode_column, is_internal
from percolator_core.layout.records import unpack_version
from percolator_core.runtime.html import ShownInNotebook
from percolator_core.schema.partitions import pieces
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.tables.arrow_values import batch_of
from percolator_core.tables.binding import table_name
from percolator_core.tables.model import Table
from percolator_core.tables.query import Query
from percolator_core.transaction.client import Client
from percolator_core.transaction.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

Mode = Literal["full", "incremental"]

Progress = Callable[[int], None]
"""A callable that takes the number of rows read so far."""

_ROWS: Final = 1000
_BYTES: Final = 4 << 20
"""Limits of a batch: its rows, and the approximate bytes of its cells."""

_ATTEMPTS: Final = 8
"""A publication is attempted at most this many times, if another publisher is first each time."""
_PAUSE: Final = 0.1
"""The second attempt begins at most this many seconds after the first; the limit doubles each time."""


@dataclass(frozen=True, slots=True)
class Published(ShownInNotebook):
    """A published version: the table as of ``timestamp`` (microseconds).

    ``version`` is its number in the Delta table. ``mode`` is ``"incremental"`` if only changed and removed
    rows were written. If it is ``"full"``, ``reason`` says why all rows were written. ``rows`` counts the
    rows that were read, removed ones included; of a raw table it counts cells.
    """

    timestamp: int
    version: int
    mode: Mode
    reason: str
    rows: int
    seconds: float


class Publishing:
    """The method of `percolator_core.Database` that publishes tables."""

    client: Client

    def publish(
        self,
        table: type[Table] | str,
        url: str,
        *,
        keep: timedelta | None = None,
        progress: Progress | None = None,
    ) -> Published:
        """Write a table, as of one time, as a version of a Delta Lake table, while clients write to it.

        DuckDB, Polars, Spark and others read the versions without this library. After the first version only
        changed rows are written, if garbage collection has kept all changes since the last publication. If
        the columns have changed, all rows are written. A crash leaves the last version as it was.

        Args:
            table: a typed table; or a raw table, each cell of which becomes a row with the columns ``row``,
                ``column``, ``commit_time`` and ``value``.
            url: a path, ``file:PATH``, or ``s3://BUCKET/PREFIX`` with options as for a base. Each table needs
                a URL of its own.
            keep: an age. Before the publication, the files that are used only by versions older than this are
                removed; the versions of the last hour always stay. With None, no file is removed.
            progress: takes the number of rows read so far.

        Raises:
            ConfigurationError: deltalake is not installed, or the URL cannot be used.
            UnknownTable: no such table.
            LockTimeout: an earlier transaction is still committing; publish again later.
            SnapshotTooOld: the table was dropped during the call.
            PercolatorError: other publications to the URL were first, 8 times; let one process publish.
            BaseDamaged: a file of the table's base is missing or damaged; restore the file.
            StoreUnavailable: the store or the location does not answer; publish again.
        """
        begun = time.monotonic()
        name = table_name(table)
        self.client.catalog.table(name)
        writer = f"percolator {self.client.oracle.history()} {name}"
        target = OpenTable(url, writer)
        if keep is not None:
            target.remove_old_files(keep)
        for attempt in range(_ATTEMPTS):
            try:
                return _Publication(self.client, name, target, progress).run(begun)
            except Overtaken:
                self.client.store.sleep(random.uniform(0, _PAUSE * 2**attempt))
                target = OpenTable(url, writer)
        raise PercolatorError(
            f"other publications of {name!r} to {target.uri} were first {_ATTEMPTS} times: "
            "let one process publish it"
        )


class _Publication:
    def __init__(self, client: Client, name: str, target: OpenTable, progress: Progress | None) -> None:
        self._client = client
        self._name = name
        self._target = target
        self._progress = progress
        self._rows = 0

    def run(self, begun: float) -> Published:
        """Write a version. Raises Overtaken if another publisher was first."""
        with Snapshot(self._client) as snapshot:
            at, last = snapshot.start_timestamp, self._target.timestamp
            if last >= at:
                raise Overtaken
            settle(self._client, at)
            handle = snapshot.handle_of(self._name)
            kind: type[_TypedRows | _Cells] = _TypedRows if handle.is_typed else _Cells
            source = kind(self._client, snapshot, handle)
            about = {
                "percolator.table": self._name,
                "percolator.namespace": self._client.store.keyspace.namespace,
            }
            reason = self._reason_for_all(source.schema, last)
            if not reason:
                try:
                    changes = self._counted(source.changes(last))
                    self._target.merge(source.schema, source.key, changes, at, about)
                except SnapshotTooOld:
                    reason = "garbage collection removed versions since the last publication"
            if reason:
                self._rows = 0
                self._target.replace(source.schema, self._counted(source.all()), at, about)
        mode: Mode = "full" if reason else "incremental"
        seconds = time.monotonic() - begun
        return Published(at, self._target.version, mode, reason, self._rows, seconds)

    def _reason_for_all(self, schema: pa.Schema, last: int) -> str:
        """Return the reason to write all rows; "" if the changes since the last publication suffice."""
        if not last:
            return "the table was not published there before"
        if not self._target.has_schema(schema):
            return "the columns of the table have changed"
        # The store has no record of the commits that it has lost, so they are not among the changes.
        lost = last < self._client.oracle.last_failover()
        return "a failover may have lost commits since the last publication" if lost else ""

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._rows += len(batch)
            if self._progress is not None:
                self._progress(self._rows)
            yield batch


class _Rows:
    """The rows to be published as of a snapshot.

    `all` yields all rows in batches of ``schema``. `changes` yields the rows that changed or were removed
    after a timestamp, in batches of `changes_schema`; it raises SnapshotTooOld if garbage collection has
    passed the timestamp.
    """

    schema: pa.Schema
    key: Sequence[str]

    def __init__(self, client: Client, snapshot: Snapshot, handle: TableHandle) -> None:
        self._client = client
        self._snapshot = snapshot
        self._handle = handle

    def _cells(self, since: int) -> Iterator[RowCells]:
        at = self._snapshot.start_timestamp
        for tablet in range(self._handle.tablets):
            yield from tablet_cells(self._client, self._handle, tablet, at, since)


class _TypedRows(_Rows):
    def __init__(self, client: Client, snapshot: Snapshot, handle: TableHandle) -> None:
        super().__init__(client, snapshot, handle)
        from percolator_core.tables.arrow import arrow_schema  # it needs pyarrow

        definition = handle.definition
        self._query = Query(handle, definition.shown_columns)
        self.schema = arrow_schema(definition.shown_columns)
        self.key = definition.key

    def all(self) -> Iterator[pa.RecordBatch]:
        from percolator_core.tables.arrow import read_batches

        return read_batches(self._snapshot, self._query, pieces(self._handle.definition, None))

    def changes(self, since: int) -> Iterator[pa.RecordBatch]:
        found: list[bytes] = []
        for row in self._cells(since):
            if any(not is_internal(column) or column == MARKER for column in row.cells):
                found.append(row.key)
            if len(found) >= _ROWS:
                yield self._changed(found)
                found = []
        if found:
            yield self._changed(found)

    def _changed(self, keys: Sequence[bytes]) -> pa.RecordBatch:
        import pyarrow as pa

        from percolator_core.tables.arrow import from_rows

        query, codec = self._query, KeyCodec(self._handle.definition)
        there = dict(query.judge_many(self._snapshot, keys))
        values, removed = [], []
        for key in keys:
            parts = dict(zip(self.key, codec.split(key), strict=True))
            values.append(there.get(key) or [parts.get(column.name) for column in query.columns])
            removed.append(key not in there)
        columns = [replace(column, nullable=True, missing=None) for column in query.columns]
        arrays = [*from_rows(columns, values).columns, pa.array(removed, pa.bool_())]
        return pa.RecordBatch.from_arrays(arrays, schema=changes_schema(self.schema))


class _Cells(_Rows):
    """The cells of a raw table, each as a row."""

    key = ("row", "column")

    def __init__(self, client: Client, snapshot: Snapshot, handle: TableHandle) -> None:
        super().__init__(client, snapshot, handle)
        import pyarrow as pa

        at = pa.timestamp("us", "UTC")
        fields = {"row": pa.binary(), "column": pa.string(), "commit_time": at, "value": pa.binary()}
        self.schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields.items()])

    def all(self) -> Iterator[pa.RecordBatch]:
        for cells in self._read(0):
            yield batch_of(self.schema, [cell for cell in cells if cell[3] is not None])

    def changes(self, since: int) -> Iterator[pa.RecordBatch]:
        schema = changes_schema(self.schema)
        for cells in self._read(since):
            yield batch_of(schema, [(*cell, cell[3] is None) for cell in cells])

    def _read(self, since: int) -> Iterator[list[tuple[bytes, str, int, bytes | None]]]:
        found: list[tuple[bytes, str, int, bytes | None]] = []
        size = 0
        for row in self._cells(since):
            for column, packed in row.cells.items():
                if is_internal(column):
                    continue
                version = unpack_version(packed)
                found.append((row.key, decode_column(column), version.commit_ts, version.value))
                size += len(packed)
            if len(found) >= _ROWS or size >= _BYTES:
                yield found
                found, size = [], 0
        if found:
            yield found
