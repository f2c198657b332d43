"""Bulk loads with Spark: its executors run the tasks of a load (paper, section 3.1's loaders)."""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from percolator_core.database import connect
from percolator_core.errors import PercolatorError
from percolator_core.loading.driver import Load
from percolator_core.loading.report import LoadProgress, LoadReport
from percolator_core.loading.source import Source
from percolator_core.loading.splits import Split
from percolator_core.loading.task import LoadTask, TaskResult
from percolator_core.spark.attempts import Attempt, Attempts
from percolator_core.spark.job import StopJob, accumulator, run_job
from percolator_core.spark.session import check_pyspark, running_context
from percolator_core.store.url import absolute

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

    from percolator_core.observers import Chain


def load(
    url: str,
    namespace: str,
    table: str,
    source: Source,
    *,
    chain: Chain | None = None,
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
        StoreUnavailable: the store or an object store was unavailable during all attempts of Spark at a task.
        TooManyBadRecords: more than ``max_bad`` records are malformed.
    """
    check_pyspark()
    with connect(url, namespace) as db:  # keeps an embedded server running for the executors
        run = Load(db, table, source, chain, delete_missing, aside, max_bad, width, progress)
        attempts = Attempts(db, table)
        with running_context(context, master) as spark:
            return run.run(_Executors(spark, absolute(url), namespace, attempts))


@dataclass(frozen=True, slots=True)
class _SparkTask:
    """Runs a `LoadTask` in an executor of Spark. ``driver`` is the name of the driver's client."""

    url: str = field(repr=False)
    namespace: str
    driver: bytes
    task: LoadTask
    counts: Accumulator[Counter[str]]

    def __call__(self, number: int, parts: Iterable[list[Split]]) -> Iterator[TaskResult]:
        counts: Counter[str] = Counter()
        with connect(self.url, self.namespace) as db:
            attempt = Attempt(db, self.task.table, self.driver)
            splits = (split for part in parts for split in part)
            result = self.task.run(db, number, splits, counts, check=attempt.check)
        self.counts.add(counts)
        yield result


class _Executors:
    """Runs the tasks of a load in the executors of Spark. Their counts arrive when they end."""

    def __init__(self, spark: SparkContext, url: str, namespace: str, attempts: Attempts) -> None:
        self.cores = spark.defaultParallelism
        self._spark = spark
        self._url = url
        self._namespace = namespace
        self._attempts = attempts
        self._counts = accumulator(spark, Counter[str], operator.iadd)

    @property
    def counts(self) -> Counter[str]:
        counts: Counter[str] = self._counts.value
        return counts

    def run(self, task: LoadTask, parts: Sequence[list[Split]], poll: Callable[[], bool]) -> list[TaskResult]:
        def poll_job() -> None:
            if not poll():
                raise StopJob

        spark_task = _SparkTask(self._url, self._namespace, self._attempts.driver, task, self._counts)
        target, stop = f"into {task.table}", self._stop_tasks
        try:
            return run_job(self._spark, "load", target, parts, spark_task, poll=poll_job, stop_tasks=stop)
        finally:
            self._attempts.end()

    def _stop_tasks(self, _: Future[list[TaskResult]]) -> None:
        with suppress(PercolatorError):  # if the store is unavailable, the tasks cannot commit
            self._attempts.withdraw()
