"""A queue of changes for a system that is outside the store and takes no part in transactions.

The transaction of a change adds an item, which commits with the change or not at all. An observer passes the
items of a key to a sink, one after another, and the transaction of the run deletes them from the queue. The
observer is strong (paper, section 2.4): it observes a cell that every add writes anyway.

Every item of a key has a number, its *sequence*: the start timestamp or the previous sequence plus 1,
whichever is greater. A plain count would not be enough: after a failover lost commits, or after the table was
dropped and created again, the count would start below sequences that the sink has seen.

The sink is called before the transaction commits. So a call may be repeated, and calls of two runs for one
key may overlap; `percolator_core.recipes.sinks` describes what a sink has to do.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from percolator_core.database import Database
from percolator_core.layout.queue_rows import key_row, split_row
from percolator_core.layout.records import MAX_TIMESTAMP, Cell, row_bytes
from percolator_core.observers import Chain
from percolator_core.observers.parts import Need, Part
from percolator_core.recipes.rows import AnyReader, AnyTransaction
from percolator_core.recipes.sinks import Sink, row_codec
from percolator_core.runtime.log import Log
from percolator_core.tables.model import Table, definition_of

LAST: Final = "last"
"""The observed column with the sequence number of a key's newest item. Every add writes this column."""

MORE: Final = "more"
"""The observed column that a run writes if items are left: a write of ``last`` would conflict with adds."""

DONE: Final = "done"
"""The sequence number of the newest exported item. A run reads only later items, and skips deleted rows."""

PAYLOAD: Final = "payload"

_SEQUENCE: Final = struct.Struct(">Q")

log = Log("percolator.recipes")


class Item(NamedTuple):
    """A committed change that waits for its export; ``sequence`` is its sequence number."""

    sequence: int
    payload: bytes


class ExportQueue(Part):
    """Changes of many keys, in one table. The changes of each key are passed to a sink in commit order.

    Use few tablets, because every run reads all tablets. The observer is strong, observes the columns
    ``last`` and ``more``, and calls `export`. It declares ``feedback: true``, and ``executor: threads``,
    because it waits for the sink.

    The sink gets every item at least once, after the item's commit. It gets the items of a key in the order
    of their commits: if the sink refuses an item, later items wait. The cells ``last`` and ``done`` of each
    key, of 8 bytes each, stay in the table. The row of an exported item stays, as a deletion, until garbage
    collection removes it.
    """

    __slots__ = ("_most", "_seconds", "_size", "_table")

    def __init__(self, table: str, *, most: int = 256, size: int = 4 << 20, seconds: float = 10.0) -> None:
        """Name the table, and limit the work of one run.

        Args:
            table: the table of the queue, without other data.
            most: the limit of items of a run, 1 or more.
            size: the limit of payload bytes of a run, 1 or more; a single item may be larger.
            seconds: the time after which the run takes no further item, above 0. The sum of this time and the
                time of one item has to be below the observer's ``timeout``: a run that exceeds the timeout
                exports nothing.

        Raises:
            ValueError: a number is out of range.
        """
        if most < 1 or size < 1 or not seconds > 0:
            raise ValueError(
                f"most and size are 1 or more and seconds is above 0, not {most}, {size} and {seconds}"
            )
        self._table = table
        self._most = most
        self._size = size
        self._seconds = seconds

    def add(self, t: AnyTransaction, key: str | bytes, payload: bytes) -> int:
        """Buffer a new item of ``key`` in ``t`` until the commit, and return the item's sequence number.

        Two transactions that add for one key conflict: one raises TransactionConflict at its commit, and
        `Database.run` or the worker repeats that transaction. Adds for other keys do not conflict. The call
        reads a cell, which fixes the snapshot of ``t``.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.get`.
            ConfigurationError: the observer does not declare the queue's ``last``.
            TypeError, ValueError: as `Transaction.set`; a key has at most 65,000 bytes.
        """
        row = key_row(row_bytes(key))
        last = t.get(self._table, row, LAST)
        # The transaction reads and writes this cell, so a concurrent add is a conflict, and a greater
        # sequence is a later commit. A transaction sees its own writes, so its own sequences rise, too.
        sequence = t.start_timestamp if last is None else max(_number(last) + 1, t.start_timestamp)
        # This write is the first: if the observer does not declare the column, nothing is written.
        t.set(self._table, row, LAST, _SEQUENCE.pack(sequence))
        t.set(self._table, row + _SEQUENCE.pack(sequence), PAYLOAD, payload)
        return sequence

    def add_row(self, t: AnyTransaction, row: Table) -> int:
        """Add an item with a row of a typed table: its row key, and its fields as JSON. Returns as `add`.

        Call this in the transaction that writes the row.

        Raises:
            ValueError: a value cannot be written as JSON and restored, such as bytes that are not UTF-8.
            Others: as `add`.
        """
        model = type(row)
        key = model.row_key(**{name: row[name] for name in definition_of(model).key})
        return self.add(t, key, row_codec(model)[0](row))

    def add_removal(self, t: AnyTransaction, model: type[Table], /, **key: Any) -> int:
        """Add an item with an empty payload for a row that ``t`` removes. Returns and raises as `add`."""
        return self.add(t, model.row_key(**key), b"")

    def waiting(self, t: AnyReader, key: str | bytes, limit: int | None = None) -> list[Item]:
        """Return up to ``limit`` items of ``key`` that are not exported yet, ordered by sequence number.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            ValueError: the key has more than 65,000 bytes, or ``limit`` is below 0.
        """
        return list(self._items(t, key_row(row_bytes(key)), limit))

    def export(self, t: AnyTransaction, cell: Cell, sink: Sink) -> int:
        """Pass the items of the observed cell's key to ``sink``, delete them in ``t``, return their number.

        Call this in the observer. The call exports a bounded batch, and notifies the observer again if items
        are left. If the sink refuses an item, the batch ends: the previous items are committed, and the next
        run begins with the refused item.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            ConfigurationError: the observer does not declare its writes.
            Exception: the sink refused the first item. The worker tries again later.
        """
        key, _ = split_row(cell.row)
        batch, more = self._batch(t, cell.row)
        begun = time.monotonic()
        taken = 0
        for sequence, payload in batch:
            # A run takes at least one item, so that a queue with a slow sink makes progress.
            if taken and time.monotonic() - begun > self._seconds:
                break
            try:
                sink.take(key, sequence, payload)
            except Exception as error:
                if not taken:
                    raise
                # If the exception were raised, the sink would get the whole batch again.
                log.info("a sink refused an item, which is tried again", table=self._table, error=repr(error))
                break
            t.delete(self._table, cell.row + _SEQUENCE.pack(sequence), PAYLOAD)
            taken += 1
        if taken:
            # Two runs for one key conflict in this cell. An add does not write the cell, and so does not
            # conflict with a run.
            t.set(self._table, cell.row, DONE, _SEQUENCE.pack(batch[taken - 1].sequence))
        if more or taken < len(batch):
            t.set(self._table, cell.row, MORE, b"")
        return taken

    def notify_all(self, db: Database) -> int:
        """Read the whole queue, notify the observer of every key with items, and return the number of keys.

        Call this for items that were added without an active observer, or while the observer had another
        name.

        Raises:
            UnknownTable, LockTimeout, StoreUnavailable: as `add`.
        """
        with db.snapshot() as snapshot:
            rows = snapshot.scan(self._table, columns=[PAYLOAD])
            key_rows = {row[: -_SEQUENCE.size] for row, _ in rows}
        for row in key_rows:
            with db.transaction() as t:
                t.set(self._table, row, MORE, b"")
        return len(key_rows)

    def _needs(self, method: str) -> Need:
        """Return the requirements of a method, for the check of a chain."""
        last, more, done, payload = ((self._table, name) for name in (LAST, MORE, DONE, PAYLOAD))
        if method in {"add", "add_row", "add_removal"}:
            return Need({self._table: ()}, writes=(last, payload))
        if method == "export":
            return Need({self._table: ()}, observes=(last, more), writes=(more, done, payload))
        return Need({self._table: ()})

    def _batch(self, t: AnyTransaction, row: bytes) -> tuple[list[Item], bool]:
        """Return the items of one run, and True if further items wait."""
        batch: list[Item] = []
        size = 0
        for item in self._items(t, row, self._most + 1):
            # Leave out this transaction's own items, whose sequences begin at its start timestamp: they are
            # not committed yet.
            if item.sequence >= t.start_timestamp or len(batch) == self._most or size >= self._size:
                return batch, True
            size += len(item.payload)
            batch.append(item)
        return batch, False

    def _items(self, t: AnyReader, row: bytes, limit: int | None) -> Iterator[Item]:
        done = t.get(self._table, row, DONE)
        start = row + _SEQUENCE.pack(0 if done is None else _number(done) + 1)
        stop = row + _SEQUENCE.pack(MAX_TIMESTAMP + 1)
        rows = t.scan(self._table, start, stop, columns=[PAYLOAD], limit=limit)
        return (Item(_number(found[len(row) :]), cells[PAYLOAD]) for found, cells in rows)


def exported_key(chain: Chain, table: str, row: bytes) -> bytes | None:
    """Return the key of a row of an export queue; None for rows of other tables.

    The table of a queue is known by its observer, which observes the queue's two columns.
    """
    if not {(table, LAST), (table, MORE)} <= chain.observed.keys():
        return None
    try:
        return split_row(row)[0]
    except struct.error:
        return None


def _number(packed: bytes) -> int:
    return int(_SEQUENCE.unpack(packed)[0])
