"""Table definitions, as the catalog has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

from percolator_core.errors import ConfigurationError, UnknownColumn
from percolator_core.runtime.html import html_table
from percolator_core.schema.types import column_type, shown

DEFAULT_TABLETS: Final = 16


@dataclass(frozen=True, slots=True)
class Copy:
    """The unfinished change of a column's type: another column is filled from the column ``source``.

    ``nullable`` is True if the column may be null after the change. If it may not, ``if_null`` is the encoded
    value that replaces null, and the later `Column.default`; if that is None too, null is refused.
    """

    source: str
    nullable: bool
    if_null: bytes | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a typed table.

    ``type`` names a type of `percolator_core.schema.types`. ``stored`` is the column's name in the store,
    which never changes and is never used for another column. ``missing`` is the encoded value of a row
    without a cell: None for null, or the default of a column that was added to a table with rows. ``default``
    is the encoded value of the cell that a new row gets if the writer gives none. A column with ``copy`` is
    internal: no program reads it until all rows are copied. Then it replaces the column ``copy.source``.
    """

    name: str
    type: str
    nullable: bool = False
    stored: str = ""
    missing: bytes | None = None
    default: bytes | None = None
    copy: Copy | None = None

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
    """An index of ``column``, in the table ``table``; a unique index allows each value once.

    Every snapshot from the timestamp ``complete_from`` on finds all entries. None means that the index is
    being built: writers keep its entries, and no select uses it.
    """

    column: str
    unique: bool
    table: str
    complete_from: int | None = 0


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
        """Location and folder."""
        return self.location, self.folder

    def agrees_with(self, other: BaseRule | None) -> bool:
        """Return True if the other rule differs at most in the folder, which each table has for itself."""
        return other is not None and replace(other, folder=self.folder) == self


NEW: Final = ""
UNFILLED: Final = "unfilled"
FILLED: Final = "filled"
MISSED: Final = "missed"
DROPPED: Final = "dropped"
"""The states of a version of a view: its observers are not active yet, or it has only the rows that were
changed since, or it was given all rows of its tables, or its observers were not active for some time, or it
is being dropped."""


@dataclass(frozen=True, slots=True)
class ViewRule:
    """Says that a table belongs to a version of a view: only runs of that version write it.

    ``view`` is the name of the view, ``fingerprint`` that of the plan that makes the rows. ``sources`` are
    the tables that the version reads: their rows have its acknowledgements. The name of the view stands for
    the version with the greatest number ``shown``; 0 means not shown. ``state`` is one of the states above.
    Of the tables of a version, that with the rows has ``shown`` and ``state``.
    """

    view: str
    fingerprint: str
    sources: tuple[str, ...] = ()
    shown: int = 0
    state: str = NEW

    @property
    def writer(self) -> str:
        """The fingerprint of the plan whose runs write the table; of none if the table is being dropped."""
        return DROPPED if self.state == DROPPED else self.fingerprint

    @property
    def table(self) -> str:
        """The name of the table with the rows of this version."""
        return f"{self.view}__{self.fingerprint[:8]}"


@dataclass(frozen=True)
class TableDefinition:
    """A raw table with cells of bytes, or a typed table with ``columns``.

    ``tablets`` is the number of tablets. In a raw table, a hash of the row key determines the tablet of a
    row. In a typed table, ``hashes`` and then ``ranges`` over key columns determine the tablet.
    ``notify_only`` columns hold no data: ``Transaction.notify`` marks them for weak observers. ``key`` names
    the columns of the primary key, in order. ``retired`` has the stored names of dropped columns, which are
    never used again. ``index_of`` is the name of the indexed table, if this is the table of an index.
    ``base`` is the table's columnar base, if it has one. ``view`` says which view the table belongs to. A
    definition with the name of the view itself stands for the table `stored`.
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
    view: ViewRule | None = None

    @property
    def stored(self) -> str:
        """The name of the table in the store."""
        return self.view.table if self.view is not None and self.name == self.view.view else self.name

    def observers(self, observed: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
        """Return the observers of each column of this table, from those of each table and column.

        A table with the rows of a view is also observed under the name of the view.
        """
        has_rows = self.view is not None and self.stored == self.view.table
        names = (self.stored, self.view.view) if self.view is not None and has_rows else (self.name,)
        found: dict[str, list[str]] = {}
        for name in names:
            for column, observers in observed.get(name, {}).items():
                found.setdefault(column, []).extend(observers)
        return found

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

    @cached_property
    def copies(self) -> tuple[Column, ...]:
        """The internal columns of unfinished changes of types."""
        return tuple(column for column in self.columns if column.copy is not None)

    @cached_property
    def defaults(self) -> dict[str, bytes]:
        """The cells of a new row for which the writer gives no value, by column."""
        return {column.name: column.default for column in self.columns if column.default is not None}

    @cached_property
    def shown_columns(self) -> tuple[Column, ...]:
        """The columns that programs see: all but `copies`."""
        return tuple(column for column in self.columns if column.copy is None)

    @cached_property
    def shown_indexes(self) -> tuple[IndexRule, ...]:
        """The indexes of the columns that programs see."""
        return tuple(rule for rule in self.indexes if self.by_name[rule.column].copy is None)

    def column(self, name: str) -> Column:
        """Return a column that programs see. Raises UnknownColumn with a list of the columns."""
        found = self.by_name.get(name)
        if found is None or found.copy is not None:
            names = ", ".join(one.name for one in self.shown_columns) or "none, because it is not typed"
            raise UnknownColumn(f"{self.name} has no column {shown(name)}: it has {names}")
        return found

    def refuse_of_view(self) -> None:
        """Raise ConfigurationError if the table belongs to a view: nobody but the view writes it."""
        if self.view is not None:
            what = "is a view" if self.name == self.view.view else f"belongs to the view {self.view.view}"
            raise ConfigurationError(f"{self.name} {what}: change the tables that the view reads")

    def _repr_html_(self) -> str:
        """Show the columns of a typed table, or the settings of a raw one, in a notebook."""
        title = f"table {self.name}: {self.tablets} tablets"
        if not self.is_typed:
            return html_table(["notify-only columns"], [[name] for name in self.notify_only], f"{title}, raw")
        rules = {rule.column: "unique" if rule.unique else "index" for rule in self.indexes}
        rows: list[list[object]] = [
            [one.name, one.type, "key" if one.name in self.key else rules.get(one.name, ""), one.nullable]
            for one in self.columns
        ]
        rows += [[name, "", "notify-only", ""] for name in self.notify_only]
        return html_table(["column", "type", "role", "may be null"], rows, title)

    def with_(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


class TableDefinitions(list[TableDefinition]):
    """Definitions of tables, which a notebook shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        columns = ["table", "tablets", "key", "columns", "notify-only", "base"]
        return html_table(columns, map(_summary, self))


def _summary(one: TableDefinition) -> list[object]:
    names = [", ".join(some) for some in (one.key, one.by_name, one.notify_only)]
    base = "" if one.base is None else one.base.location
    return [one.name, one.tablets, *(names if one.is_typed else ["row", "any", names[2]]), base]


def count_tablets(hashes: Sequence[HashRule], ranges: RangeRule | None) -> int:
    """Return the number of tablets that the rules make."""
    return math.prod(rule.buckets for rule in hashes) * (len(ranges.numbers) if ranges else 1)


def index_definition(definition: TableDefinition, rule: IndexRule) -> TableDefinition:
    """Return the definition of the table of an index (`percolator_core.tables.indexes`).

    Raises ConfigurationError if the column does not exist, is part of the key, or has no order.
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
    columns: tuple[Column, ...]
    if rule.unique:
        columns = value, Column("row" if value.name != "row" else "row_", "bytes")
    else:
        columns = value, *(Column(one.stored, one.type) for one in definition.key_columns)
    return TableDefinition(
        rule.table,
        definition.tablets,
        columns=columns,
        key=(value.name,) if rule.unique else tuple(one.name for one in columns),
        hashes=(HashRule((value.name,), definition.tablets),),
        index_of=definition.name,
    )


def to_json(definition: TableDefinition) -> dict[str, Any]:
    """Return the definition as JSON types. Bytes become hexadecimal text; a raw table has few fields."""
    found: dict[str, Any] = _plain(asdict(definition))
    for name in [name for name in ("base", "view") if found[name] is None]:
        del found[name]
    # A program that does not know these fields can read the definition while they are not in use.
    for column in found["columns"]:
        for name in [name for name in ("default", "copy") if column[name] is None]:
            del column[name]
    for rule in found["indexes"]:
        if rule["complete_from"] == 0:
            del rule["complete_from"]
    if not definition.is_typed:
        fields = ("name", "tablets", "notify_only", "base", "view")
        return {name: found[name] for name in fields if name in found}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def from_json(found: dict[str, Any]) -> TableDefinition:
    """Return the definition that `to_json` wrote."""
    ranges, view = found.get("ranges"), found.get("view")
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
            IndexRule(rule["column"], rule["unique"], rule["table"], rule.get("complete_from", 0))
            for rule in found.get("indexes", ())
        ),
        retired=tuple(found.get("retired", ())),
        index_of=found.get("index_of", ""),
        base=BaseRule(**found["base"]) if "base" in found else None,
        view=view and ViewRule(**{**view, "sources": tuple(view["sources"])}),
    )


def _column_from_json(found: dict[str, Any]) -> Column:
    copy = found.get("copy")
    if copy is not None:
        copy = Copy(copy["source"], copy["nullable"], _bytes(copy["if_null"]))
    missing, default = _bytes(found["missing"]), _bytes(found.get("default"))
    return Column(**{**found, "missing": missing, "default": default, "copy": copy})


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
