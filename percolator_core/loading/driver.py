"""The driver of a load: prepare it, have its tasks run, delete missing rows, and report.

A `Runner` runs the tasks: in the calling thread (`load`), or in Spark's executors
(`percolator_core.spark.loader`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from percolator_core.database import Database
from percolator_core.errors import UnknownTable
from percolator_core.loading.missing import check_prefix, delete_missing_cells, delete_missing_rows
from percolator_core.loading.put_aside import PutAside
from percolator_core.loading.records import BadRecord, Origin
from percolator_core.loading.report import LoadProgress, LoadReport, TooManyBadRecords
from percolator_core.loading.source import Source
from percolator_core.loading.splits import Split
from percolator_core.loading.task import LoadTask, TaskResult

if TYPE_CHECKING:
    from percolator_core.observers import Chain

_UNREADABLE_FOLDERS: Final = 999_998
_REPLACED_OBJECTS: Final = 999_999
"""The numbers of the put-aside parts that the driver writes."""


def load(
    db: Database,
    table: str,
    source: Source,
    *,
    chain: Chain | None = None,
    delete_missing: str | bytes | None = None,
    aside: str | os.PathLike[str] = "aside",
    max_bad: int | None = None,
    width: int = 256,
    progress: Callable[[LoadProgress], object] | None = None,
) -> LoadReport:
    """Load a source into a table, in transactions that write only the cells that differ.

    A load may be repeated at any time, also after a crash. A record that does not fit the table is put aside.

    Args:
        db: the database of the table.
        table: a table that exists, or that the chain creates.
        source: the result of `open_source`.
        chain: before the load, its tables are created, and its observers are registered.
        delete_missing: delete each row whose key has this prefix and is not in the source. (In a raw table,
            delete only cells in the source's columns.) A malformed record without a key prevents the
            deletion. A typed key has to be one text column.
        aside: the folder for malformed records, created when needed.
        max_bad: stop when more records than this are malformed; None means no limit.
        width: concurrent transactions, 1 or more.
        progress: called after each batch of records.

    Raises:
        UnknownTable: there is no such table.
        ConfigurationError: the source does not fit the table.
        StoreUnavailable: the store or an object store does not answer; load again.
        TooManyBadRecords: more than ``max_bad`` records are malformed.
    """
    return Load(db, table, source, chain, delete_missing, aside, max_bad, width, progress).run(_Here(db))


class Runner(Protocol):
    """Runs the tasks of a load."""

    @property
    def cores(self) -> int:
        """The number of tasks that run at a time. The load is divided into a few tasks for each of them."""

    @property
    def counts(self) -> Counter[str]:
        """The sums of the counts of the tasks (`LoadTask.run`)."""

    def run(self, task: LoadTask, parts: Sequence[list[Split]], poll: Callable[[], bool]) -> list[TaskResult]:
        """Run the task once for each part, and return the results.

        ``poll`` is called repeatedly. If it returns False, the tasks are stopped, and the results do not
        matter. After the return, also by an exception, no task commits any more.
        """


class _Here:
    """Runs one task after another: threads would not be faster, because one task keeps a core busy."""

    cores = 1

    def __init__(self, db: Database) -> None:
        self._db = db
        self.counts: Counter[str] = Counter()

    def run(self, task: LoadTask, parts: Sequence[list[Split]], poll: Callable[[], bool]) -> list[TaskResult]:
        results = []
        for number, splits in enumerate(parts):
            results.append(task.run(self._db, number, splits, self.counts, after_batch=poll))
            if not poll():
                break
        return results


@dataclass(slots=True)
class Load:
    """One load, independent of the place where its tasks run. Fields and errors are those of `load`."""

    db: Database
    table: str
    source: Source
    chain: Chain | None
    delete_missing: str | bytes | None
    aside: str | os.PathLike[str]
    max_bad: int | None
    width: int
    progress: Callable[[LoadProgress], object] | None
    _task: LoadTask = field(init=False)
    _created: float = field(init=False, default_factory=time.monotonic)
    _bad_files: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Create the tables of the chain, and check that the source fits the table."""
        if self.chain is not None:
            self.chain.create_tables(self.db)
        if all(definition.name != self.table for definition in self.db.tables()):
            raise UnknownTable(
                f"There is no table {self.table!r} in {self.db.namespace!r}: create it or name its chain."
            )
        handle = self.db.catalog.table(self.table)
        if self.delete_missing is not None and handle.is_typed:
            check_prefix(handle.definition, self.delete_missing)
        self.source = self.source.into(handle)
        self._task = LoadTask(
            self.table,
            self.source.reader(),
            PutAside.for_load(self.aside, self.table),
            self.max_bad,
            self.width,
            return_keys=self.delete_missing is not None,
        )

    def run(self, runner: Runner) -> LoadReport:
        """Run the tasks, delete missing rows (if requested), and return the report."""
        parts = self.source.tasks(runner.cores)
        began = time.monotonic()
        added: list[str] = []
        self._put_aside(_UNREADABLE_FOLDERS, self.source.unreadable)
        try:
            results = runner.run(self._task, parts, lambda: self._poll(runner.counts, len(parts), began))
            if self._poll(runner.counts, len(parts), began):
                replaced, added = self.source.list_again()
                self._put_aside(_REPLACED_OBJECTS, [_replaced(url) for url in replaced])
            is_whole = self._poll(runner.counts, len(parts), began)
        finally:
            load_seconds = time.monotonic() - began
            aside = self._task.put_aside.join()
        counts = runner.counts
        report = LoadReport(
            table=self.table,
            format=self.source.format,
            files=len(self.source.files),
            tasks=len(parts),
            read=counts["read"] + self._bad_files,
            new=counts["new"],
            changed=counts["changed"],
            unchanged=counts["unchanged"],
            repeated=counts["repeated"],
            deleted=0,
            bad=counts["bad"] + self._bad_files,
            aside=aside,
            kept_back=None,
            start_seconds=began - self._created,
            load_seconds=load_seconds,
            delete_seconds=0.0,
        )
        if not is_whole:
            raise TooManyBadRecords(
                f"The load was stopped: {report.bad} records are malformed and {self.max_bad} are "
                f"allowed. {report.aside} lists them with the reasons.",
                report,
            )
        if self.delete_missing is None:
            return report
        return self._delete(self.delete_missing, results, added, report)

    def _put_aside(self, part: int, records: Sequence[BadRecord]) -> None:
        """Put records aside that stand for whole files or folders."""
        with self._task.put_aside.part(part) as write:
            for record in records:
                write(record)
        self._bad_files += len(records)

    def _poll(self, counts: Counter[str], tasks: int, began: float) -> bool:
        """Report the progress. Return False if too many records are malformed."""
        if self.progress is not None:
            self.progress(
                LoadProgress(
                    tasks=tasks,
                    tasks_done=counts["tasks"],
                    read=counts["read"],
                    new=counts["new"],
                    changed=counts["changed"],
                    unchanged=counts["unchanged"],
                    bad=counts["bad"] + self._bad_files,
                    seconds=time.monotonic() - began,
                )
            )
        return self.max_bad is None or counts["bad"] + self._bad_files <= self.max_bad

    def _delete(
        self, prefix: str | bytes, results: list[TaskResult], added: list[str], report: LoadReport
    ) -> LoadReport:
        """Delete the rows that the source lacks, and return the completed report."""
        if added:  # perhaps an object got another name, so that its rows only seem to be missing
            return replace(report, kept_back=f"{added[0]} was added during the load")
        # With an unknown key, or a file or folder that was not read as a whole, any row may be in the source.
        if self._bad_files or not all(result.complete for result in results):
            return replace(report, kept_back="the row keys of some malformed records are unknown")
        began = time.monotonic()
        keys = {key for result in results for key in result.keys}
        if self.source.options.typed is not None:
            deleted = delete_missing_rows(self.db, self.table, prefix, keys)
        else:
            columns = {column for result in results for column in result.columns}
            deleted = delete_missing_cells(self.db, self.table, prefix, keys, columns)
        return replace(report, deleted=deleted, delete_seconds=time.monotonic() - began)


def _replaced(url: str) -> BadRecord:
    return BadRecord(Origin(url, "file", 0), "the object was replaced during the load: load again")
