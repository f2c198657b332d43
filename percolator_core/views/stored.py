"""Read and write the tables of a view: its rows, and the groups from which they are made.

A version of a view has a typed table such as ``prices__1f3c9a02``. If it has groups or a ranking, it also has
a raw table ``prices__1f3c9a02__groups`` with three kinds of rows:

::

    <key> …           the queue of the group's deltas (`percolator_core.notifications.queue`)
    0xFE <key>        ``state``: the state of the group
    0xFF <key> <n> …  ``entry``: how often a value of argument ``n`` occurs; ``debt``: how often it was taken
                      back before it was added

``<key>`` has its length, at most 65,000, in front, so a row of the queue does not begin with 0xFE or 0xFF.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.layout.queue_rows import key_row
from percolator_core.layout.records import MAX_ROW
from percolator_core.notifications.queue import SlicedQueue
from percolator_core.tables import rows
from percolator_core.transaction.transaction import Transaction
from percolator_core.views.output import Cells

STATE: Final = "state"
ENTRY: Final = "entry"
DEBT: Final = "debt"

_MOST: Final = 2000
"""The most deltas of a group that one transaction takes from the queue."""

_ARGUMENT: Final = struct.Struct(">H")


RowCells: TypeAlias = tuple[TableHandle, bytes, Sequence[ColumnFields]]
"""Cells of a row to read."""


def groups_table(view: str) -> str:
    """Return the name of the table with the groups of a view."""
    return f"{view}__groups"


class GroupQueue(SlicedQueue):
    """The queue of the deltas of a view's groups."""

    def __init__(self, view: str) -> None:
        super().__init__(groups_table(view), _MOST)


class StoredGroup:
    """The state and the values of one group, as one transaction sees them: a `Multiset`."""

    def __init__(self, t: Transaction, view: str, key: bytes) -> None:
        self._t = t
        self._table = groups_table(view)
        self._state = b"\xfe" + key_row(key)
        self._values = b"\xff" + key_row(key)

    @property
    def state(self) -> bytes | None:
        """The packed state; None for a group without rows."""
        return self._t.get(self._table, self._state, STATE)

    @state.setter
    def state(self, state: bytes | None) -> None:
        if state is None:
            self._t.delete(self._table, self._state, STATE)
        else:
            self._t.set(self._table, self._state, STATE, state)

    def check(self, values: Iterable[tuple[int, bytes]]) -> None:
        """Raise ValueError if one of the values is too long for the group."""
        longest = max((len(self._row(one)) for one in values), default=0)
        if longest > MAX_ROW:
            raise ValueError(f"a value and the key of its group have at most {MAX_ROW} bytes, not {longest}")

    def cells(self, values: Iterable[tuple[int, bytes]]) -> Iterator[RowCells]:
        """Yield the cells that a change of some values reads: the state, and the counts of the values."""
        handle = self._t.handle_of(self._table)
        yield handle, self._state, [handle.columns[STATE]]
        for one in values:
            yield handle, self._row(one), [handle.columns[ENTRY], handle.columns[DEBT]]

    def add(self, changes: Mapping[tuple[int, bytes], int]) -> dict[tuple[int, bytes], tuple[int, int]]:
        """As `Multiset.add`."""
        counts = self._counts(changes)
        for one, count in counts.items():
            after, row = count + changes[one], self._row(one)
            # A debt has a column of its own, so that `first` and `last` do not find it.
            for column, before, value in ((ENTRY, count, after), (DEBT, -count, -after)):
                if value > 0:
                    self._t.set(self._table, row, column, b"%d" % value)
                elif before > 0:
                    self._t.delete(self._table, row, column)
        return {one: (max(count, 0), max(count + changes[one], 0)) for one, count in counts.items()}

    def _counts(self, wanted: Iterable[tuple[int, bytes]]) -> dict[tuple[int, bytes], int]:
        every = list(wanted)
        handle = self._t.handle_of(self._table)
        fields = [handle.columns[ENTRY], handle.columns[DEBT]]
        found = self._t.values_of((handle, self._row(one), fields) for one in every)
        return {
            one: int(count or 0) - int(debt or 0) for one, (count, debt) in zip(every, found, strict=True)
        }

    def first(self, argument: int, limit: int) -> list[tuple[bytes, int]]:
        """As `Multiset.first`."""
        return [(value, int(count)) for value, count in self._scan(argument, limit, reverse=False)]

    def last(self, argument: int, limit: int) -> list[tuple[bytes, int]]:
        """As `Multiset.last`."""
        return [(value, int(count)) for value, count in self._scan(argument, limit, reverse=True)]

    def _scan(self, argument: int, limit: int, *, reverse: bool) -> Sequence[tuple[bytes, bytes]]:
        prefix = self._prefix(argument)
        found = self._t.scan(self._table, prefix=prefix, columns=[ENTRY], limit=limit, reverse=reverse)
        return [(row[len(prefix) :], cells[ENTRY]) for row, cells in found]

    def _row(self, one: tuple[int, bytes]) -> bytes:
        argument, value = one
        return self._prefix(argument) + value

    def _prefix(self, argument: int) -> bytes:
        return self._values + _ARGUMENT.pack(argument)


def view_row(handle: TableHandle, key: bytes) -> RowCells:
    """Return the cells of a row of a view."""
    columns = (handle.columns[column.name] for column in handle.definition.value_columns)
    return handle, key, [handle.marker, *columns]


def write_row(t: Transaction, handle: TableHandle, key: bytes, cells: Cells | None) -> None:
    """Write a row of a view, or remove it."""
    if cells is None:
        rows.remove(t, handle, key)
    else:
        rows.upsert(t, handle, key, cells, {})


def change_row(t: Transaction, handle: TableHandle, key: bytes, cells: Cells | None) -> None:
    """Write the cells of a row that change, or remove the row. Most deltas of a group change few cells."""
    before = None if cells is None else rows.read(t, handle, key, cells)
    if cells is None or before is None:
        write_row(t, handle, key, cells)
    elif changed := {name: value for name, value in cells.items() if value != before[name]}:
        rows.update(t, handle, key, changed)
