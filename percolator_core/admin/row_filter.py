"""The conditions by which a rerun chooses an observer's cells, as filters of one table.

A text that begins with ``revision`` is a condition on the last run for a cell. Each other condition is a
predicate over the row: over row key and cells in a raw table, over the columns in a typed table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Any, Final, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.key_ranges import KeyRange
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.expression import RawFilter, parse
from percolator_core.schema.literals import tokens
from percolator_core.schema.partitions import pieces
from percolator_core.schema.predicates import Joined, Predicate, bind, columns_of
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type

REVISION: Final = "revision"
"""The word for the revision of the code that ran last for a cell. The revision is 0 if no code has run."""

_RUN: Final = TableDefinition("a run", columns=(Column(REVISION, "int"),), key=(REVISION,))

Asked: TypeAlias = str | Predicate
"""A condition: a text or a predicate."""


RowFilter: TypeAlias = "_Raw | _Typed"
"""A filter for the rows of one table.

``columns`` are the encoded columns that the filter reads. Only rows in ``ranges`` can meet the filter.
``holds`` returns True if a row with these values of ``columns`` meets the filter.
"""


def is_on_revision(one: Asked) -> bool:
    """Return True for a text whose first word is ``revision``. Raises ValueError for an unreadable text."""
    return isinstance(one, str) and next(tokens(one)).word == REVISION


def revision_filter(where: Iterable[Asked]) -> Callable[[int], bool]:
    """Return a function that returns True for a revision that meets all conditions on the revision.

    Raises:
        UnknownColumn: a condition on the revision also names a column.
        ValueError: a condition cannot be read.
    """
    found = [parse(one, _RUN) for one in where if isinstance(one, str) and is_on_revision(one)]
    bound = bind(reduce(and_, found, Joined("and", ())), _RUN)
    encode = column_type("int").encode
    return lambda revision: bound.holds(lambda _: encode(revision)) is True


def row_filter(handle: TableHandle, where: Iterable[Asked]) -> RowFilter:
    """Return a filter for the rows of a table, from the conditions that are not on the revision.

    Raises:
        UnknownColumn: a condition names a column that does not exist, or is notify-only.
        TypeError, ValueError: a condition cannot be read, or compares with a value of another type.
    """
    others = [one for one in where if not is_on_revision(one)]
    return _Typed(handle, others) if handle.is_typed else _Raw(handle, others)


class _Raw:
    def __init__(self, handle: TableHandle, where: Iterable[Asked]) -> None:
        self._filter = RawFilter.of(where, handle.name)
        self.columns = tuple(handle.columns[name].encoded for name in self._filter.columns)
        self.ranges: list[KeyRange] = [
            (tag, low, high)
            for low, high in self._filter.key_ranges()
            for tag in ([handle.tag(low)] if high == low + b"\0" else handle.tags)
        ]

    def holds(self, row: bytes, cells: Sequence[bytes | None]) -> bool:
        return self._filter.holds(row, dict(zip(self._filter.columns, cells, strict=True)))


class _Typed:
    def __init__(self, handle: TableHandle, where: Iterable[Asked]) -> None:
        definition = handle.definition
        predicates = [parse(one, definition) if isinstance(one, str) else one for one in where]
        self._bound = bind(reduce(and_, predicates), definition) if predicates else None
        asked = [] if self._bound is None else list(dict.fromkeys(columns_of(self._bound)))
        self._names = [name for name in asked if name not in definition.key]
        self._definition = definition
        self._codec = KeyCodec(definition)
        # The marker is read, too: a removed row has no values, not even the default of a later column.
        fields = [handle.marker, *(handle.columns[name] for name in self._names)] if self._names else []
        self.columns = tuple(one.encoded for one in fields)
        self.ranges: list[KeyRange] = [
            (handle.tags[piece.tablet], piece.low, piece.high) for piece in pieces(definition, self._bound)
        ]

    def holds(self, row: bytes, cells: Sequence[bytes | None]) -> bool:
        if self._bound is None:
            return True
        if cells and cells[0] is None:
            return False
        definition = self._definition
        known: dict[str, Any] = dict(zip(definition.key, self._codec.split(row), strict=True))
        for name, value in zip(self._names, cells[1:], strict=True):
            known[name] = definition.by_name[name].missing if value is None else value
        return self._bound.holds(known.__getitem__) is True
