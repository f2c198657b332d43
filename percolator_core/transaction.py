"""Transactions: a snapshot to read from, and writes that become visible together (paper, section 2.2)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from operator import itemgetter
from types import TracebackType
from typing import Final, Literal, Self

from percolator_core.catalog import TableHandle
from percolator_core.client import Client
from percolator_core.commit import Commit, Mutation, notify, primary_first
from percolator_core.errors import ConfigurationError, PercolatorError, SnapshotTooOld, TransactionConflict
from percolator_core.keys import is_internal
from percolator_core.model import DELETE, NOTIFY, PUT, Write, row_bytes
from percolator_core.snapshot import Row, Snapshot, check_limit, scan_bounds

MAX_VALUE: Final = 256 << 20
"""Largest value in bytes; Redis itself ends at 512 MiB, and a lock holds the value beside its own header."""

MAX_ROW: Final = 64 << 10
"""Longest row key in bytes."""

_BLIND_ROUNDS: Final = 16

_NO_CONFLICT: Final = ("newer commit", "failed over")
"""Refusals of an old start, which mean nothing to a transaction that has read nothing."""

_Columns = dict[bytes, Write]


class Transaction(Snapshot):
    """Reads see one snapshot and the transaction's own writes; writes are buffered until `commit`.

    As a context manager it commits on a clean exit and discards on an exception. Not for use by several
    threads or tasks at once.
    """

    __slots__ = ("_after", "_commit_ts", "_state", "_writes")

    def __init__(self, client: Client, *, after: int | None = None) -> None:
        super().__init__(client)
        self._after = after
        self._writes: dict[str, dict[bytes, _Columns]] = {}
        self._commit_ts: int | None = None
        self._state: Literal["open", "committed", "discarded"] = "open"

    @property
    def commit_timestamp(self) -> int | None:
        """The commit timestamp in microseconds, None until committed."""
        return self._commit_ts

    # Reads: the snapshot, with our own writes in front of it.

    def get(self, table: str, row: str | bytes, column: str) -> bytes | None:
        """The value of a cell in this transaction's view, or None. Raises as `Snapshot.get`."""
        handle = self._client.catalog.table(table)
        key = row if type(row) is bytes else row_bytes(row)
        fields = handle.data_column(column)
        self._must_be_open()
        if self._writes:
            own = self._own(table, key, fields.encoded)
            if own is not None:
                return own.value if own.kind == PUT else None
        return self._read(handle, key, fields)

    def get_row(self, table: str, row: str | bytes, columns: Iterable[str] | None = None) -> dict[str, bytes]:
        """The cells of a row that exist in this transaction's view, by column; all, or those named.

        Raises as `Snapshot.get`.
        """
        self._must_be_open()
        wanted = None if columns is None else list(columns)
        cells = super().get_row(table, row, wanted)
        own = self._writes.get(table, {}).get(row_bytes(row), {})
        return _overlay(cells, own, wanted)

    def get_many(self, cells: Iterable[tuple[str, str | bytes, str]]) -> list[bytes | None]:
        """The values of many cells in this transaction's view, in order, in one round trip.

        Raises as `Snapshot.get`.
        """
        self._must_be_open()
        asked = list(cells)
        if not self._writes:
            return super().get_many(asked)
        values: list[bytes | None] = []
        missing: list[int] = []
        for position, (table, row, column) in enumerate(asked):
            handle = self._client.catalog.table(table)
            own = self._own(table, row_bytes(row), handle.data_column(column).encoded)
            values.append(own.value if own is not None and own.kind == PUT else None)
            if own is None:
                missing.append(position)
        for position, value in zip(missing, super().get_many([asked[p] for p in missing]), strict=True):
            values[position] = value
        return values

    def scan(  # noqa: PLR0917
        self,
        table: str,
        start: str | bytes | None = None,
        stop: str | bytes | None = None,
        prefix: str | bytes | None = None,
        columns: Iterable[str] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[Row]:
        """As `Snapshot.scan`, with the writes made before the call. Raises as it does."""
        self._must_be_open()
        if limit is not None:
            check_limit(limit, 0)
        wanted = None if columns is None else list(columns)
        own = self._writes.get(table)
        if not own:
            return super().scan(table, start, stop, prefix, wanted, limit, reverse)
        low, high = scan_bounds(start, stop, prefix)
        mine = sorted(
            ((row, dict(cells)) for row, cells in own.items() if low <= row and (high is None or row < high)),
            key=itemgetter(0),
            reverse=reverse,
        )
        stored = super().scan(table, start, stop, prefix, wanted, None, reverse)
        return itertools.islice(_merge(stored, mine, wanted, reverse), limit)

    # Writes.

    def set(self, table: str, row: str | bytes, column: str, value: bytes) -> None:
        """Write a cell.

        Raises TypeError for a value that is not bytes, ValueError for a row key over 64 KiB or a value over
        256 MiB.
        """
        if not isinstance(value, bytes):
            raise TypeError(f"a value is bytes, not {type(value).__name__}: encode it first")
        if len(value) > MAX_VALUE:
            raise ValueError(
                f"a value has at most {MAX_VALUE} bytes, this one has {len(value)}: cut it into several cells"
            )
        handle = self._client.catalog.table(table)
        self._buffer(handle, row_bytes(row), handle.data_column(column).encoded, Write(PUT, value))

    def delete(self, table: str, row: str | bytes, column: str) -> None:
        """Delete a cell; one that does not exist may be deleted too."""
        handle = self._client.catalog.table(table)
        self._buffer(handle, row_bytes(row), handle.data_column(column).encoded, Write(DELETE, b""))

    def delete_row(self, table: str, row: str | bytes) -> None:
        """Delete all cells of a row that exist in this transaction's view."""
        for column in self.get_row(table, row):
            self.delete(table, row, column)

    def notify(self, table: str, row: str | bytes, column: str) -> None:
        """Wake the weak observers of a notify-only column once this transaction has committed.

        Never conflicts; many notifications of one cell may be collapsed into one run.
        """
        handle = self._client.catalog.table(table)
        self._buffer(handle, row_bytes(row), handle.notify_column(column), Write(NOTIFY, b""))

    def write(self, table: str, row: bytes, column: bytes, write: Write) -> None:
        """Buffer a write to an encoded column; acknowledgements are written so."""
        self._buffer(self._client.catalog.table(table), row, column, write)

    # The end.

    def commit(self) -> int:
        """Make the writes visible; returns the commit timestamp (without writes, the start timestamp).

        Raises:
            TransactionConflict: another transaction wrote a cell since the snapshot, or is writing it now.
            Nothing
                was written: run the whole transaction again (`Database.run` does).
            TransactionAborted: another client took this one for dead. Nothing was written: run it again.
            CommitUndetermined: the outcome could not be learned.
            SnapshotTooOld: garbage collection has passed the snapshot: run it again.
            StoreUnavailable: nothing was committed.
        """
        self._must_be_open()
        self._state = "discarded"
        if not self._writes:
            self._commit_ts = self.start_timestamp
        elif self._start_ts is None:
            self._commit_ts = self._commit_blindly()
        else:
            self._commit_ts = self._commit_writes(self._start_ts)
        self._state = "committed"
        return self._commit_ts

    def rollback(self) -> None:
        """Discard the writes. Idempotent; a committed transaction cannot be rolled back."""
        if self._state == "committed":
            raise PercolatorError(
                "the transaction is committed and cannot be rolled back: write the old values again"
            )
        self._state = "discarded"
        self._writes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state != "open":
            return
        if kind is None:
            self.commit()
        else:
            self.rollback()

    # Inside.

    def _fix(self, timestamp: int) -> None:
        if self._after is not None and timestamp <= self._after:
            raise ConfigurationError(
                f"the timestamp {self._after} to begin after comes from another store, or from the future"
            )
        super()._fix(timestamp)

    def _must_be_open(self) -> None:
        if self._state != "open":
            raise PercolatorError(f"the transaction is {self._state}: begin a new one")

    def _own(self, table: str, row: bytes, column: bytes) -> Write | None:
        rows = self._writes.get(table)
        return rows.get(row, {}).get(column) if rows else None

    def _buffer(self, handle: TableHandle, row: bytes, column: bytes, write: Write) -> None:
        self._must_be_open()
        if len(row) > MAX_ROW:
            raise ValueError(f"a row key has at most {MAX_ROW} bytes, this one has {len(row)}")
        self._writes.setdefault(handle.name, {}).setdefault(row, {})[column] = write

    def _mutations(self) -> list[Mutation]:
        mutations: list[Mutation] = []
        for table, rows in self._writes.items():
            handle = self._client.catalog.table(table)
            for row, columns in rows.items():
                tag = handle.tag(row)
                mutations.extend(
                    Mutation(tag, table, row, column, *write) for column, write in columns.items()
                )
        return primary_first(mutations)

    def _commit_writes(self, start_ts: int, *, restock: bool = False) -> int:
        mutations = self._mutations()
        if mutations[0].kind == NOTIFY:
            return notify(self._client, mutations)
        return Commit(self._client, start_ts, mutations, restock=restock).run()

    def _commit_blindly(self) -> int:
        """Commit a transaction that never read.

        It is ordered at its commit, so a newer commit is no conflict: it takes a newer start instead.
        """
        spare = self._client.oracle.spare(self._after)
        if spare is not None:
            self._start_ts = spare
            try:
                return self._commit_writes(spare, restock=True)
            except SnapshotTooOld:
                pass
            except TransactionConflict as conflict:
                if conflict.reason not in _NO_CONFLICT:
                    raise
        for remaining in reversed(range(_BLIND_ROUNDS)):
            self._start_ts = None
            try:
                return self._commit_writes(self.start_timestamp, restock=True)
            except TransactionConflict as conflict:
                if conflict.reason not in _NO_CONFLICT or not remaining:
                    raise
        raise AssertionError("unreachable")


def _overlay(cells: dict[str, bytes], own: _Columns, wanted: list[str] | None) -> dict[str, bytes]:
    """The cells with our own writes applied."""
    for encoded, write in own.items():
        if write.kind == NOTIFY or is_internal(encoded):
            continue
        column = encoded.decode()
        if wanted is not None and column not in wanted:
            continue
        if write.kind == PUT:
            cells[column] = write.value
        else:
            cells.pop(column, None)
    return cells


def _merge(
    stored: Iterator[Row], mine: list[tuple[bytes, _Columns]], wanted: list[str] | None, reverse: bool
) -> Iterator[Row]:
    """Stored rows and our own, in order; a row that is in both comes once."""
    tagged = heapq.merge(
        ((row, 0, cells) for row, cells in stored),
        ((row, 1, own) for row, own in mine),
        key=itemgetter(0),
        reverse=reverse,
    )
    for row, group in itertools.groupby(tagged, key=itemgetter(0)):
        cells: dict[str, bytes] = {}
        own: _Columns = {}
        for _, is_mine, found in group:
            if is_mine:
                own = found  # type: ignore[assignment]
            else:
                cells = found  # type: ignore[assignment]
        visible = _overlay(cells, own, wanted)
        if visible:
            yield row, visible
