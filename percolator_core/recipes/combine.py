"""A queue for a cell that many transactions change (paper, section 2.4: weak notifications).

Each transaction adds an item to a queue (`percolator_core.notifications.queue`), and a weak observer folds
many items into the cell in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from percolator_core.database import Database
from percolator_core.layout.records import Cell
from percolator_core.notifications.queue import ADDED, VALUE, SlicedQueue
from percolator_core.observers.parts import Need, Part
from percolator_core.recipes.cells import Into, cells_of
from percolator_core.recipes.rows import AnyReader, AnyTransaction
from percolator_core.tables.annotations import value_codec

Fold: TypeAlias = Callable[[Any, Sequence[Any]], Any]
"""Returns the new value of a cell from its old value and some items; None stands for no value."""


class CombineQueue(Part):
    """Items for many keys, in one table, which are folded into one cell for each key.

    The table is raw, and has a notify-only column ``added``. Use few tablets, because every run reads all
    tablets. The observer is weak, observes ``added``, and calls `drain`. It declares ``feedback: true``,
    because it notifies itself if items are left.

    Every item is folded exactly once: the transaction that folds an item deletes it. A run folds the items of
    a key in the order of their transactions' start timestamps, and the items of one transaction in the order
    of the calls. Across runs the order can differ: a transaction can commit after the items of a transaction
    that started later were folded.
    """

    __slots__ = ("_cells", "_decode", "_encode", "_fold", "_queue", "_table")

    def __init__(self, table: str, into: Into, fold: Fold, *, items: Any = None, most: int = 512) -> None:
        """Name the queue's table, and the cells into which the items are folded.

        Args:
            table: the table of the queue, without other data.
            into: ``("accounts", "balance")`` of a raw table, whose row keys are the keys of the items. Or a
                column of a typed table, ``Account.balance`` or ``(Account, "balance")``. Then a key is the
                value of the table's key, a tuple of values, a mapping of the columns to values, or a row. A
                fold inserts a row that does not exist, if all other columns have a default or may be null.
            fold: gets the value of a cell (None without a value) and a sequence of items, and returns the new
                value. None deletes the cell of a raw table, and is null in a typed table. ``fold`` must not
                have side effects, because a run may be repeated.
            items: the type of the items, such as ``Decimal``, ``tuple[str, int]`` or a model. Default: the
                type of the column; bytes if the table is raw.
            most: one transaction folds at most this many items, 1 or more, and at most about 4 MiB.

        Raises:
            ValueError: ``most`` is out of range.
            TypeError, UnknownColumn, ConfigurationError: ``into`` is no column, is a column of a key, or
                ``items`` includes None.
        """
        if most < 1:
            raise ValueError(f"most is 1 or more, not {most}")
        self._table = table
        self._cells = cells_of(into)
        self._encode, self._decode = self._cells.encode, self._cells.decode
        if items is not None:
            self._encode, self._decode = value_codec(items, f"items of the queue {table}")
        self._fold = fold
        self._queue = SlicedQueue(table, most)

    def add(self, t: AnyTransaction, key: Any, value: Any) -> None:
        """Add an item for ``key`` when ``t`` commits. The item conflicts with no other transaction.

        The call takes the snapshot of ``t``, which costs a round trip if ``t`` has read nothing yet.

        Raises:
            UnknownTable, UnknownColumn: the queue's table does not exist, or has no such notify-only column.
            ConfigurationError: the observer does not declare the queue's column.
            TypeError, ValueError: the key or the value is not of its type; an encoded key has more than
                65,000 bytes.
            StoreUnavailable: the store does not answer.
        """
        self._queue.add(t, self._cells.row(key), self._encode(value))

    def waiting(self, t: AnyReader, key: Any) -> Iterator[Any]:
        """Yield the items of ``key`` that are not folded yet, as ``t`` sees them, in the order of `drain`.

        In one snapshot each item either is in the cell or waits. The scan is lazy, and has to skip all rows
        that were drained since the previous garbage collection.

        Raises:
            TypeError, ValueError: as `add`.
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
        """
        return map(self._decode, self._queue.waiting(t, self._cells.row(key)))

    def notify_all(self, db: Database) -> int:
        """Read the whole queue, notify every slice with items, and return the number of slices.

        Call this for items that were added without an active observer, or while the observer had another
        name: they have no notification.

        Raises:
            UnknownTable, UnknownColumn, StoreUnavailable: as `add`.
        """
        return self._queue.notify_all(db)

    def drain(self, t: AnyTransaction, cell: Cell) -> int:
        """Fold items of the notified cell's key, in ``t``, and return their number.

        Call this in the observer. If items may be left, the call notifies the cell again.

        Raises:
            UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Transaction.scan`.
            ConfigurationError: the observer does not declare its writes.
            RowNotFound: the row of a typed table does not exist, and a fold cannot insert it. The items wait.
            TypeError, ValueError: the new value does not fit the column of a typed table. The items wait.
        """
        key, taken = self._queue.take(t, cell.row)
        if taken:
            items = [self._decode(item) for item in taken]
            self._cells.change(t, key, lambda value: self._fold(value, items))
        return len(taken)

    def value(self, t: AnyReader, key: Any) -> Any:
        """Return the value of the key's cell, without the items that wait; None without a value."""
        return self._cells.get(t, self._cells.row(key))

    def _needs(self, method: str) -> Need:
        """Return the requirements of a method, for the check of a chain."""
        need = Need(raw={self._table: (ADDED,)})
        if method == "add":
            return need + Need(writes=((self._table, ADDED), (self._table, VALUE)))
        if method == "drain":
            own = Need(observes=((self._table, ADDED),), writes=((self._table, ADDED), (self._table, VALUE)))
            return need + own + self._cells.need
        return need
