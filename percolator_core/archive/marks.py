"""The cells of a tablet that the observers of a chain had still to process at a timestamp: its *marks*.

The dirty index has no versions. But a run that has ended since the timestamp has written an acknowledgement
that is newer than the timestamp, in the observed row. So each cell that had a mark at that time is now dirty
or in quarantine, or has such an acknowledgement. For each of these cells, two versions at the timestamp are
compared: the cell was dirty if its own version is newer than its acknowledgement
(`percolator_core.notifications.ack`).

The dirty index is read before the cells. If a run ends between the two reads, its acknowledgement is found
among the cells.

A weak notification has no version. So for a weak observer all of these cells count as dirty: after a restore
the observer also runs for cells that were notified only after the timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from percolator_core.archive.files import Mark
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.concurrency import Concurrency
from percolator_core.errors import UnknownColumn
from percolator_core.layout.keys import (
    MARKER,
    acknowledgement,
    decode_mark,
    dirty_key,
    encode_mark,
    failed_key,
)
from percolator_core.transaction.client import Client
from percolator_core.transaction.snapshot import Snapshot

_AT_ONCE: Final = 1000
_WIDTH: Final = 256


class Marks:
    """Collects the marks of one tablet. Create it before you read the cells of the tablet.

    ``observers`` are the names of the active observers.
    """

    def __init__(
        self, client: Client, snapshot: Snapshot, handle: TableHandle, tag: bytes, observers: Iterable[str]
    ) -> None:
        self._client = client
        self._snapshot = snapshot
        self._handle = handle
        self._observers = tuple(observers)
        self._weak = {column.encode() for column in handle.definition.notify_only}
        self._found: dict[tuple[str, bytes], str | None] = {}
        """By observer and cell: the record of the cell in the quarantine, or None."""
        for observer in self._observers:
            for mark, _ in self._scan(b"ZSCAN", dirty_key(tag, observer)):
                self._found[observer, mark] = None
            for mark, record in self._scan(b"HSCAN", failed_key(tag, observer)):
                self._found[observer, mark] = record.decode()

    def add_later(self, row: bytes, acknowledgements: Iterable[bytes]) -> None:
        """Add the cells of a row that have these ``acknowledgements`` above the timestamp."""
        for acked in acknowledgements:
            observer, _, column = acked[1:].partition(acked[:1])
            self._found.setdefault((observer.decode(), encode_mark(column, row)), None)

    def may_have(self, row: bytes, column: bytes) -> bool:
        """Return False if the cell was certainly not dirty at the timestamp; call `add_later` first."""
        mark = encode_mark(column, row)
        return any((observer, mark) in self._found for observer in self._observers)

    def at_snapshot(self) -> list[Mark]:
        """Return the cells that were dirty at the snapshot's timestamp. Raises the errors of a read."""
        marks = [
            Mark(observer, row, column, record)
            for (observer, mark), record in self._found.items()
            for column, row in [decode_mark(mark)]
        ]
        with Concurrency(self._client.store, _WIDTH) as tasks:
            dirty = list(tasks.map(self._was_dirty, marks)) if marks else []
        return [mark for mark, was in zip(marks, dirty, strict=True) if was]

    def _was_dirty(self, mark: Mark) -> bool:
        # A run for a row that has not changed ends at once.
        if mark.column in self._weak or mark.column == MARKER:
            return True
        columns = [mark.column, acknowledgement(mark.observer, mark.column)]
        try:
            observed, done = self._snapshot.versions(self._handle.name, mark.row, columns)
        except UnknownColumn:
            return False  # the column was dropped
        if observed is None:
            return False
        return done is None or done.value is None or observed.commit_ts > done.start_ts

    def _scan(self, command: bytes, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = b"0"
        while True:
            cursor, flat = self._client.store.one((command, key, cursor, b"COUNT", _AT_ONCE))
            yield from zip(flat[::2], flat[1::2], strict=True)
            if cursor == b"0":
                return
