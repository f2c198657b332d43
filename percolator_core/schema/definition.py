"""Definitions of tables, as the catalog keeps them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

from percolator_core.errors import UnknownColumn
from percolator_core.schema.types import shown

DEFAULT_TABLETS: Final = 16


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a typed table.

    ``type`` is one of `percolator_core.schema.types`, as text. ``stored`` is the column's name in the store:
    the one that it was made with, which no other column of the table ever gets, so a column is renamed
    without a touch of its data. ``missing`` is what a row has that has no cell: None, or the encoded default
    of a column that was added when there were rows already.
    """

    name: str
    type: str
    nullable: bool = False
    stored: str = ""
    missing: bytes | None = None

    def __post_init__(self) -> None:
        if not self.stored:
            object.__setattr__(self, "stored", self.name)


@dataclass(frozen=True, slots=True)
class HashRule:
    """Rows are spread over ``buckets`` by a hash of some key columns."""

    columns: tuple[str, ...]
    buckets: int


@dataclass(frozen=True, slots=True)
class RangeRule:
    """Rows are cut at the ``splits`` of a key column, which are encoded and ascend.

    A split belongs to the range above it. ``numbers`` has one number for each range, in order: it tells which
    tablets are the range's, so that one that is added later moves none of the others.
    """

    column: str
    splits: tuple[bytes, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexRule:
    """An index of ``column``, kept in the table ``table``; a unique one refuses a value that a row has."""

    column: str
    unique: bool
    table: str


@dataclass(frozen=True)
class TableDefinition:
    """A table. A raw one has cells of bytes, a typed one has ``columns``.

    ``tablets`` is how many it is cut into. A raw table's are chosen by a hash of the row key, a typed one's
    by ``hashes`` and then ``ranges`` over columns of its key. ``notify_only`` columns hold no data:
    ``Transaction.notify`` marks them and weak observers watch them.

    ``key`` are the names of the columns that a row is known by, in order. ``retired`` are stored names of
    columns that were dropped, which are never used again. ``index_of`` is the table that this one indexes.
    """

    name: str
    tablets: int = DEFAULT_TABLETS
    notify_only: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    key: tuple[str, ...] = ()
    hashes: tuple[HashRule, ...] = ()
    ranges: RangeRule | None = None
    indexes: tuple[IndexRule, ...] = ()
    retired: tuple[str, ...] = ()
    index_of: str = ""

    @property
    def is_typed(self) -> bool:
        """Whether its rows have typed columns."""
        return bool(self.columns)

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """The columns by their names."""
        return {column.name: column for column in self.columns}

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in the order of the key."""
        return tuple(self.by_name[name] for name in self.key)

    @cached_property
    def value_columns(self) -> tuple[Column, ...]:
        """The other columns."""
        return tuple(column for column in self.columns if column.name not in self.key)

    def column(self, name: str) -> Column:
        """The column of that name. Raises UnknownColumn, which names those that there are."""
        found = self.by_name.get(name)
        if found is None:
            names = ", ".join(self.by_name) or "none, because it is not typed"
            raise UnknownColumn(f"{self.name} has no column {shown(name)}: it has {names}")
        return found

    def with_(self, **changes: Any) -> Self:
        """The definition with some fields changed."""
        return replace(self, **changes)


def to_json(definition: TableDefinition) -> dict[str, Any]:
    """The definition in types that JSON has; bytes are hexadecimal. A raw table's has what it needs."""
    plain: dict[str, Any] = {
        "name": definition.name,
        "tablets": definition.tablets,
        "notify_only": list(definition.notify_only),
    }
    if not definition.is_typed:
        return plain
    ranges = definition.ranges
    return plain | {
        "columns": [_column_to_json(column) for column in definition.columns],
        "key": list(definition.key),
        "hashes": [{"columns": list(rule.columns), "buckets": rule.buckets} for rule in definition.hashes],
        "ranges": ranges
        and {
            "column": ranges.column,
            "splits": [split.hex() for split in ranges.splits],
            "numbers": list(ranges.numbers),
        },
        "indexes": [
            {"column": rule.column, "unique": rule.unique, "table": rule.table} for rule in definition.indexes
        ],
        "retired": list(definition.retired),
        "index_of": definition.index_of,
    }


def from_json(found: dict[str, Any]) -> TableDefinition:
    """The inverse of `to_json`; what is missing is as in a raw table."""
    ranges = found.get("ranges")
    return TableDefinition(
        found["name"],
        found["tablets"],
        tuple(found["notify_only"]),
        columns=tuple(_column_from_json(column) for column in found.get("columns", ())),
        key=tuple(found.get("key", ())),
        hashes=tuple(HashRule(tuple(rule["columns"]), rule["buckets"]) for rule in found.get("hashes", ())),
        ranges=ranges
        and RangeRule(
            ranges["column"],
            tuple(bytes.fromhex(split) for split in ranges["splits"]),
            tuple(ranges["numbers"]),
        ),
        indexes=tuple(
            IndexRule(rule["column"], rule["unique"], rule["table"]) for rule in found.get("indexes", ())
        ),
        retired=tuple(found.get("retired", ())),
        index_of=found.get("index_of", ""),
    )


def _column_to_json(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "nullable": column.nullable,
        "stored": column.stored,
        "missing": None if column.missing is None else column.missing.hex(),
    }


def _column_from_json(found: dict[str, Any]) -> Column:
    missing = found["missing"]
    return Column(
        found["name"],
        found["type"],
        found["nullable"],
        found["stored"],
        None if missing is None else bytes.fromhex(missing),
    )
