"""Secondary indexes of typed tables. An index is a table, and a transaction that changes a row updates it.

Each row with a value in the indexed column has an *entry* in the index; null has no entry. In a plain index,
the key of an entry consists of the value and the row's key, and the entry has no columns. A hash of only the
value determines the tablet, so all rows with one value are in one tablet, in the order of their keys. In a
unique index, the key of an entry is the value, and the only column has the row's key. So two transactions
that give one value to two rows write the same cell, and one of them conflicts.

A rename of a column does not change its index. The columns of an index have the stored names of the table's
columns, and stored names never change. The code finds the columns of an index by their position
(`percolator_core.schema.definitions.index_definition`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import RowExists
from percolator_core.layout.records import DELETE, MAX_ROW, PUT, Write
from percolator_core.schema.definitions import IndexRule, TableDefinition, index_definition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type, shown

_COMPILED: Final = "indexes"
"""The key of a table's indexes in `TableHandle.bindings`."""

GONE: Final = (DELETE, b"")
HERE: Final = (PUT, b"")
"""`GONE` removes a cell. `HERE` sets a cell without a value, such as the marker of a row."""

Cells: TypeAlias = Mapping[str, bytes | None]
"""Encoded values by column; None means null."""

Wanted: TypeAlias = tuple[TableHandle, bytes, Sequence[ColumnFields]]
"""The cells to read of one row: the table, the row key and the columns."""


class Reader(Protocol):
    """The methods of a snapshot or transaction that the code for rows and indexes calls."""

    __slots__ = ()

    def handle_of(self, table: str) -> TableHandle:
        """Return a table by name."""

    def values(self, handle: TableHandle, row: bytes, fields: Iterable[ColumnFields]) -> list[bytes | None]:
        """Return the values of some cells of one row."""

    def values_of(self, wanted: Iterable[Wanted]) -> list[list[bytes | None]]:
        """Return the values of some cells of many rows, row by row."""


class Writer(Reader, Protocol):
    """The methods of a transaction that the code for rows and indexes calls."""

    __slots__ = ()

    def put(self, handle: TableHandle, row: bytes, column: bytes, write: Write) -> None:
        """Buffer a write to an encoded column."""


class Index:
    """An index of a table, which converts between entries and rows."""

    __slots__ = ("_codec", "column", "rule")

    def __init__(self, definition: TableDefinition, rule: IndexRule) -> None:
        """Raises as `index_definition`."""
        self.rule = rule
        self.column = definition.by_name[rule.column]
        self._codec = KeyCodec(index_definition(definition, rule))

    def entry(self, value: bytes, row: bytes) -> bytes:
        """Return the key of the entry for an encoded value and a row."""
        # The key of an entry ends with the key columns of the row, so the row key is a suffix.
        front = self._codec.join([value])
        return front if self.rule.unique else front + row

    def has_all(self, at: int) -> bool:
        """Return True if at a timestamp every row with a value in the column has its entry."""
        complete = self.rule.complete_from
        # Rows that are older than the column have the column's default, but no entry.
        return complete is not None and complete <= at and self.column.missing is None

    def split(self, entry: bytes) -> tuple[bytes, bytes]:
        """Return the encoded value and the row of a plain index's entry."""
        value = self._codec.split(entry)[0]
        return value, entry[len(self._codec.join([value])) :]

    def row_of(self, entry: bytes, holder: bytes | None) -> bytes | None:
        """Return the key of an entry's row; ``holder`` is the value of `holder_of` in a unique index."""
        return holder if self.rule.unique else self.split(entry)[1]


def indexes_of(handle: TableHandle) -> tuple[Index, ...]:
    """Return the indexes of a table, created once for each handle."""
    found: tuple[Index, ...] | None = handle.bindings.get(_COMPILED)
    if found is None:
        definition = handle.definition
        found = tuple(Index(definition, rule) for rule in definition.indexes)
        handle.bindings[_COMPILED] = found
    return found


def holder_of(table: TableHandle) -> ColumnFields:
    """An entry of a unique index stores the key of its row in one column. Return this column."""
    return table.columns[table.definition.value_columns[0].name]


def holders_to_read(t: Writer, handle: TableHandle, cells: Cells) -> list[tuple[str, Wanted]]:
    """Return, for each unique column with a value in ``cells``, the column and a cell of its index.

    This cell has the key of the row that has the value now.
    """
    wanted: list[tuple[str, Wanted]] = []
    for index in indexes_of(handle):
        value = cells.get(index.rule.column) if index.rule.unique else None
        if value is not None:
            table = t.handle_of(index.rule.table)
            wanted.append((index.rule.column, (table, value, [holder_of(table)])))
    return wanted


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a row's entry in one index from ``old`` to ``new``; None means no entry."""

    index: Index
    table: TableHandle
    row: bytes
    old: bytes | None
    new: bytes | None

    def write(self, t: Writer) -> None:
        """Buffer the deletion of ``old``, and the write of ``new``."""
        for entry, here in ((self.old, False), (self.new, True)):
            if entry is None:
                continue
            t.put(self.table, entry, self.table.marker.encoded, HERE if here else GONE)
            if self.index.rule.unique:
                holder = holder_of(self.table)
                t.put(self.table, entry, holder.encoded, (PUT, self.row) if here else GONE)


def moves(  # noqa: PLR0917
    t: Writer, handle: TableHandle, row: bytes, before: Cells, after: Cells, holders: Cells
) -> list[Move]:
    """Return the moves of a row's index entries that a write of the cells in ``after`` needs.

    ``before`` has the values of the indexed columns that the transaction sees now. ``holders`` has, for each
    unique column, the row that already has the new value. All errors of indexes are raised here, before
    anything is written: RowExists, and ValueError if an entry would be too long.
    """
    found: list[Move] = []
    for index in indexes_of(handle):
        name = index.rule.column
        if name not in after:
            continue
        old, new = before.get(name), after[name]
        if old == new:
            continue
        holder = holders.get(name)
        if index.rule.unique and new is not None and holder is not None:
            value = shown(column_type(index.column.type).decode(new))
            raise RowExists(
                f"{handle.name} already has a row with {source_of(index)}={value}, "
                f"{described(handle, holder)}: {source_of(index)} is unique"
            )
        found.append(
            Move(
                index,
                t.handle_of(index.rule.table),
                row,
                None if old is None else _earlier_entry(index, old, row),
                None if new is None else checked_entry(handle, index, new, row),
            )
        )
    return found


def described(handle: TableHandle, row: bytes) -> str:
    """Return the key of a row as text for a message: ``url='http://a'``."""
    return KeyCodec(handle.definition).describe(row)


def indexed(handle: TableHandle, names: Iterable[str] | None = None) -> list[str]:
    """Return all indexed columns, or the indexed columns in ``names``."""
    some = None if names is None else set(names)
    columns = dict.fromkeys(rule.column for rule in handle.definition.indexes)
    return [name for name in columns if some is None or name in some]


def checked_entry(handle: TableHandle, index: Index, value: bytes, row: bytes) -> bytes:
    """Return the key of an entry. Raises ValueError if it is too long; the message names row and column."""
    entry = index.entry(value, row)
    if len(entry) > MAX_ROW:
        together = "value" if index.rule.unique else "value and the row's key together"
        raise ValueError(
            f"{handle.name}, row {described(handle, row)}: {source_of(index)}: the {together} have "
            f"{len(entry)} bytes in the index, at most {MAX_ROW} are allowed"
        )
    return entry


def _earlier_entry(index: Index, value: bytes, row: bytes) -> bytes | None:
    """Return the key of an entry, or None if it is too long: such a row is older than the index."""
    entry = index.entry(value, row)
    return entry if len(entry) <= MAX_ROW else None


def source_of(index: Index) -> str:
    """Return the name of the indexed column; for an internal column, the name of its source."""
    return index.rule.column if index.column.copy is None else index.column.copy.source
