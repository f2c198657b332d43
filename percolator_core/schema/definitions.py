"""Table definitions, as the catalog has them, and the checks of a definition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

from percolator_core.errors import ConfigurationError, UnknownColumn
from percolator_core.layout.keys import check_name, encode_column
from percolator_core.layout.records import MAX_TABLETS
from percolator_core.schema.types import column_type, shown

DEFAULT_TABLETS: Final = 16

MOST_COLUMNS: Final = 1000
"""A typed table has at most this many columns, because a row is written and removed as a whole."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a typed table.

    ``type`` names a type of `percolator_core.schema.types`. ``stored`` is the column's name in the store. A
    stored name never changes and is never used for another column, so a rename changes no data. ``missing``
    is the encoded value that the column has in a row without a cell: None for null, or the default of a
    column that was added to a table with rows.
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
    """Rows are divided at the ``splits`` of a key column. The splits are encoded values in ascending order.

    A split is the first value of a range. ``numbers`` has a number for each range, in the order of the
    ranges. The number determines the tablets of the range, so a new range moves no other range.
    """

    column: str
    splits: tuple[bytes, ...]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexRule:
    """An index of ``column``, in the table ``table``; a unique index allows each value once."""

    column: str
    unique: bool
    table: str


@dataclass(frozen=True, slots=True)
class BaseRule:
    """The columnar base of a table.

    ``location`` is the URL of a folder or bucket. The table's files are in its folder ``folder``, which no
    other table uses. A flush moves the rows that were not changed for ``cold_after`` microseconds. If
    ``cold_after`` is None, the age of a row does not matter. If the table has more than ``memory`` bytes in
    the store, a flush also moves the rows that were changed longest ago; None means no limit.
    """

    location: str
    folder: str
    cold_after: int | None = None
    memory: int | None = None

    @property
    def place(self) -> tuple[str, str]:
        """The location and the folder in it."""
        return self.location, self.folder


@dataclass(frozen=True)
class TableDefinition:
    """A raw table with cells of bytes, or a typed table with ``columns``.

    ``tablets`` is the number of tablets. In a raw table, a hash of the row key determines the tablet of a
    row. In a typed table, ``hashes`` and then ``ranges`` over key columns determine the tablet.
    ``notify_only`` columns hold no data: ``Transaction.notify`` marks them for weak observers. ``key`` names
    the columns of the primary key, in order. ``retired`` has the stored names of dropped columns, which are
    never used again. ``index_of`` is the name of the indexed table, if this is the table of an index.
    ``base`` is the table's columnar base, if it has one.
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
    base: BaseRule | None = None

    @property
    def is_typed(self) -> bool:
        """True if the rows have typed columns."""
        return bool(self.columns)

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """The columns by name."""
        return {column.name: column for column in self.columns}

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns of the key, in the order of the key."""
        return tuple(self.by_name[name] for name in self.key)

    @cached_property
    def value_columns(self) -> tuple[Column, ...]:
        """The columns outside the key."""
        return tuple(column for column in self.columns if column.name not in self.key)

    def column(self, name: str) -> Column:
        """Return the column. Raises UnknownColumn with a list of the columns."""
        found = self.by_name.get(name)
        if found is None:
            names = ", ".join(self.by_name) or "none, because it is not typed"
            raise UnknownColumn(f"{self.name} has no column {shown(name)}: it has {names}")
        return found

    def with_(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def count_tablets(hashes: Sequence[HashRule], ranges: RangeRule | None) -> int:
    """Return the number of tablets that the rules make."""
    return math.prod(rule.buckets for rule in hashes) * (len(ranges.numbers) if ranges else 1)


def index_definition(definition: TableDefinition, rule: IndexRule) -> TableDefinition:
    """Return the definition of the table of an index (`percolator_core.tables.indexes`).

    Raises:
        ConfigurationError: the column does not exist, is part of the key, or has a type without an order.
    """
    where = f"table {definition.name!r}, index of {rule.column!r}"
    column = definition.by_name.get(rule.column)
    if column is None:
        raise ConfigurationError(
            f"{where}: there is no such column: the table has {', '.join(definition.by_name)}"
        )
    if rule.column in definition.key:
        raise ConfigurationError(
            f"{where}: the key already has this column, so the index is not needed; remove it"
        )
    if not column_type(column.type).has_order:
        raise ConfigurationError(
            f"{where}: the column is {column.type}, which has no order: index another column"
        )
    # The index uses stored names, and its columns are found by position, so a rename does not change it.
    value = Column(column.stored, column.type)
    others: tuple[Column, ...]
    if rule.unique:
        others = (Column("row" if value.name != "row" else "row_", "bytes"),)
    else:
        others = tuple(Column(one.stored, one.type) for one in definition.key_columns)
    return TableDefinition(
        rule.table,
        definition.tablets,
        columns=(value, *others),
        key=(value.name,) if rule.unique else (value.name, *(one.name for one in others)),
        hashes=(HashRule((value.name,), definition.tablets),),
        index_of=definition.name,
    )


def to_json(definition: TableDefinition) -> dict[str, Any]:
    """Return the definition as JSON types. Bytes become hexadecimal text; a raw table has few fields."""
    found: dict[str, Any] = _plain(asdict(definition))
    if definition.base is None:
        del found["base"]
    if not definition.is_typed:
        return {name: found[name] for name in ("name", "tablets", "notify_only", "base") if name in found}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def from_json(found: dict[str, Any]) -> TableDefinition:
    """Return the definition that `to_json` wrote."""
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
        base=BaseRule(**found["base"]) if "base" in found else None,
    )


def _column_from_json(found: dict[str, Any]) -> Column:
    missing = found["missing"]
    return Column(**{**found, "missing": None if missing is None else bytes.fromhex(missing)})


def check_definition(definition: TableDefinition) -> None:
    """Check that a table can have this definition.

    Raises:
        ConfigurationError: the table cannot have it; the message names the table, the fault and the remedy.
        TypeError: ``tablets`` is no int, or a name is not str.
    """
    where = f"table {definition.name!r}"
    try:
        check_name("table name", definition.name)
        for name in definition.notify_only:
            encode_column(name)
        for column in definition.columns:
            check_name("typed table's column name", column.name)
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    if not isinstance(definition.tablets, int):
        raise TypeError(f"tablets is int, not {type(definition.tablets).__name__}")
    if definition.is_typed:
        _check_columns(definition, where)
        _check_partition(definition, where)
    if not 1 <= definition.tablets <= MAX_TABLETS:
        raise ConfigurationError(f"{where}: tablets is 1 to {MAX_TABLETS}, not {definition.tablets}")


def _check_columns(definition: TableDefinition, where: str) -> None:
    if len(definition.columns) > MOST_COLUMNS:
        raise ConfigurationError(
            f"{where} has {len(definition.columns)} columns, and may have {MOST_COLUMNS}"
        )
    for names in (
        (column.name for column in definition.columns),
        (*(column.stored for column in definition.columns), *definition.retired),
        definition.key,
    ):
        twice = _repeated(names)
        if twice:
            raise ConfigurationError(f"{where} has the column {twice!r} twice: leave one out")
    both = set(definition.by_name) & set(definition.notify_only)
    if both:
        raise ConfigurationError(f"{where}: {min(both)!r} holds data, so it cannot be notify-only")
    if not definition.key:
        raise ConfigurationError(f"{where} has no key: declare a column as PrimaryKey[…]")
    for name in (*definition.key, *(rule.column for rule in definition.indexes)):
        if name not in definition.by_name:
            raise ConfigurationError(
                f"{where} has no column {name!r}: it has {', '.join(definition.by_name)}"
            )
    for column in definition.columns:
        _check_column(definition, column, where)


def _check_column(definition: TableDefinition, column: Column, where: str) -> None:
    try:
        kind = column_type(column.type)
    except ValueError as error:
        raise ConfigurationError(f"{where}, column {column.name!r}: {error}") from None
    if column.name in definition.key and (column.nullable or not kind.has_order):
        why = "may be null" if column.nullable else f"is {kind.name}, which has no order"
        raise ConfigurationError(f"{where}: {column.name!r} {why}, so it cannot be in the key")


def _check_partition(definition: TableDefinition, where: str) -> None:
    hashed = [name for rule in definition.hashes for name in rule.columns]
    ranged = [definition.ranges.column] if definition.ranges else []
    for name in (*hashed, *ranged):
        if name not in definition.key:
            raise ConfigurationError(
                f"{where}: a partition rule uses {name!r}, which is no column of the key: "
                f"the key is {', '.join(definition.key)}"
            )
    for rule in definition.hashes:
        _check_hash(rule, where)
    twice = _repeated(hashed)
    if twice:
        raise ConfigurationError(f"{where}: {twice!r} is hashed twice: name it in one Hash(…)")
    if definition.ranges is not None:
        _check_range(definition.ranges, where)
    if not definition.hashes and definition.ranges is None:
        raise ConfigurationError(f"{where} has no partition rule: give it a Hash(…) or a Range(…)")
    made = count_tablets(definition.hashes, definition.ranges)
    if definition.tablets != made:
        raise ConfigurationError(f"{where}: the rules make {made} tablets, not {definition.tablets}")


def _check_hash(rule: HashRule, where: str) -> None:
    if not rule.columns:
        raise ConfigurationError(f"{where}: a Hash(…) names no column: name columns of the key")
    if isinstance(rule.buckets, bool) or not isinstance(rule.buckets, int):
        raise TypeError(f"buckets is int, not {type(rule.buckets).__name__}")
    if not 1 <= rule.buckets <= MAX_TABLETS:
        raise ConfigurationError(f"{where}: buckets is 1 to {MAX_TABLETS}, not {rule.buckets}")


def _check_range(rule: RangeRule, where: str) -> None:
    if list(rule.splits) != sorted(set(rule.splits)):
        raise ConfigurationError(
            f"{where}: the splits of Range({rule.column!r}) do not ascend: put them in order, each once"
        )
    if sorted(rule.numbers) != list(range(len(rule.splits) + 1)):
        raise ConfigurationError(
            f"{where}: the ranges of {rule.column!r} must have the numbers 0 to {len(rule.splits)}, each once"
        )


def _repeated(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)
