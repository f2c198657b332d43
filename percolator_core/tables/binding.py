"""The binding of a model to its table in the catalog: the check that both agree, and the conversion of rows.

Values are encoded without validation, because pydantic validated them when the instance was created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from pydantic_core import SchemaValidator

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError, UnknownColumn
from percolator_core.layout.records import MAX_ROW, MAX_VALUE
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.row_keys import KeyCodec, describe_key
from percolator_core.schema.types import column_type, encode_value
from percolator_core.tables.model import Field, Table, definition_of, fields_of

Cells: TypeAlias = dict[str, bytes | None]
"""The encoded values of a row by column; None means null."""


class Binding:
    """Converts the rows of one table to instances of a model, or to dicts of Python values."""

    __slots__ = ("_codec", "_fields", "_key", "_model", "definition", "handle")

    def __init__(self, handle: TableHandle, model: type[Table] | None) -> None:
        """Raises ConfigurationError if the model does not match the table."""
        self.handle = handle
        self.definition = handle.definition
        self._model = model
        self._codec = KeyCodec(handle.definition)
        if model is None:
            self._fields = {column.name: _plain(column) for column in handle.definition.shown_columns}
        else:
            self._fields = fields_of(model)
            _must_agree(definition_of(model), handle.definition)
        self._key = frozenset(handle.definition.key)

    @property
    def columns(self) -> tuple[str, ...]:
        """The default columns of rows: the columns of the model, or all columns."""
        return tuple(self._fields)

    def key(self, values: Mapping[str, Any]) -> bytes:
        """Return the row key of the values of the key columns.

        Raises UnknownColumn for a name that is no column of the key, ConfigurationError for a missing column,
        and TypeError or ValueError with the column's name for a value that does not have its type.
        """
        for name in values:
            if name not in self._key:
                of_what = "the key" if name in self.definition.by_name else "the table"
                raise UnknownColumn(
                    f"{self._name}: {name!r} is no column of {of_what}: the key is {self._key_text}"
                )
        missing = [name for name in self.definition.key if name not in values]
        if missing:
            raise ConfigurationError(f"{self._name}: {missing[0]} is missing: the key is {self._key_text}")
        key = self._codec.join(
            [encode_value(name, self._fields[name].encode, values[name]) for name in self.definition.key]
        )
        if len(key) > MAX_ROW:
            raise ValueError(f"a row key has at most {MAX_ROW} bytes, this one has {len(key)}")
        return key

    def encode(self, values: Mapping[str, Any]) -> tuple[bytes, Cells]:
        """Return the row key and the cells. Raises as `key`; the message about a value also names the row."""
        key_values = {name: values[name] for name in self.definition.key if name in values}
        try:
            key = self.key(key_values)
            cells = {name: self._cell(name, values[name]) for name in values if name not in key_values}
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self._name}, row {describe_key(key_values)}: {error}") from None
        return key, cells

    def must_be_whole(self, row: bytes, cells: Mapping[str, object]) -> None:
        """Raise ValueError if a new row has no cell for a column that cannot be null."""
        for column in self.definition.value_columns:
            if column.name in cells or column.nullable:
                continue
            if column.missing is None and column.default is None:
                raise ValueError(
                    f"{self._name}, row {self._codec.describe(row)}: {column.name}: the value is missing"
                )

    def decode(self, row: bytes, cells: Mapping[str, bytes | None], columns: Sequence[str]) -> Any:
        """Return a row with these columns as an instance of the model, or as a dict.

        Only the key columns of an instance count as set, so that a later update writes only fields that were
        assigned after the read.
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
        """Return the columns to read, by default all. Raises UnknownColumn, or TypeError for a str."""
        if columns is None:
            return self.columns
        if isinstance(columns, str):
            raise TypeError(f"columns is a list of columns, not str: write [{columns!r}]")
        for name in columns:
            if name not in self._fields:
                raise UnknownColumn(f"{self._name} has no column {name!r}: it has {', '.join(self._fields)}")
        return tuple(dict.fromkeys(columns))

    def value_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that are not in the key."""
        return [name for name in columns if name not in self._key]

    @property
    def _name(self) -> str:
        return self.definition.name

    @property
    def _key_text(self) -> str:
        return ", ".join(self.definition.key)

    def _cell(self, name: str, value: Any) -> bytes | None:
        field = self._fields.get(name)
        if field is None:
            raise UnknownColumn(f"{self._name} has no column {name!r}: it has {', '.join(self._fields)}")
        if value is None:
            if not field.column.nullable:
                raise ValueError(f"{name}: the value cannot be null")
            return None
        encoded = encode_value(name, field.encode, value)
        if len(encoded) > MAX_VALUE:
            raise ValueError(
                f"{name}: the value has {len(encoded)} bytes, at most {MAX_VALUE} are allowed: split it"
            )
        return encoded


def binding_of(handle: TableHandle, model: type[Table] | None) -> Binding:
    """Return the binding of a model to a table, created once for each handle.

    Raises ConfigurationError if the table is raw, or the model does not match it.
    """
    found: Binding | None = handle.bindings.get(model)
    if found is None:
        if not handle.definition.is_typed:
            raise ConfigurationError(f"{handle.name} is a raw table: use get, scan, set and delete")
        found = handle.bindings[model] = Binding(handle, model)
    return found


def table_name(table: type[Table] | str) -> str:
    """Return the table's name. Raises TypeError if ``table`` is no model and no name."""
    return table if isinstance(table, str) else definition_of(table).name


def model_of(table: type[Table] | str) -> type[Table] | None:
    """Return the model, or None if the table is given by name."""
    return None if isinstance(table, str) else table


def _plain(column: Column) -> Field:
    kind = column_type(column.type)
    return Field(column, None, kind.encode, kind.decode)


_MIGRATE: Final = (
    "this program and the table are of different versions: change the table with `percolator migrate`, or "
    "use the program of the table's version"
)


def _must_agree(model: TableDefinition, table: TableDefinition) -> None:
    """Raise ConfigurationError unless the table can store rows of the model.

    The table may have more columns than the model: newer programs add columns that are nullable or have a
    default.
    """
    if model.key != table.key:
        raise ConfigurationError(
            f"table {table.name!r} has the key {', '.join(table.key)}, the model {', '.join(model.key)}: a "
            "key cannot change; give the model this key, or another table"
        )
    for column in model.columns:
        found = table.by_name.get(column.name)
        if found is None:
            raise ConfigurationError(
                f"table {table.name!r} has no column {column.name!r}, which the model has: {_MIGRATE}"
            )
        if found.type != column.type:
            raise ConfigurationError(
                f"column {column.name!r} of table {table.name!r} has the type {found.type}, but the model "
                f"has {column.type}: {_MIGRATE}"
            )
        if found.nullable != column.nullable:
            has, model_has = ("may", "may not") if found.nullable else ("may not", "may")
            raise ConfigurationError(
                f"column {column.name!r} of table {table.name!r} {has} be null, but in the model it "
                f"{model_has}: {_MIGRATE}"
            )
    rules = {(rule.column, rule.unique) for rule in table.indexes}
    for rule in model.indexes:
        if (rule.column, rule.unique) not in rules:
            kind = "a unique index" if rule.unique else "an index"
            raise ConfigurationError(
                f"table {table.name!r} does not have the model's index of {rule.column!r} ({kind}): "
                f"{_MIGRATE}"
            )


def added_column(model: type[Table], name: str) -> Column:
    """Return a column of the model for `Database.add_column`, with the value that existing rows get.

    Raises UnknownColumn, and ConfigurationError for a key column or a default that cannot be encoded.
    """
    table = definition_of(model).name
    field = fields_of(model).get(name)
    if field is None:
        raise UnknownColumn(f"{model.__name__} has no column {name!r}: add it to the model first")
    if field.role == "key":
        raise ConfigurationError(
            f"{table}.{name} is part of the key, which cannot change: create another table"
        )
    info = model.__pydantic_fields__[name]
    default = None if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
    if default is None:
        return field.column
    try:
        return replace(field.column, missing=field.encode(default))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{table}.{name}: the default {default!r} is not valid: {error}") from None


def range_value(definition: TableDefinition, model: type[Table] | None, value: Any) -> bytes:
    """Encode a value of the table's range column. Raises TypeError or ValueError if it has another type."""
    assert definition.ranges is not None
    column = definition.by_name[definition.ranges.column]
    field = None if model is None else fields_of(model).get(column.name)
    encode = column_type(column.type).encode if field is None else field.encode
    return encode(value)


def assigned(model: type[Table], values: Mapping[str, Any]) -> dict[str, Any]:
    """Validate some values of a row, each by its field; return the validated values.

    Validators of the whole model do not run, because some values of the row are unknown. Raises
    UnknownColumn, or pydantic's ValidationError (a ValueError) if the model refuses a value.
    """
    found: SchemaValidator | None = model.__dict__.get("_each")
    if found is None:
        found = _validator_of_fields(model)
        model._each = found  # noqa: SLF001 - a cache in the class
    for name in values:
        if name not in model.__pydantic_fields__:
            raise UnknownColumn(
                f"{model.__name__} has no column {name!r}: it has {', '.join(model.__pydantic_fields__)}"
            )
    checked: Any = {name: found.validate_assignment({}, name, value) for name, value in values.items()}
    return {name: checked[name][0][name] for name in values}


def _validator_of_fields(model: type[Table]) -> SchemaValidator:
    """Return a validator of the model's fields, without the validators of the whole model."""
    if not model.__pydantic_complete__:
        model.model_rebuild()
    schema: Any = model.__pydantic_core_schema__
    config, beside = None, None
    while schema["type"] != "model-fields":
        if schema["type"] == "definitions":
            beside = schema["definitions"]
        if schema["type"] == "definition-ref":
            schema = next(one for one in beside or () if one.get("ref") == schema["schema_ref"])
            continue
        config = schema.get("config", config)
        schema = schema["schema"]
    # In an instance a frozen field cannot be assigned, but an update of a stored row can change it.
    fields = {name: {**field, "frozen": False} for name, field in schema["fields"].items()}
    schema = {**schema, "fields": fields}
    if beside is not None:
        schema = {"type": "definitions", "schema": schema, "definitions": beside}
    return SchemaValidator(schema, config)


def made(model: type[Table], values: dict[str, Any], given: set[str]) -> Table:
    """Return an instance with these values by field name, without validation; other fields are not set.

    Pydantic's `model_construct` is not usable: it looks at aliases first, but an alias may be the name of
    another field. It also fails for a field with the name ``cls``.
    """
    instance = model.__new__(model)
    fields = model.__pydantic_fields__
    unread = () if len(values) == len(fields) else [name for name in fields if name not in values]
    if unread:
        values = {name: values[name] for name in fields if name in values}
    put = object.__setattr__
    put(instance, "__dict__", values)
    put(instance, "__pydantic_fields_set__", given)
    put(instance, "__pydantic_extra__", {} if model.model_config.get("extra") == "allow" else None)
    put(instance, "__pydantic_private__", None)
    if model.__pydantic_post_init__:
        for name in unread:
            if not fields[name].is_required():
                values[name] = fields[name].get_default(call_default_factory=True, validated_data=values)
        instance.model_post_init(None)
        for name in unread:
            # A column that was not read must not show a default, because the row may have another value.
            values.pop(name, None)
    return instance
