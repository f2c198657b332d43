"""The runs that keep a view up to date: one for a changed row of a source table, one for a group with deltas.

The acknowledgement of a source row keeps what the row has given to the view, its *contributions*: so a run
takes back exactly that. A change of a joined row is a change of all source rows that refer to it. Their runs
and this one write the same acknowledgements, so two of them that see different rows conflict, and the later
one sees both changes.

Deltas of a group go through a queue: changes of rows of one group do not conflict with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.layout.acknowledgements import NEVER_RAN, Ack
from percolator_core.layout.keys import EVERY_COLUMN, MARKER, acknowledgement, view_observer
from percolator_core.layout.records import DELETE, PUT, Cell, Version
from percolator_core.notifications.dirty import Lease
from percolator_core.notifications.row_change import RowChange
from percolator_core.runtime.log import Log
from percolator_core.schema.predicates import Group, Test
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.tables.lookup import found_rows
from percolator_core.tables.query import Query
from percolator_core.transaction.row_read import WholeRow
from percolator_core.transaction.transaction import Transaction
from percolator_core.views.packing import Packable, pack, unpack
from percolator_core.views.plan import Branch, Found, Lookup, RowRefused, ViewPlan
from percolator_core.views.sinks import RowSink, TopSink
from percolator_core.views.stored import GroupQueue, StoredGroup, write_row

log = Log("percolator.views")

ROWS: Final = "rows"
GROUPS: Final = "groups"

_UNKNOWN: Final = b""
"""No image of a row: it equals none, also not that of a row that does not exist."""


@dataclass(slots=True)
class Seen:
    """What the acknowledgement of a row says: the row's image, and its contribution to each branch."""

    image: bytes | None = None
    contributions: dict[int, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, ack: Ack | None) -> Seen:
        """Return what an acknowledgement says; nothing without one."""
        if ack is None or not ack.image:
            return cls()
        row, contributions = unpack(ack.image)
        return cls(row, dict(contributions))

    def pack(self) -> bytes:
        """Return the image of an acknowledgement."""
        given: list[Packable] = [[number, one] for number, one in sorted(self.contributions.items())]
        return pack([self.image, given])


@dataclass(frozen=True, slots=True)
class SourceChange:
    """The change of a row of a table that a view reads."""

    table: str
    row: bytes
    timestamp: int
    transaction: Transaction
    seen: Seen

    @property
    def column(self) -> str:
        """``*``: the change is one of the whole row."""
        return EVERY_COLUMN


AnyChange: TypeAlias = Cell | RowChange | SourceChange
"""What an observer runs for: a cell, a whole row, or a row that a view reads."""


class ViewRuns:
    """The runs of one view's observers."""

    def __init__(self, plan: ViewPlan) -> None:
        self.plan = plan
        self._queue = GroupQueue(plan.name)
        self._acked = acknowledgement(view_observer(plan.name, ROWS), MARKER)
        self._checked: dict[str, TableHandle] = {}
        self._looked_up = {lookup.table for branch in plan.branches for lookup in branch.lookups}
        inputs = {one.table: one.definition for branch in plan.branches for one in branch.inputs}
        self._cells_read = {
            table: sorted(plan.reads(table) - set(definition.key)) for table, definition in inputs.items()
        }
        """By table, the columns with cells that the view reads."""

    # A row of a source table.

    def begin(self, t: Transaction, lease: Lease) -> SourceChange | None:
        """Begin a run for a row of a source table; None if nothing has changed that the view reads."""
        handle, found = t.whole_row(lease.table, lease.row, self._acked)
        self._check(handle)
        ack = _ack(found.ack)
        seen, image = Seen.of(ack), self._image(handle, found)
        is_unchanged = image == seen.image and (ack is None or ack.revision != NEVER_RAN)
        if is_unchanged and (found.ack is None or found.timestamp <= found.ack.start_ts):
            return None
        seen.image = image
        self._acknowledge(t, lease.table, lease.row, seen)  # first, so that it is the primary
        if is_unchanged:
            return None  # the row changed and changed back: a backup has to know that this was processed
        return SourceChange(lease.table, lease.row, found.timestamp, t, seen)

    def process(self, _: object, change: SourceChange) -> None:
        """Bring the view up to date with the change of one row."""
        t = change.transaction
        sources = {(change.table, change.row): change.seen}
        changed: list[tuple[bytes | None, bytes | None]] = []
        for branch in self.plan.branches:
            rows = {change.row} if branch.source.table == change.table else set()
            for number, lookup in enumerate(branch.lookups):
                if lookup.table == change.table:
                    rows.update(self._referring(t, branch, number, change.row))
            for row in sorted(rows):
                where = (branch.source.table, row)
                if where not in sources:
                    sources[where] = self._seen(t, *where)
                try:
                    changed.append(self._contribute(t, branch, row, sources[where]))
                except RowRefused as error:
                    if where == (change.table, change.row):
                        raise
                    # The other rows that refer to the joined row are not to wait for this one.
                    log.warning("a row of a view keeps what it gave before", error=str(error))
        for (table, row), seen in sources.items():
            self._acknowledge(t, table, row, seen)
        self._give(t, [(before, after) for before, after in changed if before != after])

    def _contribute(
        self, t: Transaction, branch: Branch, row: bytes, seen: Seen
    ) -> tuple[bytes | None, bytes | None]:
        """Compute the contribution of a source row; return the earlier one and the new one."""
        found = self._get(t, branch.source.table, row)
        joined = None
        if found is not None:
            joined = branch.joined(branch.source.row(*found), lambda table, key: self._get(t, table, key))
        after = None if joined is None else branch.contribution(row, joined)
        before = seen.contributions.pop(branch.number, None)
        if after is not None:
            seen.contributions[branch.number] = after
        return before, after

    def _give(self, t: Transaction, changed: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        sink = self.plan.sink
        if isinstance(sink, RowSink):
            handle = t.handle_of(self.plan.name)
            every = [one for before, after in changed for one in sink.changes(before, after)]
            # A row that moves from one source row to another is removed first, then written.
            for key, cells in sorted(every, key=lambda one: one[1] is not None):
                write_row(t, handle, key, cells)
            return
        deltas: dict[bytes, list[bytes]] = {}
        for pair in changed:
            for contribution, sign in zip(pair, (-1, 1), strict=True):
                if contribution is not None:
                    target = sink.target(contribution)
                    deltas.setdefault(target, []).append(sink.delta(contribution, sign))
        for target, some in deltas.items():
            delta = sink.combine(some)
            if delta is not None:
                self._queue.add(t, target, delta)

    # A group with deltas.

    def fold(self, t: Transaction, cell: Cell) -> None:
        """Apply the deltas of a group to its state, and write its row."""
        sink = self.plan.sink
        assert not isinstance(sink, RowSink)
        key, deltas = self._queue.take(t, cell.row)
        delta = sink.combine(deltas) if deltas else None
        if delta is None:
            return
        handle, group = t.handle_of(self.plan.name), StoredGroup(t, self.plan.name, key)
        if isinstance(sink, TopSink):
            group.state = b""  # two runs for one partition conflict here
            for row, cells in sink.apply(delta, group):
                write_row(t, handle, row, cells)
            return
        state, cells, error = sink.apply(key, group.state, delta, group)
        group.state = state
        write_row(t, handle, key, cells)
        if error:
            # The state has to take each delta, so that later ones can mend the group.
            group_key = KeyCodec(handle.definition).describe(key)
            log.error("a group of a view has no row", view=self.plan.name, row=group_key, error=error)

    # Details.

    def _check(self, handle: TableHandle) -> None:
        """Raise ConfigurationError if the types of the columns that the view reads have changed."""
        if self._checked.get(handle.name) is handle:
            return
        for one in (
            one for branch in self.plan.branches for one in branch.inputs if one.table == handle.name
        ):
            for name in one.columns:
                column = handle.definition.by_name.get(name)
                if column is None or column.type != one.definition.by_name[name].type:
                    raise ConfigurationError(
                        f"the view {self.plan.name} reads {handle.name}.{name}, whose type has changed: "
                        "start the workers again with the changed models, and give the view another name"
                    )
        self._checked[handle.name] = handle

    def _acknowledge(self, t: Transaction, table: str, row: bytes, seen: Seen) -> None:
        # A row that is gone and gives nothing needs no acknowledgement, and garbage collection removes it.
        is_gone = seen.image is None and not seen.contributions
        t.write(table, row, self._acked, (DELETE, b"") if is_gone else (PUT, Ack(image=seen.pack()).pack()))

    def _seen(self, t: Transaction, table: str, row: bytes) -> Seen:
        """Return what the acknowledgement of another row says, without its image.

        The row may have changed and changed back since its own last run. Then the next one must not find that
        nothing has changed, because this run uses the row as it is in between.
        """
        [found] = t.versions(table, row, [self._acked])
        return Seen(_UNKNOWN, Seen.of(_ack(found)).contributions)

    def _image(self, handle: TableHandle, found: WholeRow) -> bytes | None:
        """Return what the view reads of a row, packed; None if the row does not exist.

        If joins look the row up, its newest timestamp is a part: runs for rows that refer to it may have used
        it as it was in between, so it must not count as unchanged after it was changed back.
        """
        image = handle.image(found.cells)
        is_looked_up = handle.name in self._looked_up
        if not image:
            return pack([found.timestamp]) if is_looked_up else None
        cells = [image[handle.columns[name].encoded] for name in self._cells_read[handle.name]]
        return pack([found.timestamp if is_looked_up else 0, *cells])

    def _get(self, t: Transaction, table: str, row: bytes) -> Found | None:
        """Return a stored row with the columns that the view reads."""
        handle, names = t.handle_of(table), self._cells_read[table]
        fields = [handle.marker, *(handle.columns[name] for name in names)]
        marker, *values = t.values(handle, row, fields)
        return None if marker is None else (row, _without_missing(names, values))

    def _referring(self, t: Transaction, branch: Branch, number: int, key: bytes) -> Iterator[bytes]:
        """Yield the source rows whose join ``number`` finds the row ``key``."""
        lookup = branch.lookups[number]
        wanted = lookup.referring(key)
        if wanted is None:
            return
        parents = list(self._with_values(t, branch, lookup, wanted))
        if not lookup.parent:
            yield from parents
            return
        between = next(at for at, one in enumerate(branch.lookups) if one.number == lookup.parent)
        for row in parents:
            yield from self._referring(t, branch, between, row)

    def _with_values(
        self, t: Transaction, branch: Branch, lookup: Lookup, wanted: Mapping[str, bytes]
    ) -> Iterator[bytes]:
        handle = t.handle_of(branch.inputs[lookup.parent].table)
        tests = tuple(Test(name, "=", (value,)) for name, value in wanted.items())
        bound = tests[0] if len(tests) == 1 else Group("and", tests)
        for row, _ in found_rows(t, Query(handle, (), bound), limit=None, reverse=False):
            yield row


def _ack(version: Version | None) -> Ack | None:
    return None if version is None or version.value is None else Ack.unpack(version.value)


def _without_missing(names: Iterable[str], values: Iterable[bytes | None]) -> dict[str, bytes | None]:
    """Return the cells that exist: a plan puts the default of the column for a missing one."""
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
