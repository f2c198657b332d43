"""Run a chain's observers until no cell is left, in Spark or in the task's own process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from percolator_airflow.masters import Engine, check_engine, check_master
from percolator_airflow.operators.base import (
    LOG_INTERVAL,
    LogInterval,
    StoreOperator,
    is_nothing,
    seconds,
)
from percolator_core.admin.status import backlog
from percolator_core.errors import ConfigurationError, PercolatorError
from percolator_core.runtime.periodic import periodically

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.database import Database
    from percolator_core.observers import Chain
    from percolator_core.worker import Counts


WIDTH: Final = {"spark": 64, "local": 256}
"""Concurrent runs of each Spark task, and of a local worker."""

_SHOWN: Final = ("ran", "collapsed", "conflicts", "failed", "quarantined")

_CARRY_ON: Final = "committed runs stay, and the next drain does the rest"


class DrainOperator(StoreOperator):
    """Run observers until no cell waits for them.

    Several drains may run at the same time, and a drain may be killed, cleared or repeated: each run commits
    once. On SIGTERM a drain finishes the runs that are under way. A cell whose observer keeps failing goes to
    quarantine; that does not fail the drain.

    The result has the total counts ``ran``, ``collapsed``, ``conflicts``, ``failed`` and ``quarantined``.
    ``observers`` has the same counts for each observer. ``seconds`` is the duration of the drain, and
    ``left`` is the number of cells that are left.

    Args:
        chain, project, conn_id, namespace: see `StoreOperator`.
        observers: run only these; None means all observers of the chain.
        engine: ``spark`` runs them in Spark's executors, one task for each tablet; ``local`` runs them in
            this process. Without pending cells Spark does not start.
        budget: seconds, 0 or more, after which the task fails, and a retry continues; None means no limit.
        width: concurrent runs, by default 64 in each Spark task, or 256 in a local process.
        threads: concurrent runs of observers with ``executor: threads``, in a Spark task or in this process.
        tasks: Spark tasks; None means the number of tablets of the largest observed table.
        master: the Spark master; None means ``PERCOLATOR_SPARK_MASTER``, or else all cores of this machine.
        skip_idle: skip the task if no cell waits, so that its ``outlets`` get no event. A repeated task is
            not skipped, because the failed try may have run the observers.
    """

    template_fields: Sequence[str] = (*StoreOperator.template_fields, "observers", "budget", "master")

    def __init__(
        self,
        *,
        chain: str | PathLike[str],
        observers: Collection[str] | None = None,
        engine: Engine = "spark",
        budget: float | None = None,
        width: int | None = None,
        threads: int = 8,
        tasks: int | None = None,
        master: str | None = None,
        skip_idle: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(chain=chain, **kwargs)
        check_engine(engine)
        for name, number in (("width", width), ("threads", threads), ("tasks", tasks)):
            if number is not None and number < 1:
                raise ValueError(f"{name} is 1 or more, not {number}")
        self.observers = observers
        self.engine = engine
        self.budget = budget
        self.width = width
        self.threads = threads
        self.tasks = tasks
        self.master = master
        self.skip_idle = skip_idle

    def execute(self, context: Any) -> dict[str, Any]:
        """Run the observers, and return the result.

        Raises:
            AirflowFailException: the chain, the connection or an observer's name is invalid, or Spark is
                missing.
            AirflowSkipException: no cell waits, and ``skip_idle`` is true.
            AirflowException: the budget is spent, the store was unavailable, or the task was killed; a retry
                does the rest.
        """
        from percolator_core.worker import Counts

        with self.guarded(_CARRY_ON):
            folder = self.folder()
            chosen = self._chosen(folder.declared)
            budget = None if is_nothing(self.budget) else seconds("budget", self.budget)
            with self.hook().get_conn() as db, folder.imported() as chain:
                chain.create_tables(db)
                left = _left(db, chain, chosen)
                if not left:
                    if self.skip_idle and not is_repeated(context):
                        raise AirflowSkipException(f"no cell waits for {', '.join(sorted(chosen))}")
                    self.log.info("no cell waits for the observers of %s", chain.name)
                    return _summary(Counts(), 0)
                self.log.info("%d cells wait for the observers of %s", left, chain.name)
                drain = self._with_spark if self.engine == "spark" else self._here
                counts, late = drain(db, chain, chosen, budget)
                left = _left(db, chain, chosen)
        found = _summary(counts, left)
        self.log.info(
            "%d runs in %.1f s, %d conflicts, %d failed, %d cells put in quarantine, %d cells left",
            *(found[name] for name in ("ran", "seconds", "conflicts", "failed", "quarantined", "left")),
        )
        if late and left:
            raise AirflowException(
                f"the budget of {budget:g} s is spent after {found['ran']} runs: {left} cells are left for "
                "the next try"
            )
        return found

    def _chosen(self, chain: Chain) -> frozenset[str]:
        from percolator_core.worker.plan import chosen_observers

        try:
            return chosen_observers(
                chain, [self.observers] if isinstance(self.observers, str) else self.observers
            )
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def _here(
        self, db: Database, chain: Chain, chosen: frozenset[str], budget: float | None
    ) -> tuple[Counts, bool]:
        from percolator_core.worker import Worker

        worker = Worker(db, chain, threads=self.threads, width=self.width or WIDTH["local"], observers=chosen)
        with self.stopping_by(worker.stop), self._progress(db, chain, chosen):
            try:
                return worker.run_until_idle(budget), False
            except TimeoutError:
                return worker.counts, True

    def _with_spark(
        self, db: Database, chain: Chain, chosen: frozenset[str], budget: float | None
    ) -> tuple[Counts, bool]:
        from percolator_core.spark import NotIdle, drain

        check_master(self.master)
        is_due = LogInterval()

        def log(now: Any) -> None:
            if is_due():
                self.log.info("%d cells are left", now.left)

        try:
            counts = drain(
                db,
                chain,
                budget=budget,
                tasks=self.tasks,
                width=self.width or WIDTH["spark"],
                threads=self.threads,
                master=self.master or None,
                observers=chosen,
                progress=log,
            )
        except NotIdle as error:
            return error.counts, True
        return counts, False

    @contextmanager
    def _progress(self, db: Database, chain: Chain, chosen: frozenset[str]) -> Iterator[None]:
        """Log the progress every `LOG_INTERVAL` seconds, in a thread of its own."""

        def log() -> None:
            with suppress(PercolatorError):  # the worker reports the same error
                self.log.info("%d cells are left", _left(db, chain, chosen))

        with periodically(log, LOG_INTERVAL, "percolator-progress"):
            yield


def is_repeated(context: Any) -> bool:
    """Return True if the task has been tried before, or was cleared."""
    repeated: bool = context["ti"].try_number > 1
    return repeated


def _left(db: Database, chain: Chain, chosen: frozenset[str]) -> int:
    waiting = backlog(db, chain)
    return sum(waiting[name] for name in chosen)


def _summary(counts: Counts, left: int) -> dict[str, Any]:
    total = counts.total()
    return {
        **{name: getattr(total, name) for name in _SHOWN},
        "seconds": round(counts.seconds, 3),
        "left": left,
        "observers": {
            name: {field: getattr(one, field) for field in _SHOWN}
            for name, one in sorted(counts.observers.items())
        },
    }
