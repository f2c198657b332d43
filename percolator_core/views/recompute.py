"""A view computed anew from its tables, to compare it with the rows that its observers have written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from percolator_core.tables import rows
from percolator_core.tables.lookup import found_rows
from percolator_core.tables.query import Query
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.views.groups import GroupSink
from percolator_core.views.output import Cells
from percolator_core.views.plan import Branch, Found, ViewPlan
from percolator_core.views.sinks import RowSink, TopSink

Fault: TypeAlias = Literal["missing", "extra", "different"]


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row in which a view differs from its query: it is missing, or extra, or has different values."""

    row: bytes
    fault: Fault


class MemoryMultiset:
    """The multisets of one group, in memory: a `Multiset`."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, bytes], int] = {}
        self.reads = 0

    def add(self, changes: Mapping[tuple[int, bytes], int]) -> dict[tuple[int, bytes], tuple[int, int]]:
        """As `Multiset.add`."""
        before = {key: self.counts.get(key, 0) for key in changes}
        self.counts.update({key: before[key] + change for key, change in changes.items()})
        for key in [key for key in changes if not self.counts[key]]:
            del self.counts[key]
        return {key: (max(0, count), max(0, count + changes[key])) for key, count in before.items()}

    def first(self, argument: int, limit: int) -> list[tuple[bytes, int]]:
        """As `Multiset.first`."""
        return self._values(argument)[:limit]

    def last(self, argument: int, limit: int) -> list[tuple[bytes, int]]:
        """As `Multiset.last`."""
        return self._values(argument)[::-1][:limit]

    def _values(self, argument: int) -> list[tuple[bytes, int]]:
        self.reads += 1
        here = (key for key in self.counts if key[0] == argument and self.counts[key] > 0)
        return sorted((key[1], self.counts[key]) for key in here)


def recompute(snapshot: Snapshot, plan: ViewPlan) -> dict[bytes, Cells]:
    """Return the rows of a view by row key, computed from the tables of a snapshot.

    The memory is that of the view, its groups and the joined tables. Raises the errors of a select, and
    `RowRefused` for a row that has no result.
    """
    sink = plan.sink
    result: dict[bytes, Cells] = {}
    deltas: dict[bytes, list[bytes]] = defaultdict(list)
    if isinstance(sink, GroupSink) and (first := sink.initial()) is not None:
        result[first[0]] = first[1]
    for branch in plan.branches:
        for contribution in _contributions(snapshot, branch):
            if isinstance(sink, RowSink):
                key, cells = sink.row(contribution)
                result[key] = cells
            else:
                deltas[sink.target(contribution)].append(sink.delta(contribution, 1))
    for target, some in deltas.items():
        assert not isinstance(sink, RowSink)
        delta = sink.combine(some)
        if delta is None:
            continue
        if isinstance(sink, TopSink):
            result.update((key, row) for key, row in sink.apply(delta, MemoryMultiset()) if row is not None)
            continue
        made = sink.apply(target, None, delta, MemoryMultiset()).row
        if made is not None:
            result[target] = made
    return result


def _contributions(snapshot: Snapshot, branch: Branch) -> Iterator[bytes]:
    known: dict[tuple[str, bytes], Found | None] = {}

    def get(table: str, key: bytes) -> Found | None:
        if (table, key) not in known:
            handle = snapshot.handle_of(table)
            names = [column.name for column in handle.definition.value_columns]
            cells = rows.read(snapshot, handle, key, names)
            known[table, key] = None if cells is None else (key, cells)
        return known[table, key]

    handle = snapshot.handle_of(branch.source.table)
    columns = tuple(handle.definition.column(name) for name in branch.source.columns)
    names = [column.name for column in columns]
    for key, values in found_rows(snapshot, Query(handle, columns), limit=None, reverse=False):
        joined = branch.joined(branch.source.row(key, dict(zip(names, values, strict=True))), get)
        contribution = None if joined is None else branch.contribution(key, joined)
        if contribution is not None:
            yield contribution


def faults(snapshot: Snapshot, plan: ViewPlan) -> Iterator[RowFault]:
    """Yield the rows in which a view differs from its query in a snapshot. Raises as `recompute`."""
    expected = recompute(snapshot, plan)
    handle = snapshot.handle_of(plan.stored.name)
    columns = handle.definition.value_columns
    for key, values in found_rows(snapshot, Query(handle, columns), limit=None, reverse=False):
        cells = dict(zip((column.name for column in columns), values, strict=True))
        wanted = expected.pop(key, None)
        if wanted is None:
            yield RowFault(key, "extra")
        elif wanted != cells:
            yield RowFault(key, "different")
    yield from (RowFault(key, "missing") for key in expected)
