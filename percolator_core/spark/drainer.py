"""Run observers with Spark: executors run the worker, one task a tablet, until the chain is idle.

A task is a `percolator_core.worker.Worker` like any other: if it dies nothing is lost, and two tasks that do
the same work do not commit it twice. A repeated or speculative task is one more worker. A task serves its own
tablets first, and then all others, so no tablet waits for a task that Spark has not started yet.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from percolator_core.admin.status import backlog
from percolator_core.database import Database, connect
from percolator_core.errors import ConfigurationError, PercolatorError
from percolator_core.observers import Chain
from percolator_core.runtime.periodic import periodically
from percolator_core.spark.job import accumulator, run_job
from percolator_core.spark.project import Project
from percolator_core.spark.session import running_context
from percolator_core.store.url import absolute
from percolator_core.worker import Counts, Worker
from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.plan import chosen_observers

if TYPE_CHECKING:
    from os import PathLike

    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

WIDTH: Final = 64
"""Runs under way at a time in one task: fewer than in a worker that is alone, since there are many tasks."""

_TOKEN_POLL: Final = 0.25
"""Seconds between two checks of a task that the driver still lives."""

_GRACE: Final = 10.0
"""Seconds for tasks to finish the runs under way after an interrupt; then Spark kills them."""

Ending = Literal["idle", "late", "withdrawn", "refused"]
ByObserver = dict[str, ObserverCounts]


class NotIdle(TimeoutError):
    """The budget of a drain was spent before the chain was idle. The next worker runs the rest.

    ``counts`` has the runs of the drain.
    """

    def __init__(self, message: str, counts: Counts) -> None:
        super().__init__(message)
        self.counts = counts


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The progress of a drain: dirty cells ``left``, and the ``counts`` of the tasks that have ended."""

    left: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of a task; ``reason`` is the error of a refused one."""

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

    After a Ctrl-C the tasks finish the runs under way. After a second one, or after ten seconds, Spark kills
    them.

    Args:
        db_or_url: the store, to which executors make connections of their own. For an embedded one all
            executors have to be on this machine.
        chain: the chain, or its folder. Its functions are found in the current directory.
        spark: the context or session; if None, the running one, or a new one that is stopped at the end.
        budget: seconds, 0 or more, from the start of the job, after which tasks give up; None for no limit.
        tasks: the number of tasks, 1 or more; if None, the number of tablets of the largest observed table.
        namespace: for a URL; the chain's name if None. A database has its own.
        width: runs that are under way at a time in each task, 1 or more.
        threads: runs of observers with ``executor: threads`` at a time in each task, 1 or more.
        master: the Spark master of a new context; all cores of this machine when None.
        progress: called several times a second.
        observers: names of the observers to run, as for `percolator_core.Worker`; all of the chain if None.

    Returns:
        The runs of the tasks. The runs of a task that died or was killed are not counted.

    Raises:
        ValueError: a number is out of range, or no observer is named.
        NotIdle: a TimeoutError: the budget was spent before the chain was idle.
        ConfigurationError: the chain, the URL or Spark cannot work, the chain has no observer of that name,
            or workers with another set of observers are running.
        StoreUnavailable: the store was away for longer than Spark repeats a task.
        PercolatorError: a task failed as often as Spark repeats one; for instance, an observer ended its
            process.
    """
    if width < 1 or threads < 1 or (tasks is not None and tasks < 1):
        raise ValueError(f"tasks, width and threads are 1 or more, not {tasks}, {width} and {threads}")
    chain = chain if isinstance(chain, Chain) else Chain.load(chain)
    chosen = chosen_observers(chain, observers)
    with ExitStack() as stack:
        arguments = _connect_arguments(db_or_url, namespace or chain.name)
        # A connection of its own, also beside a given database: closing it is what stops the tasks.
        db = stack.enter_context(connect(**arguments))
        chain.create_tables(db)
        given: Any = getattr(spark, "sparkContext", None) or spark
        code = Path.cwd()
        context = stack.enter_context(running_context(given, master, project=code))
        project = Project.of(chain, code, context)
        stack.callback(project.leave)
        tablets = _most_tablets(chain, chosen)
        counts = accumulator(context, dict[str, ObserverCounts], _add)
        task = DrainTask(
            arguments,
            project,
            counts,
            tasks=tasks or tablets,
            tablets=tablets,
            width=width,
            threads=threads,
            host=socket.gethostname(),
            driver=db.client.owner(),
            deadline=None if budget is None else db.timestamp() + int(budget * 1e6),
            observers=None if observers is None else tuple(sorted(chosen)),
        )
        return _Drain(db, chain, chosen, task, progress).run(context)


def _connect_arguments(db_or_url: Database | str, namespace: str) -> dict[str, Any]:
    arguments = (
        {"url": db_or_url, "namespace": namespace}
        if isinstance(db_or_url, str)
        else db_or_url.connect_arguments()
    )
    return arguments | {"url": absolute(arguments["url"])}


def _most_tablets(chain: Chain, observers: Collection[str]) -> int:
    """The number of tablets of the largest table that these observers observe."""
    observed = {table for name in observers for table, _ in chain.observers[name].observe}
    return max((table.tablets for table in chain.tables if table.name in observed), default=1)


@dataclass(frozen=True, slots=True)
class DrainTask:
    """A worker in an executor; sent there.

    ``connect`` has the arguments of `percolator_core.connect`, among them the URL with its password.
    ``driver`` is the driver's client: the task ends when its liveness token is gone. ``deadline`` is in
    microseconds of the store's clock, which all machines share.
    """

    connect: dict[str, Any] = field(repr=False)
    project: Project
    counts: Accumulator[ByObserver]
    tasks: int
    tablets: int
    width: int
    threads: int
    host: str
    driver: bytes
    deadline: int | None = None
    observers: tuple[str, ...] | None = None

    def own(self, number: int) -> range:
        """The numbers of the tablets that a task serves first."""
        return range(number, self.tablets, self.tasks)

    def __call__(self, number: int, _: Iterable[int]) -> Iterator[TaskEnd]:
        """Work until the chain is idle; yield one end.

        A ConfigurationError is an end, too, since no repetition helps. For all other errors Spark runs the
        task again.
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
            with self._while_driver_lives(db, worker) as withdrawn:
                if withdrawn.is_set():
                    return TaskEnd("withdrawn")
                ending: Ending = "idle"
                try:
                    worker.run_until_idle(self._left(db))
                except TimeoutError:
                    ending = "late"
                self.counts.add(dict(worker.counts.observers))
                return TaskEnd("withdrawn" if withdrawn.is_set() else ending)

    def _left(self, db: Database) -> float | None:
        return None if self.deadline is None else max(0.0, (self.deadline - db.timestamp()) / 1e6)

    @contextmanager
    def _while_driver_lives(self, db: Database, worker: Worker) -> Iterator[threading.Event]:
        """Stop the worker, and set the event, when the driver's token is gone from the store."""
        withdrawn = threading.Event()
        token = db.client.liveness(self.driver)

        def check() -> None:
            with suppress(PercolatorError):  # the worker meets the same error, and raises it
                if not withdrawn.is_set() and not db.store.one(token):
                    withdrawn.set()
                    worker.stop()

        check()
        with periodically(check, _TOKEN_POLL, "percolator-driver-watch"):
            yield withdrawn


class _Drain:
    """One drain, in the driver."""

    def __init__(
        self,
        db: Database,
        chain: Chain,
        observers: frozenset[str],
        task: DrainTask,
        progress: Callable[[DrainProgress], object] | None,
    ) -> None:
        self._db = db
        self._chain = chain
        self._observers = observers
        self._task = task
        self._progress = progress
        self._began = time.monotonic()

    def run(self, spark: SparkContext) -> Counts:
        """Run the tasks on the executors."""
        endings: set[Ending] = {"withdrawn"}
        # A failover may lose the driver's token for a moment. Tasks then end too early, and run again.
        while "withdrawn" in endings:
            ends: list[TaskEnd] = run_job(
                spark,
                "drain",
                self._chain.name,
                range(self._task.tasks),
                self._task,
                poll=self._report_progress,
                stop_tasks=self._stop_tasks,
            )
            endings = {end.ending for end in ends}
            refused = next((end.reason for end in ends if end.ending == "refused"), None)
            if refused is not None:
                raise ConfigurationError(refused)
        counts = self._counts()
        if "late" in endings and ("idle" not in endings or self._left()):
            raise NotIdle(
                "the chain was not idle in the given time: what is left runs with the next worker", counts
            )
        return counts

    def _stop_tasks(self, job: Future[list[TaskEnd]]) -> None:
        """Remove the driver's token, so that the tasks finish their runs and end."""
        self._db.close()
        wait([job], _GRACE)

    def _report_progress(self) -> None:
        if self._progress is not None:
            with suppress(PercolatorError):  # a task meets the same error, and fails
                self._progress(DrainProgress(self._left(), self._counts()))

    def _left(self) -> int:
        left = backlog(self._db, self._chain)
        return sum(left[name] for name in self._observers)

    def _counts(self) -> Counts:
        done = self._task.counts.value
        observers = {name: done.get(name, ObserverCounts()) for name in sorted(self._observers)}
        return Counts(observers, time.monotonic() - self._began)


def _add(left: ByObserver, right: ByObserver) -> ByObserver:
    for name, counts in right.items():
        left[name] = ObserverCounts.sum([left.get(name, ObserverCounts()), counts])
    return left
