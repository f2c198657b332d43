"""Secondary indexes of typed tables: tables of their own, changed in the transactions that change the data.

Each row that has a value in the indexed column has an *entry* in the index. A plain index's entries have the
value and the row's key as their key, and nothing beside it; they are hashed by the value alone, so that all
rows with one value are in one tablet, in the order of their keys. A unique index's entry has the value as its
key, and the row's key as its only column: two transactions that give one value to two rows write one cell,
and one of them conflicts. Nulls have no entries.

Columns of an index are called what the indexed ones are called in the store, and are told by their places, so
a rename leaves it alone.
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
"""Where a handle keeps what is made of its rules, among the bindings of models."""

GONE: Final = Write(DELETE, b"")
HERE: Final = Write(PUT, b"")
"""What is written to a cell that goes, and to one without a value, such as a row's marker."""

Cells: TypeAlias = Mapping[str, bytes | None]
"""Encoded values by column; None is null."""

Wanted: TypeAlias = tuple[TableHandle, bytes, Sequence[ColumnFields]]
"""Cells of one row that are to be read."""


class Writer(Protocol):
    """What is needed of a transaction to move entries."""

    def handle_of(self, table: str) -> TableHandle:
        """A table by its name."""

    def put(self, handle: TableHandle, row: bytes, column: bytes, write: Write) -> None:
        """Buffer a write to an encoded column."""


class Index:
    """An index of a table: how its entries are made and taken apart."""

    __slots__ = ("_codec", "column", "rule")

    def __init__(self, definition: TableDefinition, rule: IndexRule) -> None:
        """Raises as `index_definition`."""
        self.rule = rule
        self.column = definition.by_name[rule.column]
        self._codec = KeyCodec(index_definition(definition, rule))

    def entry(self, value: bytes, row: bytes) -> bytes:
        """The key of the entry for an encoded value and a row."""
        # The key of the row ends as the key of the entry ends, so it can stand there as it is.
        front = self._codec.join([value])
        return front if self.rule.unique else front + row

    def taken_apart(self, entry: bytes) -> tuple[bytes, bytes]:
        """The encoded value and the row of a plain index's entry."""
        value = self._codec.split(entry)[0]
        return value, entry[len(self._codec.join([value])) :]


def indexes_of(handle: TableHandle) -> tuple[Index, ...]:
    """The indexes of a table, made once for each handle."""
    found: tuple[Index, ...] | None = handle.bindings.get(_COMPILED)
    if found is None:
        definition = handle.definition
        found = tuple(Index(definition, rule) for rule in definition.indexes)
        handle.bindings[_COMPILED] = found
    return found


def holder_of(table: TableHandle) -> ColumnFields:
    """The column of a unique index that has the key of the row."""
    return table.columns[table.definition.value_columns[0].name]


def holders_to_read(t: Writer, handle: TableHandle, cells: Cells) -> list[tuple[str, Wanted]]:
    """For each unique column that is given a value: where to read which row has it."""
    wanted: list[tuple[str, Wanted]] = []
    for index in indexes_of(handle):
        value = cells.get(index.rule.column) if index.rule.unique else None
        if value is not None:
            table = t.handle_of(index.rule.table)
            wanted.append((index.rule.column, (table, value, [holder_of(table)])))
    return wanted


@dataclass(frozen=True, slots=True)
class Move:
    """A row's entry in one index goes from one place to another; None is no place."""

    index: Index
    table: TableHandle
    row: bytes
    old: bytes | None
    new: bytes | None

    def write(self, t: Writer) -> None:
        """Buffer it."""
        for entry, here in ((self.old, False), (self.new, True)):
            if entry is None:
                continue
            t.put(self.table, entry, self.table.marker.encoded, HERE if here else GONE)
            if self.index.rule.unique:
                holder = holder_of(self.table)
                t.put(self.table, entry, holder.encoded, Write(PUT, self.row) if here else GONE)


def moves(  # noqa: PLR0917
    t: Writer, handle: TableHandle, row: bytes, before: Cells, after: Cells, holders: Cells
) -> list[Move]:
    """What happens to the entries of a row when the cells in ``after`` are written.

    ``before`` has the values that the transaction sees now, of all those that are indexed. ``holders`` tells
    which row has the new value of a unique column. All that can be refused is refused here, before anything
    is written.

    Raises:
        RowExists: another row has a unique column's new value.
        ValueError: value and row key together are too long for an entry; says which column.
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
            raise RowExists(
                f"{handle.name} has a row with {name}={_shown(index, new)} already, "
                f"{described(handle, holder)}: {name} is unique"
            )
        found.append(
            Move(
                index,
                t.handle_of(index.rule.table),
                row,
                None if old is None else index.entry(old, row),
                None if new is None else _checked(handle, index, new, row),
            )
        )
    return found


def described(handle: TableHandle, row: bytes) -> str:
    """A row's key for a person: ``url='http://a'``."""
    return KeyCodec(handle.definition).describe(row)


def indexed(handle: TableHandle, names: Iterable[str] | None = None) -> list[str]:
    """The columns that are indexed, all or those among ``names``."""
    some = None if names is None else set(names)
    columns = dict.fromkeys(rule.column for rule in handle.definition.indexes)
    return [name for name in columns if some is None or name in some]


def _checked(handle: TableHandle, index: Index, value: bytes, row: bytes) -> bytes:
    entry = index.entry(value, row)
    if len(entry) > MAX_ROW:
        together = "value" if index.rule.unique else "value and the row's key together"
        raise ValueError(
            f"{handle.name}, row {described(handle, row)}: {index.rule.column}: the {together} have "
            f"{len(entry)} bytes in the index, and may have {MAX_ROW}"
        )
    return entry


def _shown(index: Index, value: bytes) -> str:
    return shown(column_type(index.column.type).decode(value))
