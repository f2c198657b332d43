"""Run one job of Spark from the driver, cancel it, and translate its errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from percolator_core.errors import (
    ConfigurationError,
    LockTimeout,
    PercolatorError,
    StoreUnavailable,
    UnknownTable,
)

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext

T = TypeVar("T")

_POLL: Final = 0.2
"""Seconds between two calls of ``poll``."""

_CANCEL_AGAIN: Final = 0.2
"""Seconds between two calls that cancel a job."""

_PASSED_ON: Final[dict[str, type[PercolatorError]]] = {
    kind.__name__: kind for kind in (ConfigurationError, LockTimeout, StoreUnavailable, UnknownTable)
}
"""Errors of tasks that the caller gets unchanged."""

_CONTEXT_STOPPED: Final = "Cannot call methods on a stopped SparkContext"


class StopJob(Exception):
    """``poll`` raises this exception to stop the job; `run_job` then returns no results."""


def run_job(
    spark: SparkContext,
    verb: str,
    table_or_chain: str,
    parts: Sequence[Any],
    task: Any,
    *,
    poll: Callable[[], None],
    stop_tasks: Callable[[Future[list[Any]]], None],
) -> list[Any]:
    """Run ``task`` for each of ``parts``, and return the results that the tasks yielded.

    The job runs in a second thread, so that this thread can be interrupted, and can call ``poll`` several
    times a second. If ``poll`` raises, or after an interrupt, ``stop_tasks`` asks the tasks to end, and then
    Spark cancels the job.

    Raises:
        PercolatorError: all attempts of Spark at a task failed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    group = f"percolator-{verb}-{uuid4().hex}"

    def collect() -> list[Any]:
        spark.setJobGroup(group, f"{verb} {table_or_chain}", interruptOnCancel=True)
        rdd = spark.parallelize(parts, len(parts))
        return rdd.mapPartitionsWithIndex(task).collect()

    with ThreadPoolExecutor(1, f"percolator-{verb}") as pool:
        job = pool.submit(collect)
        try:
            while wait([job], _POLL).not_done:
                poll()
        except BaseException as error:
            try:
                stop_tasks(job)
            finally:
                _cancel(spark, group, job)
            if isinstance(error, StopJob):
                return []
            raise
        try:
            return job.result()
        except (Py4JError, PySparkException) as error:
            raise plain_error(error, verb) from None


def _cancel(spark: SparkContext, group: str, job: Future[Any]) -> None:
    """Cancel the job repeatedly until it has ended: Spark ignores calls until it has registered the job."""
    while not job.done():
        spark.cancelJobGroup(group)
        wait([job], _CANCEL_AGAIN)


def accumulator(spark: SparkContext, empty: Callable[[], T], add: Callable[[T, T], T]) -> Accumulator[T]:
    """Return a sum to which tasks add. Spark counts each task once, even if the task ran several times."""
    from pyspark import AccumulatorParam

    class Sums(AccumulatorParam[T]):
        """The operations of the sum."""

        def zero(self, value: T) -> T:  # noqa: ARG002
            return empty()

        def addInPlace(self, value1: T, value2: T) -> T:  # noqa: N802 - Spark's name
            return add(value1, value2)

    return spark.accumulator(empty(), Sums())


def plain_error(error: Exception, verb: str = "load") -> PercolatorError:
    """Return the error of a task without Spark's tracebacks."""
    found: list[tuple[str, str]] = re.findall(r"^(?:\w+\.)*(\w+): (.+)$", str(error), re.MULTILINE)
    for name, message in found:
        if name in _PASSED_ON:
            return _PASSED_ON[name](message)
    if _CONTEXT_STOPPED in str(error):
        return PercolatorError(
            f"Spark ended before the {verb} did. Perhaps no master runs, or the master accepts no "
            f"application: check the master. Committed work stays; {verb} again."
        )
    if found:
        reason = f"{found[-1][0]}: {found[-1][1]}"
    else:  # not an error of Python: the process of a task, or its executor, died
        line = next((line for line in str(error).splitlines() if line.startswith(": ")), str(error))
        reason = " ".join(line.rpartition("Exception: ")[2].partition(". ")[0].split())
    return PercolatorError(f"Spark ended the {verb}: {reason[:500]}. Committed work stays; {verb} again.")
