"""One task of a load: read its splits, and run the transactions of the records, concurrently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Final

from percolator_core.concurrency import Concurrency
from percolator_core.database import Database
from percolator_core.loading.put_aside import PutAside
from percolator_core.loading.records import BadRecord, Record
from percolator_core.loading.repeatable import in_groups
from percolator_core.loading.splits import Split, SplitReader
from percolator_core.loading.transactions import Check, merge, merge_group
from percolator_core.runtime.batches import batched_by_size

BATCH_ROWS: Final = 2048
BATCH_BYTES: Final = 16 * 1024 * 1024
"""Limits of a batch of records, which a task has in memory and loads together.

At the end of each batch the task waits for the last commit, so smaller batches would be slower.
"""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task; ``complete`` is False if the key of a malformed record is unknown."""

    keys: list[bytes]
    columns: frozenset[str]
    complete: bool


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Loads splits into a table, in any process."""

    table: str
    reader: SplitReader
    put_aside: PutAside
    max_bad: int | None
    width: int
    return_keys: bool

    def run(
        self,
        db: Database,
        number: int,
        splits: Iterable[Split],
        counts: Counter[str],
        *,
        check: Check | None = None,
        after_batch: Callable[[], object] | None = None,
    ) -> TaskResult:
        """Load the splits, as task ``number`` of the load.

        After each batch of records the task adds its numbers to ``counts``, and calls ``after_batch``. The
        names in ``counts`` are those of `percolator_core.loading.report.LoadReport`, and ``tasks``.
        """
        keys: list[bytes] = []
        columns: set[str] = set()
        complete = True
        with self.put_aside.part(number) as put_aside, db.concurrency(self.width) as executor:
            items = (item for split in splits for item in self.reader.read(split))
            for batch in batched_by_size(items, _size, BATCH_BYTES, BATCH_ROWS):
                # A later record replaces an earlier one with the same key.
                records = {item.key: item for item in batch if isinstance(item, Record)}
                malformed = [item for item in batch if isinstance(item, BadRecord)]
                repeated = len(batch) - len(records) - len(malformed)
                for outcome in self._merge(db, executor, list(records.values()), check):
                    if isinstance(outcome, BadRecord):
                        malformed.append(outcome)
                    else:
                        counts[outcome] += 1
                for bad in malformed:
                    put_aside(bad)
                    complete = complete and bad.key is not None
                    if self.return_keys and bad.key is not None:
                        keys.append(bad.key)
                counts.update(read=len(batch), repeated=repeated, bad=len(malformed))
                columns.update(*(record.cells for record in records.values()))
                if self.return_keys:
                    keys.extend(records)
                if self.max_bad is not None and counts["bad"] > self.max_bad:
                    break
                if after_batch is not None:
                    after_batch()
        counts["tasks"] += 1
        return TaskResult(keys, frozenset(columns), complete)

    def _merge(
        self, db: Database, executor: Concurrency, records: list[Record], check: Check | None
    ) -> Iterator[str | BadRecord]:
        typed = self.reader.options.typed
        if typed is None:
            yield from executor.map(partial(merge, db, self.table, check=check), records)
            return
        merge_all = partial(merge_group, db, typed, check=check)
        for outcomes in executor.map(merge_all, in_groups(typed.definition, records, attrgetter("size"))):
            yield from outcomes


def _size(item: Record | BadRecord) -> int:
    return item.size if isinstance(item, Record) else 0
