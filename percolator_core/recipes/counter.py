"""Exact counters that many transactions change at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from percolator_core.database import Database
from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import Cell
from percolator_core.observers.parts import Need, Part
from percolator_core.recipes.cells import Into, cells_of
from percolator_core.recipes.combine import CombineQueue
from percolator_core.recipes.rows import AnyReader, AnyTransaction


class Counter(Part):
    """Numbers, one for each key, each in a cell with a `CombineQueue` of increments.

    Declare tables and observer as for `CombineQueue`. The cell may lack the newest increments; `value` adds
    them. In a raw table the cell has a whole number without a limit, in decimal digits. In a typed table it
    is a column of ints or decimals, and the number has the limits of the column.
    """

    __slots__ = ("_is_raw", "_kinds", "_queue")

    def __init__(self, table: str, into: Into, *, most: int = 512) -> None:
        """``into`` and ``most`` are those of `CombineQueue`. Nothing else may write to these cells.

        Raises:
            ConfigurationError: the column of a typed table has neither ints nor decimals.
            Others: as `CombineQueue`.
        """
        kind = cells_of(into).type
        self._is_raw = not kind
        self._kinds = (int, Decimal) if kind.startswith("decimal") else int
        if kind and kind != "int" and not kind.startswith("decimal"):
            raise ConfigurationError(f"a counter needs a column of ints or decimals, and {into!r} has {kind}")
        self._queue = CombineQueue(table, into, _sum_of_digits if self._is_raw else _sum, most=most)

    def add(self, t: AnyTransaction, key: Any, n: int | Decimal = 1) -> None:
        """Add ``n``, which may be negative, when ``t`` commits. This conflicts with no other transaction.

        Raises:
            TypeError: ``n`` is no int; a decimal column takes Decimals, too.
            Others: as `CombineQueue.add`.
        """
        if not isinstance(n, self._kinds):
            raise TypeError(f"a counter is changed by an int, not {type(n).__name__}")
        self._queue.add(t, key, b"%d" % n if self._is_raw else n)

    def value(self, t: AnyReader, key: Any) -> Any:
        """Return the exact sum of all increments that ``t`` sees, including its own; 0 without increments.

        Two transactions may read the same value and then add: they do not conflict. The cost is that of
        `CombineQueue.waiting`.

        Raises:
            LockTimeout, SnapshotTooOld, StoreUnavailable, UnknownTable: as `Transaction.scan`.
        """
        folded, items = self._queue.value(t, key), list(self._queue.waiting(t, key))
        return int(_sum_of_digits(folded, items)) if self._is_raw else _sum(folded, items)

    def drain(self, t: AnyTransaction, cell: Cell) -> int:
        """Fold increments into the cell, and return their number, as `CombineQueue.drain` does."""
        return self._queue.drain(t, cell)

    def notify_all(self, db: Database) -> int:
        """Wake the observer for all increments that still wait, as `CombineQueue.notify_all` does."""
        return self._queue.notify_all(db)

    def _needs(self, method: str) -> Need:
        """Return the requirements of a method, for the check of a chain."""
        return self._queue._needs(method)  # noqa: SLF001 - for `parts`


def _sum(folded: Any, items: Sequence[Any]) -> Any:
    return sum(items, folded or 0)


def _sum_of_digits(folded: bytes | None, items: Sequence[bytes]) -> bytes:
    return b"%d" % _sum(int(folded or 0), [int(item) for item in items])
