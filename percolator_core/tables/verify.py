"""Whether the indexes of a table agree with its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from percolator_core.catalog import TableHandle
from percolator_core.schema.keys import KeyCodec
from percolator_core.tables.binding import table_name
from percolator_core.tables.indexes import Index, holder_of, indexes_of
from percolator_core.tables.model import Table
from percolator_core.tables.rows import Reader

_AT_ONCE: Final = 500
"""Rows that are compared by one read."""

T = TypeVar("T")


class Readable(Reader, Protocol):
    """What is needed of a snapshot."""

    def handle_of(self, table: str) -> TableHandle:
        """A table by its name."""

    def select(self, table: str, /) -> Iterator[dict[str, Any]]:
        """All rows of a table."""

    def scan(self, table: str, /, *, columns: Iterable[str]) -> Iterator[tuple[bytes, dict[str, bytes]]]:
        """The rows of a table that have one of the columns, with their encoded values."""


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
    handle = t.handle_of(table_name(table))
    found = [index for index in indexes_of(handle) if index.column.missing is None]
    return [*_missing(t, handle, found), *(one for index in found for one in _stray(t, handle, index))]


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
