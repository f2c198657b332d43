"""What a model says for a change of its table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from percolator_core.errors import ConfigurationError, UnknownColumn
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.types import column_type
from percolator_core.tables.model import Table, definition_of, fields_of


def added_column(model: type[Table], name: str) -> Column:
    """A column of the model, as it is added to a table that has rows: with what these have for it.

    Raises:
        UnknownColumn: the model has none of that name.
        ConfigurationError: it is part of the key or has an index, or its default cannot be.
    """
    table = definition_of(model).name
    field = fields_of(model).get(name)
    if field is None:
        raise UnknownColumn(f"{model.__name__} has no column {name!r}: add it to the model first")
    if field.role == "key":
        raise ConfigurationError(
            f"{table}.{name} is part of the key, which stays as it is: make another table"
        )
    if field.role is not None:
        raise ConfigurationError(f"{table}.{name} has an index, which rows that are there would not be in")
    info = model.__pydantic_fields__[name]
    default = None if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
    if default is None:
        return field.column
    try:
        return replace(field.column, missing=field.encode(default))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{table}.{name}: its default {default!r} cannot be kept: {error}") from None


def range_value(definition: TableDefinition, model: type[Table] | None, value: Any) -> bytes:
    """A value of the column by which the table is cut into ranges, encoded.

    Raises:
        TypeError, ValueError: it is none of the column.
    """
    assert definition.ranges is not None
    column = definition.by_name[definition.ranges.column]
    field = None if model is None else fields_of(model).get(column.name)
    encode = column_type(column.type).encode if field is None else field.encode
    return encode(value)
