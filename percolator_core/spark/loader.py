"""Bulk loads: Spark's executors run loader transactions over a source (paper, section 3.1's loaders).

This module is the driver; `percolator_core.spark.loading` has the part that needs no Spark.
"""

from __future__ import annotations

import operator
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from percolator_core.database import Database, connect
from percolator_core.errors import PercolatorError, UnknownTable
from percolator_core.spark.job import StopJob, accumulator, run_job
from percolator_core.spark.loading.attempts import Attempts
from percolator_core.spark.loading.missing import check_prefix, delete_missing_cells, delete_missing_rows
from percolator_core.spark.loading.put_aside import PutAside
from percolator_core.spark.loading.report import LoadProgress, LoadReport, TooManyBadRecords
from percolator_core.spark.loading.source import Source
from percolator_core.spark.loading.splits import Split
from percolator_core.spark.loading.task import LoadTask, TaskResult
from percolator_core.spark.session import running_context
from percolator_core.store.url import absolute

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

_UNREADABLE_FOLDERS: Final = 999_999
"""The number of the put-aside part that the driver writes, with the folders that could not be listed."""


class TableMaker(Protocol):
    """The method of a chain that a load calls."""

    def create_tables(self, db: Database) -> object:
        """Create missing tables, and register the observers."""


def load(
    url: str,
    namespace: str,
    table: str,
    source: Source,
    *,
    chain: TableMaker | None = None,
    delete_missing: str | bytes | None = None,
    aside: str | os.PathLike[str] = "aside",
    max_bad: int | None = None,
    context: SparkContext | None = None,
    master: str | None = None,
    width: int = 256,
    progress: Callable[[LoadProgress], object] | None = None,
) -> LoadReport:
    """Load a source into a table, in transactions that write only the cells that differ.

    A load may be repeated at any time, also after a crash. A record that does not fit the table is put aside.

    Args:
        url: the store. With an embedded store all executors have to be on this machine.
        namespace: the namespace of the table.
        table: a table that exists, or that the chain creates.
        source: the result of `open_source`.
        chain: before the load, its tables are created, and its observers are registered.
        delete_missing: delete each row whose key has this prefix and is not in the source. (In a raw table,
            delete only cells in the source's columns.) A malformed record without a key prevents the
            deletion. A typed key has to be one text column.
        aside: the folder for malformed records, created when needed. All executors have to reach the folder.
        max_bad: stop when more records than this are malformed; None means no limit.
        context: the SparkContext. By default the running one, or a new one that is stopped at the end.
        master: the Spark master of a new context; by default all cores of this machine.
        width: concurrent transactions in each task, 1 or more.
        progress: called several times a second.

    Raises:
        UnknownTable: there is no such table.
        ConfigurationError: Spark or the store is not usable, or the source does not fit the table.
        StoreUnavailable: the store was unavailable during all attempts of Spark at a task.
        TooManyBadRecords: more than ``max_bad`` records are malformed.
    """
    began = time.monotonic()
    with connect(url, namespace) as db:  # keeps an embedded server running for the executors
        source = _prepare(db, table, source, chain, delete_missing)
        attempts, place = Attempts(db, table), PutAside.for_load(aside, table)
        keys = delete_missing is not None
        task = LoadTask(attempts.driver, table, source.reader(), place, max_bad, width, return_keys=keys)
        with running_context(context, master) as spark:
            run = _Load(spark, source, task, attempts, progress, time.monotonic() - began)
            results = run.on_executors(absolute(url), namespace)
        return run.finish(db, delete_missing, results)


def _prepare(
    db: Database, table: str, source: Source, chain: TableMaker | None, delete_missing: str | bytes | None
) -> Source:
    """Create the tables of the chain; return the source with options for the table."""
    if chain is not None:
        chain.create_tables(db)
    if all(definition.name != table for definition in db.tables()):
        raise UnknownTable(f"There is no table {table!r} in {db.namespace!r}: create it or name its chain.")
    handle = db.catalog.table(table)
    if delete_missing is not None and handle.is_typed:
        check_prefix(handle.definition, delete_missing)
    return source.into(handle)


@dataclass(frozen=True, slots=True)
class _SparkTask:
    """Runs a `LoadTask` in an executor of Spark."""

    url: str = field(repr=False)
    namespace: str
    task: LoadTask
    counts: Accumulator[Counter[str]]

    def __call__(self, number: int, tasks: Iterable[list[Split]]) -> Iterator[TaskResult]:
        with connect(self.url, self.namespace) as db:
            result = self.task.run(db, number, [split for task in tasks for split in task])
        self.counts.add(result.counts)
        yield result


@dataclass(slots=True)
class _Load:
    """One load, in the driver."""

    spark: SparkContext
    source: Source
    task: LoadTask
    attempts: Attempts
    progress: Callable[[LoadProgress], object] | None
    start_seconds: float
    splits: list[list[Split]] = field(init=False)
    counts: Accumulator[Counter[str]] = field(init=False)
    began: float = field(default_factory=time.monotonic)
    stopped: bool = False
    load_seconds: float = 0.0
    delete_seconds: float = 0.0
    deleted: int = 0
    kept_back: str | None = None
    aside_file: Path | None = None

    def __post_init__(self) -> None:
        self.splits = self.source.tasks(self.spark.defaultParallelism)
        self.counts = accumulator(self.spark, Counter[str], operator.iadd)

    def on_executors(self, url: str, namespace: str) -> list[TaskResult]:
        """Run the tasks and return their results, or no results if the load was stopped."""
        if self.source.unreadable:
            self.task.put_aside.write(_UNREADABLE_FOLDERS, self.source.unreadable)
        task = _SparkTask(url, namespace, self.task, self.counts)
        try:
            results: list[TaskResult] = run_job(
                self.spark,
                "load",
                f"into {self.task.table}",
                self.splits,
                task,
                poll=self._poll,
                stop_tasks=self._stop_tasks,
            )
            self._report_progress()
        finally:
            self.attempts.end()
            self.load_seconds = time.monotonic() - self.began
            self.aside_file = self.task.put_aside.join()
        self.stopped = self.stopped or self._has_too_many()
        return results

    def finish(
        self, db: Database, delete_missing: str | bytes | None, results: list[TaskResult]
    ) -> LoadReport:
        """Delete missing rows (if requested), and return the report. Raises TooManyBadRecords."""
        if self.stopped:
            report = self._report()
            raise TooManyBadRecords(
                f"The load was stopped: {report.bad} records are malformed and {self.task.max_bad} are "
                f"allowed. {report.aside} lists them with the reasons.",
                report,
            )
        if delete_missing is not None:
            self._delete_missing(db, delete_missing, results)
        return self._report()

    def _delete_missing(self, db: Database, prefix: str | bytes, results: list[TaskResult]) -> None:
        """Delete the rows that the source lacks.

        If the key of a malformed record is unknown, delete nothing: the record may be that of any row.
        """
        if self.source.unreadable or not all(result.complete for result in results):
            self.kept_back = "the row keys of some malformed records are unknown"
            return
        began = time.monotonic()
        table = self.task.table
        keys = {key for result in results for key in result.keys}
        if self.source.options.typed is not None:
            self.deleted = delete_missing_rows(db, table, prefix, keys)
        else:
            columns = {column for result in results for column in result.columns}
            self.deleted = delete_missing_cells(db, table, prefix, keys, columns)
        self.delete_seconds = time.monotonic() - began

    def _report(self) -> LoadReport:
        counts = self.counts.value
        folders = len(self.source.unreadable)
        return LoadReport(
            table=self.task.table,
            format=self.source.format,
            files=len(self.source.files),
            tasks=len(self.splits),
            read=counts["read"] + folders,
            new=counts["new"],
            changed=counts["changed"],
            unchanged=counts["unchanged"],
            repeated=counts["repeated"],
            deleted=self.deleted,
            bad=counts["bad"] + folders,
            aside=self.aside_file,
            kept_back=self.kept_back,
            start_seconds=self.start_seconds,
            load_seconds=self.load_seconds,
            delete_seconds=self.delete_seconds,
        )

    def _has_too_many(self) -> bool:
        return self.task.max_bad is not None and self.counts.value["bad"] > self.task.max_bad

    def _poll(self) -> None:
        self._report_progress()
        if self._has_too_many():
            self.stopped = True
            raise StopJob

    def _stop_tasks(self, _: Future[list[TaskResult]]) -> None:
        with suppress(PercolatorError):  # if the store is unavailable, the tasks cannot commit
            self.attempts.withdraw()

    def _report_progress(self) -> None:
        if self.progress is None:
            return
        counts = self.counts.value
        self.progress(
            LoadProgress(
                tasks=len(self.splits),
                tasks_done=counts["tasks"],
                read=counts["read"],
                new=counts["new"],
                changed=counts["changed"],
                unchanged=counts["unchanged"],
                bad=counts["bad"],
                seconds=time.monotonic() - self.began,
            )
        )
