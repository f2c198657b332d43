"""Rows put into a tablet as commits leave them, version by version, and what they were at each time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from percolator_core import Database
from percolator_core.catalog.table_handle import TableHandle
from percolator_core.layout.keys import MARKER, encode_mark, pack_column
from percolator_core.layout.records import DELETE, PUT
from percolator_core.schema.definitions import Column, TableDefinition
from percolator_core.schema.predicates import Bound
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.scripts.replies import Selected
from percolator_core.tables.select import Batch, TabletSelect

State = Mapping[str, bytes | None]
"""The values of a row's cells; those that are not there have none, whatever the column's default."""

numbers = itertools.count()


def definition_of(key: Sequence[Column], values: Sequence[Column]) -> TableDefinition:
    """A table of one tablet, of a name that no other one has."""
    names = tuple(column.name for column in key)
    return TableDefinition(f"t{next(numbers)}", 1, columns=(*key, *values), key=names)


def version(timestamp: int, value: bytes | None) -> bytes:
    kind = DELETE if value is None else PUT
    return timestamp.to_bytes(8, "big") + bytes([kind]) + (timestamp - 1).to_bytes(7, "big") + (value or b"")


@dataclass
class Laid:
    """A table, and of each row its states, one at each of the times 10, 20, …; None where it is not there."""

    db: Database
    definition: TableDefinition
    rows: dict[bytes, list[State | None]] = field(default_factory=dict)
    locks: dict[bytes, tuple[Column | None, int]] = field(default_factory=dict)

    @property
    def tag(self) -> bytes:
        return self.db.store.keyspace.tag(self.definition.name, 0)

    def put(self) -> None:
        commands: list[tuple[bytes | str | int, ...]] = [(b"HSET", self.tag + b"meta", b"version", 1)]
        for row, states in self.rows.items():
            cells = self._cells(states)
            if not cells:
                continue
            newest = [part for column, found in cells.items() for part in (b"c" + column, found[-1])]
            commands += [
                (b"HSET", self.tag + b"r:" + row, *newest),
                (b"ZADD", self.tag + b"rows", 0, row),
            ]
            older = [pack_column(column) + one for column, found in cells.items() for one in found[:-1]]
            commands += [(b"ZADD", self.tag + b"v:" + row, 0, one) for one in older]
        for row, (column, start) in self.locks.items():
            name = MARKER if column is None else column.stored.encode()
            commands += self.locking(row, name, start)
        self.db.store.exchange(commands).result()

    def locking(self, row: bytes, name: bytes, start: int) -> list[tuple[bytes | str | int, ...]]:
        mark = start.to_bytes(8, "big") + encode_mark(name, row)
        return [
            (b"HSET", self.tag + b"r:" + row, b"l" + name, start.to_bytes(8, "big") + bytes(18)),
            (b"ZADD", self.tag + b"rows", 0, row),
            (b"ZADD", self.tag + b"locks", 1, mark),
        ]

    def _cells(self, states: Sequence[State | None]) -> dict[bytes, list[bytes]]:
        """The versions of each cell, oldest first."""
        cells: dict[bytes, list[bytes]] = {}
        before: State | None = None
        for timestamp, state in zip(itertools.count(10, 10), states, strict=False):
            if state is None and before is not None:
                for column in (MARKER, *(one.stored.encode() for one in self.definition.value_columns)):
                    cells.setdefault(column, []).append(version(timestamp, None))
            elif state is not None:
                if before is None:
                    cells.setdefault(MARKER, []).append(version(timestamp, b""))
                for one in self.definition.value_columns:
                    value, old = state[one.name], None if before is None else before[one.name]
                    if value != old:
                        cells.setdefault(one.stored.encode(), []).append(version(timestamp, value))
            before = state
        return cells

    def select(
        self,
        columns: Sequence[Column],
        bound: Bound | None = None,
        *,
        page: int = 4096,
        reverse: bool = False,
    ) -> TabletSelect:
        handle = TableHandle(self.definition, self.db.store)
        return TabletSelect(handle, self.tag, b"", None, columns, bound, limit=page, reverse=reverse)

    def steps(self, select: TabletSelect, at: int) -> Iterator[Batch]:
        while select.more:
            found = self.db.store.run(select.step(at))
            assert isinstance(found, Selected)
            yield select.take(found)

    def expected(
        self, columns: Sequence[Column], bound: Bound | None, at: int, reverse: bool = False
    ) -> tuple[list[tuple[bytes, tuple[bytes | None, ...]]], set[bytes]]:
        """Return the rows and the unsettled keys that follow from the states."""
        codec = KeyCodec(self.definition)
        found, unsettled = [], set()
        for row in sorted({*self.rows, *self.locks}, reverse=reverse):
            if row in self.locks and self._is_in_the_way(row, columns, bound, at):
                unsettled.add(row)
                continue
            states = self.rows.get(row, [])[: (at - 1) // 10 if at % 10 else at // 10]
            if not states or states[-1] is None:
                continue
            known: dict[str, bytes | None] = dict(zip(self.definition.key, codec.split(row), strict=True))
            for column in self.definition.value_columns:
                value = states[-1][column.name]
                known[column.name] = column.missing if value is None else value
            if bound is None or bound.holds(known.__getitem__) is True:
                found.append((row, tuple(known[column.name] for column in columns)))
        return found, unsettled

    def _is_in_the_way(self, row: bytes, columns: Sequence[Column], bound: Bound | None, at: int) -> bool:
        from percolator_core.schema.predicates import columns_of

        column, start = self.locks[row]
        asked = [] if bound is None else list(columns_of(bound))
        matters = column is None or column in columns or column.name in asked
        return matters and start < at
