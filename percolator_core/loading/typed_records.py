"""Records of typed tables: map fields to columns, and encode their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from percolator_core.errors import ConfigurationError
from percolator_core.layout.records import MAX_ROW
from percolator_core.loading.records import MAX_LOADED_VALUE, BadRecord, Origin, Record, too_large
from percolator_core.loading.values import Dialect, converter
from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type, shown


@dataclass(frozen=True, slots=True)
class _Part:
    """A column, and the field with its values. ``empty`` is the value that the null text means."""

    column: str
    field: str
    nullable: bool
    empty: bytes | None
    convert: Callable[[Any], bytes | None]


class TypedRecords:
    """Builds records from fields. Spark sends it to executors.

    ``fields`` maps each loaded column, including key columns, to its field. None means that each field is
    loaded into the column of the same name. ``version`` is the version of the table in the catalog.
    ``null_text`` is the text that means null in the dialect ``text``; None means that no text does.
    """

    def __init__(
        self,
        definition: TableDefinition,
        version: bytes,
        dialect: Dialect,
        fields: Mapping[str, str] | None = None,
        null_text: str | None = "",
    ) -> None:
        self.definition = definition
        self.version = version
        self._dialect = dialect
        self._given = fields
        self._null_text = null_text
        self._null = null_text if dialect == "text" else None
        self._codec = KeyCodec(definition)
        chosen = {one.name: one.name for one in definition.shown_columns} if fields is None else dict(fields)
        self._key = [self._part(column, chosen[column]) for column in definition.key]
        self._values = [
            self._part(column, field) for column, field in chosen.items() if column not in definition.key
        ]
        self._known = frozenset(chosen.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return TypedRecords, (self.definition, self.version, self._dialect, self._given, self._null_text)

    def _part(self, column: str, field: str) -> _Part:
        declared = self.definition.by_name[column]
        kind = column_type(declared.type)
        is_text = kind.name in {"str", "bytes"} and column not in self.definition.key
        empty = b"" if is_text and not declared.nullable and self._null == "" else None
        return _Part(column, field, declared.nullable, empty, converter(kind, self._dialect))

    @property
    def key_fields(self) -> list[str]:
        """The fields of the row key, in the order of the key."""
        return [part.field for part in self._key]

    @property
    def wanted(self) -> list[str] | None:
        """The loaded fields; None means all fields."""
        return None if self._given is None else [*self._given.values()]

    def problem(self, names: Sequence[str]) -> str | None:
        """If records with these fields cannot be loaded, return the reason as the end of a sentence."""
        needed = self.key_fields if self.wanted is None else self.wanted
        missing = [name for name in needed if name not in names]
        if missing:
            why = f", which is part of the key of {self.definition.name}" if self.wanted is None else ""
            return f"has no field {missing[0]!r}{why}: it has {', '.join(names)}"
        return self.unknown(names)

    def unknown(self, names: Sequence[str]) -> str | None:
        """If fields have no column, return the reason as the end of a sentence."""
        unknown = [] if self.wanted is not None else [name for name in names if name not in self._known]
        if not unknown:
            return None
        what = f"fields {', '.join(map(repr, unknown))}" if len(unknown) > 1 else f"field {unknown[0]!r}"
        name = self.definition.name
        return f"has the {what}, and {name} no such column: it has {', '.join(self.definition.by_name)}"

    def build(self, origin: Origin, fields: Mapping[str, object], head: bytes = b"") -> Record | BadRecord:
        """Build the record with these fields, or a malformed record with the reason."""
        if self._given is None and not self._known.issuperset(fields):
            return BadRecord(origin, f"it {self.unknown(list(fields))}", head)
        try:
            row = self.row_key(fields)
        except ValueError as error:
            return BadRecord(origin, str(error), head)
        cells: dict[str, bytes | None] = {}
        for part in self._values:
            if self._given is None and part.field not in fields:
                continue
            try:
                cells[part.column] = self._cell(part, fields.get(part.field))
            except (TypeError, ValueError) as error:
                return BadRecord(origin, f"column {part.column!r}: {error}", head, row, self.described(row))
        return Record(row, cells, origin)

    def row_key(self, fields: Mapping[str, object]) -> bytes:
        """Encode the row key in these fields. Raises ValueError with the reason why there is none."""
        encoded: list[bytes] = []
        for part in self._key:
            try:
                cell = self._cell(part, fields.get(part.field))
            except (TypeError, ValueError) as error:
                raise ValueError(f"column {part.column!r}: {error}") from None
            assert cell is not None
            encoded.append(cell)
        row = self._codec.join(encoded)
        if len(row) > MAX_ROW:
            raise ValueError(f"the row key has {len(row)} bytes, more than {MAX_ROW}")
        return row

    def _cell(self, part: _Part, value: object) -> bytes | None:
        cell = part.empty if value is None or value == self._null else part.convert(value)
        if cell is None:
            if not part.nullable:
                raise ValueError("the value cannot be null")
        elif len(cell) > MAX_LOADED_VALUE:
            raise ValueError(too_large(len(cell)))
        return cell

    def described(self, row: bytes) -> str:
        """Return the key of a row as text: ``shop='east', number=7``. A key of one text stays as it is."""
        values = self._codec.decode(row)
        if len(values) == 1 and isinstance(values[0], str):
            return values[0]
        return ", ".join(
            f"{name}={shown(value) if isinstance(value, str | bytes | int | float) else value}"
            for name, value in zip(self.definition.key, values, strict=True)
        )


def typed_records(  # noqa: PLR0917
    definition: TableDefinition,
    version: bytes,
    format_: str,
    key: str | None,
    columns: Mapping[str, str] | None,
    null_text: str,
    *,
    dialect: Dialect,
    page_fields: Sequence[str],
) -> TypedRecords:
    """Map the fields of a source to the columns of a typed table; the arguments are those of `open_source`.

    Raises:
        ConfigurationError: a field or column has no counterpart.
    """
    if definition.index_of:
        raise ConfigurationError(
            f"{definition.name} is an index of {definition.index_of}, and cannot be loaded: load into "
            f"{definition.index_of}; this updates the index"
        )
    if page_fields:
        fields = _fields_of_pages(definition, format_, columns, page_fields)
    elif columns is None:
        fields = None
        if key is not None and (key,) != definition.key:
            raise _other_key(definition, key)
    else:
        fields = _columns_to_fields(definition, columns)
        if key is not None and len(definition.key) == 1:
            fields.setdefault(definition.key[0], key)
        for column in definition.key:
            fields.setdefault(column, column)
        if key is not None and [key] != [fields[column] for column in definition.key]:
            raise _other_key(definition, key)
    return TypedRecords(definition, version, dialect, fields, null_text)


def _other_key(definition: TableDefinition, key: str) -> ConfigurationError:
    names = ", ".join(definition.key)
    return ConfigurationError(
        f"{key!r} is not the key of {definition.name}, ({names}): leave --key out, and map fields with other "
        "names by --columns FIELD=COLUMN,… (in Python columns)."
    )


def _columns_to_fields(definition: TableDefinition, columns: Mapping[str, str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for field, column in columns.items():
        if column not in definition.by_name:
            raise ConfigurationError(
                f"{definition.name} has no column {column!r}: it has {', '.join(definition.by_name)}."
            )
        if column in fields:
            raise ConfigurationError(
                f"The fields {fields[column]!r} and {field!r} have the same column {column!r}: leave one out."
            )
        fields[column] = field
    return fields


def _fields_of_pages(
    definition: TableDefinition, format_: str, columns: Mapping[str, str] | None, page_fields: Sequence[str]
) -> dict[str, str]:
    if len(definition.key) != 1 or definition.key_columns[0].type != "str":
        raise ConfigurationError(
            f"The key of a page is its URL, and the key of {definition.name} is "
            f"({', '.join(definition.key)}): load {format_} into a table with a key of one text column."
        )
    fields = _columns_to_fields(definition, columns or {})
    if columns is None:
        fields = {field: field for field in page_fields}
        missing = [field for field in fields if field not in definition.by_name]
        if missing:
            raise ConfigurationError(
                f"{definition.name} has no column {missing[0]!r} for the fields of {format_}, "
                f"{', '.join(fields)}: it has {', '.join(definition.by_name)}. Map fields to columns: "
                "--columns FIELD=COLUMN,… (in Python columns)."
            )
    return fields | {definition.key[0]: "url"}
