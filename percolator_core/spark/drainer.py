"""Draining with Spark: executors run the worker, a task a tablet, until the chain is idle.

A task is a `percolator_core.worker.Worker` like any other, so all that holds of workers holds of tasks: one
that dies loses nothing, and two that do the same work do not commit it twice. A repeated or speculative task
is one more worker. A task looks after its own tablets first and then after all, so none waits for a task that
has no place yet.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

from percolator_core.admin.status import backlog
from percolator_core.database import Database, connect
from percolator_core.errors import ConfigurationError, PercolatorError
from percolator_core.observers import Chain
from percolator_core.runtime.periodic import periodically
from percolator_core.spark.loader import plain_error
from percolator_core.spark.project import Project
from percolator_core.spark.session import cancel, running_context
from percolator_core.store.url import absolute
from percolator_core.worker import Counts, Worker
from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.plan import chosen_observers

if TYPE_CHECKING:
    from os import PathLike

    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

WIDTH: Final = 64
"""Runs under way at a time in one task: fewer than in a worker that is alone, since tasks are many."""

_LOOK: Final = 0.2
"""Seconds between two looks of the driver at the job, and at the backlog."""

_LIFE_LOOK: Final = 0.25
"""Seconds between two looks of a task whether its driver still wants it."""

_GRACE: Final = 10.0
"""Seconds for tasks to finish the runs under way after an interrupt; then Spark kills them."""

Ending = Literal["idle", "late", "unwanted", "refused"]
ByObserver = dict[str, ObserverCounts]


class NotIdle(TimeoutError):
    """A drain whose budget is spent; what is left runs with the next worker.

    ``counts`` tells what was done.
    """

    def __init__(self, message: str, counts: Counts) -> None:
        super().__init__(message)
        self.counts = counts


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far a drain is: ``left`` dirty cells, and the ``counts`` of the tasks that have ended."""

    left: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended. ``reason`` says why it was refused."""

    ending: Ending
    reason: str = ""


def drain(
    db_or_url: Database | str,
    chain: Chain | str | PathLike[str],
    spark: SparkContext | SparkSession | None = None,
    budget: float | None = None,
    tasks: int | None = None,
    *,
    namespace: str | None = None,
    width: int = WIDTH,
    threads: int = 8,
    master: str | None = None,
    progress: Callable[[DrainProgress], object] | None = None,
    observers: Collection[str] | None = None,
) -> Counts:
    """Run a chain's observers in Spark's executors until no notification is left for them.

    Ctrl-C has the tasks finish the runs under way; a second one, or ten seconds, and Spark kills them.

    Args:
        db_or_url: the store, to which executors make connections of their own. For an embedded one all
            executors have to be on this machine.
        chain: the chain, or its folder. Its functions are found in the current directory.
        spark: the Spark to use; else the running one; else one is started, and stopped at the end.
        budget: seconds, 0 or more, after which tasks give up, from the start of the job on; None for no end.
        tasks: how many, 1 or more; None is as many as the largest table has tablets that they observe.
        namespace: with a URL, None is the chain's name; a database has its own.
        width: runs that are under way at a time in each task, 1 or more.
        threads: runs of observers with ``executor: threads`` at a time in each task, 1 or more.
        master: the Spark master of the one that is started; all cores of this machine when None.
        progress: called several times a second.
        observers: run these only, by name, as of `percolator_core.Worker`; None is all of the chain.

    Returns:
        What the tasks did. Of a task that died or was killed, the runs that it committed are not counted.

    Raises:
        ValueError: a number that cannot be, or no observers.
        NotIdle: a TimeoutError: the budget was spent and something was left.
        ConfigurationError: the chain, the URL or Spark cannot work, the chain has no observer of such a name,
            or workers with another set of observers are running.
        StoreUnavailable: the store went away for longer than Spark repeats a task.
        PercolatorError: a task failed as often as Spark repeats one, such as by an observer that ends its
            process.
    """
    if width < 1 or threads < 1 or (tasks is not None and tasks < 1):
        raise ValueError(f"tasks, width and threads are 1 or more, not {tasks}, {width} and {threads}")
    chain = chain if isinstance(chain, Chain) else Chain.load(chain)
    chosen = chosen_observers(chain, observers)
    code = Path.cwd()
    with ExitStack() as stack:
        arguments = (
            {"url": db_or_url, "namespace": namespace or chain.name}
            if isinstance(db_or_url, str)
            else db_or_url.connect_arguments()
        )
        arguments["url"] = absolute(arguments["url"])
        # A connection of its own, also beside a database that was given: its end is what stops the tasks.
        db = stack.enter_context(connect(**arguments))
        chain.create_tables(db)
        given: Any = getattr(spark, "sparkContext", None) or spark
        context = stack.enter_context(running_context(given, master, project=code))
        project = Project.of(chain, code, context)
        stack.callback(project.leave)
        watched = {table for name in chosen for table, _ in chain.observers[name].observe}
        tablets = max((table.tablets for table in chain.tables if table.name in watched), default=1)
        driver = _Driver(db, chain, chosen, context, progress)
        return driver.run(
            DrainTask(
                arguments,
                project,
                driver.counts,
                tasks=tasks or tablets,
                tablets=tablets,
                width=width,
                threads=threads,
                budget=budget,
                observers=None if observers is None else tuple(sorted(chosen)),
                host=socket.gethostname(),
            )
        )


@dataclass(frozen=True, slots=True)
class DrainTask:
    """What an executor does; travels there.

    ``connect`` has the arguments of `percolator_core.connect`, the URL with its password. ``owner`` is the
    driver in the store, by whose liveness token tasks see that they are wanted, and ``deadline`` is in
    microseconds of the store's clock, which all machines share.
    """

    connect: dict[str, Any] = field(repr=False)
    project: Project
    counts: Accumulator[ByObserver]
    tasks: int
    tablets: int
    width: int
    threads: int
    budget: float | None
    host: str
    observers: tuple[str, ...] | None = None
    owner: bytes = b""
    deadline: int | None = None

    def own(self, number: int) -> range:
        """The tablets that a task looks after first, by number."""
        return range(number, self.tablets, self.tasks)

    def __call__(self, number: int, _: Iterable[int]) -> Iterator[TaskEnd]:
        """Works until nothing is left; yields one end.

        What no repetition mends is an end, too. Everything else is raised, and Spark runs the task again.
        """
        try:
            yield self._work(number)
        except ConfigurationError as error:
            yield TaskEnd("refused", str(error))

    def _work(self, number: int) -> TaskEnd:
        if self.connect["url"].startswith("embedded:") and socket.gethostname() != self.host:
            raise ConfigurationError(
                f"the store is an embedded one on {self.host}, and Spark has executors on "
                f"{socket.gethostname()}: use a server that all of them reach"
            )
        chain = Chain.load(self.project.enter())
        with connect(**self.connect) as db:
            worker = Worker(
                db,
                chain,
                self.threads,
                self.width,
                cpus=1,  # what Spark gives a task
                strategy="partitioned",
                tablets=self.own(number) or None,
                observers=self.observers,
            )
            with self._while_wanted(db, worker) as unwanted:
                if unwanted.is_set():
                    return TaskEnd("unwanted")
                ending: Ending = "idle"
                try:
                    worker.run_until_idle(self._left(db))
                except TimeoutError:
                    ending = "late"
                self.counts.add(dict(worker.counts.observers))
                return TaskEnd("unwanted" if unwanted.is_set() else ending)

    def _left(self, db: Database) -> float | None:
        return None if self.deadline is None else max(0.0, (self.deadline - db.timestamp()) / 1e6)

    @contextmanager
    def _while_wanted(self, db: Database, worker: Worker) -> Iterator[threading.Event]:
        """Stops the worker, and sets the event, once the driver's token is gone from the store."""
        unwanted = threading.Event()
        token = db.client.liveness(self.owner)

        def look() -> None:
            with suppress(PercolatorError):  # the worker meets the same and says so
                if not unwanted.is_set() and not db.store.one(token):
                    unwanted.set()
                    worker.stop()

        look()
        with periodically(look, _LIFE_LOOK, "percolator-driver-watch"):
            yield unwanted


class _Driver:
    """One drain, seen from the driver."""

    def __init__(
        self,
        db: Database,
        chain: Chain,
        observers: frozenset[str],
        spark: SparkContext,
        progress: Callable[[DrainProgress], object] | None,
    ) -> None:
        self._db = db
        self._chain = chain
        self._observers = observers
        self._spark = spark
        self._progress = progress
        self._group = f"percolator-drain-{uuid4().hex}"
        self._began = time.monotonic()
        self.counts: Accumulator[ByObserver] = _accumulator(spark)

    def run(self, task: DrainTask) -> Counts:
        """Runs the tasks on the executors."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        deadline = None if task.budget is None else self._db.timestamp() + int(task.budget * 1e6)
        task = replace(task, owner=self._db.client.owner(), deadline=deadline)
        ends = {"unwanted"}
        try:
            # A failover may lose our token for a moment, and tasks then end although they are wanted.
            while "unwanted" in ends:
                found = self._watched(task)
                ends = {end.ending for end in found}
                refused = next((end.reason for end in found if end.ending == "refused"), None)
                if refused is not None:
                    raise ConfigurationError(refused)
        except (Py4JError, PySparkException) as error:
            raise plain_error(error, "drain") from None
        counts = self._counts_so_far()
        if "late" in ends and ("idle" not in ends or self._left()):
            raise NotIdle(
                "the chain was not idle in the given time: what is left runs with the next worker", counts
            )
        return counts

    def _watched(self, task: DrainTask) -> list[TaskEnd]:
        """Runs the job in a second thread while this one reports progress, or is interrupted."""

        def collect() -> list[TaskEnd]:
            self._spark.setJobGroup(self._group, f"drain {self._chain.name}", interruptOnCancel=True)
            rdd = self._spark.parallelize(range(task.tasks), task.tasks)
            return rdd.mapPartitionsWithIndex(task).collect()

        with ThreadPoolExecutor(1, "percolator-drain") as pool:
            job = pool.submit(collect)
            try:
                while wait([job], _LOOK).not_done:
                    self._report_progress()
            except BaseException:
                self._end(job)
                raise
            return job.result()

    def _end(self, job: Future[list[TaskEnd]]) -> None:
        """Ends the tasks: at first by taking our token away, so that they finish their runs."""
        try:
            self._db.close()
            wait([job], _GRACE)
        finally:
            cancel(self._spark, self._group, job)

    def _report_progress(self) -> None:
        if self._progress is not None:
            with suppress(PercolatorError):  # the tasks meet the same and say so
                self._progress(DrainProgress(self._left(), self._counts_so_far()))

    def _left(self) -> int:
        left = backlog(self._db, self._chain)
        return sum(left[name] for name in self._observers)

    def _counts_so_far(self) -> Counts:
        done = self.counts.value
        observers = {name: done.get(name, ObserverCounts()) for name in sorted(self._observers)}
        return Counts(observers, time.monotonic() - self._began)


def _accumulator(spark: SparkContext) -> Accumulator[ByObserver]:
    from pyspark import AccumulatorParam

    class Sums(AccumulatorParam[ByObserver]):
        """Adds up counts; Spark counts each task once, whatever the number of its attempts."""

        def zero(self, value: ByObserver) -> ByObserver:  # noqa: ARG002
            return {}

        def addInPlace(self, value1: ByObserver, value2: ByObserver) -> ByObserver:  # noqa: N802 - Spark's name
            for name, counts in value2.items():
                value1[name] = ObserverCounts.sum([value1.get(name, ObserverCounts()), counts])
            return value1

    return spark.accumulator({}, Sums())
