"""Compare the indexes of a table with its rows, and repair them.

A crash cannot make indexes and rows differ, because an entry moves in the transaction that changes the row.
Indexes and rows differ if another program has written to the store, or if the store was restored from parts
of several backups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import RowExists, TransactionConflict
from percolator_core.runtime.batches import batched
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.tables.binding import table_name
from percolator_core.tables.indexes import (
    Index,
    Move,
    Reader,
    Wanted,
    Writer,
    checked_entry,
    described,
    holder_of,
    indexes_of,
    source_of,
)
from percolator_core.tables.model import Table

AT_ONCE: Final = 500
"""The number of rows that one read compares, or one transaction repairs."""

_ATTEMPTS_OF_ONE: Final = 30

T = TypeVar("T")
S = TypeVar("S")


class Readable(Reader, Protocol):
    """The methods of a snapshot that this module calls."""

    def select(self, table: str, /) -> Iterator[dict[str, Any]]:
        """Yield all rows of a table."""

    def scan(self, table: str, /, *, columns: Iterable[str]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """Yield each row that has a value in at least one of the columns, with these encoded values."""


class Repairable(Protocol):
    """The methods of a database that this module calls."""

    def snapshot(self) -> AbstractContextManager[Any]:
        """Return a snapshot, which is pinned inside a ``with`` statement."""

    def run(self, fn: Callable[[Any], T], attempts: int = ..., /) -> T:
        """Run a function in a transaction, and repeat it on a conflict."""


@dataclass(frozen=True, slots=True)
class IndexDifference:
    """A missing entry of the index with the table ``index``, or an entry without its row."""

    index: str
    row: bytes
    value: bytes
    missing: bool


def check_indexes(t: Readable, table: type[Table] | str) -> list[IndexDifference]:
    """Return the differences between a table and its indexes in a snapshot, except indexes being built.

    This reads the table and each index once. For a large table pin the snapshot: ``with db.snapshot() as t``.

    Raises:
        UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Snapshot.select`.
    """
    handle = t.handle_of(table_name(table))
    complete = [one for one in indexes_of(handle) if one.rule.complete_from is not None]
    return list(index_differences(t, handle, complete))


def rebuild_indexes(db: Repairable, table: type[Table] | str, index: str | None = None) -> int:
    """Repair the indexes of a table; return the number of entries that were added or removed.

    ``index`` is the table of one index; None means all indexes. Other clients may write at the same time: a
    transaction that moves an entry conflicts with the repair of this entry, and the repair runs again. Rows
    do not change, so no observer runs. Call this again after an interruption.

    Raises:
        RowExists: two rows have the same value in a unique column, so one of them has no entry: change one of
            the two, and call this again. All other differences are repaired.
        ValueError: an entry would be too long: change the row that the message names, and call this again.
        TransactionConflict: other clients changed the same rows again and again. Call this again.
        UnknownTable, LockTimeout, StoreUnavailable: as `Snapshot.select`.
    """
    name, repaired = table_name(table), 0
    twice: list[str] = []
    with db.snapshot() as snapshot:
        handle = snapshot.handle_of(name)
        chosen = [one for one in indexes_of(handle) if index in {None, one.rule.table}]
        for some in batched(index_differences(snapshot, handle, chosen), AT_ONCE):
            for done, refused in run_in_parts(db, lambda t, part: repair(t, t.handle_of(name), part), some):
                repaired += done
                twice += refused
    if twice:
        raise RowExists(f"{twice[0]}: change one row, and rebuild the indexes again")
    return repaired


def run_in_parts(
    db: Repairable, fn: Callable[[Any, Sequence[S]], T], some: Sequence[S], attempts: int = 3
) -> Iterator[T]:
    """Run a function for a batch in one transaction; after ``attempts`` conflicts, in one for each half.

    With many rows, each attempt may meet a write of another client. A single row has more attempts, and then
    raises TransactionConflict.
    """
    try:
        yield db.run(lambda t: fn(t, some), attempts if len(some) > 1 else _ATTEMPTS_OF_ONE)
    except TransactionConflict:
        if len(some) == 1:
            raise
        middle = len(some) // 2
        for half in (some[:middle], some[middle:]):
            yield from run_in_parts(db, fn, half, attempts)


def repair(t: Writer, handle: TableHandle, some: Sequence[IndexDifference]) -> tuple[int, list[str]]:
    """Repair the differences that still exist; return their number, and a message for each refused repair."""
    repaired, refused = 0, []
    indexes = {index.rule.table: index for index in indexes_of(handle)}
    # A table that was dropped and created again may have none of these indexes.
    known = [(one, indexes[one.index]) for one in some if one.index in indexes]
    # This read fills the transaction's cache. The loop reads each cell again, because an earlier repair may
    # have changed it.
    t.values_of(wanted for one, index in known for wanted in _of(t, handle, index, one.value, one.row))
    for one, index in known:
        cell, holder = _as_it_is(t, handle, index, one.value, one.row)
        table = t.handle_of(one.index)
        if one.missing and cell == one.value and holder != one.row:
            if holder is not None and _as_it_is(t, handle, index, one.value, holder)[0] == cell:
                refused.append(
                    f"{handle.name} has the same value of the unique column {source_of(index)} in two rows, "
                    f"{described(handle, holder)} and {described(handle, one.row)}"
                )
                continue
            Move(index, table, one.row, None, checked_entry(handle, index, one.value, one.row)).write(t)
        elif not one.missing and cell != one.value and holder == one.row:
            Move(index, table, one.row, index.entry(one.value, one.row), None).write(t)
        else:
            continue
        repaired += 1
    return repaired, refused


def _of(t: Writer, handle: TableHandle, index: Index, value: bytes, row: bytes) -> tuple[Wanted, Wanted]:
    """Return the arguments of `Reader.values_of` for a row's indexed cell and for its entry."""
    table = t.handle_of(index.rule.table)
    field = holder_of(table) if index.rule.unique else table.marker
    return (handle, row, [handle.columns[index.rule.column]]), (table, index.entry(value, row), [field])


def _as_it_is(
    t: Writer, handle: TableHandle, index: Index, value: bytes, row: bytes
) -> tuple[bytes | None, bytes | None]:
    """Return the row's indexed cell, and the row of the entry for ``value``; None if there is no entry."""
    (cell,), (entry,) = (t.values(*wanted) for wanted in _of(t, handle, index, value, row))
    return cell, entry if index.rule.unique or entry is None else row


def index_differences(
    t: Readable, handle: TableHandle, indexes: Iterable[Index]
) -> Iterator[IndexDifference]:
    """Yield the differences between a table and some of its indexes in a snapshot."""
    found = [index for index in indexes if index.column.missing is None]
    yield from _missing(t, handle, found)
    for index in found:
        yield from _stray(t, handle, index)


def _missing(t: Readable, handle: TableHandle, found: list[Index]) -> Iterator[IndexDifference]:
    columns = [index.rule.column for index in found]
    if not columns:
        return
    for some in batched(t.scan(handle.name, columns=columns), AT_ONCE):
        for index in found:
            name, table = index.rule.column, t.handle_of(index.rule.table)
            pairs = [(cells[name], row) for row, cells in some if name in cells]
            field = holder_of(table) if index.rule.unique else table.marker
            there = t.values_of((table, index.entry(value, row), [field]) for value, row in pairs)
            for (value, row), (entry,) in zip(pairs, there, strict=True):
                if entry is None or (index.rule.unique and entry != row):
                    yield IndexDifference(table.name, row, value, missing=True)


def _stray(t: Readable, handle: TableHandle, index: Index) -> Iterator[IndexDifference]:
    table = t.handle_of(index.rule.table)
    field = handle.columns[index.rule.column]
    for some in batched(_entries(t, table, index), AT_ONCE):
        cells = t.values_of((handle, row, [field]) for _, row in some)
        for (value, row), (cell,) in zip(some, cells, strict=True):
            if cell != value:
                yield IndexDifference(table.name, row, value, missing=False)


def _entries(t: Readable, table: TableHandle, index: Index) -> Iterator[tuple[bytes, bytes]]:
    """Yield the encoded value and the row of each entry."""
    if index.rule.unique:
        holder = table.definition.value_columns[0].name
        return ((value, cells[holder]) for value, cells in t.scan(table.name, columns=[holder]))
    codec = KeyCodec(table.definition)
    return (index.split(codec.encode(tuple(entry.values()))) for entry in t.select(table.name))
