"""Prefetch: reading at once what a run is going to read (paper, section 2.5).

To read two columns of a row costs hardly more than to read one. So the first read of a row brings the other
columns, too, that runs of the same observer have read after such a first read before. *Such* means of the
same column, or by the acknowledgement: an observer that reads five columns of its own row and one of a
thousand others would, by the table alone, seem to need one column of any row.

Nothing depends on a guess. A cell that was brought is used if it could have been read just so: no lock, and
a version below the snapshot, or none and a tablet that stands. Any other is left, and read when it is asked
for: no prefetch waits for a lock, resolves one, or fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.layout.keys import is_internal
from percolator_core.layout.records import value_of
from percolator_core.transaction.client import Client
from percolator_core.transaction.metrics import Numbers
from percolator_core.transaction.row_read import RowRead, tells
from percolator_core.transaction.snapshot import BYTES_AT_ONCE
from percolator_core.transaction.transaction import CACHE_BYTES, Transaction

MOST_BROUGHT: Final = 32
"""Columns that are brought unasked, at most."""

USUAL: Final = 0.5
"""A column is brought if runs have read it in this share of the rows."""

LARGE: Final = 64 << 10
NEARLY_ALWAYS: Final = 0.9
"""A column whose values have more than so many bytes in the mean is brought only if it is read so often."""

LARGEST: Final = CACHE_BYTES // 4
"""One whose values have more than so many bytes is not brought at all: a few would leave no room."""

WINDOW: Final = 128
"""After so many rows all counts are halved, so that what is learned follows a change."""

_MOST_KNOWN: Final = 256
"""Columns that are counted after one trigger, and triggers that are known, at most."""

_ROWS_RECORDED: Final = 512
"""Rows of a table from which one run learns, at most."""

_SMOOTHING: Final = 8
"""The mean size of a column's values follows the last values, of about so many."""

_FEW_ROWS: Final = 8
"""Rows after which a new plan is worth making; among the first so many, each one is."""

Trigger: TypeAlias = TableHandle | ColumnFields
"""What read a row first: its table for an acknowledgement, else the column that was asked for."""

Record: TypeAlias = dict[Trigger, int]
"""What a run read of a row: the trigger, then columns, each with the bytes of its value."""

Records: TypeAlias = dict[TableHandle, dict[bytes, Record]]


class Plan(NamedTuple):
    """What to bring along, and how many bytes that is likely to be."""

    columns: tuple[ColumnFields, ...]
    size: int


class _Group:
    """What runs read of rows that they began to read in the same way."""

    __slots__ = ("planned_at", "reads", "rows", "sizes")

    def __init__(self) -> None:
        self.rows = 0
        self.planned_at = 0
        """How many rows were counted when the plan was made last."""
        self.reads: dict[Trigger, int] = {}
        self.sizes: dict[Trigger, float] = {}

    def learn(self, record: Record) -> None:
        """Count one row."""
        if self.rows >= WINDOW:
            self._halve()
        self.rows += 1
        reads, sizes = self.reads, self.sizes
        for column, size in record.items():
            if column in reads:
                reads[column] += 1
                sizes[column] += (size - sizes[column]) / _SMOOTHING
            elif len(reads) < _MOST_KNOWN:
                reads[column], sizes[column] = 1, size

    @property
    def wants_planning(self) -> bool:
        """Whether a new plan may differ from the last one."""
        return self.rows <= _FEW_ROWS or abs(self.rows - self.planned_at) >= _FEW_ROWS

    def plan(self, trigger: Trigger) -> Plan | None:
        """What a read that begins so should bring along."""
        self.planned_at = self.rows
        likely = sorted(
            ((count, column) for column, count in self.reads.items() if self._is_worth(column, count)),
            key=lambda one: -one[0],
        )
        columns = [
            column for _, column in likely if isinstance(column, ColumnFields) and column is not trigger
        ]
        del columns[MOST_BROUGHT:]
        return Plan(tuple(columns), int(sum(self.sizes[one] for one in columns))) if columns else None

    def _is_worth(self, column: Trigger, count: int) -> bool:
        size = self.sizes[column]
        return size <= LARGEST and count >= self.rows * (USUAL if size <= LARGE else NEARLY_ALWAYS)

    def _halve(self) -> None:
        self.rows //= 2
        self.reads = {column: count // 2 for column, count in self.reads.items() if count > 1}
        self.sizes = {column: self.sizes[column] for column in self.reads}


class Habits:
    """What the runs of one observer read, learned as they go. Threads may share it."""

    __slots__ = ("_groups", "_lock", "plans")

    def __init__(self) -> None:
        self._groups: dict[Trigger, _Group] = {}
        self._lock = threading.Lock()
        self.plans: dict[Trigger, Plan] = {}
        """What to bring along. It is replaced as a whole, so it is read without a lock."""

    def learn(self, records: Iterable[Record]) -> None:
        """Take in what one run has read."""
        with self._lock:
            touched: dict[Trigger, _Group] = {}
            for record in records:
                trigger = next(iter(record))
                # Those that were met last stand at the end.
                group = self._groups[trigger] = (
                    self._groups.pop(trigger) if trigger in self._groups else _Group()
                )
                group.learn(record)
                if group.wants_planning:
                    touched[trigger] = group
            too_many = max(0, len(self._groups) - _MOST_KNOWN)
            if not touched and not too_many:
                return
            plans = dict(self.plans)
            for trigger in list(self._groups)[:too_many]:
                del self._groups[trigger]
                plans.pop(trigger, None)
                touched.pop(trigger, None)
            for trigger, group in touched.items():
                plan = group.plan(trigger)
                if plan is not None:
                    plans[trigger] = plan
                else:
                    plans.pop(trigger, None)
            self.plans = plans


class PrefetchingTransaction(Transaction):
    """A transaction that brings along what runs like it have read, and remembers what it reads itself."""

    __slots__ = ("_habits", "_prefetched", "_records", "_served")

    def __init__(self, client: Client, habits: Habits) -> None:
        super().__init__(client)
        self._habits = habits
        self._records: Records = {}
        self._prefetched = self._served = 0

    def get(self, table: str, row: str | bytes, column: str) -> bytes | None:
        """The value of a cell in this transaction's view, or None. Raises as `Snapshot.get`."""
        self._must_be_open()
        # Not the short way of `Transaction.get`: that knows nothing of prefetch.
        return self._read_cells([(table, row, column)])[0]

    def learn(self) -> None:
        """The run has read all that it wanted: let later ones profit from it."""
        self._habits.learn([record for rows in self._records.values() for record in rows.values()])

    # Inside.

    def _numbers(self) -> Numbers:
        round_trips, requests, operations, sent, cached, _, _, scans, scanned = super()._numbers()
        served, brought = self._served, self._prefetched
        return round_trips, requests, operations + served, sent, cached, served, brought, scans, scanned

    def _count_found(self, handle: TableHandle, row: bytes, fields: ColumnFields) -> None:
        record = self._records.get(handle, _NOTHING).get(row)
        if record is None or fields in record:
            self._cached += 1
        else:
            record[fields] = len(self._cells[fields][row] or b"")
            self._served += 1

    def _fetch(self, reads: Sequence[RowRead], values: list[bytes | None]) -> None:
        room = min(self._room, BYTES_AT_ONCE)
        for read in reads:
            trigger = read.columns[0]
            if self._record(read.handle, read.row, trigger):
                size, columns = self._plan(trigger, room)
                room -= size
                read.extra = [fields for fields in columns if fields not in read.columns]
        super()._fetch(reads, values)
        for read in reads:
            record = self._records[read.handle].get(read.row)
            if record is not None:
                for fields, position in zip(read.columns, read.positions, strict=True):
                    record[fields] = len(values[position] or b"")
            if read.extra:
                self._bring_along(read)

    def _record(self, handle: TableHandle, row: bytes, trigger: Trigger) -> bool:
        """Note that a read begins with the trigger; whether it is the first one of the row."""
        rows = self._records.setdefault(handle, {})
        if row in rows or len(rows) >= _ROWS_RECORDED:
            return False
        rows[row] = {trigger: 0}
        return True

    def _to_bring_along(
        self, handle: TableHandle, row: bytes, columns: Sequence[bytes]
    ) -> Sequence[ColumnFields]:
        if self._record(handle, row, handle):
            # What a run begins with is read as well, whoever asked for it.
            known = [handle.fields(one) for one in columns if not is_internal(one)]
            self._records[handle][row].update(dict.fromkeys(known, 0))
        _, planned = self._plan(handle, min(self._room, BYTES_AT_ONCE))
        return [fields for fields in planned if fields.encoded not in columns]

    def _plan(self, trigger: Trigger, room: int) -> tuple[int, Sequence[ColumnFields]]:
        """Size and columns of what such reads go on to read; nothing where there is no room for it."""
        plan = self._habits.plans.get(trigger)
        return (plan.size, plan.columns) if plan is not None and plan.size < room else (0, ())

    def _bring_along(self, read: RowRead) -> None:
        self._prefetched += len(read.extra)
        versions, locks = read.brought[::2], read.brought[1::2]
        for fields, version, lock in zip(read.extra, versions, locks, strict=True):
            if version is None:
                fields.note_missing()
            if tells(version, lock, self._limit, read.stands):
                self._keep(fields, read.row, value_of(version))


_NOTHING: Final[Mapping[bytes, Record]] = {}
