"""Bulk loads: Spark's executors run loader transactions over a source (paper, section 3.1's loaders)."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

from percolator_core.database import Database, connect
from percolator_core.errors import (
    ConfigurationError,
    LockTimeout,
    PercolatorError,
    StoreUnavailable,
    UnknownTable,
)
from percolator_core.spark.aside import Aside
from percolator_core.spark.loading import LoadTask, TaskResult, remove
from percolator_core.spark.session import cancel, running_context
from percolator_core.spark.sources import Source
from percolator_core.spark.splits import Split
from percolator_core.spark.typedloading import check_prefix, remove_missing
from percolator_core.spark.wanted import Attempts
from percolator_core.store.url import absolute

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

_LOOK: Final = 0.2
"""Seconds between two looks at the counters."""

_UNREADABLE_FOLDERS: Final = 999_999
"""The number of the aside part that the driver writes."""

_PASSED_ON: Final[dict[str, type[PercolatorError]]] = {
    kind.__name__: kind for kind in (ConfigurationError, LockTimeout, StoreUnavailable, UnknownTable)
}
"""Errors of tasks that reach the caller as they are."""

_ENDED: Final = "Cannot call methods on a stopped SparkContext"


class TooManyBadRecords(PercolatorError):
    """A load was stopped: more malformed records than allowed. What was loaded stays.

    ``report`` tells what was done until then.
    """

    def __init__(self, message: str, report: LoadReport) -> None:
        super().__init__(message)
        self.report = report


class TableMaker(Protocol):
    """A chain, as far as a load needs one."""

    def create_tables(self, db: Database) -> object:
        """Make the tables that are missing and register the observers."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is; counts grow when a task ends."""

    tasks: int
    tasks_done: int
    read: int
    new: int
    changed: int
    unchanged: int
    bad: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did. ``read`` = new + changed + unchanged + repeated + bad.

    A record of a task that failed and was run again counts once, by what its last run found; so after a
    failure ``unchanged`` holds records that this very load wrote.
    """

    table: str
    format: str
    files: int
    tasks: int
    read: int
    new: int
    changed: int
    unchanged: int
    repeated: int
    """Records followed closely by another one of the same key in the same file; the later one was loaded."""
    deleted: int
    bad: int
    aside: Path | None
    """The JSON-lines file of the malformed records."""
    kept_back: str | None
    """Why missing rows were not deleted although that was asked for."""
    start_seconds: float
    """Until Spark had started; about 0 when it ran already."""
    load_seconds: float
    delete_seconds: float

    def to_json(self) -> dict[str, object]:
        """The fields, in types that JSON has."""
        return asdict(self) | {"aside": str(self.aside) if self.aside is not None else None}


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
    """Load a source into a table, with transactions that write only the cells that differ.

    In a raw table each record has its own. In a typed one some records share one: fields become values of
    the columns' types, rows are added or changed, and a record that does not fit is put aside.

    It may be repeated at any time, after a crash too; an unchanged record writes nothing.

    Args:
        url: the store. For an embedded one all executors have to be on this machine.
        namespace: the namespace of the table.
        table: an existing table, or one that the chain makes.
        source: what `open_source` returned.
        chain: its tables are created, and its observers registered, before the load.
        delete_missing: a prefix of row keys. Of rows that begin with it and are not in the source, the
            columns that the source has are deleted, in a typed table the rows, unless some record was too
            malformed to tell its key. A typed table's key has to be one column of text.
        aside: the folder for malformed records; made when there are any. All executors have to see it.
        max_bad: stop when more records than this are malformed; None for never.
        context: the SparkContext to use; else the running one; else one is started, and stopped at the end.
        master: the Spark master of the one that is started; all cores of this machine when None.
        width: transactions that a task runs at a time, 1 or more.
        progress: called several times a second.

    Raises:
        UnknownTable: there is no such table.
        ConfigurationError: Spark cannot start, the store cannot be used, or the source and the table do not
            agree.
        StoreUnavailable: the store went away for longer than Spark repeats a task.
        TooManyBadRecords: see ``max_bad``.
    """
    started = time.monotonic()
    place = absolute(url)
    with connect(place, namespace) as db:  # holds an embedded server open for the executors
        if chain is not None:
            chain.create_tables(db)
        if all(definition.name != table for definition in db.tables()):
            raise UnknownTable(f"There is no table {table!r} in {namespace!r}: create it or name its chain.")
        handle = db.catalog.table(table)
        source = source.into(handle)
        if delete_missing is not None and handle.is_typed:
            check_prefix(handle.definition, delete_missing)
        with running_context(context, master) as spark:
            job = _Job(
                Attempts(db, table),
                spark,
                source,
                Aside.for_load(aside, table),
                max_bad=max_bad,
                progress=progress,
                start_seconds=time.monotonic() - started,
            )
            results = job.run(
                LoadTask(
                    place,
                    namespace,
                    job.attempts.driver,
                    table,
                    source.reader(),
                    job.aside,
                    job.counts,
                    max_bad,
                    width,
                    return_keys=delete_missing is not None,
                )
            )
        if job.stopped:
            report = job.report(table)
            raise TooManyBadRecords(
                f"The load was stopped: {report.bad} records are malformed and {max_bad} are allowed. "
                f"{report.aside} names each with its reason.",
                report,
            )
        if delete_missing is not None:
            job.delete_missing(db, table, delete_missing, results)
        return job.report(table)


class _Job:
    """One load, seen from the driver."""

    def __init__(
        self,
        attempts: Attempts,
        spark: SparkContext,
        source: Source,
        aside: Aside,
        *,
        max_bad: int | None,
        progress: Callable[[LoadProgress], object] | None,
        start_seconds: float,
    ) -> None:
        self.attempts = attempts
        self.spark = spark
        self.source = source
        self.aside = aside
        self.tasks: list[list[Split]] = source.tasks(spark.defaultParallelism)
        self.counts: Accumulator[Counter[str]] = _counter(spark)
        self.group = f"percolator-load-{uuid4().hex}"
        self.stopped = False
        self._max_bad = max_bad
        self._progress = progress
        self._start_seconds = start_seconds
        self._load_seconds = 0.0
        self._delete_seconds = 0.0
        self._deleted = 0
        self._kept_back: str | None = None
        self._aside_file: Path | None = None

    def run(self, task: LoadTask) -> list[TaskResult]:
        """Runs the tasks on the executors; returns fewer results than tasks when it was stopped."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        started = time.monotonic()
        if self.source.unreadable:
            self.aside.write(_UNREADABLE_FOLDERS, self.source.unreadable)
        results: list[TaskResult] = []
        try:
            results = self._watched(task, started)
        except (Py4JError, PySparkException) as error:
            if not self.stopped:
                raise plain_error(error) from None
        finally:
            self.attempts.end()
            self._load_seconds = time.monotonic() - started
            self._aside_file = self.aside.join()
        self.stopped = self.stopped or self._too_many()
        return results

    def delete_missing(
        self, db: Database, table: str, prefix: str | bytes, results: list[TaskResult]
    ) -> None:
        """Deletes the loaded columns of rows that the source no longer has."""
        if self.source.unreadable or not all(result.complete for result in results):
            self._kept_back = "some malformed records do not tell their row key, so nothing was deleted"
            return
        started = time.monotonic()
        keys = {key for result in results for key in result.keys}
        if self.source.options.typed is not None:
            self._deleted = remove_missing(db, table, prefix, keys)
        else:
            columns = sorted({column for result in results for column in result.columns})
            rows = db.snapshot().scan(table, prefix=prefix, columns=columns)
            missing = (row for row, _ in rows if row not in keys)
            with db.concurrency() as executor:
                self._deleted = sum(executor.map(lambda row: remove(db, table, row, columns), missing))
        self._delete_seconds = time.monotonic() - started

    def report(self, table: str) -> LoadReport:
        """What was done."""
        counts = self.counts.value
        folders = len(self.source.unreadable)
        return LoadReport(
            table=table,
            format=self.source.format,
            files=len(self.source.files),
            tasks=len(self.tasks),
            read=counts["read"] + folders,
            new=counts["new"],
            changed=counts["changed"],
            unchanged=counts["unchanged"],
            repeated=counts["repeated"],
            deleted=self._deleted,
            bad=counts["bad"] + folders,
            aside=self._aside_file,
            kept_back=self._kept_back,
            start_seconds=self._start_seconds,
            load_seconds=self._load_seconds,
            delete_seconds=self._delete_seconds,
        )

    def _too_many(self) -> bool:
        return self._max_bad is not None and self.counts.value["bad"] > self._max_bad

    def _watched(self, task: LoadTask, started: float) -> list[TaskResult]:
        """Runs the job in a second thread while this one reports progress, stops it, or is interrupted.

        Spark's handler of Ctrl-C talks to Java itself, which it cannot in the midst of another call.
        """

        def collect() -> list[TaskResult]:
            self.spark.setJobGroup(self.group, f"load into {task.table}", interruptOnCancel=True)
            rdd = self.spark.parallelize(self.tasks, len(self.tasks))
            return rdd.mapPartitionsWithIndex(task).collect()

        with ThreadPoolExecutor(1, "percolator-load") as pool:
            job = pool.submit(collect)
            try:
                while wait([job], _LOOK).not_done:
                    self._report_progress(started)
                    if not self.stopped and self._too_many():
                        self.stopped = True
                        self._withdraw(job)
                self._report_progress(started)
            except BaseException:
                self._withdraw(job)
                raise
            return job.result()

    def _withdraw(self, job: Future[list[TaskResult]]) -> None:
        """Tells the tasks to stop, and cancels the job.

        Spark alone may leave the Python process of a cancelled task at work.
        """
        try:
            with suppress(PercolatorError):  # without the store the tasks cannot commit either
                self.attempts.withdraw()
        finally:
            cancel(self.spark, self.group, job)

    def _report_progress(self, started: float) -> None:
        if self._progress is not None:
            self._progress(self._snapshot(time.monotonic() - started))

    def _snapshot(self, seconds: float) -> LoadProgress:
        counts = self.counts.value
        return LoadProgress(
            tasks=len(self.tasks),
            tasks_done=counts["tasks"],
            read=counts["read"],
            new=counts["new"],
            changed=counts["changed"],
            unchanged=counts["unchanged"],
            bad=counts["bad"],
            seconds=seconds,
        )


def _counter(spark: SparkContext) -> Accumulator[Counter[str]]:
    from pyspark import AccumulatorParam

    class Sums(AccumulatorParam[Counter[str]]):
        """Adds up counters; Spark counts each task once, whatever the number of its attempts."""

        def zero(self, value: Counter[str]) -> Counter[str]:  # noqa: ARG002
            return Counter()

        def addInPlace(self, value1: Counter[str], value2: Counter[str]) -> Counter[str]:  # noqa: N802 - Spark's name
            value1.update(value2)
            return value1

    return spark.accumulator(Counter(), Sums())


def plain_error(error: Exception, what: str = "load") -> PercolatorError:
    """The error of a task, out of the two tracebacks that Spark wraps it in. ``what`` is what failed."""
    found: list[tuple[str, str]] = re.findall(r"^(?:\w+\.)*(\w+): (.+)$", str(error), re.MULTILINE)
    for name, message in found:
        if name in _PASSED_ON:
            return _PASSED_ON[name](message)
    if _ENDED in str(error):
        return PercolatorError(
            f"Spark ended by itself before the {what} did, as when its master is none or takes nobody: see "
            f"to the master. What was done stays; {what} again."
        )
    if found:
        reason = f"{found[-1][0]}: {found[-1][1]}"
    else:  # nothing of Python: its process died, or the executor
        line = next((line for line in str(error).splitlines() if line.startswith(": ")), str(error))
        reason = " ".join(line.rpartition("Exception: ")[2].partition(". ")[0].split())
    return PercolatorError(f"Spark gave the {what} up: {reason[:500]}. What was done stays; {what} again.")
