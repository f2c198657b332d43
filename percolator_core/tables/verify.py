"""Whether the indexes of a table agree with its rows, and making them agree.

They do, whoever dies when: an entry is moved in the transaction that changes the row. This is for a store
that something else has written to, or that was put together from parts of backups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import RowExists
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.tables.binding import table_name
from percolator_core.tables.indexes import Index, Move, Wanted, described, holder_of, indexes_of
from percolator_core.tables.model import Table
from percolator_core.tables.rows import Reader, Writer

_AT_ONCE: Final = 500
"""Rows that are compared by one read, and mended in one transaction."""

T = TypeVar("T")


class Readable(Reader, Protocol):
    """What is needed of a snapshot."""

    def handle_of(self, table: str) -> TableHandle:
        """A table by its name."""

    def select(self, table: str, /) -> Iterator[dict[str, Any]]:
        """All rows of a table."""

    def scan(self, table: str, /, *, columns: Iterable[str]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """The rows of a table that have one of the columns, with their encoded values."""


class Mendable(Protocol):
    """What is needed of a database."""

    def snapshot(self) -> AbstractContextManager[Any]:
        """A snapshot, pinned in a ``with`` statement."""

    def run(self, fn: Callable[[Any], T]) -> T:
        """Runs a function in a transaction, and again on a conflict."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an index and its table disagree: an entry that is missing, or one that no row stands for.

    ``index`` is the index's table, ``row`` the row's key and ``value`` the indexed value, both encoded.
    """

    index: str
    row: bytes
    value: bytes
    missing: bool


def check_indexes(t: Readable, table: type[Table] | str) -> list[Difference]:
    """Compare all indexes of a table with its rows, as a snapshot has them; empty if they agree.

    Reads the table once, and every index; pin the snapshot (``with db.snapshot() as t``) for a large one.

    Raises:
        UnknownTable, LockTimeout, SnapshotTooOld, StoreUnavailable: as `Snapshot.select`.
    """
    return list(_differences(t, t.handle_of(table_name(table))))


def rebuild_indexes(db: Mendable, table: type[Table] | str) -> int:
    """Make all indexes of a table agree with its rows; returns how many entries were added or removed.

    May run beside those who write: whoever moves one of the entries meanwhile writes it as we do, so one of
    both conflicts, and the entry is looked at again. The rows are left alone, so no observer wakes. It may be
    interrupted, and run again.

    Raises:
        RowExists: two rows have one value in a unique column, so it has no entry for one of them: change that
            row, and rebuild again. All else is mended.
        TransactionConflict: others changed the same rows again and again: run it once more.
        UnknownTable, LockTimeout, StoreUnavailable: as `Snapshot.select`.
    """
    name, mended = table_name(table), 0
    twice: list[str] = []
    with db.snapshot() as snapshot:
        for some in _batches(_differences(snapshot, snapshot.handle_of(name))):
            # What is found in a run that conflicts is found again.
            done, refused = db.run(lambda t, some=some: _mend(t, t.handle_of(name), some))  # type: ignore[misc]
            mended += done
            twice += refused
    if twice:
        raise RowExists(f"{twice[0]}: change one of them, and rebuild the indexes again")
    return mended


def _mend(t: Writer, handle: TableHandle, some: Sequence[Difference]) -> tuple[int, list[str]]:
    """Judge each difference anew: how many were mended, and which cannot be."""
    mended, refused = 0, []
    indexes = {index.rule.table: index for index in indexes_of(handle)}
    # Of a table that was made anew meanwhile none may be known.
    known = [(one, indexes[one.index]) for one in some if one.index in indexes]
    # Read at once, for the transaction to keep: below each is asked for anew, after what was mended before.
    t.values_of(wanted for one, index in known for wanted in _of(t, handle, index, one.value, one.row))
    for one, index in known:
        cell, holder = _as_it_is(t, handle, index, one.value, one.row)
        table, entry = t.handle_of(one.index), index.entry(one.value, one.row)
        if one.missing and cell == one.value and holder != one.row:
            if holder is not None and _as_it_is(t, handle, index, one.value, holder)[0] == cell:
                refused.append(
                    f"{handle.name} has one value of {index.rule.column}, which is unique, in two rows, "
                    f"{described(handle, holder)} and {described(handle, one.row)}"
                )
                continue
            Move(index, table, one.row, None, entry).write(t)
        elif not one.missing and cell != one.value and holder == one.row:
            Move(index, table, one.row, entry, None).write(t)
        else:
            continue
        mended += 1
    return mended, refused


def _of(t: Writer, handle: TableHandle, index: Index, value: bytes, row: bytes) -> tuple[Wanted, Wanted]:
    """Where a row's indexed cell is, and its entry."""
    table = t.handle_of(index.rule.table)
    field = holder_of(table) if index.rule.unique else table.marker
    return (handle, row, [handle.columns[index.rule.column]]), (table, index.entry(value, row), [field])


def _as_it_is(
    t: Writer, handle: TableHandle, index: Index, value: bytes, row: bytes
) -> tuple[bytes | None, bytes | None]:
    """A row's indexed cell, and the row that the entry stands for, None if there is no entry."""
    (cell,), (entry,) = (t.values(*wanted) for wanted in _of(t, handle, index, value, row))
    return cell, entry if index.rule.unique or entry is None else row


def _differences(t: Readable, handle: TableHandle) -> Iterator[Difference]:
    found = [index for index in indexes_of(handle) if index.column.missing is None]
    yield from _missing(t, handle, found)
    for index in found:
        yield from _stray(t, handle, index)


def _missing(t: Readable, handle: TableHandle, found: list[Index]) -> Iterator[Difference]:
    columns = [index.rule.column for index in found]
    if not columns:
        return
    for some in _batches(t.scan(handle.name, columns=columns)):
        for index in found:
            name, table = index.rule.column, t.handle_of(index.rule.table)
            pairs = [(cells[name], row) for row, cells in some if name in cells]
            field = holder_of(table) if index.rule.unique else table.marker
            there = t.values_of((table, index.entry(value, row), [field]) for value, row in pairs)
            for (value, row), (entry,) in zip(pairs, there, strict=True):
                if entry is None or (index.rule.unique and entry != row):
                    yield Difference(table.name, row, value, missing=True)


def _stray(t: Readable, handle: TableHandle, index: Index) -> Iterator[Difference]:
    table = t.handle_of(index.rule.table)
    field = handle.columns[index.rule.column]
    for some in _batches(_entries(t, table, index)):
        cells = t.values_of((handle, row, [field]) for _, row in some)
        for (value, row), (cell,) in zip(some, cells, strict=True):
            if cell != value:
                yield Difference(table.name, row, value, missing=False)


def _entries(t: Readable, table: TableHandle, index: Index) -> Iterator[tuple[bytes, bytes]]:
    """The encoded value and the row of each entry."""
    if index.rule.unique:
        holder = table.definition.value_columns[0].name
        return ((value, cells[holder]) for value, cells in t.scan(table.name, columns=[holder]))
    codec = KeyCodec(table.definition)
    return (index.taken_apart(codec.encode(tuple(entry.values()))) for entry in t.select(table.name))


def _batches(every: Iterable[T]) -> Iterator[list[T]]:
    found = iter(every)
    while some := list(islice(found, _AT_ONCE)):
        yield some
