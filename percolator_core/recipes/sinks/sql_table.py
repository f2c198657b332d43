"""Tables of SQL with the rows of a typed table: their columns, types and statements, and the common sink."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import Cell
from percolator_core.observers.parts import Need, Part
from percolator_core.recipes.rows import AnyTransaction
from percolator_core.recipes.sinks import row_codec
from percolator_core.schema.types import ColumnType, column_type
from percolator_core.tables.model import Table, definition_of, fields_of

RowEffect: TypeAlias = Callable[[Any, dict[str, Any], Any], object]
"""Called as ``effect(connection, key, row)``; ``row`` is None if the row is removed."""


_MARK: Final = "\0"
"""Stands for the place of a value, until `Dialect.with_marks` replaces it."""


class Dialect(NamedTuple):
    """The differences between databases.

    ``types`` has a name by family of column types (`family_of`), with ``{p}`` and ``{s}`` for a decimal's
    digits and places. ``convert`` has functions by family, for values that the driver does not take. Columns
    of the families ``loose`` may be null in each case.
    """

    is_postgres: bool
    types: Mapping[str, str]
    convert: Mapping[str, Callable[[Any], Any]]
    loose: frozenset[str] = frozenset()

    def name(self, table: str) -> str:
        """Return the table's name as SQL; for PostgreSQL it may begin with ``schema.``."""
        return ".".join(map(quoted, table.split(".", 1) if self.is_postgres else [table]))

    def with_marks(self, text: str) -> str:
        """Return the statement with the placeholders of the driver."""
        if self.is_postgres:
            return text.replace("%", "%%").replace(_MARK, "%s")
        return text.replace(_MARK, "?")


class _Column(NamedTuple):
    name: str
    type: ColumnType
    encode: Callable[[Any], bytes]


class Statements:
    """The statements that create and change the table of a model."""

    def __init__(self, model: type[Table], table: str, dialect: Dialect) -> None:
        definition, fields = definition_of(model), fields_of(model)
        self.key = definition.key
        self.names = tuple(definition.by_name)
        self._convert = dialect.convert
        self._columns = [
            _Column(name, column_type(one.type), fields[name].encode)
            for name, one in definition.by_name.items()
        ]
        self.declared = {
            one.name: dialect.types[family_of(one.type)].format(p=one.type.digits, s=one.type.places)
            for one in self._columns
        }
        lines = []
        for one in self._columns:
            loose = definition.by_name[one.name].nullable or one.type.family in dialect.loose
            required = one.name in self.key or not loose
            lines.append(f"{quoted(one.name)} {self.declared[one.name]}{' NOT NULL' if required else ''}")
        keys, columns = _joined(self.key), _joined(self.names)
        self.columns = f"({', '.join(lines)}, PRIMARY KEY ({keys}))"
        name = dialect.name(table)
        self.create = f"CREATE TABLE IF NOT EXISTS {name} {self.columns}"
        self.select = f"SELECT * FROM {name} LIMIT 0"  # noqa: S608
        others = [quoted(one) for one in self.names if one not in self.key]
        change = f"UPDATE SET {', '.join(f'{one} = excluded.{one}' for one in others)}"
        self.upsert = dialect.with_marks(
            f"INSERT INTO {name} ({columns}) VALUES ({', '.join(_MARK for _ in self.names)}) "  # noqa: S608
            f"ON CONFLICT ({keys}) DO {change if others else 'NOTHING'}"
        )
        condition = " AND ".join(f"{quoted(one)} = {_MARK}" for one in self.key)
        self.delete = dialect.with_marks(f"DELETE FROM {name} WHERE {condition}")  # noqa: S608

    def values(self, found: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
        """Return some values of a row, or of its key, as the driver takes them."""
        return [self._value(one, found[one.name]) for one in self._columns if one.name in names]

    def _value(self, column: _Column, value: Any) -> Any:
        if value is None:
            return None
        # Enums and subclasses of text become plain values, as in the store.
        plain = column.type.decode(column.encode(value))
        convert = self._convert.get(column.type.family)
        return plain if convert is None else convert(plain)


class Taker(Protocol):
    """A sink that applies items with an effect of the call."""

    def apply(self, key: bytes, sequence: int, payload: bytes, effect: Callable[..., object] | None) -> None:
        """Take an item, with this effect."""
        ...

    def run(self, work: Callable[[Any], Any]) -> Any:
        """Return the result of statements that change no item."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class SQLTable(Part):
    """A table of SQL that has the rows of a typed table.

    The table has the columns of the model, with their names, and the key of the model as its primary key. A
    second table, with ``_exports`` after its name, has the newest sequence of each row. Both are created at
    the first use if they are missing, and a row and its sequence change in one transaction. So a repeated or
    late run has no effect.

    `export` is the body of an observer of the typed table. As a sink of an `ExportQueue`, an instance takes
    the items of `ExportQueue.add_row` and `ExportQueue.add_removal`.

    Threads may share an instance, and processes may share the database. An instance is a context manager.
    """

    def __init__(
        self, model: type[Table], table: str | None, dialect: Dialect, effect: RowEffect | None
    ) -> None:
        self.model = model
        self._source = definition_of(model).name
        self.table = self._source if table is None else table
        self.statements = Statements(model, self.table, dialect)
        self._effect = effect
        self._lock = Lock()
        self._taker: Taker | None = None
        self._is_closed = False

    @abstractmethod
    def _connect(self) -> Taker:
        """Connect, and create the table of the sequences if it is missing."""
        raise NotImplementedError

    @abstractmethod
    def _create(self, taker: Any) -> None:
        """Create the table of the rows if it is missing. ``taker`` is from `_connect`."""
        raise NotImplementedError

    def export(self, t: AnyTransaction, cell: Cell) -> None:
        """Copy the row of an observed cell, as of the snapshot of ``t``; a row that is gone is deleted.

        Call this in an observer that observes the table's columns. It declares ``executor: threads``, because
        it waits for the database. Several changes that come fast may be exported as one. The observer must
        not write the table.

        Raises:
            ConfigurationError: the cell is of another table, or the SQL table lacks columns of the model.
            LockTimeout, SnapshotTooOld, StoreUnavailable, UnknownTable: as `Transaction.find`.
            Exception: the database's errors; nothing was written. The worker tries again later.
        """
        if cell.table != self._source:
            raise ConfigurationError(
                f"the rows of {self._source} are exported, not those of {cell.table}: call export in an "
                f"observer of columns of {self._source}"
            )
        row = t.find(self.model, **self.model.key_of(cell.row))
        self._apply(cell.row, t.start_timestamp, row)

    def take(self, key: bytes, sequence: int, payload: bytes) -> None:
        """Take an item of `ExportQueue.add_row` or `ExportQueue.add_removal`.

        Raises:
            ValueError: the key or the payload is not of the model.
            Others: as `export`.
        """
        self._apply(key, sequence, row_codec(self.model)[1](payload) if payload else None)

    def close(self) -> None:
        """Close the connections. Idempotent; the instance takes no further row."""
        with self._lock:
            self._is_closed = True
            taker, self._taker = self._taker, None
        if taker is not None:
            taker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _needs(self, method: str) -> Need:
        """Return the requirements of a method, for the check of a chain."""
        if method != "export":
            return Need()
        return Need(models=(self.model,), observes_any=self._source, unwritten=self._source)

    def _apply(self, row_key: bytes, sequence: int, row: Any) -> None:
        key, statements = self.model.key_of(row_key), self.statements

        def effect(connection: Any, *_: object) -> None:
            if row is None:
                connection.execute(statements.delete, statements.values(key, statements.key))
            else:
                connection.execute(statements.upsert, statements.values(dict(row), statements.names))
            if self._effect is not None:
                self._effect(connection, key, row)

        self._opened().apply(row_key, sequence, b"", effect)

    def _opened(self) -> Taker:
        with self._lock:
            if self._is_closed:
                raise ValueError("the table's connections are closed: make another instance")
            if self._taker is None:
                taker = self._connect()
                try:
                    self._create(taker)
                    self._must_have_columns(taker)
                except BaseException:
                    taker.close()
                    raise
                self._taker = taker
            return self._taker

    def _must_have_columns(self, taker: Taker) -> None:
        there = taker.run(
            lambda connection: {one[0] for one in connection.execute(self.statements.select).description}
        )
        missing = [name for name in self.statements.names if name not in there]
        if missing:
            name = missing[0]
            raise ConfigurationError(
                f"the SQL table {self.table} has no column {name!r}, which {self.model.__name__} has: "
                f"ALTER TABLE {self.table} ADD COLUMN {quoted(name)} {self.statements.declared[name]}"
            )


def family_of(kind: ColumnType) -> str:
    """Return the family of a type; decimals with over 15 digits, which no float has, are ``long decimal``."""
    return "long decimal" if kind.family == "decimal" and kind.digits > 15 else kind.family


def quoted(name: str) -> str:
    """Return a name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def _joined(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
