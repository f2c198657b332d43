"""A client's copy of one table's description: tablets, columns and the keys of its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from percolator_core.errors import UnknownColumn, abbreviated
from percolator_core.layout.acknowledgements import Image
from percolator_core.layout.keys import (
    BASE,
    EVERY_COLUMN,
    MARKER,
    SAFE_POINT,
    VERSION,
    acknowledged,
    decode_column,
    encode_column,
    meta_key,
    row_prefix,
    tablet_of,
)
from percolator_core.layout.records import LOCK_MARK, VERSION_MARK
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.partitions import placement
from percolator_core.store import Store
from percolator_core.store.packing import pack_fields
from percolator_core.store.request import pack

T = TypeVar("T")

SPARSE: Final = 64
"""`ColumnFields.sparse` after a read found a row without the column."""

COLUMNS_BYTES: Final = 64 << 20
"""The limit of memory, in bytes, for the cached columns of a raw table. Above it the cache is emptied."""

COLUMN_BYTES: Final = 400
"""Memory of a cached column in bytes, without its name."""


class ColumnFields:
    """A column that holds data, and its fields in the hash of a row.

    A table handle has one instance for each column, so columns can be compared by identity, which is cheap.
    The next ``sparse`` reads of the column also ask for the tablet's version, safe point and base. A read
    that finds no cell needs them: only they show that the cell does not exist.
    """

    __slots__ = ("encoded", "lock", "name", "names_bytes", "packed", "sparse", "version")

    def __init__(self, name: str, encoded: bytes | None = None) -> None:
        """``encoded`` is the column's name in the store, by default ``name``."""
        self.name = name
        self.encoded = encode_column(name) if encoded is None else encoded
        self.version = VERSION_MARK + self.encoded
        self.lock = LOCK_MARK + self.encoded
        self.packed = pack_fields(self.version, self.lock)
        self.sparse = 1
        self.names_bytes = 6 * len(self.encoded)
        """Estimated memory of the name in bytes: there are about six copies of the name."""

    def note_missing(self) -> None:
        """Record that a read found a row without the column."""
        self.sparse = SPARSE


class _RawColumns(dict[str, ColumnFields]):
    """A cache of columns of a raw table; a lookup adds the column."""

    __slots__ = ("_bytes_left", "_definition")

    def __init__(self, definition: TableDefinition) -> None:
        super().__init__()
        self._definition = definition
        self._bytes_left = COLUMNS_BYTES

    def __missing__(self, column: str) -> ColumnFields:
        if column in self._definition.notify_only:
            raise _no_data(self._definition, column)
        fields = ColumnFields(column)
        size = COLUMN_BYTES + fields.names_bytes
        self._bytes_left -= size
        if self._bytes_left < 0:
            self.clear()  # column names that contain data, such as dates, may be unlimited
            self._bytes_left = COLUMNS_BYTES - size
        return self.setdefault(column, fields)  # one instance, even if two threads add the column


class _TypedColumns(dict[str, ColumnFields]):
    """The columns of a typed table that hold data."""

    __slots__ = ("_definition",)

    def __init__(self, definition: TableDefinition) -> None:
        super().__init__(
            (column.name, ColumnFields(column.name, encode_column(column.stored)))
            for column in definition.value_columns
        )
        self._definition = definition

    def __missing__(self, column: str) -> ColumnFields:
        definition = self._definition
        if column in definition.notify_only:
            raise _no_data(definition, column)
        if column in definition.key:
            raise UnknownColumn(
                f"{definition.name}.{column} is part of the key, and so has no cell of its own"
            )
        raise UnknownColumn(
            f"the table {definition.name!r} has no column {abbreviated(column)!r}: it has "
            f"{', '.join(self) or 'none but its key'}"
        )


def _no_data(definition: TableDefinition, column: str) -> UnknownColumn:
    name = f"{definition.name}.{abbreviated(column)}"
    return UnknownColumn(f"{name} is notify-only and holds no data: use notify")


def base_below(standing: Sequence[bytes | None], at: int) -> bytes | None:
    """Return the reference of a tablet's base, which may have cells that the store does not have.

    ``standing`` is the reply to a command of `TableHandle.standings`. b"" means that there is no base, so a
    missing cell does not exist. None means that tablet and base may lack what a snapshot at ``at`` sees: a
    tablet without a version belongs to a dropped table, and versions below the safe point may be removed.
    """
    version, safe, base = standing
    return (base or b"") if version is not None and at >= int(safe or 0) else None


class TableHandle:
    """A client's copy of one table's description, for access to its cells.

    ``columns`` has the columns that hold data, by name; a lookup of another column raises UnknownColumn.
    ``row_prefixes`` has, by tablet, the prefix of the keys of its rows. ``standings`` has, by tablet, the
    packed command that reads its version, safe point and base. ``place`` returns the number of a row's
    tablet; None means ``crc32(row) % tablets``. ``by_encoded`` maps the stored names of a typed table's
    columns to their names; it is empty for a raw table, where both names are equal. ``shown`` has those that
    programs see. ``marker`` is the
    internal column that every row of a typed table has. ``bindings`` caches values that
    `percolator_core.tables` derives from models and indexes. ``version`` is the version of the catalog's
    entry as text, or ``?`` during a schema change. A write contains this version, and a tablet with another
    version refuses the write. ``view`` is the `ViewRule.writer` of a table of a view, or empty.
    """

    __slots__ = (
        "bindings",
        "by_encoded",
        "columns",
        "definition",
        "is_typed",
        "marker",
        "name",
        "place",
        "row_prefixes",
        "shown",
        "standings",
        "tablets",
        "tags",
        "version",
        "view",
    )

    def __init__(self, definition: TableDefinition, store: Store, version: bytes = b"") -> None:
        self.definition = definition
        self.name = definition.name
        self.is_typed = definition.is_typed
        self.bindings: dict[Any, Any] = {}
        self.tablets = definition.tablets
        self.version = version
        self.view = "" if definition.view is None else definition.view.writer
        self.tags = tuple(
            store.keyspace.tag(definition.stored, number) for number in range(definition.tablets)
        )
        self.row_prefixes = tuple(map(row_prefix, self.tags))
        self.standings = tuple(
            pack((b"HMGET", meta_key(tag), VERSION, SAFE_POINT, BASE)) for tag in self.tags
        )
        self.place = placement(definition)
        self.marker = ColumnFields(decode_column(MARKER), MARKER)
        self.columns: dict[str, ColumnFields] = (
            _TypedColumns(definition) if definition.is_typed else _RawColumns(definition)
        )
        self.by_encoded: dict[bytes, str] = (
            {fields.encoded: name for name, fields in self.columns.items()} if definition.is_typed else {}
        )
        shown = {column.name for column in definition.shown_columns}
        self.shown = {stored: name for stored, name in self.by_encoded.items() if name in shown}

    def tablet(self, row: bytes) -> int:
        """Return the number of the row's tablet. Raises ValueError if the row's key is not valid."""
        place = self.place
        return tablet_of(row, self.tablets) if place is None else place(row)

    def tag(self, row: bytes) -> bytes:
        """Return the tag of the row's tablet. Raises as `tablet`."""
        return self.tags[self.tablet(row)]

    def row_key(self, row: bytes) -> bytes:
        """Return the key of the row's hash. Raises as `tablet`."""
        return self.row_prefixes[self.tablet(row)] + row

    def standing(self, row: bytes) -> bytes:
        """Return the command in `standings` for the row's tablet. Raises as `tablet`."""
        return self.standings[self.tablet(row)]

    def encode(self, column: str) -> bytes:
        """Return the stored name of a column that holds data or is notify-only. Raises UnknownColumn.

        `EVERY_COLUMN` stands for the whole row: for marks, acknowledgements and observers.
        """
        if column == EVERY_COLUMN:
            return MARKER
        if column in self.definition.notify_only:
            return encode_column(column)
        return self.columns[column].encoded

    def decode(self, encoded: bytes) -> str:
        """Return the name of a column; for an internal column, a name for messages."""
        if not self.is_typed:
            return decode_column(encoded)
        name = self.by_encoded.get(encoded)
        if name is not None:
            return name
        observed = acknowledged(encoded)
        if observed:
            return decode_column(encoded[: -len(observed)]) + self.decode(observed)
        plain = decode_column(encoded)
        # A new column may have the name of a dropped one.
        return f"{plain} (dropped)" if plain in self.definition.retired else plain

    def fields(self, encoded: bytes) -> ColumnFields:
        """Return the column with this stored name. Raises UnknownColumn if there is none."""
        if not self.is_typed:
            return self.columns[decode_column(encoded)]
        if encoded == MARKER:
            return self.marker
        name = self.by_encoded.get(encoded)
        if name is None:
            raise UnknownColumn(
                f"the table {self.name!r} has no column {self.decode(encoded)!r} that holds data"
            )
        return self.columns[name]

    def named(self, cells: Mapping[bytes, T]) -> dict[bytes, T]:
        """Return ``cells`` with the names of the columns as keys, instead of their stored names."""
        if not self.by_encoded:
            return dict(cells)
        return {
            self.by_encoded[column].encode() if column in self.by_encoded else column: value
            for column, value in cells.items()
        }

    def image(self, cells: Image) -> Image:
        """Return the image of a row with these cells, for the acknowledgement of a run for the whole row.

        The image of a raw row has no deleted cells. That of a typed row has all columns that programs see,
        with their nulls, and the marker. The image of a row that does not exist is empty.
        """
        if not self.is_typed:
            return {name: value for name, value in cells.items() if name != MARKER and value is not None}
        if cells.get(MARKER) is None:
            return {}
        return {MARKER: b"", **{name: cells.get(name) for name in self.shown}}

    def notify_column(self, column: str) -> bytes:
        """Return the stored name of a notify-only column. Raises UnknownColumn for another column."""
        if column not in self.definition.notify_only:
            raise UnknownColumn(
                f"{self.name}.{abbreviated(column)} is not notify-only: list it under notify_only of the "
                "table"
            )
        return encode_column(column)
