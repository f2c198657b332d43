"""What an executor does in a bulk load: one loader transaction a record, many of them at a time.

A loader transaction reads the cells that the record names and writes those that differ. So it may run
twice: the second time it finds nothing to do. That is what makes repeated tasks, speculative tasks and
whole repeated loads harmless, and an unchanged document wakes no observer. Records of typed tables share
one (`percolator_core.spark.typedloading`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from percolator_core.concurrency import Concurrency
from percolator_core.database import Database, connect
from percolator_core.errors import UnknownColumn
from percolator_core.spark.aside import Aside
from percolator_core.spark.records import BadRecord, Record
from percolator_core.spark.repeatable import run
from percolator_core.spark.splits import Split, SplitReader
from percolator_core.spark.typedloading import groups, merge_group
from percolator_core.spark.wanted import Wanted
from percolator_core.transaction.transaction import Transaction

if TYPE_CHECKING:
    from pyspark import Accumulator

BATCH_ROWS: Final = 512
BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bounds of what an executor holds in memory and works on at a time."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task tells the driver: the keys of its records (if asked for) and the columns it loaded.

    ``complete`` is False if a malformed record did not tell its key.
    """

    keys: list[bytes]
    columns: frozenset[str]
    complete: bool


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Loads the splits of one task; travels to the executors.

    ``owner`` names the driver's client, by which the task checks that the load is still wanted.
    """

    url: str = field(repr=False)
    namespace: str
    owner: bytes
    table: str
    reader: SplitReader
    aside: Aside
    counts: Accumulator[Counter[str]]
    max_bad: int | None
    width: int
    return_keys: bool

    def __call__(self, number: int, tasks: Iterable[list[Split]]) -> Iterator[TaskResult]:
        """Loads; yields one result."""
        with connect(self.url, self.namespace) as db:
            yield self._load(db, number, [split for task in tasks for split in task])

    def _load(self, db: Database, number: int, splits: list[Split]) -> TaskResult:
        counts: Counter[str] = Counter(tasks=1)
        keys: list[bytes] = []
        columns: set[str] = set()
        complete = True
        wanted = Wanted(db, self.table, self.owner)
        with self.aside.part(number) as aside, db.concurrency(self.width) as executor:
            for batch in batches(item for split in splits for item in self.reader.read(split)):
                for outcome in self._merged(db, executor, batch, wanted.check):
                    if isinstance(outcome, BadRecord):
                        batch.bad.append(outcome)
                    else:
                        counts[outcome] += 1
                for bad in batch.bad:
                    aside.add(bad)
                    complete = complete and bad.key is not None
                    if self.return_keys and bad.key is not None:
                        keys.append(bad.key)
                counts.update(read=batch.read, repeated=batch.repeated, bad=len(batch.bad))
                columns.update(*(record.cells for record in batch.records.values()))
                if self.return_keys:
                    keys.extend(batch.records)
                if self.max_bad is not None and counts["bad"] > self.max_bad:
                    break
        self.counts.add(counts)
        return TaskResult(keys, frozenset(columns), complete)

    def _merged(
        self, db: Database, executor: Concurrency, batch: Batch, check: Callable[[], None]
    ) -> Iterator[str | BadRecord]:
        """What became of each record."""
        records = list(batch.records.values())
        typed = self.reader.options.typed
        if typed is None:
            yield from executor.map(partial(merge, db, self.table, check=check), records)
            return
        merge_all = partial(merge_group, db, typed, check=check)
        for outcomes in executor.map(merge_all, groups(typed, records)):
            yield from outcomes


class Batch:
    """Records to load together. Of several with one key the last one counts."""

    __slots__ = ("bad", "read", "records", "repeated", "size")

    def __init__(self) -> None:
        self.records: dict[bytes, Record] = {}
        self.bad: list[BadRecord] = []
        self.read = 0
        self.repeated = 0
        self.size = 0

    def add(self, item: Record | BadRecord) -> None:
        """Adds what a reader found."""
        self.read += 1
        if isinstance(item, BadRecord):
            self.bad.append(item)
            return
        self.repeated += item.key in self.records
        self.records[item.key] = item
        self.size += item.size

    @property
    def full(self) -> bool:
        """Whether it is time to load it."""
        return self.read >= BATCH_ROWS or self.size >= BATCH_BYTES


def batches(items: Iterable[Record | BadRecord]) -> Iterator[Batch]:
    """The records, cut into batches of bounded size."""
    batch = Batch()
    for item in items:
        batch.add(item)
        if batch.full:
            yield batch
            batch = Batch()
    if batch.read:
        yield batch


def merge(
    db: Database, table: str, record: Record, check: Callable[[], object] | None = None
) -> str | BadRecord:
    """Runs the loader transaction of a record: ``new``, ``changed``, ``unchanged``, or why it cannot be.

    For ``check`` see `percolator_core.spark.repeatable.run`.
    """

    def transaction(t: Transaction) -> str:
        stored = t.get_row(table, record.key, record.cells)
        outcome = "unchanged"
        for column, value in record.cells.items():
            if stored.get(column) == value:
                continue
            outcome = "changed" if stored else "new"
            if value is None:
                t.delete(table, record.key, column)
            else:
                t.set(table, record.key, column, value)
        return outcome

    try:
        return run(db, transaction, check)
    except (UnknownColumn, ValueError) as error:
        return BadRecord(record.origin, str(error), key=record.key)


def remove(db: Database, table: str, row: bytes, columns: Iterable[str]) -> bool:
    """Deletes these cells of a row; whether there were any."""

    def transaction(t: Transaction) -> bool:
        stored = t.get_row(table, row, columns)
        for column in stored:
            t.delete(table, row, column)
        return bool(stored)

    return run(db, transaction)
