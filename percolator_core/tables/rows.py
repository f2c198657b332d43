"""Insert, upsert, update, remove and read of rows, in a transaction; everything encoded.

A row is there if its marker is: a cell of its own that every row has, written by whoever makes the row and
deleted by whoever removes it. So two who insert one key write one cell, and one of them conflicts. Who
removes a row deletes all its columns, also those it does not have, so it conflicts with whoever sets one.

The entries of a row in indexes are moved in the same transaction (`percolator_core.tables.indexes`). Whoever
moves one has read the indexed cell and writes it, so two who move the entries of one row conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import RowExists, RowNotFound
from percolator_core.layout.records import PUT, Write
from percolator_core.tables.indexes import (
    GONE,
    HERE,
    Cells,
    Wanted,
    described,
    holders_to_read,
    indexed,
    moves,
)


class Reader(Protocol):
    """What reads here need of a snapshot or a transaction."""

    def values(self, handle: TableHandle, row: bytes, fields: Iterable[ColumnFields]) -> list[bytes | None]:
        """The values of some cells of one row."""

    def values_of(self, wanted: Iterable[Wanted]) -> list[list[bytes | None]]:
        """The values of some cells of many rows, row by row."""


class Writer(Reader, Protocol):
    """What writes here need of a transaction."""

    def handle_of(self, table: str) -> TableHandle:
        """A table by its name."""

    def put(self, handle: TableHandle, row: bytes, column: bytes, write: Write) -> None:
        """Buffer a write to an encoded column."""


def read(
    t: Reader, handle: TableHandle, row: bytes, columns: Iterable[str]
) -> dict[str, bytes | None] | None:
    """The cells of a row, None if there is no such row. ``columns`` are not of the key."""
    names = list(columns)
    return _row(handle, names, t.values(handle, row, _fields(handle, names)))


def read_many(
    t: Reader, handle: TableHandle, rows: Iterable[bytes], columns: Iterable[str]
) -> list[dict[str, bytes | None] | None]:
    """As `read`, of many rows in few round trips."""
    names = list(columns)
    fields = _fields(handle, names)
    return [_row(handle, names, found) for found in t.values_of((handle, row, fields) for row in rows)]


def prefetch(t: Writer, handle: TableHandle, some: Iterable[tuple[bytes, Cells]], *, whole: bool) -> None:
    """Read at once what writing these rows will look at one by one, for a transaction to keep.

    ``whole`` is for rows to insert, or to upsert in part: they need all columns, others the indexed ones.
    """
    columns = handle.definition.value_columns
    fields = _fields(handle, [column.name for column in columns] if whole else indexed(handle))
    wanted: list[Wanted] = []
    for row, cells in some:
        wanted.append((handle, row, fields))
        wanted += [one for _, one in holders_to_read(t, handle, cells)]
    t.values_of(wanted)


def insert(t: Writer, handle: TableHandle, row: bytes, cells: Cells) -> None:
    """Add a row; columns that ``cells`` lacks have what the table has for them.

    Raises:
        RowExists: there is one with its key, or with its value in a unique column.
        ValueError: a value and the row's key are too long for an index.
    """
    names = [column.name for column in handle.definition.value_columns]
    marker, found, holders = _look(t, handle, row, names, cells)
    if marker is not None:
        raise RowExists(f"{handle.name} has a row {described(handle, row)}: use update or upsert")
    _add(t, handle, row, cells, found, holders)


def upsert(t: Writer, handle: TableHandle, row: bytes, cells: Cells, defaults: Cells) -> None:
    """Set cells of a row; where there is none it is added, with ``defaults`` for what ``cells`` lacks.

    Raises as `insert`, but for its key.
    """
    names = [column.name for column in handle.definition.value_columns]
    whole = all(name in cells for name in names)
    if whole and not handle.definition.indexes:
        # Everything is written anyway, so nothing need be read.
        t.put(handle, row, handle.marker.encoded, HERE)
        _set(t, handle, row, cells)
        return
    every = {**defaults, **cells}
    marker, found, holders = _look(t, handle, row, indexed(handle) if whole else names, every)
    if marker is not None:
        _change(t, handle, row, cells, found, holders)
    elif whole:
        planned = moves(t, handle, row, {}, cells, holders)
        t.put(handle, row, handle.marker.encoded, HERE)
        _set(t, handle, row, cells)
        for move in planned:
            move.write(t)
    else:
        _add(t, handle, row, every, found, holders)


def update(t: Writer, handle: TableHandle, row: bytes, cells: Cells) -> None:
    """Set cells of a row that is there.

    Raises:
        RowNotFound: it is not.
        Others as `insert`, but for its key.
    """
    marker, found, holders = _look(t, handle, row, indexed(handle, cells), cells)
    if marker is None:
        raise RowNotFound(f"{handle.name} has no row {described(handle, row)}: use insert or upsert")
    _change(t, handle, row, cells, found, holders)


def remove(t: Writer, handle: TableHandle, row: bytes) -> bool:
    """Remove a row; whether there was one."""
    marker, found, _ = _look(t, handle, row, indexed(handle), {})
    if marker is None:
        return False
    planned = moves(t, handle, row, found, dict.fromkeys(found), {})
    t.put(handle, row, handle.marker.encoded, GONE)
    for column in handle.definition.value_columns:
        t.put(handle, row, handle.columns[column.name].encoded, GONE)
    for move in planned:
        move.write(t)
    return True


def _fields(handle: TableHandle, names: Iterable[str]) -> list[ColumnFields]:
    return [handle.marker, *(handle.columns[name] for name in names)]


def _row(
    handle: TableHandle, names: Sequence[str], found: Sequence[bytes | None]
) -> dict[str, bytes | None] | None:
    if found[0] is None:
        return None
    columns = handle.definition.by_name
    return {
        name: columns[name].missing if value is None else value
        for name, value in zip(names, found[1:], strict=True)
    }


def _look(
    t: Writer, handle: TableHandle, row: bytes, names: Sequence[str], cells: Cells
) -> tuple[bytes | None, dict[str, bytes | None], dict[str, bytes | None]]:
    """The marker, the cells of some columns, and who has the values that unique columns are to get."""
    fields = _fields(handle, names)
    unique = holders_to_read(t, handle, cells) if handle.definition.indexes else []
    if unique:
        (marker, *found), *holders = t.values_of([(handle, row, fields), *(wanted for _, wanted in unique)])
        taken = {name: holder for (name, _), (holder,) in zip(unique, holders, strict=True)}
    else:
        marker, *found = t.values(handle, row, fields)
        taken = {}
    return marker, dict(zip(names, found, strict=True)), taken


def _add(  # noqa: PLR0917
    t: Writer, handle: TableHandle, row: bytes, cells: Cells, found: Cells, holders: Cells
) -> None:
    """Write a new row. Cells that are ``found`` were left by somebody who wrote past the table's columns."""
    every = {name: cells.get(name) for name in found}
    planned = moves(t, handle, row, {}, every, holders)
    t.put(handle, row, handle.marker.encoded, HERE)
    for name, value in every.items():
        if value is not None or found[name] is not None:
            t.put(handle, row, handle.columns[name].encoded, written(value))
    for move in planned:
        move.write(t)


def _change(  # noqa: PLR0917
    t: Writer, handle: TableHandle, row: bytes, cells: Cells, found: Cells, holders: Cells
) -> None:
    planned = moves(t, handle, row, found, cells, holders)
    _set(t, handle, row, cells)
    for move in planned:
        move.write(t)


def _set(t: Writer, handle: TableHandle, row: bytes, cells: Cells) -> None:
    for name, value in cells.items():
        t.put(handle, row, handle.columns[name].encoded, written(value))


def written(value: bytes | None) -> Write:
    """The write of an encoded value; None is null, which is no cell."""
    return GONE if value is None else Write(PUT, value)
