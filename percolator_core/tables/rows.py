"""Insert, upsert, update, remove and read encoded rows in a transaction.

A row exists if its marker exists. The marker is a cell of every row. An insert writes the marker and a remove
deletes it, so two inserts of one key conflict. A remove also deletes all columns, even columns without a
value, so that the remove conflicts with any concurrent update.

The entries of a row in indexes move in the transaction that changes the row
(`percolator_core.tables.indexes`). This transaction reads and writes the indexed cell, so two moves of one
row's entries conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import RowExists, RowNotFound
from percolator_core.layout.records import PUT
from percolator_core.schema.conversions import copied
from percolator_core.tables.indexes import (
    GONE,
    HERE,
    Cells,
    Reader,
    Wanted,
    Writer,
    described,
    holders_to_read,
    indexed,
    moves,
)


def read(
    t: Reader, handle: TableHandle, row: bytes, columns: Iterable[str]
) -> dict[str, bytes | None] | None:
    """Return the cells of a row, or None if the row does not exist. ``columns`` has no key columns."""
    names = list(columns)
    return _row(handle, names, t.values(handle, row, _fields(handle, names)))


def read_many(
    t: Reader, handle: TableHandle, rows: Iterable[bytes], columns: Iterable[str]
) -> list[dict[str, bytes | None] | None]:
    """Read many rows in few round trips; see `read`."""
    names = list(columns)
    fields = _fields(handle, names)
    return [_row(handle, names, found) for found in t.values_of((handle, row, fields) for row in rows)]


def prefetch(t: Writer, handle: TableHandle, some: Iterable[tuple[bytes, Cells]], *, whole: bool) -> None:
    """Read all cells that the writes of these rows will need, into the transaction's cache.

    Inserts, and upserts of only some columns, need all columns (``whole``); other writes the indexed ones.
    """
    columns = handle.definition.value_columns
    fields = _fields(handle, [column.name for column in columns] if whole else indexed(handle))
    wanted: list[Wanted] = []
    for row, cells in some:
        wanted.append((handle, row, fields))
        wanted += [one for _, one in holders_to_read(t, handle, cells)]
    t.values_of(wanted)


def insert(t: Writer, handle: TableHandle, row: bytes, cells: Cells) -> None:
    """Add a row; a column without a cell gets the table's ``missing`` value.

    Raises RowExists if a row has this key, and as `moves`.
    """
    cells = {**handle.definition.defaults, **cells}
    marker, found, holders = _look(t, handle, row, _to_read(handle), cells)
    if marker is not None:
        raise RowExists(f"{handle.name} has a row {described(handle, row)}: use update or upsert")
    write(t, handle, row, _to_add(cells, found), {}, holders, is_new=True)


def upsert(t: Writer, handle: TableHandle, row: bytes, cells: Cells, defaults: Cells) -> None:
    """Set cells of a row. If the row does not exist, add it, with ``defaults`` for the other columns.

    Raises as `insert`, but an existing key is no error.
    """
    whole = all(column.name in cells for column in handle.definition.value_columns if column.copy is None)
    if whole and not handle.definition.indexes:
        # All columns are written, whether the row exists or not, so no read is necessary.
        write(t, handle, row, cells, {}, {}, is_new=True)
        return
    every = {**handle.definition.defaults, **defaults, **cells}
    names = indexed(handle) if whole else _to_read(handle)
    marker, found, holders = _look(t, handle, row, names, every)
    if marker is not None:
        write(t, handle, row, cells, found, holders)
    else:
        write(t, handle, row, cells if whole else _to_add(every, found), {}, holders, is_new=True)


def update(t: Writer, handle: TableHandle, row: bytes, cells: Cells) -> None:
    """Set cells of an existing row. Raises RowNotFound if there is none, and as `moves`."""
    copies = [one.name for one in handle.definition.copies if one.copy and one.copy.source in cells]
    marker, found, holders = _look(t, handle, row, indexed(handle, [*cells, *copies]), cells, is_new=False)
    if marker is None:
        raise RowNotFound(f"{handle.name} has no row {described(handle, row)}: use insert or upsert")
    write(t, handle, row, cells, found, holders)


def remove(t: Writer, handle: TableHandle, row: bytes) -> bool:
    """Remove a row; return False if the row does not exist."""
    marker, found, _ = _look(t, handle, row, indexed(handle), {}, is_new=False)
    if marker is None:
        return False
    planned = moves(t, handle, row, found, dict.fromkeys(found), {})
    t.put(handle, row, handle.marker.encoded, GONE)
    for column in handle.definition.value_columns:
        t.put(handle, row, handle.columns[column.name].encoded, GONE)
    for move in planned:
        move.write(t)
    return True


def _to_read(handle: TableHandle) -> list[str]:
    """Return the columns to read before a row is added: all but internal ones without an index."""
    columns, own = handle.definition.value_columns, indexed(handle)
    return [column.name for column in columns if column.copy is None or column.name in own]


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
    t: Writer,
    handle: TableHandle,
    row: bytes,
    names: Sequence[str],
    cells: Cells,
    *,
    is_new: bool = True,
) -> tuple[bytes | None, dict[str, bytes | None], dict[str, bytes | None]]:
    """Read the marker, cells of some columns, and the rows that have the new values of unique columns."""
    fields = _fields(handle, names)
    if handle.definition.copies:
        with suppress(ValueError):  # `write` raises it, if the value is written
            cells = {**cells, **_copies(handle, row, cells, is_new=is_new)}
    unique = holders_to_read(t, handle, cells) if handle.definition.indexes else []
    if unique:
        (marker, *found), *holders = t.values_of([(handle, row, fields), *(wanted for _, wanted in unique)])
        taken = {name: holder for (name, _), (holder,) in zip(unique, holders, strict=True)}
    else:
        marker, *found = t.values(handle, row, fields)
        taken = {}
    return marker, dict(zip(names, found, strict=True)), taken


def _to_add(cells: Cells, found: Cells) -> Cells:
    """Return the cells of a new row, and null for a stored cell that another program left without a row."""
    every = {name: cells.get(name) for name in found}
    return {name: value for name, value in every.items() if value is not None or found[name] is not None}


def write(  # noqa: PLR0917
    t: Writer,
    handle: TableHandle,
    row: bytes,
    cells: Cells,
    before: Cells,
    holders: Cells,
    *,
    is_new: bool = False,
) -> None:
    """Write cells of a row, and move its entries in the indexes (`moves`).

    While the type of a column is being changed, a write of the column also writes its copy. Raises ValueError
    if the new type has no exact equivalent of a value.
    """
    if is_new and handle.definition.defaults:
        cells = {**handle.definition.defaults, **cells}
    if handle.definition.copies:
        cells = {**cells, **_copies(handle, row, cells, is_new=is_new)}
    planned = moves(t, handle, row, before, cells, holders)
    if is_new:
        t.put(handle, row, handle.marker.encoded, HERE)
    for name, value in cells.items():
        t.put(handle, row, handle.columns[name].encoded, GONE if value is None else (PUT, value))
    for move in planned:
        move.write(t)


def _copies(handle: TableHandle, row: bytes, cells: Cells, *, is_new: bool) -> Cells:
    """Return the cells of internal columns that belong to ``cells``. A new row has a copy in each case."""
    definition = handle.definition
    found: dict[str, bytes | None] = {}
    for column in definition.copies:
        assert column.copy is not None
        name = column.copy.source
        if name in cells or is_new:
            try:
                found[column.name] = copied(definition.by_name[name], column, cells.get(name))
            except ValueError as error:
                raise ValueError(
                    f"{handle.name}, row {described(handle, row)}: {name}: {error}; `percolator migrate` is "
                    f"changing the type of the column to {column.type}: write another value"
                ) from None
    return found
