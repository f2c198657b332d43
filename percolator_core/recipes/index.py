"""Finding rows by the value of a column: an index that is a table, changed in the data's own transactions.

Each row that has the column has an *entry*, a row of the index's table whose key is the value and the row,
so put together that no two pairs are alike and that entries sort by value, then row. Who sets a cell through
the index moves its entry in the same transaction, so as of any snapshot index and data agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from percolator_core.database import Database
from percolator_core.layout.records import MAX_ROW, row_bytes
from percolator_core.recipes.rows import AnyReader, AnyTransaction
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

ENTRY: Final = "entry"
"""The one column of the index's table; its cells are empty."""

_AT_ONCE: Final = 500
"""Rows that are compared by one read, and mended in one transaction."""

_ZERO: Final = b"\x00"
_ESCAPED: Final = b"\x00\xff"
_END: Final = b"\x00\x01"
"""Behind a value. Less than whatever may follow in a longer value, so that the shorter one sorts first."""

_BEHIND: Final = b"\x00\x02"
"""Above a value's last entry, and below those of all greater values."""

Key: TypeAlias = Callable[[bytes], bytes | None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where index and data disagree: an entry that is missing, or a stray one that the data knows nothing of.

    ``row`` is the data's row, ``value`` the indexed value of the entry.
    """

    row: bytes
    value: bytes
    missing: bool


class SecondaryIndex:
    """An index of one column of one table.

    Its table is an ordinary one, and nothing else lies in it::

        tables:
          users: {}
          users_by_city: {}

        by_city = SecondaryIndex("users", "city", "users_by_city")

        by_city.set(t, "ada", b"London")
        rows = list(by_city.find(t, b"London"))

    It holds as long as all who write the column do it through the index. It does not make values unique:
    two transactions that both find nothing and set the same value in different rows do not conflict.
    """

    __slots__ = ("_column", "_index", "_key", "_table")

    def __init__(self, table: str, column: str, index: str, *, key: Key | None = None) -> None:
        """``index`` is the table of the entries.

        ``key`` makes the indexed value of a cell's value, such as a field of it; None leaves the row out. It
        depends on nothing else, and sorts as bytes do. By default it is the value itself.
        """
        self._table = table
        self._column = column
        self._index = index
        self._key = key

    def set(self, t: AnyTransaction, row: str | bytes, value: bytes) -> None:
        """Set the column of a row, and move its entry. Reads the cell first.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.get`.
            ConfigurationError: in an observer which does not declare the column.
            TypeError, ValueError: as `Transaction.set`; value and row together are too long for a row key.
        """
        old = t.get(self._table, row, self._column)
        self.update(t, row, old, value)
        t.set(self._table, row, self._column, value)

    def delete(self, t: AnyTransaction, row: str | bytes) -> None:
        """Delete the column of a row, and its entry. Raises as `set`."""
        self.update(t, row, t.get(self._table, row, self._column), None)
        t.delete(self._table, row, self._column)

    def update(self, t: AnyTransaction, row: str | bytes, old: bytes | None, new: bytes | None) -> None:
        """Move the entry only, for a transaction that sets the cell by itself.

        ``old`` is the cell's value as ``t`` has read it, ``new`` what ``t`` sets it to; None for no cell.
        Without the write of the cell in the same transaction, two that move one entry might not collide.

        Raises as `set`.
        """
        data_row = row_bytes(row)
        before, after = self._indexed(old), self._indexed(new)
        if before == after:
            return
        # Made first: of a value that is too long nothing is written.
        entry = None if after is None else _entry(after, data_row)
        if before is not None:
            t.delete(self._index, _entry(before, data_row), ENTRY)
        if entry is not None:
            t.set(self._index, entry, ENTRY, b"")

    def find(self, t: AnyReader, value: bytes, *, limit: int | None = None) -> Iterator[bytes]:
        """The rows with this value, in row order, as ``t`` sees them; read while they are consumed.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            TypeError, ValueError: ``limit`` is no int, or below 0.
        """
        front = _escape(value)
        rows = t.scan(self._index, front + _END, front + _BEHIND, columns=[ENTRY], limit=limit)
        return (entry[len(front) + len(_END) :] for entry, _ in rows)

    def range(
        self,
        t: AnyReader,
        start: bytes | None = None,
        stop: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """``(value, row)`` by value, then row; ``start`` inclusive, ``stop`` exclusive, None for no bound.

        Raises as `find`.
        """
        low = None if start is None else _escape(start) + _END
        high = None if stop is None else _escape(stop) + _END
        rows = t.scan(self._index, low, high, columns=[ENTRY], limit=limit, reverse=reverse)
        return (_split(entry) for entry, _ in rows)

    def check(self, db: Database) -> list[Difference]:
        """Compare all data with the whole index, as of now; what differs, first what is missing.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, StoreUnavailable: as `Transaction.scan`.
        """
        with db.snapshot() as snapshot:
            return list(self._differences(snapshot))

    def rebuild(self, db: Database) -> int:
        """Make the index agree with the data; returns how many entries it added or removed.

        For data that is older than the index, or was written past it. May run beside those who write through
        the index: what they change at the same time collides with what is mended, and is looked at again.
        It leaves the data alone, so it wakes no observer of it. It may be interrupted, and run again.

        Raises:
            TransactionConflict: others changed the same rows again and again: run it once more.
            ValueError: a value and its row are too long for a row key of the index.
            UnknownTable, UnknownColumn, LockTimeout, StoreUnavailable: as `Transaction.scan`.
        """
        mended = 0
        with db.snapshot() as snapshot:
            for some in _batches(self._differences(snapshot)):
                mended += db.run(lambda t, some=some: self._mend(t, some))  # type: ignore[misc]
        return mended

    def _indexed(self, value: bytes | None) -> bytes | None:
        return value if value is None or self._key is None else self._key(value)

    def _differences(self, snapshot: Snapshot) -> Iterator[Difference]:
        for some in _batches(snapshot.scan(self._table, columns=[self._column])):
            pairs = [(self._indexed(cells[self._column]), row) for row, cells in some]
            wanted = [(value, row) for value, row in pairs if value is not None]
            there = snapshot.get_many([(self._index, _entry(value, row), ENTRY) for value, row in wanted])
            for (value, row), entry in zip(wanted, there, strict=True):
                if entry is None:
                    yield Difference(row, value, missing=True)
        for entries in _batches(self.range(snapshot)):
            cells = snapshot.get_many([(self._table, row, self._column) for _, row in entries])
            for (value, row), cell in zip(entries, cells, strict=True):
                if self._indexed(cell) != value:
                    yield Difference(row, value, missing=False)

    def _mend(self, t: Transaction, some: list[Difference]) -> int:
        """Judge each difference anew. Whoever moves one of these entries meanwhile writes it, as we do."""
        mended = 0
        cells = t.get_many([(self._table, difference.row, self._column) for difference in some])
        for difference, cell in zip(some, cells, strict=True):
            entry = _entry(difference.value, difference.row)
            belongs = self._indexed(cell) == difference.value
            if belongs and difference.missing:
                t.set(self._index, entry, ENTRY, b"")
                mended += 1
            elif not belongs and not difference.missing:
                t.delete(self._index, entry, ENTRY)
                mended += 1
        return mended


def _batches(every: Iterable[T]) -> Iterator[list[T]]:
    found = iter(every)
    while some := list(islice(found, _AT_ONCE)):
        yield some


def _escape(value: bytes) -> bytes:
    return value.replace(_ZERO, _ESCAPED)


def _entry(value: bytes, row: bytes) -> bytes:
    entry = _escape(value) + _END + row
    if len(entry) > MAX_ROW:
        raise ValueError(
            f"the index's row key for this value and row has {len(entry)} bytes, and may have {MAX_ROW}: "
            "index a part or a digest of the value, by key="
        )
    return entry


def _split(entry: bytes) -> tuple[bytes, bytes]:
    # Inside of a value each zero has 255 behind it, so the first end is the end.
    value, _, row = entry.partition(_END)
    return value.replace(_ESCAPED, _ZERO), row
