"""A queue of items by key, to which transactions add without conflicts, and which weak observers empty.

Each item is a row. The rows of a key are in *slices* of time, and each slice has its own notification. A row
that was taken stays as a deletion until garbage collection removes it; a run does not read such rows of
earlier slices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final, Protocol

from percolator_core.database import Database
from percolator_core.layout.queue_rows import item_row, slice_of_item, slice_row, split_slice
from percolator_core.layout.records import MAX_TIMESTAMP

ADDED: Final = "added"
"""The notify-only column of the queue's table."""

VALUE: Final = "value"

_SLICE: Final = 1 << 15
"""Microseconds of a slice. With longer slices, a run reads more drained rows. With shorter slices, more
runs conflict."""

_BYTES: Final = 4 << 20
"""The approximate limit for the bytes of items that one transaction takes."""

_END: Final = MAX_TIMESTAMP // _SLICE + 1

_sequence: Final = itertools.count()
"""The last part of a row's key, after the start timestamp: it distinguishes the rows of one transaction."""


class Reader(Protocol):
    """The part of a snapshot or transaction that a queue reads with."""

    def scan(
        self, table: str, start: Any = ..., stop: Any = ..., *, columns: Any = ..., limit: Any = ...
    ) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """As `Snapshot.scan`."""


class Writer(Reader, Protocol):
    """The part of a transaction that a queue writes with."""

    @property
    def start_timestamp(self) -> int:
        """As `Snapshot.start_timestamp`."""

    def set(self, table: str, row: str | bytes, column: str, value: bytes) -> None:
        """As `Transaction.set`."""

    def delete(self, table: str, row: str | bytes, column: str) -> None:
        """As `Transaction.delete`."""

    def notify(self, table: str, row: str | bytes, column: str) -> None:
        """As `Transaction.notify`."""


class SlicedQueue:
    """A raw table with a notify-only column ``added``, as a queue of items in bytes for keys in bytes.

    Every item is taken exactly once: the transaction that takes an item deletes it. Items are taken in the
    order of their transactions' start timestamps, and the items of one transaction in the order of the calls.
    Across runs the order can differ: a transaction can commit after the items of a transaction that started
    later were taken.
    """

    __slots__ = ("_most", "table")

    def __init__(self, table: str, most: int) -> None:
        """One transaction takes at most ``most`` items."""
        self.table = table
        self._most = most

    def add(self, t: Writer, key: bytes, value: bytes) -> None:
        """Add an item when ``t`` commits. Raises ValueError if the key has more than 65,000 bytes."""
        start = t.start_timestamp
        current = slice_row(key, start // _SLICE)
        t.set(self.table, item_row(current, start, next(_sequence)), VALUE, value)
        t.notify(self.table, current, ADDED)

    def waiting(self, t: Reader, key: bytes) -> Iterator[bytes]:
        """Yield the items of a key that nobody has taken, as ``t`` sees them."""
        return (item for _, item in self._items(t, slice_row(key, 0), slice_row(key, _END)))

    def take(self, t: Writer, notified: bytes) -> tuple[bytes, list[bytes]]:
        """Take items of the key whose slice was notified; return the key and the items, possibly none.

        If items may be left, notify the slice again.
        """
        key, number = split_slice(notified)
        later = slice_row(key, number + 1)
        taken = list(self._items(t, notified, later, self._most))
        if not taken:
            return key, []  # a run for an earlier slice has taken them
        if len(taken) < self._most:
            # Take later slices, too: separate runs for them would conflict with this run.
            taken += self._items(t, later, slice_row(key, _END), self._most - len(taken))
        sizes = itertools.accumulate(len(item) for _, item in taken)
        kept = taken[: 1 + sum(size < _BYTES for size in sizes)]
        for row, _ in kept:
            t.delete(self.table, row, VALUE)
        if len(kept) < len(taken) or len(taken) == self._most:
            # Items of later slices have notifications of their own.
            t.notify(self.table, notified, ADDED)
        return key, [item for _, item in kept]

    def notify_all(self, db: Database) -> int:
        """Notify every slice with items, and return the number of slices."""
        slices = self.slices(db.snapshot())
        for one in slices:
            with db.transaction() as t:
                t.notify(self.table, one, ADDED)
        return len(slices)

    def slices(self, t: Reader) -> set[bytes]:
        """Return the rows of the slices with items, as ``t`` sees them."""
        return {slice_of_item(row) for row, _ in t.scan(self.table, columns=[VALUE])}

    def _items(
        self, t: Reader, start: bytes, stop: bytes, most: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = t.scan(self.table, start, stop, columns=[VALUE], limit=most)
        return ((row, cells[VALUE]) for row, cells in rows)
