"""A model and the table that the catalog has: what of each other they can use, and rows between the two.

Values are encoded one by one; pydantic has checked them when the row was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, UnknownColumn
from percolator_core.layout.records import MAX_ROW, MAX_VALUE
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.row_keys import KeyCodec, describe_key
from percolator_core.schema.types import column_type
from percolator_core.tables.instances import made
from percolator_core.tables.model import Field, Table, definition_of, fields_of

Cells: TypeAlias = dict[str, bytes | None]
"""Encoded values of a row by column; None is null."""


class Binding:
    """Rows of one table, as instances of a model or, without one, as dicts of Python values."""

    __slots__ = ("_codec", "_fields", "_key", "_model", "definition", "handle")

    def __init__(self, handle: TableHandle, model: type[Table] | None) -> None:
        """Raises ConfigurationError for a model that does not agree with the table."""
        self.handle = handle
        self.definition = handle.definition
        self._model = model
        self._codec = KeyCodec(handle.definition)
        if model is None:
            self._fields = {column.name: _plain(column) for column in handle.definition.columns}
        else:
            self._fields = fields_of(model)
            _must_agree(definition_of(model), handle.definition)
        self._key = frozenset(handle.definition.key)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that rows are given with, if none are named: all, or those that the model knows."""
        return tuple(self._fields)

    def key(self, values: Mapping[str, Any]) -> bytes:
        """The row key of the key's values, by name.

        Raises:
            UnknownColumn: a name is no column of the key. ConfigurationError: a column of the key is missing.
            TypeError, ValueError: a value is none of its column's type; names the column.
        """
        for name in values:
            if name not in self._key:
                what = "is no column of its key" if name in self.definition.by_name else "is no column of it"
                raise UnknownColumn(f"{self._name}: {name!r} {what}: the key is {self._key_text}")
        missing = [name for name in self.definition.key if name not in values]
        if missing:
            raise ConfigurationError(f"{self._name}: {missing[0]} is missing: the key is {self._key_text}")
        key = self._codec.join([self._encoded(name, values[name]) for name in self.definition.key])
        if len(key) > MAX_ROW:
            raise ValueError(f"a row key has at most {MAX_ROW} bytes, this one has {len(key)}")
        return key

    def encode(self, values: Mapping[str, Any]) -> tuple[bytes, Cells]:
        """The row key, and the cells of the values that are given.

        Raises:
            UnknownColumn: a name is none of a column.
            ConfigurationError: a column of the key is missing.
            TypeError, ValueError: a value does not fit its column; says which row, which field and why.
        """
        key_values = {name: values[name] for name in self.definition.key if name in values}
        try:
            key = self.key(key_values)
            cells = {name: self._cell(name, values[name]) for name in values if name not in key_values}
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self._name}, row {describe_key(key_values)}: {error}") from None
        return key, cells

    def must_be_whole(self, row: bytes, cells: Mapping[str, object]) -> None:
        """Raise ValueError if a new row with these cells lacks one that cannot be null."""
        for column in self.definition.value_columns:
            if column.name not in cells and not column.nullable and column.missing is None:
                raise ValueError(
                    f"{self._name}, row {self._codec.describe(row)}: {column.name}: it is missing"
                )

    def decode(self, row: bytes, cells: Mapping[str, bytes | None], columns: Sequence[str]) -> Any:
        """A row with these columns: an instance of the model, or a dict.

        ``cells`` has the values of those that are not in the key. Of an instance the key's columns alone
        count as set, so that an update of it writes what was assigned since.
        """
        values: dict[str, Any] = {}
        parts: dict[str, bytes] | None = None
        for name in columns:
            field = self._fields[name]
            if name in self._key:
                if parts is None:
                    parts = dict(zip(self.definition.key, self._codec.split(row), strict=True))
                found: bytes | None = parts[name]
            else:
                found = cells[name]
            values[name] = None if found is None else field.decode(found)
        if self._model is None:
            return values
        return made(self._model, values, set(self._key))

    def chosen(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        """The columns to read: those named, or all. Raises UnknownColumn; TypeError for text, no list."""
        if columns is None:
            return self.columns
        if isinstance(columns, str):
            raise TypeError(f"columns is a list of columns, not str: write [{columns!r}]")
        for name in columns:
            if name not in self._fields:
                raise UnknownColumn(f"{self._name} has no column {name!r}: it has {', '.join(self._fields)}")
        return tuple(dict.fromkeys(columns))

    def value_columns(self, columns: Sequence[str]) -> list[str]:
        """Those of the columns that are not in the key."""
        return [name for name in columns if name not in self._key]

    @property
    def _name(self) -> str:
        return self.definition.name

    @property
    def _key_text(self) -> str:
        return ", ".join(self.definition.key)

    def _encoded(self, name: str, value: Any) -> bytes:
        try:
            return self._fields[name].encode(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None

    def _cell(self, name: str, value: Any) -> bytes | None:
        field = self._fields.get(name)
        if field is None:
            raise UnknownColumn(f"{self._name} has no column {name!r}: it has {', '.join(self._fields)}")
        if value is None:
            if not field.column.nullable:
                raise ValueError(f"{name}: it cannot be null")
            return None
        encoded = self._encoded(name, value)
        if len(encoded) > MAX_VALUE:
            raise ValueError(f"{name}: it has {len(encoded)} bytes, and may have {MAX_VALUE}: cut it up")
        return encoded


def binding_of(handle: TableHandle, model: type[Table] | None) -> Binding:
    """The binding of a model to a table, made once for each handle.

    Raises:
        ConfigurationError: the table is raw, or does not agree with the model.
    """
    found: Binding | None = handle.bindings.get(model)
    if found is None:
        if not handle.definition.is_typed:
            raise ConfigurationError(f"{handle.name} is a raw table: use get, scan, set and delete")
        found = handle.bindings[model] = Binding(handle, model)
    return found


def table_name(table: type[Table] | str) -> str:
    """The name of the table that is meant by a model or a name. Raises TypeError for anything else."""
    return table if isinstance(table, str) else definition_of(table).name


def model_of(table: type[Table] | str) -> type[Table] | None:
    """The model, where the table is given by one."""
    return None if isinstance(table, str) else table


def _plain(column: Column) -> Field:
    kind = column_type(column.type)
    return Field(column, None, kind.encode, kind.decode)


_NEWER: Final = "this program and the table are of different versions"


def _must_agree(model: TableDefinition, table: TableDefinition) -> None:
    """Raise ConfigurationError unless rows of the model can be kept in the table.

    The table may have more columns: those were added by newer programs, and have a default or may be null.
    """
    if model.key != table.key:
        raise ConfigurationError(
            f"table {table.name!r} has the key {', '.join(table.key)}, the model {', '.join(model.key)} "
            f"({_NEWER}): a key stays as it is; give the model this key, or a table of its own"
        )
    for column in model.columns:
        found = table.by_name.get(column.name)
        if found is None:
            raise ConfigurationError(
                f"table {table.name!r} has no column {column.name!r}, which the model has ({_NEWER}): "
                "add it with Database.add_column, or take it out of the model"
            )
        if found.type != column.type:
            raise ConfigurationError(
                f"table {table.name!r}, column {column.name!r} is {found.type}, in the model {column.type}: "
                "a column's type does not change; add another column"
            )
        if found.nullable != column.nullable:
            has, model_has = ("may", "may not") if found.nullable else ("may not", "may")
            raise ConfigurationError(
                f"table {table.name!r}, column {column.name!r} {has} be null, in the model it {model_has}: "
                "a column's type does not change; add another column"
            )
    rules = {(rule.column, rule.unique) for rule in table.indexes}
    for rule in model.indexes:
        if (rule.column, rule.unique) not in rules:
            kind = "a unique index" if rule.unique else "an index"
            raise ConfigurationError(
                f"table {table.name!r} does not have the model's index of {rule.column!r} ({kind}; {_NEWER}"
                "): an index is made with its table; take it out of the model, or make another table"
            )
