"""A queue of items by key, to which transactions add without conflicts, and which weak observers empty.

Each item is a row. The rows of a key are in *slices* of time, and each slice has its own notification. A row
that was taken stays as a deletion until garbage collection removes it; a run does not read such rows of
earlier slices.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any, Final, Protocol

from percolator_core.database import Database
from percolator_core.layout.records import MAX_TIMESTAMP

ADDED: Final = "added"
"""The notify-only column of the queue's table."""

VALUE: Final = "value"

LONGEST_KEY: Final = 65_000
"""A key has at most this many bytes, so that key and suffix together fit into a row key."""

_SLICE: Final = 1 << 15
"""Microseconds of a slice. With longer slices, a run reads more drained rows. With shorter slices, more
runs conflict."""

_BYTES: Final = 4 << 20
"""The approximate limit for the bytes of items that one transaction takes."""

_KEY: Final = struct.Struct(">H")
_TIME: Final = struct.Struct(">Q")
_ITEM: Final = struct.Struct(">QQ")
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
        slice_row = _slice_row(key, start // _SLICE)
        t.set(self.table, slice_row + _ITEM.pack(start, next(_sequence)), VALUE, value)
        t.notify(self.table, slice_row, ADDED)

    def waiting(self, t: Reader, key: bytes) -> Iterator[bytes]:
        """Yield the items of a key that nobody has taken, as ``t`` sees them."""
        return (item for _, item in self._items(t, _slice_row(key, 0), _slice_row(key, _END)))

    def take(self, t: Writer, slice_row: bytes) -> tuple[bytes, list[bytes]]:
        """Take items of the key whose slice was notified; return the key and the items, possibly none.

        If items may be left, notify the slice again.
        """
        key, time = split_row(slice_row)
        later = _slice_row(key, _TIME.unpack(time)[0] + 1)
        taken = list(self._items(t, slice_row, later, self._most))
        if not taken:
            return key, []  # a run for an earlier slice has taken them
        if len(taken) < self._most:
            # Take later slices, too: separate runs for them would conflict with this run.
            taken += self._items(t, later, _slice_row(key, _END), self._most - len(taken))
        sizes = itertools.accumulate(len(item) for _, item in taken)
        kept = taken[: 1 + sum(size < _BYTES for size in sizes)]
        for row, _ in kept:
            t.delete(self.table, row, VALUE)
        if len(kept) < len(taken) or len(taken) == self._most:
            # Items of later slices have notifications of their own.
            t.notify(self.table, slice_row, ADDED)
        return key, [item for _, item in kept]

    def notify_all(self, db: Database) -> int:
        """Notify every slice with items, and return the number of slices."""
        slice_rows = {row[: -_ITEM.size] for row, _ in db.snapshot().scan(self.table, columns=[VALUE])}
        for slice_row in slice_rows:
            with db.transaction() as t:
                t.notify(self.table, slice_row, ADDED)
        return len(slice_rows)

    def _items(
        self, t: Reader, start: bytes, stop: bytes, most: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = t.scan(self.table, start, stop, columns=[VALUE], limit=most)
        return ((row, cells[VALUE]) for row, cells in rows)


def key_row(key: bytes) -> bytes:
    """Return the prefix of a key's rows. It begins with the key's length, so no other key has this prefix."""
    if len(key) > LONGEST_KEY:
        raise ValueError(
            f"a key of a queue has at most {LONGEST_KEY} bytes, not {len(key)}: use a digest of it"
        )
    return _KEY.pack(len(key)) + key


def split_row(row: bytes) -> tuple[bytes, bytes]:
    """Split a row key into the key and the suffix."""
    end = _KEY.size + _KEY.unpack_from(row)[0]
    return row[_KEY.size : end], row[end:]


def _slice_row(key: bytes, number: int) -> bytes:
    """Return the prefix of the row keys of a slice. It is also the key of the row that is notified."""
    return key_row(key) + _TIME.pack(number)
