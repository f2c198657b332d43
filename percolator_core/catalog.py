"""The catalog: which tables there are. Definitions live in the store, each client keeps a copy."""

from __future__ import annotations

import dataclasses
import json
from typing import NamedTuple

from percolator_core.errors import ConfigurationError, UnknownColumn, UnknownTable
from percolator_core.keys import check_name, encode_column, tablet_of
from percolator_core.model import MAX_TABLETS, TableDefinition
from percolator_core.store import FORMAT, Store


class ColumnFields(NamedTuple):
    """The fields of a row's hash that belong to a column."""

    encoded: bytes
    version: bytes
    lock: bytes


class TableHandle:
    """What a client needs to reach the cells of one table."""

    __slots__ = ("_columns", "definition", "name", "tablets", "tags")

    def __init__(self, definition: TableDefinition, store: Store) -> None:
        self.definition = definition
        self.name = definition.name
        self.tablets = definition.tablets
        self.tags = tuple(store.keyspace.tag(definition.name, number) for number in range(definition.tablets))
        self._columns: dict[str, ColumnFields] = {}

    def tag(self, row: bytes) -> bytes:
        """The tag of the tablet that holds the row."""
        return self.tags[tablet_of(row, self.tablets)]

    def data_column(self, column: str) -> ColumnFields:
        """The fields of a column that holds data.

        Raises UnknownColumn for a notify-only one, which holds none.
        """
        fields = self._columns.get(column)
        if fields is None:
            if column in self.definition.notify_only:
                raise UnknownColumn(f"{self.name}.{column} is notify-only and holds no data: use notify")
            encoded = encode_column(column)
            fields = self._columns[column] = ColumnFields(encoded, b"c" + encoded, b"l" + encoded)
        return fields

    def notify_column(self, column: str) -> bytes:
        """A notify-only column, encoded; raises UnknownColumn for any other."""
        if column not in self.definition.notify_only:
            raise UnknownColumn(
                f"{self.name}.{column} is not notify-only: list it under notify_only of the table"
            )
        return encode_column(column)


class Catalog:
    """Definitions of tables, read from the store when first needed."""

    __slots__ = ("_handles", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._handles: dict[str, TableHandle] = {}

    def table(self, name: str) -> TableHandle:
        """The table of that name.

        Raises:
            UnknownTable: there is none, also after a fresh look at the store.
        """
        handle = self._handles.get(name)
        if handle is None:
            handle = self._fetch(name)
        return handle

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
        self._handles[definition.name] = TableHandle(found, store)

    def tables(self) -> list[TableDefinition]:
        """All tables, by name."""
        raw = self._store.one((b"HGETALL", self._store.keyspace.catalog))
        return sorted((_decode(value) for value in raw[1::2]), key=lambda definition: definition.name)

    def drop(self, name: str, observers: list[str]) -> None:
        """Remove a table with all its rows, in bounded steps. After a crash, drop it again."""
        handle = self._fetch(name)
        store = self._store
        for tag in handle.tags:
            while store.one(store.script("drop_table", [tag], 1000, *observers)):
                pass
        # The entry goes last, so that a drop that broke off can be repeated.
        store.one((b"HDEL", store.keyspace.catalog, name))
        self._handles.pop(name, None)

    def _fetch(self, name: str) -> TableHandle:
        raw = self._store.one((b"HGET", self._store.keyspace.catalog, name))
        if raw is None:
            self._handles.pop(name, None)
            raise UnknownTable(
                f"there is no table {name!r} in the namespace {self._store.keyspace.namespace!r}: "
                "create it first"
            )
        handle = self._handles[name] = TableHandle(_decode(raw), self._store)
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
    return json.dumps(dataclasses.asdict(definition), sort_keys=True)


def _decode(raw: bytes) -> TableDefinition:
    found = json.loads(raw)
    return TableDefinition(found["name"], found["tablets"], tuple(found["notify_only"]))


def _describe(definition: TableDefinition) -> str:
    notify_only = f" and notify-only {', '.join(definition.notify_only)}" if definition.notify_only else ""
    return f"{definition.tablets} tablets{notify_only}"
