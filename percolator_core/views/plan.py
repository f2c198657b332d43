"""The plan of a view: which rows it reads, what they give to it, and the table that it makes.

A plan has branches, one for each SELECT of a UNION ALL. The first input of a branch is its source: each
source row gives one contribution or none. The other inputs are looked up by their primary keys (joins).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from percolator_core.schema.definitions import TableDefinition, ViewRule
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.tables.model import Table
from percolator_core.views.groups import GroupSink
from percolator_core.views.output import view_model
from percolator_core.views.sinks import RowSink, TopSink
from percolator_core.views.typed import Row, Rows, Typed

Sink: TypeAlias = RowSink | GroupSink | TopSink

Found: TypeAlias = tuple[bytes, Mapping[str, bytes | None]]
"""A stored row: its row key, and its encoded values by column; a missing one is null or the default."""


class RowRefused(ValueError):
    """A row has no result in a view: a division by zero, a CAST that fails, a value that does not fit.

    The message names the view, the row and the reason. Change the row or the view; until then, the change of
    the row cannot be applied.
    """


@dataclass(frozen=True)
class Input:
    """A table that a branch reads, and the columns that it reads. A change of other columns is no change."""

    definition: TableDefinition
    columns: tuple[str, ...]

    @property
    def table(self) -> str:
        """The name of the table."""
        return self.definition.name

    @property
    def nothing(self) -> Row:
        """The row of a left join that finds none."""
        return (None,) * len(self.columns)

    def row(self, key: bytes, cells: Mapping[str, bytes | None]) -> Row:
        """Return the values of a stored row. Columns of the key are read from the row key."""
        parts = dict(zip(self.definition.key, self._codec.split(key), strict=True))
        return tuple(
            None if found is None else decode(found)
            for decode, found in (
                (decode, parts[name] if name in parts else cells.get(name, missing))
                for name, decode, missing in self._decoders
            )
        )

    @cached_property
    def _codec(self) -> KeyCodec:
        return KeyCodec(self.definition)

    @cached_property
    def _decoders(self) -> list[tuple[str, Callable[[bytes], Any], bytes | None]]:
        columns = [self.definition.column(name) for name in self.columns]
        return [(one.name, column_type(one.type).decode, one.missing) for one in columns]


@dataclass(frozen=True)
class Lookup:
    """A join: the row of the input ``number`` whose primary key is in columns of the input ``parent``.

    ``on`` has the pairs of key column and parent's column; ``constants`` the encoded values of the other
    key columns. If ``is_required`` is True, a row without match is left out (an inner join). ``index`` names
    the columns of the parent's table by which `referring` rows are found; an index of one of them is enough.
    """

    number: int
    parent: int
    definition: TableDefinition
    on: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, bytes], ...]
    is_required: bool
    match: Typed | None
    positions: tuple[int, ...]

    @property
    def table(self) -> str:
        """The name of the table that is looked up."""
        return self.definition.name

    @property
    def index(self) -> tuple[str, ...]:
        """The columns of the parent's table that refer to the row."""
        return tuple(dict.fromkeys(column for _, column in self.on))

    def key(self, rows: Rows) -> bytes | None:
        """Return the row key to look up, for the rows of the inputs before this one; None for no row."""
        values = [rows[self.parent][position] for position in self.positions]
        if None in values:
            return None
        parts = dict(self.constants)
        for (name, _), value in zip(self.on, values, strict=True):
            parts[name] = column_type(self.definition.by_name[name].type).encode(value)
        return KeyCodec(self.definition).join([parts[name] for name in self.definition.key])

    def referring(self, key: bytes) -> dict[str, bytes] | None:
        """Return the encoded values that columns of the parent's rows have if they refer to a row key.

        None: no row refers to it.
        """
        parts = dict(zip(self.definition.key, KeyCodec(self.definition).split(key), strict=True))
        if any(parts[name] != value for name, value in self.constants):
            return None
        found: dict[str, bytes] = {}
        for name, column in self.on:
            if found.setdefault(column, parts[name]) != parts[name]:
                return None
        return found

    def joined(self, rows: Rows, row: Row | None, nothing: Row) -> Rows | None:
        """Return the rows with the found one; None if the join leaves them out."""
        if row is not None:
            with_row = (*rows, row)
            if self.match is None or self.match.value(with_row) is True:
                return with_row
        return None if self.is_required else (*rows, nothing)


Contribute: TypeAlias = Callable[[bytes, Rows], bytes]


@dataclass(frozen=True)
class Branch:
    """One SELECT of a view: its inputs, its joins, and the contribution of a source row."""

    view: str
    number: int
    inputs: tuple[Input, ...]
    lookups: tuple[Lookup, ...]
    conditions: tuple[Typed, ...]
    contribute: Contribute = field(repr=False)

    @property
    def source(self) -> Input:
        """The table whose rows give contributions."""
        return self.inputs[0]

    def contribution(self, key: bytes, rows: Rows) -> bytes | None:
        """Return what a source row gives to the view; None for nothing.

        ``key`` is the row key of the source row, ``rows`` has the row of each input. Raises `RowRefused`.
        """
        try:
            for one in self.conditions:
                if one.value(rows) is not True:
                    return None
            return self.contribute(key, rows)
        except (ArithmeticError, TypeError, ValueError) as error:
            where = KeyCodec(self.source.definition).describe(key)
            raise RowRefused(f"view {self.view}, {self.source.table} row {where}: {error}") from error

    def joined(self, row: Row, get: Callable[[str, bytes], Found | None]) -> Rows | None:
        """Return the rows of all inputs for a source row; None if an inner join leaves it out.

        ``get`` returns the stored row of a table and row key. For many source rows at once, call `step`.
        """
        rows: Rows | None = (row,)
        for lookup in self.lookups:
            assert rows is not None
            key = lookup.key(rows)
            rows = self.step(lookup, rows, None if key is None else get(lookup.table, key))
            if rows is None:
                return None
        return rows

    def step(self, lookup: Lookup, rows: Rows, found: Found | None) -> Rows | None:
        """Return the rows with the one that a lookup found; None if the join leaves them out."""
        into = self.inputs[lookup.number]
        return lookup.joined(rows, None if found is None else into.row(*found), into.nothing)


@dataclass(frozen=True)
class ViewPlan:
    """A view: ``definition`` is that of its table, ``sink`` makes its rows of the branches' contributions.

    ``lineage`` has the source columns that a column of the view is computed of, as (table, column).
    ``fingerprint`` changes if the result may change: with the SQL, with the types and keys of source tables,
    with revisions of functions.
    """

    name: str
    sql: str
    definition: TableDefinition
    branches: tuple[Branch, ...]
    sink: Sink
    lineage: Mapping[str, frozenset[tuple[str, str]]]
    fingerprint: str

    @cached_property
    def stored(self) -> TableDefinition:
        """The definition of the table with the rows that this plan makes."""
        rule = ViewRule(self.name, self.fingerprint, self.sources)
        return self.definition.with_(name=rule.table, view=rule)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the tables that the view reads, each once."""
        return tuple(dict.fromkeys(one.table for branch in self.branches for one in branch.inputs))

    def reads(self, table: str) -> frozenset[str]:
        """Return the columns of a table that the view reads."""
        inputs = [one for branch in self.branches for one in branch.inputs if one.table == table]
        return frozenset(name for one in inputs for name in one.columns)

    @property
    def indexes(self) -> frozenset[tuple[str, tuple[str, ...]]]:
        """The indexes that joins need: a table, and columns of which one at least has an index.

        No index is needed of a column with which the table's key begins.
        """
        found = set()
        for branch in self.branches:
            for lookup in branch.lookups:
                parent = branch.inputs[lookup.parent].definition
                if parent.key[0] not in lookup.index:
                    found.add((parent.name, lookup.index))
        return frozenset(found)

    @cached_property
    def model(self) -> type[Table]:
        """A model of the view's rows."""
        return view_model(self.definition)
