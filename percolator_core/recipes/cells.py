"""The cells into which a recipe folds its items: cells of a raw table, or a column of a typed table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from percolator_core.errors import ConfigurationError, RowNotFound
from percolator_core.layout.records import row_bytes
from percolator_core.observers.parts import Need
from percolator_core.recipes.rows import AnyReader, AnyTransaction
from percolator_core.schema.row_keys import describe_key
from percolator_core.tables.model import Table, column_of, definition_of, fields_of

Into: TypeAlias = tuple[str | type[Table], str] | Any
"""``("pages", "hits")`` of a raw table; ``Page.hits`` or ``(Page, "hits")`` of a typed table."""

Change: TypeAlias = Callable[[Any], Any]
"""Returns the new value for the old one; None means no value."""


class RawCells:
    """The cells of a column of a raw table. Keys are row keys, and values are bytes."""

    type: Final = ""

    def __init__(self, table: str, column: str) -> None:
        self._table = table
        self._column = column
        self.need = Need(raw={table: ()}, writes=((table, column),))

    def row(self, key: Any) -> bytes:
        """Return the row key of a key. Raises TypeError unless it is text or bytes."""
        return row_bytes(key)

    def get(self, t: AnyReader, row: bytes) -> Any:
        """Return the value, None without a cell."""
        return t.get(self._table, row, self._column)

    def change(self, t: AnyTransaction, row: bytes, change: Change) -> None:
        """Replace the value; None deletes the cell."""
        value = change(self.get(t, row))
        if value is None:
            t.delete(self._table, row, self._column)
        else:
            t.set(self._table, row, self._column, value)

    def encode(self, item: Any) -> bytes:
        """Return the item, which is bytes."""
        return item  # type: ignore[no-any-return]

    def decode(self, item: bytes) -> Any:
        """Return the item."""
        return item


class TypedColumn:
    """The values of a column of a typed table, for all rows. ``type`` is the name of the column's type."""

    def __init__(self, model: type[Table], column: str) -> None:
        definition = definition_of(model)
        if column in definition.key:
            raise ConfigurationError(f"{definition.name}.{column} is part of the key, which never changes")
        field = fields_of(model)[column]
        self._model = model
        self._column = column
        self._key = definition.key
        self.type = field.column.type
        self.encode = field.encode
        self.decode = field.decode
        self._required = [
            name
            for name, info in model.__pydantic_fields__.items()
            if info.is_required() and name not in (*self._key, column)
        ]
        # The insert of a row writes all columns.
        written = [column] if self._required else [one.name for one in definition.value_columns]
        self.need = Need(models=(model,), writes=tuple((definition.name, name) for name in written))

    def row(self, key: Any) -> bytes:
        """Return the row key of a key.

        A key is the value of the key's column, a tuple if it has several columns, a mapping of the columns,
        or a row of the table. Raises TypeError or ValueError for another object.
        """
        if isinstance(key, self._model):
            key = {name: getattr(key, name) for name in self._key}
        elif not isinstance(key, Mapping):
            values = key if isinstance(key, tuple) and len(self._key) > 1 else (key,)
            if len(values) != len(self._key):
                raise TypeError(f"{self._model.__name__} has the key ({', '.join(self._key)}), not {key!r}")
            key = dict(zip(self._key, values, strict=True))
        return self._model.row_key(**key)

    def get(self, t: AnyReader, row: bytes) -> Any:
        """Return the value, None without a row."""
        found = t.find(self._model, **self._model.key_of(row))
        return None if found is None else getattr(found, self._column)

    def change(self, t: AnyTransaction, row: bytes, change: Change) -> None:
        """Replace the value; None is null. A row that does not exist is made if there is a value.

        Raises RowNotFound if the row does not exist, and another column needs a value.
        """
        key = self._model.key_of(row)
        found = t.find(self._model, **key)
        value = change(None if found is None else getattr(found, self._column))
        if found is not None:
            t.update(self._model, **key, **{self._column: value})
        elif value is not None:
            if self._required:
                raise RowNotFound(
                    f"{definition_of(self._model).name} has no row {describe_key(key)}, and the fold cannot "
                    f"insert it, because {self._required[0]} has no default: insert the row first"
                )
            t.insert(self._model, **key, **{self._column: value})


def cells_of(into: Into) -> RawCells | TypedColumn:
    """Return the cells that ``into`` names.

    Raises TypeError for another object, UnknownColumn for a column that the model does not have, and
    ConfigurationError for a column of the key.
    """
    if isinstance(into, tuple) and len(into) == 2 and isinstance(into[0], str):
        return RawCells(*into)
    return TypedColumn(*column_of(into))
