"""A queue of changes on their way out of the store, to something that takes no part in its transactions.

A run of an observer may be repeated, so an observer that sends what it computed somewhere may send it
twice, send what is never committed, or send the newer before the older. With a queue the transaction that
makes a change adds an item, which is committed with the change or not at all; an observer of the queue hands
the items of a key to a sink one after the other, and takes each off the queue in the run's transaction.

Order. Every item of a key has a *sequence*, which its transaction takes from a cell of that key and writes
back: of two transactions that add for one key, one conflicts and starts again, so sequences rise in the order
of commits. They are start timestamps, moved up where need be, not a plain count: so they also rise over a
table that was dropped and made again, and over commits that a failover lost, where a count would begin again
below what the sink has seen.

The sink is called before the transaction commits. A crash or a conflict in between repeats the call, and two
runs for one key may call at the same time, one of them late. So a sink ignores what is not newer than the
last sequence that it has of that key; see `percolator_core.recipes.sinks`.

The observer is strong (paper, section 2.4), on a cell that every add writes. A weak notification would cut
the wait short that follows a failure: with a sink that is down, a busy key would be in quarantine at once.
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
"""The sequence of a key's newest item. Written by every add, so it is what is observed."""

MORE: Final = "more"
"""Written by a run that leaves something over, and observed, too.

Were it ``last`` instead, every add would collide with a run, which takes as long as its sink.
"""

DONE: Final = "done"
"""The sequence of the newest item that was exported. A run begins behind it, so it passes no deleted rows."""

PAYLOAD: Final = "payload"

_SEQUENCE: Final = struct.Struct(">Q")

log = Log("percolator.recipes")


class Item(NamedTuple):
    """A committed change that waits for its export; ``sequence`` is in microseconds, see the module."""

    sequence: int
    payload: bytes


class ExportQueue:
    """Changes of many keys, in one table, each handed to a sink in the order of commits.

    The table needs few tablets, since every run looks into all of them. The observer is strong and runs in
    threads, since it blocks on the sink::

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

    Every item is handed over at least once, and none before it is committed. The items of a key come in
    order; those behind one that the sink does not take wait for it. A key's ``last`` and ``done`` stay in
    the table: two cells of 8 bytes. An exported row is a deletion that stays until garbage is collected.
    """

    __slots__ = ("_most", "_seconds", "_size", "_table")

    def __init__(self, table: str, *, most: int = 256, size: int = 4 << 20, seconds: float = 10.0) -> None:
        """Where the queue is, and what one run takes at most.

        Args:
            table: the queue's table, of nothing else.
            most: items; 1 or more.
            size: bytes of payload, 1 or more; a single item may be larger.
            seconds: after which no further item is begun, above 0. With the time that the sink needs for
                one item it lies below the observer's ``timeout``: a run past that has done nothing.

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
        """Export ``payload`` for ``key`` once ``t`` has committed; returns the item's sequence.

        Two transactions that add for one key collide: one of them raises TransactionConflict at its commit,
        for `Database.run` or the worker to repeat. What is added for other keys is in nobody's way. Reads a
        cell, which fixes the snapshot of ``t``.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.get`.
            ConfigurationError: in an observer which does not declare the queue's ``last``.
            TypeError, ValueError: as `Transaction.set`; a key has at most 65,000 bytes.
        """
        row = key_row(row_bytes(key))
        last = t.get(self._table, row, LAST)
        # Read and written: whoever commits to this key in between makes us conflict, so a greater sequence is
        # a later commit. Our own writes are seen, so several items of one transaction are in order, too.
        sequence = t.start_timestamp if last is None else max(_number(last) + 1, t.start_timestamp)
        # First: an observer that did not declare it is refused here, and has not added half an item.
        t.set(self._table, row, LAST, _SEQUENCE.pack(sequence))
        t.set(self._table, row + _SEQUENCE.pack(sequence), PAYLOAD, payload)
        return sequence

    def waiting(self, t: AnyReader, key: str | bytes, limit: int | None = None) -> list[Item]:
        """The items of ``key`` that are not exported yet, in order, at most ``limit`` of them.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            ValueError: the key has more than 65,000 bytes, or ``limit`` is below 0.
        """
        row = key_row(row_bytes(key))
        rows = t.scan(self._table, self._begin(t, row), _end(row), columns=[PAYLOAD], limit=limit)
        return [Item(_number(found[len(row) :]), cells[PAYLOAD]) for found, cells in rows]

    def export(self, t: AnyTransaction, cell: Cell, sink: Sink) -> int:
        """Hand what waits for the observed cell's key to ``sink``, in ``t``; returns how many items it took.

        The body of the observer. Takes a bounded batch, and wakes the observer again where more is left. An
        item that the sink does not take ends the batch: what it took before is committed, and the next run
        begins with that item. If it is the first, its exception is raised, and the worker tries again later.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            ConfigurationError: the observer does not declare what it writes.
            Exception: what the sink raised for the first item.
        """
        key, _ = split_row(cell.row)
        batch, more = self._batch(t, cell.row)
        begun = time.monotonic()
        taken = 0
        for sequence, payload in batch:
            # At least one, or a slow sink would keep the queue from ever moving.
            if taken and time.monotonic() - begun > self._seconds:
                break
            try:
                sink.take(key, sequence, payload)
            except Exception as error:
                if not taken:
                    raise
                # A sink that fails now and then would otherwise be given all of the batch again, every time.
                log.info("a sink failed, its item is tried again", table=self._table, error=repr(error))
                break
            t.delete(self._table, cell.row + _SEQUENCE.pack(sequence), PAYLOAD)
            taken += 1
        if taken:
            # The cell in which two runs for one key collide; it never meets an add, which writes others.
            t.set(self._table, cell.row, DONE, _SEQUENCE.pack(batch[taken - 1].sequence))
        if more or taken < len(batch):
            t.set(self._table, cell.row, MORE, b"")
        return taken

    def notify_all(self, db: Database) -> int:
        """Wake the observer for every key that has items; returns how many those are.

        For what was added while no such observer was active, or while it had another name. It reads the
        whole queue.

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

    def _batch(self, t: AnyTransaction, row: bytes) -> tuple[list[Item], bool]:
        """What one run takes, and whether there is more."""
        batch: list[Item] = []
        size = 0
        for found, cells in t.scan(
            self._table, self._begin(t, row), _end(row), columns=[PAYLOAD], limit=self._most + 1
        ):
            item = Item(_number(found[len(row) :]), cells[PAYLOAD])
            # What this very transaction has added is not committed, and lies at its start or above.
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
