"""A queue of changes for a system outside the store, which takes no part in transactions.

A run of an observer may be repeated. So an observer that sends its results to another system may send them
twice, may send results that are never committed, or may send a newer one before an older one. With a queue,
the transaction of a change adds an item, which commits with the change or not at all. An observer of the
queue passes the items of a key to a sink, one after another, and deletes each from the queue in the
transaction of the run.

Order: every item of a key has a *sequence*. The item's transaction reads the last sequence from a cell of the
key, and writes a new one. If two transactions add for one key at the same time, one conflicts and runs again,
so sequences rise in the order of commits. A sequence is the start timestamp, or the last sequence plus 1 if
that is higher. A plain count would start again, below the sequences that the sink has seen, after a table was
dropped and created again, or after a failover lost commits.

The sink is called before the transaction commits. After a crash or a conflict in between the call is
repeated. Two runs for one key may call at the same time, and one of the calls may be late. So a sink ignores
a sequence that is not above the last one of its key; see `percolator_core.recipes.sinks`.

The observer is strong (paper, section 2.4), on a cell that every add writes. A weak notification would cut
the backoff after a failure short: if a sink is down, a busy key would be in quarantine at once.
"""

from __future__ import annotations

import struct
import time
from typing import Final, NamedTuple

from percolator_core.database import Database
from percolator_core.layout.records import MAX_TIMESTAMP, Cell, row_bytes
from percolator_core.recipes.rows import AnyReader, AnyTransaction, key_row, split_row
from percolator_core.recipes.sinks import Sink
from percolator_core.runtime.log import Log

LAST: Final = "last"
"""The column of the sequence of a key's newest item. Every add writes it, so it is observed."""

MORE: Final = "more"
"""The column that a run writes if items are left. It is observed, too.

If a run wrote ``last`` instead, every add would conflict with the run, which lasts as long as the calls of
its sink.
"""

DONE: Final = "done"
"""The column of the newest exported sequence. A run begins behind this sequence, and so reads no deleted
rows."""

PAYLOAD: Final = "payload"

_SEQUENCE: Final = struct.Struct(">Q")

log = Log("percolator.recipes")


class Item(NamedTuple):
    """A committed change that waits for its export; ``sequence`` is in microseconds."""

    sequence: int
    payload: bytes


class ExportQueue:
    """Changes of many keys, in one table, passed to a sink in the order of commits.

    The table needs few tablets, because every run reads all of them. The observer is strong. It runs in
    threads, because it waits for the sink::

        tables:
          exports: {tablets: 1}

        observer: ship
        observe: [exports.last, exports.more]
        function: shop:ship
        reads: [exports.payload, exports.done]
        writes: [exports.more, exports.done, exports.payload]
        feedback: true
        executor: threads
        retry: {attempts: 30, backoff: 200ms, max_backoff: 1m}

    and in ``shop.py``::

        exports = ExportQueue("exports")
        sink = SQLiteSink("prices.sqlite")

        def ship(t, cell):
            exports.export(t, cell, sink)

    The sink gets every item at least once, and none before its commit. It gets the items of a key in order:
    if it refuses one, later ones wait. A key's ``last`` and ``done``, two cells of 8 bytes, stay in the
    table. An exported row is a deletion until garbage collection removes it.
    """

    __slots__ = ("_most", "_seconds", "_size", "_table")

    def __init__(self, table: str, *, most: int = 256, size: int = 4 << 20, seconds: float = 10.0) -> None:
        """Name the table, and limit the work of one run.

        Args:
            table: the table of the queue, and of nothing else.
            most: most items of a run; 1 or more.
            size: bytes of payload of a run, 1 or more; a single item may be larger.
            seconds: after which the run takes no further item, above 0. Together with the time of one item it
                has to be below the observer's ``timeout``: a run that exceeds the timeout exports nothing.

        Raises:
            ValueError: a number out of range.
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
        """Export ``payload`` for ``key`` once ``t`` has committed; return the item's sequence.

        Two transactions that add for one key conflict: one raises TransactionConflict at its commit, and
        `Database.run` or the worker runs it again. Adds for other keys do not conflict. Reads a cell, which
        fixes the snapshot of ``t``.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as for `Transaction.get`.
            ConfigurationError: the observer does not declare the queue's ``last``.
            TypeError, ValueError: as for `Transaction.set`; a key has at most 65,000 bytes.
        """
        row = key_row(row_bytes(key))
        last = t.get(self._table, row, LAST)
        # The cell is read and written, so another commit to this key in between is a conflict, and a greater
        # sequence is a later commit. A transaction sees its own writes, so several items of one transaction
        # are in order, too.
        sequence = t.start_timestamp if last is None else max(_number(last) + 1, t.start_timestamp)
        # This write comes first: if the observer does not declare the column, it fails before a part of the
        # item is added.
        t.set(self._table, row, LAST, _SEQUENCE.pack(sequence))
        t.set(self._table, row + _SEQUENCE.pack(sequence), PAYLOAD, payload)
        return sequence

    def waiting(self, t: AnyReader, key: str | bytes, limit: int | None = None) -> list[Item]:
        """Return the items of ``key`` that are not exported yet, in order, at most ``limit`` of them.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as for `Transaction.scan`.
            ValueError: the key has more than 65,000 bytes, or ``limit`` is below 0.
        """
        row = key_row(row_bytes(key))
        rows = t.scan(self._table, self._begin(t, row), _end(row), columns=[PAYLOAD], limit=limit)
        return [Item(_number(found[len(row) :]), cells[PAYLOAD]) for found, cells in rows]

    def export(self, t: AnyTransaction, cell: Cell, sink: Sink) -> int:
        """Pass the items of the observed cell's key to ``sink``, in ``t``; return the number that it took.

        The observer calls it. It takes a bounded batch, and notifies the observer again if items are left. If
        the sink refuses an item, the batch ends: the items before it are committed, and the next run begins
        with the refused one. If that is the first of the batch, its exception is raised, and the worker tries
        again later.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as for `Transaction.scan`.
            ConfigurationError: the observer does not declare its writes.
            Exception: the exception of the sink for the first item.
        """
        key, _ = split_row(cell.row)
        batch, more = self._batch(t, cell.row)
        begun = time.monotonic()
        taken = 0
        for sequence, payload in batch:
            # A run takes at least one item: otherwise a queue with a slow sink would never progress.
            if taken and time.monotonic() - begun > self._seconds:
                break
            try:
                sink.take(key, sequence, payload)
            except Exception as error:
                if not taken:
                    raise
                # If the exception were raised, a sink that fails now and then would get the whole batch again
                # each time.
                log.info("a sink refused an item, which is tried again", table=self._table, error=repr(error))
                break
            t.delete(self._table, cell.row + _SEQUENCE.pack(sequence), PAYLOAD)
            taken += 1
        if taken:
            # Two runs for one key conflict in this cell. An add does not write the cell, and so never
            # conflicts with a run.
            t.set(self._table, cell.row, DONE, _SEQUENCE.pack(batch[taken - 1].sequence))
        if more or taken < len(batch):
            t.set(self._table, cell.row, MORE, b"")
        return taken

    def notify_all(self, db: Database) -> int:
        """Notify the observer of every key with items; return the number of keys. Reads the whole queue.

        Call this for items that were added without an active observer, or while the observer had another
        name.

        Raises:
            UnknownTable, LockTimeout, StoreUnavailable: as for `add`.
        """
        with db.snapshot() as snapshot:
            rows = snapshot.scan(self._table, columns=[PAYLOAD])
            key_rows = {row[: -_SEQUENCE.size] for row, _ in rows}
        for row in key_rows:
            with db.transaction() as t:
                t.set(self._table, row, MORE, b"")
        return len(key_rows)

    def _batch(self, t: AnyTransaction, row: bytes) -> tuple[list[Item], bool]:
        """Return the items of one run, and True if more items wait."""
        batch: list[Item] = []
        size = 0
        for found, cells in t.scan(
            self._table, self._begin(t, row), _end(row), columns=[PAYLOAD], limit=self._most + 1
        ):
            item = Item(_number(found[len(row) :]), cells[PAYLOAD])
            # Items of this transaction are not committed yet; their sequences begin at its start timestamp.
            if item.sequence >= t.start_timestamp or len(batch) == self._most or size >= self._size:
                return batch, True
            size += len(item.payload)
            batch.append(item)
        return batch, False

    def _begin(self, t: AnyReader, row: bytes) -> bytes:
        done = t.get(self._table, row, DONE)
        return row + _SEQUENCE.pack(0 if done is None else _number(done) + 1)


def _end(row: bytes) -> bytes:
    return row + _SEQUENCE.pack(MAX_TIMESTAMP + 1)


def _number(packed: bytes) -> int:
    return int(_SEQUENCE.unpack(packed)[0])
