"""The conditions of a rerun, as a filter on the rows of one table.

Conditions on the revision apply to the acknowledgement. For a raw table the others compare the row key and
cells as bytes. For a typed table they are predicates on values, also of the columns of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Any, Protocol, TypeAlias

from percolator_core.admin.condition import REVISION, ROW, Condition
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.key_ranges import KeyRange, scan_bounds
from percolator_core.schema.expression import parse
from percolator_core.schema.partitions import pieces
from percolator_core.schema.predicates import Predicate, bind, columns_of
from percolator_core.schema.row_keys import KeyCodec

Asked: TypeAlias = str | Condition | Predicate
"""A condition as the caller gives it."""


class RowFilter(Protocol):
    """A filter on the rows of one table."""

    @property
    def columns(self) -> tuple[bytes, ...]:
        """The encoded columns whose values `holds` needs."""

    @property
    def ranges(self) -> list[KeyRange]:
        """The key ranges that can contain such rows."""

    def holds(self, row: bytes, cells: Sequence[bytes | None]) -> bool:
        """Return True for a row that meets the filter; ``cells`` are the values of ``columns``."""


def revision_conditions(where: Iterable[Asked]) -> list[Condition]:
    """Return the conditions on the revision. Raise ValueError for an invalid one."""
    return [
        Condition.parse(one) if isinstance(one, str) else one
        for one in where
        if not isinstance(one, Predicate) and _name_of(one) == REVISION
    ]


def row_filter(
    handle: TableHandle, where: Iterable[Asked], to_bytes: Callable[[str], bytes] = str.encode
) -> RowFilter:
    """Return the other conditions as a filter on a table.

    ``to_bytes`` converts the values in texts for raw tables to bytes.

    Raises:
        UnknownColumn: a condition names a column that does not exist or is notify-only.
        TypeError, ValueError: a condition cannot be parsed, compares values of different types, or is not of
            the table's kind.
    """
    others = [one for one in where if isinstance(one, Predicate) or _name_of(one) != REVISION]
    return _Typed(handle, others) if handle.is_typed else _Raw(handle, others, to_bytes)


def _name_of(one: str | Condition) -> str:
    return (Condition.name_in(one) if isinstance(one, str) else one.name) or ""


class _Raw:
    def __init__(self, handle: TableHandle, where: Iterable[Asked], to_bytes: Callable[[str], bytes]) -> None:
        conditions = []
        for one in where:
            if isinstance(one, Predicate):
                raise TypeError(f"{handle.name} is a raw table: its rows meet conditions such as language=en")
            conditions.append(Condition.parse(one, to_bytes) if isinstance(one, str) else one)
        self._of_the_row = [one for one in conditions if one.name == ROW]
        self._of_columns = [one for one in conditions if one.name != ROW]
        self.columns = tuple(handle.columns[one.name].encoded for one in self._of_columns)
        low, high = _bounds(self._of_the_row)
        if high is not None and low >= high:
            tags: Sequence[bytes] = ()
        else:
            tags = [handle.tag(low)] if high == low + b"\0" else handle.tags
        self.ranges = [(tag, low, high) for tag in tags]

    def holds(self, row: bytes, cells: Sequence[bytes | None]) -> bool:
        return all(one.holds(row) for one in self._of_the_row) and all(
            one.holds(found) for one, found in zip(self._of_columns, cells, strict=True)
        )


class _Typed:
    def __init__(self, handle: TableHandle, where: Iterable[Asked]) -> None:
        definition = handle.definition
        predicates: list[Predicate] = []
        for one in where:
            if isinstance(one, Condition):
                raise TypeError(f"{handle.name} is typed: ask for values, such as with {one.name} {one.op} …")
            predicates.append(parse(one, definition) if isinstance(one, str) else one)
        self._bound = bind(reduce(and_, predicates), definition) if predicates else None
        asked = [] if self._bound is None else list(dict.fromkeys(columns_of(self._bound)))
        self._names = [name for name in asked if name not in definition.key]
        self._definition = definition
        self._codec = KeyCodec(definition)
        # A removed row has no values, not even the default of a column that was added later.
        fields = [handle.marker, *(handle.columns[name] for name in self._names)] if self._names else []
        self.columns = tuple(one.encoded for one in fields)
        self.ranges = [
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


def _bounds(of_the_row: Iterable[Condition]) -> tuple[bytes, bytes | None]:
    """The bounds of row keys that can meet the conditions on the row key: inclusive, exclusive."""
    low, high = b"", None
    for condition in of_the_row:
        value = condition.value
        assert isinstance(value, bytes)
        least, above = {
            "=": (value, value + b"\0"),
            "<": (b"", value),
            "<=": (b"", value + b"\0"),
            ">": (value + b"\0", None),
            ">=": (value, None),
            "!=": (b"", None),
            "^=": scan_bounds(None, None, value),
        }[condition.op]
        low = max(low, least)
        if above is not None:
            high = above if high is None else min(high, above)
    return low, high
