"""Find rows by the value of a column. The index is a table; transactions change it together with the data.

Each row with the column has an *entry*: a row of the index's table, whose key consists of the value and the
data's row key. Entries sort by value, then by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from percolator_core.database import Database
from percolator_core.layout.records import MAX_ROW, row_bytes
from percolator_core.observers.parts import Need, Part
from percolator_core.recipes.rows import AnyReader, AnyTransaction
from percolator_core.runtime.batches import batched
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

ENTRY: Final = "entry"
"""The only column of the index's table; its cells are empty."""

_BATCH: Final = 500
"""The number of rows that one read compares and one transaction repairs."""

_ZERO: Final = b"\x00"
_ESCAPED: Final = b"\x00\xff"
_END: Final = b"\x00\x01"
"""The end of a value. It sorts below any further byte, so a prefix of a value sorts before the value."""

_AFTER: Final = b"\x00\x02"
"""A value with this end is above all entries of the value, and below the entries of greater values."""

Key: TypeAlias = Callable[[bytes], bytes | None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Difference:
    """A missing entry, or an entry whose row does not have the value.

    ``row`` is the row of the data, and ``value`` is the indexed value of the entry.
    """

    row: bytes
    value: bytes
    missing: bool


class SecondaryIndex(Part):
    """An index of one column of a raw table. The entries need a raw table of their own.

    A typed table declares its indexes in its model instead, as `Indexed` or `Unique`.

    Index and data agree in every snapshot if all writes of the column use the index. It does not make values
    unique: two transactions may find no row, and then set the same value in different rows, without a
    conflict.
    """

    __slots__ = ("_column", "_index", "_key", "_table")

    def __init__(self, table: str, column: str, index: str, *, key: Key | None = None) -> None:
        """``index`` is the table of the entries.

        ``key`` computes the indexed value from a cell's value, and from nothing else; it returns None to
        leave the row out. Without ``key`` the cell's value is indexed. Indexed values sort as bytes.
        """
        self._table = table
        self._column = column
        self._index = index
        self._key = key

    def set(self, t: AnyTransaction, row: str | bytes, value: bytes) -> None:
        """Set the column of a row, and move its entry. Reads the cell first.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.get`.
            ConfigurationError: the observer does not declare the column.
            TypeError, ValueError: as `Transaction.set`; value and row together are too long for a row key.
        """
        self.update(t, row, t.get(self._table, row, self._column), value)
        t.set(self._table, row, self._column, value)

    def delete(self, t: AnyTransaction, row: str | bytes) -> None:
        """Delete the column of a row, and its entry. Raises the errors of `set`."""
        self.update(t, row, t.get(self._table, row, self._column), None)
        t.delete(self._table, row, self._column)

    def update(self, t: AnyTransaction, row: str | bytes, old: bytes | None, new: bytes | None) -> None:
        """Move only the entry. The transaction has to set or delete the cell with its own call.

        ``old`` is the cell's value that ``t`` has read, and ``new`` is the value that ``t`` writes. None
        means no cell. Without the write of the cell, two transactions that move one entry might not conflict.

        Raises the errors of `set`.
        """
        data_row = row_bytes(row)
        before, after = self._indexed(old), self._indexed(new)
        if before == after:
            return
        # The entry is encoded before any write: if the value is too long, nothing is written.
        entry = None if after is None else _entry(after, data_row)
        if before is not None:
            t.delete(self._index, _entry(before, data_row), ENTRY)
        if entry is not None:
            t.set(self._index, entry, ENTRY, b"")

    def find(self, t: AnyReader, value: bytes, *, limit: int | None = None) -> Iterator[bytes]:
        """Yield the rows with this value, in row order, as ``t`` sees them. The scan is lazy.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            TypeError, ValueError: ``limit`` is no int, or below 0.
        """
        front = _escape(value)
        rows = t.scan(self._index, front + _END, front + _AFTER, columns=[ENTRY], limit=limit)
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
        """Yield ``(value, row)`` in order; ``start`` is inclusive, ``stop`` exclusive, None means no bound.

        Raises the errors of `find`.
        """
        low = None if start is None else _escape(start) + _END
        high = None if stop is None else _escape(stop) + _END
        rows = t.scan(self._index, low, high, columns=[ENTRY], limit=limit, reverse=reverse)
        return (_split(entry) for entry, _ in rows)

    def check(self, db: Database) -> list[Difference]:
        """Compare all data with the whole index, as of now; return the differences, missing entries first.

        Raises:
            UnknownTable, UnknownColumn, LockTimeout, StoreUnavailable: as `Transaction.scan`.
        """
        with db.snapshot() as snapshot:
            return list(self._differences(snapshot))

    def rebuild(self, db: Database) -> int:
        """Make the index agree with the data; return the number of entries that were added or removed.

        Call this for data that is older than the index, or was not written through the index, and again after
        an interruption. Other clients may use the index at the same time. The data is not written, so no
        observer of the data runs.

        Raises:
            TransactionConflict: other transactions changed the same rows again and again. Call this again.
            ValueError: a value and its row are too long for a row key of the index.
            UnknownTable, UnknownColumn, LockTimeout, StoreUnavailable: as `Transaction.scan`.
        """
        repaired = 0
        with db.snapshot() as snapshot:
            for batch in batched(self._differences(snapshot), _BATCH):
                repaired += db.run(lambda t, batch=batch: self._repair(t, batch))  # type: ignore[misc]
        return repaired

    def _needs(self, method: str) -> Need:
        """Return the requirements of a method, for the check of a chain."""
        own = (self._index, ENTRY)
        writes = {"set": ((self._table, self._column), own), "delete": ((self._table, self._column), own)}
        return Need({self._table: (), self._index: ()}, writes={**writes, "update": (own,)}.get(method, ()))

    def _indexed(self, value: bytes | None) -> bytes | None:
        return value if value is None or self._key is None else self._key(value)

    def _differences(self, snapshot: Snapshot) -> Iterator[Difference]:
        for batch in batched(snapshot.scan(self._table, columns=[self._column]), _BATCH):
            pairs = [(self._indexed(cells[self._column]), row) for row, cells in batch]
            wanted = [(value, row) for value, row in pairs if value is not None]
            there = snapshot.get_many([(self._index, _entry(value, row), ENTRY) for value, row in wanted])
            for (value, row), entry in zip(wanted, there, strict=True):
                if entry is None:
                    yield Difference(row, value, missing=True)
        for entries in batched(self.range(snapshot), _BATCH):
            cells = snapshot.get_many([(self._table, row, self._column) for _, row in entries])
            for (value, row), cell in zip(entries, cells, strict=True):
                if self._indexed(cell) != value:
                    yield Difference(row, value, missing=False)

    def _repair(self, t: Transaction, batch: list[Difference]) -> int:
        """Repair each difference that still exists. A concurrent move of the entry is a conflict."""
        repaired = 0
        cells = t.get_many([(self._table, difference.row, self._column) for difference in batch])
        for difference, cell in zip(batch, cells, strict=True):
            entry = _entry(difference.value, difference.row)
            belongs = self._indexed(cell) == difference.value
            if belongs and difference.missing:
                t.set(self._index, entry, ENTRY, b"")
                repaired += 1
            elif not belongs and not difference.missing:
                t.delete(self._index, entry, ENTRY)
                repaired += 1
        return repaired


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
    # Inside a value each zero is followed by 255, so the first end marker is the end.
    value, _, row = entry.partition(_END)
    return value.replace(_ESCAPED, _ZERO), row
