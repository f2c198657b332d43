"""Prefetch: the first read of a row also reads the columns that a run is likely to need (paper, section 2.5).

A read of two columns of a row takes hardly longer than a read of one. So the first read of a row also fetches
the columns that earlier runs of the same observer have read in most rows. Each kind of first read, of a
certain column or of the acknowledgement, has statistics of its own. Statistics by table would be wrong for an
observer that reads five columns of its own row and one column of a thousand other rows.

No result depends on a guess. A prefetched cell is used only if it would suffice for an ordinary read: it has
no lock, and it either has a version below the snapshot or is proved not to exist (`cell_reads`). Otherwise
the transaction reads the cell again when it needs it. So prefetch never waits for a lock, never resolves a
lock, and never fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from percolator_core.catalog.table_handle import ColumnFields, TableHandle
from percolator_core.layout.keys import is_internal
from percolator_core.transaction.row_read import BYTES_AT_ONCE, RowRead

MOST_BROUGHT: Final = 32
"""One read adds at most this many columns."""

USUAL: Final = 0.5
"""A column is prefetched if runs have read it in at least this share of the rows."""

LARGE: Final = 64 << 10
NEARLY_ALWAYS: Final = 0.9
"""The share that replaces `USUAL` for a column whose values have more than `LARGE` bytes on average."""

LARGEST: Final = 4 << 20
"""A column is never prefetched if its values are larger than this on average: four would fill the cache."""

WINDOW: Final = 128
"""All counts are halved after this many rows, so that the statistics follow a change."""

MOST_KNOWN: Final = 256
"""At most this many triggers have statistics, each for at most this many columns."""

_ROWS_RECORDED: Final = 512
"""A run learns from at most this many rows of a table."""

_SMOOTHING: Final = 8
"""The average size of a column's values covers about this many of the newest values."""

_FEW_ROWS: Final = 8
"""Up to this number of rows, a new plan is made after each row; later, once in this many rows."""

Trigger: TypeAlias = TableHandle | ColumnFields
"""Stands for the first read of a row: the table if the acknowledgement was read, else the column."""

Record: TypeAlias = dict[Trigger, int]
"""A run's reads of one row: the trigger, then columns, each with the size of its value."""


class PrefetchPlan(NamedTuple):
    """The columns to prefetch, and their expected size in bytes."""

    columns: tuple[ColumnFields, ...]
    size: int


class Group:
    """Statistics of the rows with the same first read; ``planned_at`` is their number at the last plan."""

    __slots__ = ("planned_at", "reads", "rows", "sizes")

    def __init__(self) -> None:
        self.rows = self.planned_at = 0
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
            elif len(reads) < MOST_KNOWN:
                reads[column], sizes[column] = 1, size

    @property
    def wants_planning(self) -> bool:
        """True if a new plan may differ from the present one."""
        return self.rows <= _FEW_ROWS or abs(self.rows - self.planned_at) >= _FEW_ROWS

    def plan(self, trigger: Trigger) -> PrefetchPlan | None:
        """Return the plan for first reads of the kind ``trigger``; None if no column is read often enough."""
        self.planned_at = self.rows
        likely = sorted(
            ((count, column) for column, count in self.reads.items() if self._is_worth(column, count)),
            key=lambda one: -one[0],
        )
        columns = [
            column for _, column in likely if isinstance(column, ColumnFields) and column is not trigger
        ]
        del columns[MOST_BROUGHT:]
        return PrefetchPlan(tuple(columns), int(sum(self.sizes[one] for one in columns))) if columns else None

    def _is_worth(self, column: Trigger, count: int) -> bool:
        size = self.sizes[column]
        return size <= LARGEST and count >= self.rows * (USUAL if size <= LARGE else NEARLY_ALWAYS)

    def _halve(self) -> None:
        self.rows //= 2
        self.reads = {column: count // 2 for column, count in self.reads.items() if count > 1}
        self.sizes = {column: self.sizes[column] for column in self.reads}


class Habits:
    """The reads of one observer's runs, learned from each run. Threads may share it.

    ``groups`` has the statistics for each first read; the group that was used longest ago comes first.
    ``plans`` is replaced as a whole, so it is read without a lock.
    """

    __slots__ = ("_lock", "groups", "plans")

    def __init__(self) -> None:
        self.groups: dict[Trigger, Group] = {}
        self._lock = threading.Lock()
        self.plans: dict[Trigger, PrefetchPlan] = {}

    def learn(self, records: Iterable[Record]) -> None:
        """Count the reads of one run."""
        with self._lock:
            touched: dict[Trigger, Group] = {}
            for record in records:
                trigger = next(iter(record))
                # The group moves to the end, because the groups at the front are dropped first.
                group = self.groups[trigger] = self.groups.pop(trigger) if trigger in self.groups else Group()
                group.learn(record)
                if group.wants_planning:
                    touched[trigger] = group
            too_many = max(0, len(self.groups) - MOST_KNOWN)
            if not touched and not too_many:
                return
            plans = dict(self.plans)
            for trigger in list(self.groups)[:too_many]:
                del self.groups[trigger]
                plans.pop(trigger, None)
                touched.pop(trigger, None)
            for trigger, group in touched.items():
                plans.pop(trigger, None)
                if plan := group.plan(trigger):
                    plans[trigger] = plan
            self.plans = plans


class Prefetch:
    """The policy of one transaction's cache: adds columns to reads, and records the reads of the run.

    ``brought`` counts the prefetched cells. ``served`` counts the prefetched cells that the run has read.
    """

    __slots__ = ("_habits", "_records", "brought", "served")

    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self._records: dict[TableHandle, dict[bytes, Record]] = {}
        self.brought = self.served = 0

    def learn(self) -> None:
        """Add the reads of this run to the observer's habits."""
        self._habits.learn([record for rows in self._records.values() for record in rows.values()])

    def serves(self, handle: TableHandle, row: bytes, column: ColumnFields, value: bytes | None) -> bool:
        """Record the read of a cached cell; return True for the first read of a prefetched cell."""
        record = self._records.get(handle, _NOTHING).get(row)
        if record is None or column in record:
            return False
        record[column] = len(value or b"")
        self.served += 1
        return True

    def extend(self, reads: Sequence[RowRead], room: int) -> None:
        """If a read is the first of its row, add the planned columns to it.

        The expected size of the columns that are added to all reads together is below ``room`` bytes.
        """
        room = min(room, BYTES_AT_ONCE)
        for read in reads:
            trigger = read.columns[0]
            if self._begin(read.handle, read.row, trigger):
                size, columns = self._plan(trigger, room)
                room -= size
                read.extra = [one for one in columns if one not in read.columns]

    def extra_of_run(
        self, handle: TableHandle, row: bytes, columns: Sequence[bytes], room: int
    ) -> Sequence[ColumnFields]:
        """Return columns to add to the first read of a run, which reads the encoded ``columns`` anyway."""
        if self._begin(handle, row, handle):
            # The observed column counts as prefetched, because the run has not read it yet.
            known = [handle.fields(one) for one in columns if not is_internal(one)]
            self._records[handle][row].update(dict.fromkeys(known, 0))
        _, planned = self._plan(handle, min(room, BYTES_AT_ONCE))
        return [one for one in planned if one.encoded not in columns]

    def record(self, reads: Iterable[RowRead], values: Sequence[bytes | None]) -> None:
        """Record reads that the store has answered."""
        for read in reads:
            record = self._records[read.handle].get(read.row)
            if record is not None:
                for column, position in zip(read.columns, read.positions, strict=True):
                    record[column] = len(values[position] or b"")

    def _begin(self, handle: TableHandle, row: bytes, trigger: Trigger) -> bool:
        """Record the first read of a row; return False if it is not the first, or after too many rows."""
        rows = self._records.setdefault(handle, {})
        if row in rows or len(rows) >= _ROWS_RECORDED:
            return False
        rows[row] = {trigger: 0}
        return True

    def _plan(self, trigger: Trigger, room: int) -> tuple[int, Sequence[ColumnFields]]:
        plan = self._habits.plans.get(trigger)
        return (plan.size, plan.columns) if plan is not None and plan.size < room else (0, ())


_NOTHING: Final[Mapping[bytes, Record]] = {}
