"""The rows of a table that differ between two times.

Two snapshots are read side by side in key order. Both are pinned until the end. Memory is bounded: the client
holds one step of each scan, and a few hundred rows that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.database import Database
from percolator_core.runtime.batches import batched_by_size
from percolator_core.schema.partitions import pieces
from percolator_core.schema.predicates import Predicate, bind, columns_of
from percolator_core.tables import rows
from percolator_core.tables.binding import binding_of, model_of, table_name
from percolator_core.tables.model import Table
from percolator_core.tables.query import Query, in_order
from percolator_core.transaction.row_read import BYTES_AT_ONCE
from percolator_core.transaction.snapshot import Snapshot

_AT_ONCE: Final = 256
"""A batch has at most this many differing rows, and fewer if they are large. One request reads a batch."""

ChangeKind: TypeAlias = Literal["added", "removed", "changed"]
RowTest: TypeAlias = Callable[[bytes, Mapping[str, bytes]], bool]
"""Returns True if a row of a raw table is wanted; called with its key and its cells."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that differs.

    ``row`` is the key in the store. ``old`` and ``new`` are the row's values at the two times, None if the
    row does not exist then. The values of a raw table are bytes by column, without missing cells.
    The values of a typed table are Python values by column, or instances of the model that was given.
    """

    row: bytes
    old: Any
    new: Any
    names: tuple[str, ...]
    """The columns that differ."""

    @property
    def kind(self) -> ChangeKind:
        """The kind of the change: ``added``, ``removed`` or ``changed``."""
        if self.old is None:
            return "added"
        return "removed" if self.new is None else "changed"

    @property
    def columns(self) -> dict[str, tuple[Any, Any]]:
        """The old and the new value of each column that differs; None for no value."""
        return {name: (_value(self.old, name), _value(self.new, name)) for name in self.names}


def changes(
    db: Database,
    table: type[Table] | str,
    begin: int | datetime,
    end: int | datetime | None = None,
    *,
    where: Predicate | RowTest | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[RowChange]:
    """Yield the rows of a table that differ between two times, in the order of their keys.

    Args:
        db: the database.
        table: a model or a table's name.
        begin: the earlier time: a timestamp in microseconds or an aware datetime.
        end: the later time; None is now.
        where: only rows for which this is true at one of the times or both: a predicate for a typed table, a
            function for a raw table.
        columns: compare and return only these columns. A row of a raw table then exists only if it has at
            least one of these columns.

    Raises:
        UnknownTable, UnknownColumn: no such table or column.
        ConfigurationError: the model differs from the table.
        TypeError, ValueError: ``where`` is of the wrong kind; a time has no time zone or is in the future, or
            ``end`` is before ``begin``.
        SnapshotTooOld: garbage collection has passed ``begin``; raised during the iteration.
        LockTimeout, StoreUnavailable: as `Snapshot.get`; raised during the iteration.
    """
    earlier, later = db.snapshot(begin), db.snapshot(end)
    if later.start_timestamp < earlier.start_timestamp:
        raise ValueError(f"{end} is before {begin}: give the earlier time first")
    handle = db.catalog.table(table_name(table))
    source = _source(handle, table, where, columns)
    return _differing(earlier, later, source)


Cells: TypeAlias = Mapping[str, Any]
_Rows: TypeAlias = Generator[tuple[bytes, Cells], None, None]
_Pair: TypeAlias = tuple[bytes, Cells | None, Cells | None]
"""A row key, and the row's cells at both times; None if they were not read."""


def _differing(earlier: Snapshot, later: Snapshot, source: _Raw | _Typed) -> Iterator[RowChange]:
    with earlier, later, closing(source.read(earlier)) as left, closing(source.read(later)) as right:
        for some in batched_by_size(_side_by_side(left, right), _size, BYTES_AT_ONCE, _AT_ONCE):
            old = iter(source.completed(earlier, [row for row, cells, _ in some if cells is None]))
            new = iter(source.completed(later, [row for row, _, cells in some if cells is None]))
            for row, before, after in some:
                change = source.change(
                    row, next(old) if before is None else before, next(new) if after is None else after
                )
                if change is not None:
                    yield change


def _size(pair: _Pair) -> int:
    _, old, new = pair
    return sum([len(cell) for cells in (old, new) if cells for cell in cells.values() if cell])


def _side_by_side(
    left: Iterator[tuple[bytes, Cells]], right: Iterator[tuple[bytes, Cells]]
) -> Iterator[_Pair]:
    """Yield the rows that differ, in key order, with None for a row that one scan lacks."""
    old, new = next(left, None), next(right, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield *old, None
            old = next(left, None)
        elif old is None or new[0] < old[0]:
            yield new[0], None, new[1]
            new = next(right, None)
        else:
            if old[1] != new[1]:
                yield *old, new[1]
            old, new = next(left, None), next(right, None)


def _source(
    handle: TableHandle,
    table: type[Table] | str,
    where: Predicate | RowTest | None,
    columns: Sequence[str] | None,
) -> _Raw | _Typed:
    if handle.is_typed or not isinstance(table, str):
        return _Typed(handle, table, where, columns)
    if where is not None and (isinstance(where, Predicate) or not callable(where)):
        raise TypeError(f"{handle.name} is a raw table: where is a function of row key and cells")
    wanted = None if columns is None else [handle.columns[name].name for name in columns]
    return _Raw(handle.name, where, wanted)


class _Raw:
    """Reads a raw table: the interface is that of `_Typed`."""

    def __init__(self, table: str, where: RowTest | None, columns: Sequence[str] | None) -> None:
        self._table = table
        self._where = where
        self._columns = columns

    def read(self, snapshot: Snapshot) -> _Rows:
        # A filter can use any column, so all are read for it.
        yield from snapshot.scan(self._table, columns=self._columns if self._where is None else None)

    def completed(self, snapshot: Snapshot, some: Sequence[bytes]) -> Iterable[Cells | None]:  # noqa: ARG002
        return [None] * len(some)

    def change(self, row: bytes, old: Cells | None, new: Cells | None) -> RowChange | None:
        if self._where is not None:
            if not any(cells is not None and self._where(row, cells) for cells in (old, new)):
                return None
            old, new = self._narrowed(old), self._narrowed(new)
        names = tuple(sorted({*(old or ()), *(new or ())}))
        return _change(row, old, new, names)

    def _narrowed(self, cells: Cells | None) -> Cells | None:
        if cells is None or self._columns is None:
            return cells
        return {name: cells[name] for name in self._columns if name in cells} or None


class _Typed:
    """Reads a typed table. Equal values have equal bytes, so only rows that differ are decoded.

    `read` yields rows of a snapshot in the order of their keys; it may leave out rows that the filter does
    not accept. If it has left out a row at one of the two times, `completed` reads the row at that time.
    `change` returns the change of a row; None if the row has not changed, or is not wanted.
    """

    def __init__(
        self,
        handle: TableHandle,
        table: type[Table] | str,
        where: Any,
        columns: Sequence[str] | None,
    ) -> None:
        self._binding = binding_of(handle, model_of(table))
        definition = handle.definition
        chosen = self._binding.chosen(columns)
        self._columns = tuple(dict.fromkeys([*definition.key, *chosen]))
        self._names = tuple(self._binding.value_columns(chosen))
        self._bound = None if where is None else bind(where, definition)
        fields = tuple(definition.by_name[name] for name in self._names)
        self._query = Query(handle, fields, self._bound)
        asked = () if self._bound is None else columns_of(self._bound)
        self._may_differ = not set(asked) <= set(definition.key)
        """True if the filter may accept a row at one of the times and not at the other."""

    def read(self, snapshot: Snapshot) -> _Rows:
        chosen = pieces(self._query.handle.definition, self._bound)
        found = in_order(snapshot, self._query, chosen, limit=None, reverse=False)
        for row, values in found:
            yield row, dict(zip(self._names, values, strict=True))

    def completed(self, snapshot: Snapshot, some: Sequence[bytes]) -> Iterable[Cells | None]:
        if not self._may_differ:
            return [None] * len(some)
        return rows.read_many(snapshot, self._query.handle, some, self._names)

    def change(self, row: bytes, old: Cells | None, new: Cells | None) -> RowChange | None:
        found = _change(row, old, new, self._names)
        if found is None:
            return None
        return RowChange(row, self._decoded(row, old), self._decoded(row, new), found.names)

    def _decoded(self, row: bytes, cells: Cells | None) -> Any:
        return None if cells is None else self._binding.decode(row, cells, self._columns)


def _change(row: bytes, old: Cells | None, new: Cells | None, names: Iterable[str]) -> RowChange | None:
    if old is None and new is None:
        return None
    differ = tuple(name for name in names if _value(old, name) != _value(new, name))
    # If a row of nulls was added or removed, no value differs, but the row is a change.
    return RowChange(row, old, new, differ) if differ or old is None or new is None else None


def _value(cells: Any, name: str) -> Any:
    if cells is None or (isinstance(cells, Mapping) and name not in cells):
        return None
    return cells[name]
