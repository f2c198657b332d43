"""Models of typed tables: each table has one pydantic model, from which its table definition is made.

>>> class Document(Table, name="documents", partition=[Hash("url", buckets=16)]):
...     url: PrimaryKey[str]
...     contents: bytes | None = None
...     page_rank: float = 0.0

An attribute of the class is a column, for predicates: ``Document.page_rank > 0.5``. The same attribute of an
instance is the row's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, NaiveDatetime
from pydantic.fields import FieldInfo

from percolator_core.errors import ConfigurationError
from percolator_core.runtime.html import html_records
from percolator_core.schema.definition_checks import check_definition
from percolator_core.schema.definitions import (
    DEFAULT_TABLETS,
    Column,
    HashRule,
    IndexRule,
    RangeRule,
    TableDefinition,
    count_tablets,
)
from percolator_core.schema.predicates import ColumnExpression
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import encode_value, shown
from percolator_core.tables.annotations import codec_of, unwrapped

if TYPE_CHECKING:
    # Without this base class type checkers refuse every subclass of `Table`.
    from pydantic._internal._model_construction import ModelMetaclass as _ModelType
else:
    _ModelType = type(BaseModel)


@dataclass(frozen=True, slots=True)
class _Role:
    name: Literal["key", "index", "unique"]


T = TypeVar("T")

PrimaryKey = Annotated[T, _Role("key")]
"""A column of the primary key; several columns form a composite key in the order of their fields."""

Indexed = Annotated[T, _Role("index")]
"""A column with a secondary index, updated in the transactions that change the column. The index has no
entries for nulls."""

Unique = Annotated[T, _Role("unique")]
"""Like `Indexed`, but each value occurs in at most one row; any number of rows may have null."""


@dataclass(frozen=True, slots=True)
class RenamedFrom:
    """A column's earlier name: ``price: Annotated[float, RenamedFrom("cost")]``.

    `Database.migrate` renames the column ``name`` of the table, if the table has it and does not have the new
    column. After that the hint has no effect, so it may stay in the model.
    """

    name: str


class Hash:
    """Spreads rows over ``buckets`` tablets (1 to 4096) by a hash of some key columns."""

    __slots__ = ("buckets", "columns")

    def __init__(self, *columns: str | Sequence[str], buckets: int) -> None:
        self.columns = tuple(name for part in columns for name in ([part] if isinstance(part, str) else part))
        self.buckets = buckets

    def __repr__(self) -> str:
        return f"Hash({', '.join(map(repr, self.columns))}, buckets={self.buckets})"


class Range:
    """Divides a table at the ascending ``splits`` of one key column; a split is the first value of a range.

    `Database.add_range` adds a split later.
    """

    __slots__ = ("column", "splits")

    def __init__(self, column: str, splits: Iterable[Any] = ()) -> None:
        self.column = column
        self.splits = tuple(splits)

    def __repr__(self) -> str:
        return f"Range({self.column!r}, splits={list(self.splits)!r})"


class TableType(_ModelType):
    """Gives the class an attribute for each column."""

    def __getattr__(cls, name: str) -> Any:  # noqa: N805 - a metaclass
        fields = cls.__dict__.get("__pydantic_fields__", ())  # missing during the creation of the class
        if name in fields:
            return ColumnExpression(name, cls)
        if fields and not name.startswith("_"):
            raise AttributeError(f"{cls.__name__} has no column {name!r}: it has {', '.join(fields)}")
        return super().__getattr__(name)  # type: ignore[misc]


class Table(BaseModel, metaclass=TableType):
    """A row of a typed table; each subclass with a ``name`` is a table.

    The class has these arguments: ``name``, the name of the table; ``partition``, rules over key columns, by
    default a hash of the whole key into 16 buckets; ``notify_only``, columns without data for weak observers.
    A class without a name is a common base of tables.

    Raises ConfigurationError for a model that cannot be a table.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    _arguments: ClassVar[tuple[str, tuple[Hash | Range, ...], tuple[str, ...]] | None] = None
    _definition: ClassVar[TableDefinition | None] = None
    _key: ClassVar[_Key | None] = None
    _each: ClassVar[Any] = None
    _is_view: ClassVar[bool] = False

    def __init_subclass__(
        cls,
        name: str | None = None,
        partition: Iterable[Hash | Range] = (),
        notify_only: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        super().__init_subclass__(**settings)
        cls._arguments = None if name is None else (name, tuple(partition), tuple(notify_only))
        cls._definition = None
        cls._key = None

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        for own in ("name", "partition", "notify_only"):
            arguments.pop(own, None)
        super().__pydantic_init_subclass__(**arguments)
        if cls._arguments is not None and cls.__pydantic_complete__:
            definition_of(cls)

    @classmethod
    def key_of(cls, row: bytes) -> dict[str, Any]:
        """Return the key values of a row key by column: ``t.find(Document, **Document.key_of(cell.row))``.

        Raises:
            ValueError: ``row`` is no row key of the table.
            ConfigurationError: the model cannot be a table.
        """
        codec, fields = _key(cls)
        parts = zip(fields, codec.split(row), strict=True)
        return {field.column.name: field.decode(part) for field, part in parts}

    @classmethod
    def row_key(cls, /, **key: Any) -> bytes:
        """Return the row key for these values of the key columns, as in ``cell.row``.

        Raises:
            TypeError, ValueError: a key column is missing, a name is no key column, or a value is not of its
            column's type.
            ConfigurationError: the model cannot be a table.
        """
        codec, fields = _key(cls)
        if key.keys() != set(codec.columns):
            raise TypeError(f"the key is ({', '.join(codec.columns)}), not ({', '.join(key)})")
        parts = [
            encode_value(name, field.encode, key[name])
            for name, field in zip(codec.columns, fields, strict=True)
        ]
        return codec.join(parts)

    def _repr_html_(self) -> str:
        """Show the row in a notebook."""
        return html_records([dict(self)], type(self).__name__)

    def __getitem__(self, column: str) -> Any:
        """Return the value of a column by its name, as in a row that was read without a model."""
        if column not in type(self).__pydantic_fields__:
            raise KeyError(column)
        return getattr(self, column)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a model as a column, with the conversions between values and bytes.

    ``encode`` raises TypeError or ValueError with the reason. ``renamed_from`` is the column's earlier name,
    or an empty text.
    """

    column: Column
    role: Literal["key", "index", "unique"] | None
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    renamed_from: str = ""


_Key: TypeAlias = tuple[KeyCodec, tuple[Field, ...]]
"""The codec of a model's key, and the columns in the order of the key."""


def _key(model: type[Table]) -> _Key:
    found: _Key | None = model.__dict__.get("_key")
    if found is None:
        definition = definition_of(model)
        fields = fields_of(model)
        found = KeyCodec(definition), tuple(fields[name] for name in definition.key)
        model._key = found  # noqa: SLF001 - a cache in the class
    return found


def is_table(model: type) -> bool:
    """Return True for a subclass of `Table` that has a name and is no view."""
    return issubclass(model, Table) and model.__dict__.get("_arguments") is not None and not is_view(model)


def is_view(model: type) -> bool:
    """Return True for a model of a view's rows that a class declares."""
    return issubclass(model, Table) and model._is_view  # noqa: SLF001 - of this module


def definition_of(model: type[Table]) -> TableDefinition:
    """Return the table definition of a model.

    Raises ConfigurationError if the model cannot be a table, TypeError if it is no subclass of `Table`.
    """
    if not (isinstance(model, type) and issubclass(model, Table)):  # type: ignore[redundant-expr]
        raise TypeError(f"{model!r} is no table: give a subclass of percolator_core.Table, or a table's name")
    found = model.__dict__.get("_definition")
    if found is None:
        found = _define(model)
        model._definition = found  # noqa: SLF001 - a cache in the class
    definition: TableDefinition = found
    return definition


def fields_of(model: type[Table]) -> dict[str, Field]:
    """Return the fields of a model as columns, by name. Raises ConfigurationError as `definition_of`."""
    if not model.__pydantic_complete__:
        model.model_rebuild()
    return {name: _field(model, name, info) for name, info in model.__pydantic_fields__.items()}


def _define(model: type[Table]) -> TableDefinition:
    arguments = model.__dict__.get("_arguments")
    if arguments is None:
        raise ConfigurationError(
            f"{model.__name__} has no name, so it is no table: write class {model.__name__}(Table, name=…)"
        )
    name, partition, notify_only = arguments
    fields = fields_of(model)
    key = tuple(one.column.name for one in fields.values() if one.role == "key")
    if not key:
        raise ConfigurationError(f"table {name!r}: no column is its key: declare one as PrimaryKey[…]")
    rules = partition or (Hash(*key, buckets=DEFAULT_TABLETS),)
    hashes = tuple(HashRule(rule.columns, rule.buckets) for rule in rules if isinstance(rule, Hash))
    ranges = [rule for rule in rules if isinstance(rule, Range)]
    if len(hashes) + len(ranges) < len(rules) or len(ranges) > 1:
        raise ConfigurationError(f"table {name!r}: partition is a list of Hash(…), and at most one Range(…)")
    if ranges and rules[-1] is not ranges[0]:
        raise ConfigurationError(f"table {name!r}: the Range(…) of a partition comes last")
    rule = _range_rule(name, ranges[0], fields) if ranges else None
    definition = TableDefinition(
        name,
        count_tablets(hashes, rule),
        tuple(sorted(set(notify_only))),
        columns=tuple(one.column for one in fields.values()),
        key=key,
        hashes=hashes,
        ranges=rule,
        indexes=tuple(
            IndexRule(one.column.name, one.role == "unique", f"{name}({one.column.name})")
            for one in fields.values()
            if one.role in {"index", "unique"}
        ),
    )
    check_definition(definition)
    return definition


def _range_rule(table: str, rule: Range, fields: dict[str, Field]) -> RangeRule:
    field = fields.get(rule.column)
    if field is None or field.role != "key":
        raise ConfigurationError(
            f"table {table!r}: {rule!r} uses {rule.column!r}, which is no column of the key: use a key "
            "column, or declare this column as PrimaryKey[…]"
        )
    try:
        splits = tuple(field.encode(split) for split in rule.splits)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"table {table!r}: {rule!r}: {error}") from None
    return RangeRule(rule.column, splits, tuple(range(len(splits) + 1)))


def _field(model: type[Table], name: str, info: FieldInfo) -> Field:
    where = f"{model.__name__}.{name}"
    metadata: list[Any] = list(info.metadata)
    annotation, nullable = unwrapped(info.annotation, metadata)
    roles = {one.name for one in metadata if isinstance(one, _Role)}
    if len(roles) > 1:
        raise ConfigurationError(f"{where}: use one of PrimaryKey, Indexed and Unique, not {len(roles)}")
    role = next(iter(roles), None)
    if annotation is NaiveDatetime:
        raise ConfigurationError(
            f"{where}: a time without a time zone cannot be stored: declare the field as datetime, and give "
            "aware values"
        )
    before = next((one.name for one in metadata if isinstance(one, RenamedFrom)), "")
    type_name, encode, decode = codec_of(annotation, metadata, where, info.annotation)
    if role == "key" and nullable:
        raise ConfigurationError(f"{where}: a column of the key cannot be null: leave out None")
    if role is not None and type_name == "json":
        raise ConfigurationError(
            f"{where}: JSON values have no order, so this column cannot be in a key or an index"
        )
    return Field(Column(name, type_name, nullable), role, encode, decode, before)


def column_of(column: object) -> tuple[type[Table], str]:
    """Return the model and the name of a column: of ``Document.page_rank``, or ``(Document, "page_rank")``.

    Raises TypeError for another object, UnknownColumn for a column that the model does not have, and
    ConfigurationError if the model cannot be a table.
    """
    model, name = (column.model, column.name) if isinstance(column, ColumnExpression) else (None, None)
    if isinstance(column, tuple) and len(column) == 2:
        model, name = column
    if not (isinstance(model, type) and issubclass(model, Table) and isinstance(name, str)):
        raise TypeError(f"{shown(column)} is no column of a model: give one, such as Document.page_rank")
    definition_of(model).column(name)
    return model, name
