"""Runs the plan of a view on dictionaries, in the order of a store: rows, queues of deltas, groups.

A source row's contribution is kept; its change goes as a delta to the queue of its group or partition, and
`settle` combines and applies the queues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from percolator_core.schema.definitions import TableDefinition
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.schema.types import column_type
from percolator_core.views.groups import GroupSink
from percolator_core.views.output import Cells
from percolator_core.views.plan import Branch, Found, ViewPlan
from percolator_core.views.recompute import MemoryMultiset
from percolator_core.views.sinks import RowSink, TopSink

Values = dict[str, Any]


class Tables:
    """Stored rows by table and row key."""

    def __init__(self, *definitions: TableDefinition) -> None:
        self.definitions = {one.name: one for one in definitions}
        self.rows: dict[str, dict[bytes, Cells]] = {one.name: {} for one in definitions}

    def get(self, table: str, key: bytes) -> Found | None:
        cells = self.rows[table].get(key)
        return None if cells is None else (key, cells)

    def encode(self, table: str, values: Mapping[str, Any]) -> tuple[bytes, Cells]:
        definition = self.definitions[table]
        key = KeyCodec(definition).encode([values[name] for name in definition.key])
        cells = {
            one.name: None if values[one.name] is None else column_type(one.type).encode(values[one.name])
            for one in definition.value_columns
        }
        return key, cells

    def decode(self, table: str, key: bytes, cells: Cells) -> Values:
        definition = self.definitions[table]
        values = dict(zip(definition.key, KeyCodec(definition).decode(key), strict=True))
        for name, found in cells.items():
            values[name] = None if found is None else column_type(definition.by_name[name].type).decode(found)
        return {one.name: values[one.name] for one in definition.columns}


class Runner:
    """Keeps one view over tables in memory."""

    def __init__(self, plan: ViewPlan, tables: Tables) -> None:
        self.plan = plan
        self.tables = tables
        self.rows: dict[bytes, Cells] = {}
        self.contributions: dict[tuple[int, bytes], bytes] = {}
        self.states: dict[bytes, bytes] = {}
        self.multisets: dict[bytes, Any] = {}
        self.queues: dict[bytes, list[bytes]] = {}
        if isinstance(plan.sink, GroupSink) and (initial := plan.sink.initial()):
            self.rows[initial[0]] = initial[1]

    def changed(self, table: str, key: bytes) -> None:
        """Process the change of a row, which is already stored."""
        for branch in self.plan.branches:
            if branch.source.table == table:
                self._source(branch, key)
            for number, lookup in enumerate(branch.lookups):
                if lookup.table == table:
                    for source in self._referring(branch, number, key):
                        self._source(branch, source)

    def _referring(self, branch: Branch, number: int, key: bytes) -> list[bytes]:
        """Return the source rows that a joined row belongs to. A store finds them by an index."""
        lookup = branch.lookups[number]
        wanted = lookup.referring(key)
        if wanted is None:
            return []
        table = branch.inputs[lookup.parent].table
        definition = self.tables.definitions[table]
        found = []
        for row, cells in self.tables.rows[table].items():
            parts = dict(zip(definition.key, KeyCodec(definition).split(row), strict=True))
            if all({**cells, **parts}[name] == value for name, value in wanted.items()):
                found.append(row)
        if not lookup.parent:
            return found
        between = next(at for at, one in enumerate(branch.lookups) if one.number == lookup.parent)
        return [source for row in found for source in self._referring(branch, between, row)]

    def _source(self, branch: Branch, key: bytes) -> None:
        found = self.tables.get(branch.source.table, key)
        rows = None if found is None else branch.joined(branch.source.row(*found), self.tables.get)
        after = None if rows is None else branch.contribution(key, rows)
        before = self.contributions.pop((branch.number, key), None)
        if after is not None:
            self.contributions[branch.number, key] = after
        sink = self.plan.sink
        if isinstance(sink, RowSink):
            self._write(sink.changes(before, after))
        elif before != after:
            for one, sign in ((before, -1), (after, 1)):
                if one is not None:
                    self.queues.setdefault(sink.target(one), []).append(sink.delta(one, sign))

    def settle(self) -> None:
        """Apply the queues."""
        sink = self.plan.sink
        for target, deltas in self.queues.items():
            assert not isinstance(sink, RowSink)
            delta = sink.combine(deltas)
            if delta is None:
                continue
            multiset = self.multisets.setdefault(target, MemoryMultiset())
            if isinstance(sink, TopSink):
                self._write(sink.apply(delta, multiset))
                continue
            state, row, _ = sink.apply(target, self.states.pop(target, None), delta, multiset)
            if state is not None:
                self.states[target] = state
            else:
                assert not multiset.counts, "a group without rows has no values"
            self._write([(target, row)])
        self.queues.clear()

    def _write(self, changes: Any) -> None:
        for key, cells in changes:
            if cells is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = cells

    def result(self) -> list[Values]:
        """Return the view's rows, without the hidden key."""
        tables = Tables(self.plan.definition)
        found = [tables.decode(self.plan.name, key, cells) for key, cells in self.rows.items()]
        return [{name: one for name, one in row.items() if name != "row_"} for row in found]
