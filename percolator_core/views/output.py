"""The table of a view: its columns, its key, and the encoding of its rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Optional
from uuid import UUID

from pydantic import Field, create_model

from percolator_core.schema.definition_checks import check_definition
from percolator_core.schema.definitions import DEFAULT_TABLETS, Column, HashRule, TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type, encode_value
from percolator_core.tables.model import Hash, PrimaryKey, Table
from percolator_core.views.packing import pack, unpack

HIDDEN: Final = "row_"
"""The key column of a view whose rows have no other key: bytes that name the source row or the group. It is
no name with a leading underscore, because a field of a model cannot have one."""

_PYTHON: Final[dict[str, Any]] = {
    "bool": bool, "int": int, "float": float, "str": str, "bytes": bytes, "datetime": datetime, "date": date,
    "uuid": UUID, "json": Any,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of a view; ``kind`` is its type."""

    name: str
    kind: str
    nullable: bool


def view_definition(name: str, columns: Sequence[OutputColumn], key: Sequence[str]) -> TableDefinition:
    """Return the definition of a view's table; without a key, it gets the column `HIDDEN` as its key.

    Raises ConfigurationError if a table cannot have these columns.
    """
    made = [Column(one.name, one.kind, one.nullable and one.name not in key) for one in columns]
    if not key:
        made.insert(0, Column(HIDDEN, "bytes"))
    names = tuple(key) or (HIDDEN,)
    definition = TableDefinition(
        name,
        DEFAULT_TABLETS,
        columns=tuple(made),
        key=names,
        hashes=(HashRule(names, DEFAULT_TABLETS),),
    )
    check_definition(definition)
    return definition


def view_fields(definition: TableDefinition) -> dict[str, tuple[Any, Any]]:
    """Return the annotation and the default of each field of a view's model; ``...`` is no default."""
    fields: dict[str, tuple[Any, Any]] = {}
    for column in definition.columns:
        kind = column_type(column.type)
        annotation = _PYTHON.get(column.type)
        if kind.digits:
            annotation = Annotated[Decimal, Field(max_digits=kind.digits, decimal_places=kind.places)]
        if column.name in definition.key:
            annotation = operator.getitem(PrimaryKey, annotation)
        fields[column.name] = (Optional[annotation], None) if column.nullable else (annotation, ...)  # noqa: UP045
    # The fields of a model stand in the order of the columns, but its key in the order of the fields.
    return {name: fields[name] for name in (*definition.key, *fields)}


def view_partition(definition: TableDefinition) -> list[Hash]:
    """Return the rule by which the rows of a view are divided."""
    return [Hash(*definition.key, buckets=DEFAULT_TABLETS)]


def view_model(definition: TableDefinition) -> type[Table]:
    """Return a model of a view's table. Its `definition_of` equals the definition."""
    fields: dict[str, Any] = view_fields(definition)
    title = "".join(part.capitalize() for part in definition.name.split("_")) or "View"
    return create_model(
        title,
        __base__=Table,
        __cls_kwargs__={"name": definition.name, "partition": view_partition(definition)},
        **fields,
    )


class Encoder:
    """Encodes the values of a view's columns as a row key and cells."""

    __slots__ = ("_codec", "_key", "_values", "is_hidden")

    def __init__(self, definition: TableDefinition, names: Sequence[str]) -> None:
        """``names`` are the columns in the order of the values that are given later."""
        self.is_hidden = definition.key == (HIDDEN,)
        self._codec = KeyCodec(definition)
        at = {name: number for number, name in enumerate(names)}
        self._key = [] if self.is_hidden else [_encode(definition, name, at[name]) for name in definition.key]
        self._values = [_encode(definition, one.name, at[one.name]) for one in definition.value_columns]

    def key(self, values: Sequence[Any]) -> bytes:
        """Return the row key of a row that has one. Raises ValueError or TypeError."""
        return self._codec.join([encode(values) for encode in self._key])

    def cells(self, values: Sequence[Any]) -> list[bytes | None]:
        """Return the cells, in the order of the value columns. Raises ValueError or TypeError."""
        return [encode(values) for encode in self._values]


def _encode(definition: TableDefinition, name: str, at: int) -> Callable[[Sequence[Any]], Any]:
    column = definition.by_name[name]
    encode = column_type(column.type).encode

    def encoded(values: Sequence[Any]) -> bytes | None:
        value = values[at]
        if value is not None:
            return encode_value(name, encode, value)
        if not column.nullable:
            raise ValueError(f"{name}: null is not allowed")
        return None

    return encoded


Cells = dict[str, bytes | None]
"""The encoded values of a view's row by column, without the key; None means null."""


def packed_row(row_key: bytes, cells: Sequence[bytes | None]) -> bytes:
    """Return a row key and cells as one value."""
    return pack([row_key, *cells])


def unpacked_row(definition: TableDefinition, packed: bytes) -> tuple[bytes, Cells]:
    """Return row key and cells that were packed."""
    row_key, *cells = unpack(packed)
    return row_key, cells_by_column(definition, cells)


def cells_by_column(definition: TableDefinition, cells: Sequence[bytes | None]) -> Cells:
    """Return the cells of a row by column."""
    return {one.name: cell for one, cell in zip(definition.value_columns, cells, strict=True)}
