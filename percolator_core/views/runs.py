"""The runs that keep a view up to date: one for a changed row of a source table, one for a group with deltas.

The acknowledgement of a source row keeps what the row has given to the view, its *contributions*: so a run
takes back exactly that. A change of a joined row is a change of all source rows that refer to it. Their runs
and this one write the same acknowledgements, so two of them that see different rows conflict, and the later
one sees both changes.

A run changes the groups of its row in its own transaction. If it conflicts with another run, the deltas of
these groups go through a queue for some time (`percolator_core.views.hot`), because writes to a queue do not
conflict.

Many rows can be processed in one transaction (`ViewRuns.run_together`), which changes each group once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.errors import ConfigurationError
from percolator_core.layout.acknowledgements import NEVER_RAN, Ack
from percolator_core.layout.keys import MARKER, acknowledgement, view_observer
from percolator_core.layout.records import DELETE, PUT, Cell, Version
from percolator_core.notifications.dirty import Lease
from percolator_core.notifications.queue import ADDED
from percolator_core.runtime.log import Log
from percolator_core.schema.predicates import Group, Test
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.tables.lookup import found_rows
from percolator_core.tables.query import Query
from percolator_core.transaction.transaction import Transaction
from percolator_core.transaction.whole_rows import WholeRow
from percolator_core.views.changes import ContributionChange, Seen, SourceChange, SourceRow
from percolator_core.views.hot import HotGroups
from percolator_core.views.packing import pack
from percolator_core.views.plan import Branch, Found, Lookup, RowRefused, ViewPlan
from percolator_core.views.sinks import RowSink, TopSink
from percolator_core.views.stored import GroupQueue, StoredGroup, change_row, view_row, write_row
from percolator_core.views.typed import Rows

log = Log("percolator.views")

ROWS: Final = "rows"
GROUPS: Final = "groups"

_UNKNOWN: Final = b""
"""The image of a row whose last state is unknown. It equals no image of a row, nor that of a missing row."""


class ViewRuns:
    """The runs of one view's observers."""

    def __init__(self, plan: ViewPlan) -> None:
        self.plan = plan
        self._queue = GroupQueue(plan.stored.name)
        self._hot = HotGroups()
        self._acked = acknowledgement(view_observer(plan.stored.name, ROWS), MARKER)
        self._checked: dict[str, TableHandle] = {}
        self._looked_up = {lookup.table for branch in plan.branches for lookup in branch.lookups}
        inputs = {one.table: one.definition for branch in plan.branches for one in branch.inputs}
        self._cells_read = {
            table: sorted(plan.reads(table) - set(definition.key)) for table, definition in inputs.items()
        }
        """By table, the columns with cells that the view reads."""

    # A row of a source table.

    def begin(self, t: Transaction, lease: Lease, *, is_contended: bool = False) -> SourceChange | None:
        """Begin a run for a row of a source table; None if nothing has changed that the view reads."""
        handle, [found] = t.whole_rows(lease.table, [lease.row], self._acked)
        change = self._begin(t, handle, lease.row, found, is_contended=is_contended)
        if change is not None:
            self._acknowledge(t, lease.table, lease.row, change.seen)  # first, so that it is the primary
        return change

    def _begin(
        self, t: Transaction, handle: TableHandle, row: bytes, found: WholeRow, *, is_contended: bool
    ) -> SourceChange | None:
        t.writes_view = self.plan.fingerprint
        self._check(handle)
        ack = _ack(found.ack)
        seen, cells = Seen.of(ack), self._read(handle, found)
        image = self._image(handle, found, cells)
        is_unchanged = image == seen.image and (ack is None or ack.revision != NEVER_RAN)
        if is_unchanged and (found.ack is None or found.timestamp <= found.ack.start_ts):
            return None
        # The acknowledgement of a row that is gone has no image: a view has one only for what the row gave.
        seen.image = None if cells is None else image
        if not is_unchanged:
            known = None if cells is None else (row, cells)
            return SourceChange(handle.name, row, found.timestamp, t, seen, known, is_contended)
        # The row changed and changed back: a backup has to know that this was processed.
        self._acknowledge(t, handle.name, row, seen)
        return None

    def process(self, _: object, change: SourceChange) -> None:
        """Bring the view up to date with the change of one row."""
        t = change.transaction
        sources = {(change.table, change.row): change.seen}
        changed = self._changed(t, change, sources)
        self._finish(t, sources, changed, is_contended=change.is_contended)

    def may_run_together(self, table: str) -> bool:
        """Return True if many changed rows of a table may be processed in one transaction.

        A change of a row that joins look up changes all rows that refer to it: one such row fills a
        transaction.
        """
        return table not in self._looked_up

    def run_together(
        self, t: Transaction, rows_of: Mapping[str, Sequence[bytes]], *, is_contended: bool
    ) -> tuple[set[SourceRow], set[SourceRow]]:
        """Bring the view up to date with the changes of many rows, by table.

        Return the rows that had not changed, and the rows that have no result (`RowRefused`). Nothing is
        written for a row without a result: its own run has to report it.
        """
        changes: list[SourceChange] = []
        collapsed: set[SourceRow] = set()
        for table, rows in rows_of.items():
            handle, every = t.whole_rows(table, rows, self._acked)
            for row, found in zip(rows, every, strict=True):
                change = self._begin(t, handle, row, found, is_contended=is_contended)
                if change is None:
                    collapsed.add((table, row))
                else:
                    changes.append(change)
        self._look_up(t, changes)
        sources: dict[SourceRow, Seen] = {}
        changed: list[ContributionChange] = []
        refused: set[SourceRow] = set()
        for change in changes:
            where = (change.table, change.row)
            own = {where: change.seen}
            try:
                changed += self._changed(t, change, own)
            except RowRefused:
                refused.add(where)
            else:
                sources.update(own)
        self._finish(t, sources, changed, is_contended=is_contended)
        return collapsed, refused

    def _look_up(self, t: Transaction, changes: Sequence[SourceChange]) -> None:
        """Read the rows that joins look up, in one request for each join; the transaction keeps them."""
        for branch in self.plan.branches:
            here = (one.found for one in changes if one.table == branch.source.table and branch.lookups)
            rows: list[Rows] = [(branch.source.row(*one),) for one in here if one is not None]
            for lookup in branch.lookups:
                keys = [lookup.key(one) for one in rows]
                t.values_of(self._fields(t, lookup.table, key) for key in set(keys) if key is not None)
                found = (None if key is None else self._get(t, lookup.table, key) for key in keys)
                stepped = [branch.step(lookup, *both) for both in zip(rows, found, strict=True)]
                rows = [one for one in stepped if one is not None]

    def _changed(
        self, t: Transaction, change: SourceChange, sources: dict[SourceRow, Seen]
    ) -> list[ContributionChange]:
        """Return the contributions before and after of all source rows that the change of a row concerns.

        Add the content of their acknowledgements to ``sources``.
        """
        changed: list[ContributionChange] = []
        for branch in self.plan.branches:
            rows = {change.row} if branch.source.table == change.table else set()
            for number, lookup in enumerate(branch.lookups):
                if lookup.table == change.table:
                    rows.update(self._referring(t, branch, number, change.row))
            for row in sorted(rows):
                where = (branch.source.table, row)
                if where not in sources:
                    sources[where] = self._seen(t, *where)
                is_own = where == (change.table, change.row)
                found = change.found if is_own else self._get(t, *where)
                try:
                    changed.append(self._contribute(t, branch, row, found, sources[where]))
                except RowRefused as error:
                    if is_own:
                        raise
                    # This row must not hold back the other rows that refer to the joined row.
                    log.warning("a row of a view keeps what it gave before", error=str(error))
        return changed

    def _finish(
        self,
        t: Transaction,
        sources: Mapping[SourceRow, Seen],
        changed: Iterable[ContributionChange],
        *,
        is_contended: bool,
    ) -> None:
        for (table, row), seen in sources.items():
            self._acknowledge(t, table, row, seen)
        self._change_view(t, [one for one in changed if one[0] != one[1]], is_contended=is_contended)

    def _contribute(
        self, t: Transaction, branch: Branch, row: bytes, found: Found | None, seen: Seen
    ) -> ContributionChange:
        """Compute the contribution of a source row; return the earlier one and the new one."""
        joined = None
        if found is not None:
            joined = branch.joined(branch.source.row(*found), lambda table, key: self._get(t, table, key))
        after = None if joined is None else branch.contribution(row, joined)
        before = seen.contributions.pop(branch.number, None)
        if after is not None:
            seen.contributions[branch.number] = after
        return before, after

    def _change_view(
        self, t: Transaction, changed: Iterable[ContributionChange], *, is_contended: bool
    ) -> None:
        """Write the rows of the view. A view with groups changes its groups, or queues their deltas."""
        sink = self.plan.sink
        if isinstance(sink, RowSink):
            handle = t.handle_of(self.plan.stored.name)
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
        combined = ((target, sink.combine(some)) for target, some in deltas.items())
        given = {target: delta for target, delta in combined if delta is not None}
        if is_contended:
            self._hot.add(given)
        for target in [target for target in given if target in self._hot]:
            delta = given.pop(target)
            # Deltas of other rows would wait in the queue behind a delta that the group cannot take.
            StoredGroup(t, self.plan.stored.name, target).check(sink.values(delta))
            self._queue.add(t, target, delta)
        self._apply(t, given)

    # Groups.

    def fold(self, t: Transaction, cell: Cell) -> None:
        """Apply the queued deltas of a group to its state, and write its row."""
        t.writes_view = self.plan.fingerprint
        sink = self.plan.sink
        assert not isinstance(sink, RowSink)
        key, deltas = self._queue.take(t, cell.row)
        delta = sink.combine(deltas) if deltas else None
        if delta is not None:
            self._apply(t, {key: delta})

    def wake(self, t: Transaction) -> None:
        """Notify the groups that have deltas: a change of the chain has removed the marks."""
        t.writes_view = self.plan.fingerprint
        for one in self._queue.slices(t):
            t.notify(self._queue.table, one, ADDED)

    def _apply(self, t: Transaction, given: Mapping[bytes, bytes]) -> None:
        """Apply one delta to each group, and write the groups' rows."""
        sink, handle = self.plan.sink, t.handle_of(self.plan.stored.name)
        assert not isinstance(sink, RowSink)
        groups = {key: StoredGroup(t, handle.name, key) for key in given}
        if len(given) > 1:
            # One request instead of several for each group.
            changed = ((groups[key], sink.values(delta)) for key, delta in given.items())
            cells_read = (one for group, values in changed for one in group.cells(values))
            # The rows of a ranking have other keys than its partitions.
            rows_read = () if isinstance(sink, TopSink) else (view_row(handle, key) for key in given)
            t.values_of([*cells_read, *rows_read])
        for key, delta in given.items():
            group = groups[key]
            if isinstance(sink, TopSink):
                group.state = b""  # two runs for one partition conflict here
                for row, cells in sink.apply(delta, group):
                    write_row(t, handle, row, cells)
                continue
            group.state, cells, error = sink.apply(key, group.state, delta, group)
            change_row(t, handle, key, cells)
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
                        "start the workers again with the changed models, and then fill the view"
                    )
        self._checked[handle.name] = handle

    def _acknowledge(self, t: Transaction, table: str, row: bytes, seen: Seen) -> None:
        # A row that is gone and gives nothing needs no acknowledgement, and garbage collection removes it.
        is_gone = seen.image is None and not seen.contributions
        t.write(table, row, self._acked, (DELETE, b"") if is_gone else (PUT, Ack(image=seen.pack()).pack()))

    def _seen(self, t: Transaction, table: str, row: bytes) -> Seen:
        """Return the content of another row's acknowledgement, with an unknown image.

        The other row may change, and change back, before its own next run. This run uses the row as it is in
        between, so the next run of the row must not find it unchanged.
        """
        [found] = t.versions(table, row, [self._acked])
        return Seen(_UNKNOWN, Seen.of(_ack(found)).contributions)

    def _image(
        self, handle: TableHandle, found: WholeRow, cells: Mapping[str, bytes | None] | None
    ) -> bytes | None:
        """Return the image of a row: the cells that the view reads, packed; None if the row does not exist.

        If joins look the row up, its newest timestamp is a part of the image. Runs of rows that refer to it
        may have used an earlier state, so the row counts as changed even if it was changed back.
        """
        timestamp = found.timestamp if handle.name in self._looked_up else 0
        if cells is None:
            return pack([timestamp]) if timestamp else None
        return pack([timestamp, *(cells.get(name) for name in self._cells_read[handle.name])])

    def _read(self, handle: TableHandle, found: WholeRow) -> dict[str, bytes | None] | None:
        """Return the cells that the view reads of a row; None if the row does not exist."""
        cells, names = found.cells, self._cells_read[handle.name]
        if cells.get(MARKER) is None:
            return None
        return _without_missing(names, [cells.get(handle.columns[name].encoded) for name in names])

    def _get(self, t: Transaction, table: str, row: bytes) -> Found | None:
        """Return a stored row with the columns that the view reads."""
        marker, *values = t.values(*self._fields(t, table, row))
        return None if marker is None else (row, _without_missing(self._cells_read[table], values))

    def _fields(
        self, t: Transaction, table: str, row: bytes
    ) -> tuple[TableHandle, bytes, list[ColumnFields]]:
        handle = t.handle_of(table)
        return handle, row, [handle.marker, *(handle.columns[name] for name in self._cells_read[table])]

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
    """Return the cells that exist. For a missing one, a plan uses the default of the column."""
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}
