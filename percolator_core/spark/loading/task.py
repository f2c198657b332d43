"""One task of a load: read its splits, and run the transactions of the records, concurrently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

from percolator_core.concurrency import Concurrency
from percolator_core.database import Database
from percolator_core.spark.loading.attempts import Attempt
from percolator_core.spark.loading.put_aside import PutAside
from percolator_core.spark.loading.records import BadRecord, Record
from percolator_core.spark.loading.repeatable import in_groups
from percolator_core.spark.loading.splits import Split, SplitReader
from percolator_core.spark.loading.transactions import merge, merge_group

BATCH_ROWS: Final = 512
BATCH_BYTES: Final = 16 * 1024 * 1024
"""Limits of a batch of records, which a task has in memory and loads together."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task: the keys of its records (with ``return_keys``) and the loaded columns.

    ``complete`` is False if the key of a malformed record is unknown. ``counts`` has the fields of
    `percolator_core.spark.loading.report.LoadProgress`.
    """

    keys: list[bytes]
    columns: frozenset[str]
    complete: bool
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Loads splits into a table, perhaps in an executor. ``driver`` is the name of the driver's client."""

    driver: bytes
    table: str
    reader: SplitReader
    put_aside: PutAside
    max_bad: int | None
    width: int
    return_keys: bool

    def run(self, db: Database, number: int, splits: Sequence[Split]) -> TaskResult:
        """Load the splits, as task ``number`` of the load.

        Raises PercolatorError if the load has ended, or its driver has died.
        """
        counts: Counter[str] = Counter(tasks=1)
        keys: list[bytes] = []
        columns: set[str] = set()
        complete = True
        attempt = Attempt(db, self.table, self.driver)
        with self.put_aside.part(number) as put_aside, db.concurrency(self.width) as executor:
            for batch in batches(item for split in splits for item in self.reader.read(split)):
                for outcome in self._merge(db, executor, batch, attempt):
                    if isinstance(outcome, BadRecord):
                        batch.bad.append(outcome)
                    else:
                        counts[outcome] += 1
                for bad in batch.bad:
                    put_aside(bad)
                    complete = complete and bad.key is not None
                    if self.return_keys and bad.key is not None:
                        keys.append(bad.key)
                counts.update(read=batch.read, repeated=batch.repeated, bad=len(batch.bad))
                columns.update(*(record.cells for record in batch.records.values()))
                if self.return_keys:
                    keys.extend(batch.records)
                if self.max_bad is not None and counts["bad"] > self.max_bad:
                    break
        return TaskResult(keys, frozenset(columns), complete, counts)

    def _merge(
        self, db: Database, executor: Concurrency, batch: Batch, attempt: Attempt
    ) -> Iterator[str | BadRecord]:
        records = list(batch.records.values())
        typed = self.reader.options.typed
        if typed is None:
            yield from executor.map(partial(merge, db, self.table, check=attempt.check), records)
            return
        merge_all = partial(merge_group, db, typed, check=attempt.check)
        for outcomes in executor.map(merge_all, in_groups(typed.definition, records, attrgetter("size"))):
            yield from outcomes


class Batch:
    """Records to load together. A later record replaces an earlier one with the same key."""

    __slots__ = ("bad", "read", "records", "repeated", "size")

    def __init__(self) -> None:
        self.records: dict[bytes, Record] = {}
        self.bad: list[BadRecord] = []
        self.read = 0
        self.repeated = 0
        self.size = 0

    def add(self, item: Record | BadRecord) -> None:
        """Add a record of a reader."""
        self.read += 1
        if isinstance(item, BadRecord):
            self.bad.append(item)
            return
        self.repeated += item.key in self.records
        self.records[item.key] = item
        self.size += item.size

    @property
    def full(self) -> bool:
        """True if the batch has reached a limit."""
        return self.read >= BATCH_ROWS or self.size >= BATCH_BYTES


def batches(items: Iterable[Record | BadRecord]) -> Iterator[Batch]:
    """Group records into batches of bounded size."""
    batch = Batch()
    for item in items:
        batch.add(item)
        if batch.full:
            yield batch
            batch = Batch()
    if batch.read:
        yield batch
