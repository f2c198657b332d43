"""Run observers with Spark: executors run the worker, one task for each tablet, until the chain is idle.

Each task runs a `percolator_core.worker.Worker`. If Spark repeats a task or starts a copy of it, this is just
one more worker. A task serves its own tablets first, and then all other tablets, so that no tablet waits for
a task that has not started yet.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
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
from percolator_core.spark.session import check_pyspark, running_context
from percolator_core.store.url import absolute
from percolator_core.worker import Counts, Worker
from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.plan import chosen_observers

if TYPE_CHECKING:
    from os import PathLike

    from pyspark import Accumulator, SparkContext
    from pyspark.sql import SparkSession

WIDTH: Final = 64
"""Concurrent runs in one task: fewer than in a single worker, because there are many tasks."""

_TOKEN_POLL: Final = 0.25
"""Seconds between two checks of the driver's liveness by a task."""

_GRACE: Final = 10.0
"""Seconds after an interrupt in which tasks may finish their runs; then Spark kills the tasks."""

Ending = Literal["idle", "late", "withdrawn", "refused"]
"""A task ended because nothing was left, the budget or the driver's token expired, or it was refused."""

ByObserver = dict[str, ObserverCounts]


class NotIdle(TimeoutError):
    """The budget of a drain ended before the chain was idle; ``counts`` are those of the drain's runs."""

    def __init__(self, message: str, counts: Counts) -> None:
        super().__init__(message)
        self.counts = counts


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """``left`` is the number of dirty cells that are left; ``counts`` are those of tasks that have ended."""

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
    """Run a chain's observers in Spark's executors until no notification is left for them; return the counts.

    The counts do not include the runs of a task that died or was killed. After a Ctrl-C the tasks finish
    their runs. After a second Ctrl-C, or after ten seconds, Spark kills the tasks.

    Args:
        db_or_url: the store, to which each executor connects. With an embedded store all executors have to be
            on this machine.
        chain: the chain, or its folder. Its functions are found in the current directory.
        spark: the context or session. By default the running one, or a new one that is stopped at the end.
        budget: the tasks end this many seconds (0 or more) after the start of the job; None means no limit.
        tasks: the number of tasks, 1 or more; by default the number of tablets of the largest observed table.
        namespace: the namespace with a URL, by default the chain's name. A database has its own namespace.
        width: concurrent runs in each task, 1 or more.
        threads: concurrent runs of observers with ``executor: threads`` in each task, 1 or more.
        master: the Spark master of a new context; by default all cores of this machine.
        progress: called several times a second.
        observers: names of the observers to run, as for `percolator_core.Worker`; by default all observers.

    Raises:
        ValueError: a number is out of range, or ``observers`` is empty.
        NotIdle: the budget ended before the chain was idle. This error is a TimeoutError.
        ConfigurationError: the chain, the observers' names, the URL or Spark's settings are wrong, or workers
            of another chain are running.
        StoreUnavailable: the store was unavailable during all attempts of Spark at a task.
        PercolatorError: all attempts of Spark at a task failed, for example because an observer ends its
            process.
    """
    if width < 1 or threads < 1 or (tasks is not None and tasks < 1):
        raise ValueError(f"tasks, width and threads are 1 or more, not {tasks}, {width} and {threads}")
    check_pyspark()
    chain = chain if isinstance(chain, Chain) else Chain.load(chain)
    chosen = chosen_observers(chain, observers)
    observed = {table for name in chosen for table, _ in chain.observers[name].observe}
    tablets = max((one.tablets for one in chain.tables if one.name in observed), default=1)
    arguments = _connect_arguments(db_or_url, namespace or chain.name)
    given: Any = getattr(spark, "sparkContext", None) or spark
    code = Path.cwd()
    # The drain always has a new connection, because closing this connection stops the tasks.
    with connect(**arguments) as db:
        chain.create_tables(db)
        with running_context(given, master, project=code) as context:
            project = Project.of(chain, code, context)
            try:
                counts = accumulator(context, dict[str, ObserverCounts], _add)
                driver = _Drain(db, chain, chosen, context, counts, time.monotonic())
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
                return driver.run(task, progress)
            finally:
                project.leave()


def _connect_arguments(db_or_url: Database | str, namespace: str) -> dict[str, Any]:
    arguments = (
        {"url": db_or_url, "namespace": namespace}
        if isinstance(db_or_url, str)
        else db_or_url.connect_arguments()
    )
    return arguments | {"url": absolute(arguments["url"])}


@dataclass(frozen=True, slots=True)
class DrainTask:
    """A worker that Spark sends to an executor.

    ``connect`` has the arguments of `percolator_core.connect`, including the URL with its password.
    ``driver`` is the driver's client in the store: the task ends when its liveness token has expired.
    ``deadline`` is in microseconds of the store's clock, which all machines share.
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
        """Return the numbers of the tablets that a task serves first."""
        return range(number, self.tablets, self.tasks)

    def __call__(self, number: int, _: Iterable[int]) -> Iterator[TaskEnd]:
        """Work until the chain is idle; yield one `TaskEnd`."""
        try:
            yield self._work(number)
        except ConfigurationError as error:  # after any other error Spark repeats the task
            yield TaskEnd("refused", str(error))

    def _work(self, number: int) -> TaskEnd:
        if self.connect["url"].startswith("embedded:") and socket.gethostname() != self.host:
            raise ConfigurationError(
                f"the store is embedded on {self.host}, and Spark has executors on "
                f"{socket.gethostname()}: use a server that all executors reach"
            )
        chain = Chain.load(self.project.enter())
        with connect(**self.connect) as db:
            worker = Worker(
                db,
                chain,
                self.threads,
                self.width,
                cpus=1,  # Spark gives a task one core
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
        """Stop the worker and set the event after the driver's token has expired."""
        withdrawn = threading.Event()
        token = db.client.liveness(self.driver)

        def check() -> None:
            with suppress(PercolatorError):  # the worker gets and raises the same error
                if not withdrawn.is_set() and not db.store.one(token):
                    withdrawn.set()
                    worker.stop()

        check()
        with periodically(check, _TOKEN_POLL, "percolator-driver-watch"):
            yield withdrawn


@dataclass(frozen=True, slots=True)
class _Drain:
    """One drain, in the driver."""

    db: Database
    chain: Chain
    observers: frozenset[str]
    spark: SparkContext
    counts: Accumulator[ByObserver]
    began: float

    def run(self, task: DrainTask, progress: Callable[[DrainProgress], object] | None) -> Counts:
        """Run the tasks on the executors."""

        def poll() -> None:
            if progress is not None:
                with suppress(PercolatorError):  # a task gets the same error, and fails
                    progress(DrainProgress(self._left(), self._counts()))

        endings: set[Ending] = {"withdrawn"}
        # A failover may lose the driver's token for a moment. Tasks then end too early: repeat them.
        while "withdrawn" in endings:
            parts, stop = range(task.tasks), self._stop_tasks
            ends: list[TaskEnd] = run_job(
                self.spark, "drain", self.chain.name, parts, task, poll=poll, stop_tasks=stop
            )
            endings = {end.ending for end in ends}
            refused = next((end.reason for end in ends if end.ending == "refused"), None)
            if refused is not None:
                raise ConfigurationError(refused)
        counts = self._counts()
        if "late" in endings and ("idle" not in endings or self._left()):
            raise NotIdle(
                "the chain was not idle in the given time: the next worker runs the remaining cells", counts
            )
        return counts

    def _stop_tasks(self, job: Future[list[TaskEnd]]) -> None:
        """Remove the driver's token, so that the tasks finish their runs and end."""
        self.db.close()
        wait([job], _GRACE)

    def _left(self) -> int:
        left = backlog(self.db, self.chain)
        return sum(left[name] for name in self.observers)

    def _counts(self) -> Counts:
        done = self.counts.value
        observers = {name: done.get(name, ObserverCounts()) for name in sorted(self.observers)}
        return Counts(observers, time.monotonic() - self.began)


def _add(left: ByObserver, right: ByObserver) -> ByObserver:
    for name, counts in right.items():
        left[name] = ObserverCounts.sum([left.get(name, ObserverCounts()), counts])
    return left
