"""Apply transactions of PostgreSQL: their changes and the state of the slot, in one transaction.

The table `STATE` has a row for each slot. Each transaction reads and writes the cell ``position`` of this
row, so two processes that apply at the same time conflict. The cell also names the process that may apply:
a process that takes over replaces the name, and the earlier process stops at its next transaction.

The changes are replayed in memory on the stored rows, and only cells that differ in the end are written. So
a repeated change writes nothing, and starts no observer.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, Self

from percolator_core.catalog.table_handle import TableHandle
from percolator_core.database import Database
from percolator_core.errors import RowExists, UnknownColumn
from percolator_core.loading import repeatable
from percolator_core.replication.messages import Change, Relation, Truncation
from percolator_core.replication.report import ReplicationStopped, SlotInUse
from percolator_core.replication.targets import Target
from percolator_core.runtime.batches import batched
from percolator_core.schema.row_keys import KeyCodec
from percolator_core.tables import rows
from percolator_core.tables.binding import binding_of
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

STATE: Final = "replication"
"""The raw table with the states of all slots."""

_STATE_CELL: Final = "position"
_TABLES: Final = "tables"
_READ_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Removal:
    """A row that the copy did not find in PostgreSQL."""

    relation: Relation
    key: bytes


_Cells = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class SlotState:
    """The state of a slot, as of the last transaction.

    All transactions that end at ``lsn`` or before are applied; during the copy ``lsn`` is 0. ``system`` and
    ``database`` identify the database of PostgreSQL, and ``owner`` the process that may apply.
    ``publication`` is the name that the copy was made with.
    """

    phase: Literal["copying", "following"]
    lsn: int
    system: str
    database: str
    owner: str
    publication: str

    def to_bytes(self) -> bytes:
        """Return the value of the cell."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, t: Snapshot, slot: str) -> Self | None:
        """Read the state of a slot; None if it has none."""
        found = t.get(STATE, slot, _STATE_CELL)
        return None if found is None else cls(**json.loads(found))


def stored_targets(db: Database, slot: str) -> dict[str, Target]:
    """Return the tables that were copied for the slot, by the names in PostgreSQL."""
    found = db.snapshot().get(STATE, slot, _TABLES)
    described: dict[str, Any] = json.loads(found or b"{}")
    return {source: Target.of_json(source, one) for source, one in described.items()}


class Applier:
    """Applies changes for one slot. ``state`` is the state after the last transaction."""

    def __init__(self, db: Database, slot: str, state: SlotState, targets: Mapping[str, Target]) -> None:
        self._db = db
        self._slot = slot
        self.targets = targets
        self.state = state
        self._written_tables = b""

    def take_over(self) -> None:
        """Become the process that may apply, and continue from the state that the store has now.

        The earlier owner may have applied more since the state was read, and the position must not go back.

        Raises:
            SlotInUse: another process copies the tables.
        """

        def transaction(t: Transaction) -> SlotState:
            stored = SlotState.of(t, self._slot)
            if stored is None or stored.phase != "following":
                raise self._in_use()
            after = replace(stored, owner=self.state.owner)
            t.set(STATE, self._slot, _STATE_CELL, after.to_bytes())
            return after

        self.state = repeatable.run(self._db, transaction)

    def begin_copy(self) -> None:
        """Become the process that may apply, and begin a copy of the tables."""
        self._commit((), self.state, expect_owner=False)

    def copy(self, changes: Sequence[Change | Removal]) -> Counter[str]:
        """Write rows of the copy; return the counts of rows that are new, changed and deleted.

        Raises as `apply`.
        """
        return self._commit(changes, self.state)

    def apply(self, changes: Sequence[Change | Removal], end: int) -> Counter[str]:
        """Apply whole transactions, of which the last one ends at ``end``; return the counts.

        Raises:
            SlotInUse: another process has taken over.
            ReplicationStopped: a change does not fit into its table.
            StoreUnavailable, TransactionConflict: nothing is applied, and the call may be repeated.
        """
        return self._commit(changes, replace(self.state, phase="following", lsn=end))

    def _in_use(self) -> SlotInUse:
        return SlotInUse(f"another process has taken over the slot {self._slot!r}: let only one replicate it")

    def _commit(
        self, changes: Sequence[Change | Removal], after: SlotState, *, expect_owner: bool = True
    ) -> Counter[str]:
        by_source: dict[str, list[Change | Removal]] = defaultdict(list)
        for change in changes:
            by_source[change.relation.name].append(change)
        tables = json.dumps({name: one.to_json() for name, one in self.targets.items()}).encode()

        def transaction(t: Transaction) -> Counter[str]:
            counts: Counter[str] = Counter()
            stored = SlotState.of(t, self._slot)
            if expect_owner:
                if stored is None or stored.owner != after.owner:
                    raise self._in_use()
                if stored.phase == "following" and stored.lsn >= after.lsn:
                    return counts  # an earlier attempt has committed, and its reply was lost
            t.set(STATE, self._slot, _STATE_CELL, after.to_bytes())
            if tables != self._written_tables:
                t.set(STATE, self._slot, _TABLES, tables)
            for source, some in by_source.items():
                counts += _Replay(t, self.targets[source]).run(some)
            return counts

        counts = repeatable.run(self._db, transaction)
        self.state, self._written_tables = after, tables
        return counts


class _Replay:
    """Replays changes of one table, in memory, and writes the difference."""

    def __init__(self, t: Transaction, target: Target) -> None:
        self._t = t
        self._target = target
        self._handle: TableHandle = t.handle_of(target.table)
        self._columns = target.cell_columns(self._handle)
        self._stored: dict[bytes, _Cells | None] = {}
        self._rows: dict[bytes, _Cells | None] = {}

    def run(self, changes: Iterable[Change | Removal]) -> Counter[str]:
        target = self._target
        steps: list[tuple[bytes | None, bytes | None, _Cells, bool] | None] = []
        for change in changes:
            if isinstance(change, Truncation):
                steps.append(None)
                continue
            if isinstance(change, Removal):
                steps.append((change.key, None, {}, False))
                continue
            old = None
            if change.old is not None:
                key = {name: change.old[name] for name in target.key if name in change.old}
                old = target.record(self._handle, change.relation, key).key
            if change.new is None:
                steps.append((old, None, {}, False))
            else:
                record = target.record(self._handle, change.relation, change.new)
                steps.append((old, record.key, record.cells, change.is_insert))
        self._read({key for step in steps if step is not None for key in step[:2] if key is not None})
        if None in steps:
            self._read(existing_keys(self._t, target))
        self._rows = dict(self._stored)
        for step in steps:
            if step is None:
                self._rows = dict.fromkeys(self._rows)
            else:
                self._step(*step)
        return self._write()

    def _read(self, keys: Iterable[bytes]) -> None:
        wanted = [key for key in keys if key not in self._stored]
        for some in batched(wanted, _READ_AT_ONCE):
            if self._handle.is_typed:
                self._stored.update(
                    zip(some, rows.read_many(self._t, self._handle, some, self._columns), strict=True)
                )
                continue
            found = iter(
                self._t.get_many((self._handle.name, key, name) for key in some for name in self._columns)
            )
            for key in some:
                cells = {name: next(found) for name in self._columns}
                self._stored[key] = cells if any(one is not None for one in cells.values()) else None

    def _step(self, old: bytes | None, key: bytes | None, cells: _Cells, is_insert: bool) -> None:
        source = key if old is None or is_insert else old
        before = None if source is None else self._rows[source]
        if old is not None:
            self._rows[old] = None
        if key is not None:
            self._rows[key] = {**(self._fresh() if before is None else before), **cells}

    def _fresh(self) -> _Cells:
        """Return the cells of a new row for which PostgreSQL has no column."""
        defaults = self._handle.definition.defaults
        return {name: defaults.get(name) for name in self._columns}

    def _write(self) -> Counter[str]:
        handle, t = self._handle, self._t
        different = {key: cells for key, cells in self._rows.items() if cells != self._stored[key]}
        counts: Counter[str] = Counter()
        for key, cells in different.items():
            before = self._stored[key]
            counts["deleted" if cells is None else "new" if before is None else "changed"] += 1
        if handle.is_typed:
            self._write_typed(different)
            return counts
        for key, cells in different.items():
            before = self._stored[key] or {}
            for name in self._columns:
                value = (cells or {}).get(name)
                if value is None and before.get(name) is not None:
                    t.delete(handle.name, key, name)
                elif value is not None and value != before.get(name):
                    t.set(handle.name, key, name, value)
        return counts

    def _write_typed(self, different: Mapping[bytes, _Cells | None]) -> None:
        t, handle = self._t, self._handle
        kept = {key: cells for key, cells in different.items() if cells is not None}
        if kept:
            rows.prefetch(t, handle, list(kept.items()), whole=True)
        for key in different.keys() - kept.keys():
            rows.remove(t, handle, key)
        taken: list[bytes] = []
        for key, cells in kept.items():
            try:
                self._put(key, cells, self._stored[key])
            except RowExists:
                taken.append(key)
        # Rows may have exchanged the values of a unique column. Then no order of updates is possible: remove
        # these rows, and insert them again.
        for key in taken:
            rows.remove(t, handle, key)
        for key in taken:
            try:
                self._put(key, kept[key], None)
            except RowExists as error:
                raise self._stopped(error) from None

    def _put(self, key: bytes, cells: _Cells, before: _Cells | None) -> None:
        try:
            if before is None:
                given = {name: value for name, value in cells.items() if value is not None}
                binding_of(self._handle, None).must_be_whole(key, given)
                rows.insert(self._t, self._handle, key, given)
            else:
                changed = {name: value for name, value in cells.items() if value != before[name]}
                rows.update(self._t, self._handle, key, changed)
        except (UnknownColumn, ValueError) as error:
            raise self._stopped(error) from None

    def _stopped(self, error: Exception) -> ReplicationStopped:
        return ReplicationStopped(
            f"a row of {self._target.source} does not fit: {error}; change the table {self._handle.name} and "
            "start again, or drop the slot and copy again with --overwrite"
        )


def existing_keys(reader: Snapshot, target: Target) -> Iterable[bytes]:
    """Yield the keys of the rows of a replicated table."""
    handle = reader.handle_of(target.table)
    if not handle.is_typed:
        columns = target.cell_columns(handle)
        return (key for key, _ in reader.scan(handle.name, columns=columns))
    codec = KeyCodec(handle.definition)
    names = handle.definition.key
    found = reader.select(handle.name, None, list(names))
    return (codec.encode([row[name] for name in names]) for row in found)
