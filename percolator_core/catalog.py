"""The catalog: which tables there are. Definitions live in the store, each client keeps a copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from percolator_core.errors import ConfigurationError, UnknownColumn, UnknownTable
from percolator_core.keys import check_name, encode_column, tablet_of
from percolator_core.model import LOCK_MARK, MAX_TABLETS, VERSION_MARK
from percolator_core.schema.definition import TableDefinition, from_json, to_json
from percolator_core.store import FORMAT, Store
from percolator_core.store.packing import pack_fields


class ColumnFields:
    """A column that holds data, and the fields of a row's hash that belong to it.

    A table handle has one of them for each column, so they are told apart by identity: a cheap key.
    """

    __slots__ = ("encoded", "lock", "name", "packed", "version")

    def __init__(self, name: str) -> None:
        self.name = name
        self.encoded = encode_column(name)
        self.version = VERSION_MARK + self.encoded
        self.lock = LOCK_MARK + self.encoded
        self.packed = pack_fields(self.version, self.lock)


MOST_COLUMNS: Final = 100_000
"""Columns of a table that a client remembers, at most; it then begins anew. Some 400 bytes each."""

_DROPPED_AT_ONCE: Final = 1000
"""Rows of a tablet that one call drops, at most: a script holds up everybody."""


class _Columns(dict[str, ColumnFields]):
    """The columns of a table that were asked for; a new one is made when it is looked up."""

    __slots__ = ("_definition",)

    def __init__(self, definition: TableDefinition) -> None:
        super().__init__()
        self._definition = definition

    def __missing__(self, column: str) -> ColumnFields:
        if column in self._definition.notify_only:
            raise UnknownColumn(
                f"{self._definition.name}.{column} is notify-only and holds no data: use notify"
            )
        if len(self) >= MOST_COLUMNS:
            self.clear()  # names that hold data themselves, such as a date, never end
        return self.setdefault(column, ColumnFields(column))  # one, also if two threads come at once


class TableHandle:
    """What a client needs to reach the cells of one table.

    ``columns`` are those that hold data, by name: looking up a notify-only one, which holds none, raises
    UnknownColumn.
    ``row_prefixes`` is what the keys of rows start with, by tablet.
    """

    __slots__ = ("columns", "definition", "name", "row_prefixes", "tablets", "tags")

    def __init__(self, definition: TableDefinition, store: Store) -> None:
        self.definition = definition
        self.name = definition.name
        self.tablets = definition.tablets
        self.tags = tuple(store.keyspace.tag(definition.name, number) for number in range(definition.tablets))
        self.row_prefixes = tuple(tag + b"r:" for tag in self.tags)
        self.columns = _Columns(definition)

    def tag(self, row: bytes) -> bytes:
        """The tag of the tablet that holds the row."""
        return self.tags[tablet_of(row, self.tablets)]

    def row_key(self, row: bytes) -> bytes:
        """The key of the row's hash."""
        return self.row_prefixes[tablet_of(row, self.tablets)] + row

    def notify_column(self, column: str) -> bytes:
        """A notify-only column, encoded; raises UnknownColumn for any other."""
        if column not in self.definition.notify_only:
            raise UnknownColumn(
                f"{self.name}.{column} is not notify-only: list it under notify_only of the table"
            )
        return encode_column(column)


class _Handles(dict[str, TableHandle]):
    """The handles known so far; another one is fetched when it is looked up."""

    __slots__ = ("_fetch",)

    def __init__(self, fetch: Callable[[str], TableHandle]) -> None:
        super().__init__()
        self._fetch = fetch

    def __missing__(self, name: str) -> TableHandle:
        return self._fetch(name)


class Catalog:
    """Definitions of tables, read from the store when first needed.

    ``handles`` has the tables by name: looking one up does what `table` does, and costs no call.
    """

    __slots__ = ("_store", "handles")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.handles = _Handles(self._fetch)

    def table(self, name: str) -> TableHandle:
        """The table of that name.

        Raises:
            UnknownTable: there is none, also after a fresh look at the store.
        """
        return self.handles[name]

    def create(self, definition: TableDefinition) -> None:
        """Add a table; the same definition again is fine. The first one founds the namespace.

        Raises:
            ConfigurationError: the definition cannot be, or the table exists with another one.
            TypeError: ``tablets`` is no whole number, or a name is not str.
        """
        _check(definition)
        store, keys = self._store, self._store.keyspace
        format_, *held = store.one(
            store.script(
                "define_table", [keys.catalog, keys.format], definition.name, _encode(definition), FORMAT
            )
        )
        store.check_format(format_)
        found = _decode(held[0])
        if found != definition:
            raise ConfigurationError(
                f"table {definition.name!r} exists with {_describe(found)}, not {_describe(definition)}: "
                "drop it first, or use its definition"
            )
        self._take_in(found)

    def tables(self) -> list[TableDefinition]:
        """All tables, by name."""
        raw = self._store.one((b"HGETALL", self._store.keyspace.catalog))
        return sorted((_decode(value) for value in raw[1::2]), key=lambda definition: definition.name)

    def drop(self, name: str, observers: list[str]) -> None:
        """Remove a table with all its rows, in bounded steps. After a crash, drop it again."""
        handle = self._fetch(name)
        store = self._store
        for tag in handle.tags:
            while store.one(store.script("drop_table", [tag], _DROPPED_AT_ONCE, *observers)):
                pass
        # The entry goes last, so that a drop that broke off can be repeated.
        store.one((b"HDEL", store.keyspace.catalog, name))
        self.handles.pop(name, None)

    def _fetch(self, name: str) -> TableHandle:
        raw = self._store.one((b"HGET", self._store.keyspace.catalog, name))
        if raw is None:
            self.handles.pop(name, None)
            raise UnknownTable(
                f"there is no table {name!r} in the namespace {self._store.keyspace.namespace!r}: "
                "create it first"
            )
        return self._take_in(_decode(raw))

    def _take_in(self, definition: TableDefinition) -> TableHandle:
        """The handle of a table that is so in the store: the one we have, if its definition is the same.

        What is known of a column hangs on its handle.
        """
        handle = self.handles.get(definition.name)
        if handle is None or handle.definition != definition:
            handle = self.handles[definition.name] = TableHandle(definition, self._store)
        return handle


def _check(definition: TableDefinition) -> None:
    try:
        check_name("table name", definition.name)
        for column in definition.notify_only:
            check_name("column name", column)
    except ValueError as error:
        raise ConfigurationError(f"table {definition.name!r}: {error}") from None
    if not isinstance(definition.tablets, int):
        raise TypeError(f"tablets is int, not {type(definition.tablets).__name__}")
    if not 1 <= definition.tablets <= MAX_TABLETS:
        raise ConfigurationError(
            f"table {definition.name!r}: tablets is 1 to {MAX_TABLETS}, not {definition.tablets}"
        )


def _encode(definition: TableDefinition) -> str:
    return json.dumps(to_json(definition), sort_keys=True)


def _decode(raw: bytes) -> TableDefinition:
    return from_json(json.loads(raw))


def _describe(definition: TableDefinition) -> str:
    notify_only = f" and notify-only {', '.join(definition.notify_only)}" if definition.notify_only else ""
    return f"{definition.tablets} tablets{notify_only}"
