"""Running a chain's observers until nothing is left, in Spark or in the task's own process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.sdk.exceptions import AirflowException

from percolator_airflow.masters import check_master
from percolator_airflow.operators.base import SAY, Seldom, StoreOperator
from percolator_airflow.operators.values import is_nothing, seconds
from percolator_core.admin.status import backlog
from percolator_core.errors import ConfigurationError, PercolatorError
from percolator_core.runtime.periodic import periodically

if TYPE_CHECKING:
    from os import PathLike

    from percolator_core.database import Database
    from percolator_core.observers import Chain
    from percolator_core.worker import Counts

Engine = Literal["spark", "local"]

WIDTH: Final = {"spark": 64, "local": 256}
"""Runs under way at a time, in each of Spark's tasks and in a worker that is alone."""

_SHOWN: Final = ("ran", "collapsed", "conflicts", "failed", "quarantined")

_CARRY_ON: Final = "what it did stays, and what is left runs with the next drain"


class DrainOperator(StoreOperator):
    """Runs observers until no notification is left for them.

    Several at the same time do no harm, nor does one that is killed, cleared or run twice: a run commits
    once. On SIGTERM the runs under way are finished. Cells on which an observer keeps failing end in
    quarantine, which fails no drain.

    The result says what was done: ``ran``, ``conflicts``, ``failed`` and ``quarantined`` runs, ``seconds``,
    how many cells are ``left``, and ``observers`` has the same of each.

    Args:
        chain, project, conn_id, namespace: as of `StoreOperator`.
        observers: run these only; None is all of the chain.
        engine: ``spark`` runs them in Spark's executors, a task a tablet; ``local`` in this process. Spark is
            not started when there is nothing to do.
        budget: seconds, 0 or more, after which the task fails, so that a retry carries on; None for no end.
        width: runs under way at a time; by default 64 in each of Spark's tasks, else 256.
        threads: runs of observers with ``executor: threads`` at a time, in each of Spark's tasks.
        tasks: of Spark; None is as many as the largest table has tablets that they observe.
        master: the Spark master; None is ``PERCOLATOR_SPARK_MASTER``, else all cores of this machine.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(chain=chain, **kwargs)
        if engine not in WIDTH:
            raise ValueError(f"engine is spark or local, not {engine!r}")
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

    def execute(self, context: Any) -> dict[str, Any]:  # noqa: ARG002 - Airflow's signature
        """What was done.

        Raises:
            AirflowFailException: the chain, the connection, an observer's name or Spark cannot work.
            AirflowException: the budget is spent, the store was away, or the task was killed: what is left
                runs with the next try.
        """
        with self.guarded(_CARRY_ON):
            folder = self.folder()
            chosen = self._chosen(folder.declared)
            budget = self._seconds()
            with self.hook().get_conn() as db, folder.imported() as chain:
                chain.create_tables(db)
                left = _left(db, chain, chosen)
                if not left:
                    self.log.info("nothing waits for the observers of %s", chain.name)
                    return _summary(None, 0)
                self.log.info("%d cells wait for the observers of %s", left, chain.name)
                drain = self._with_spark if self.engine == "spark" else self._here
                counts, late = drain(db, chain, chosen, budget)
                left = _left(db, chain, chosen)
        found = _summary(counts, left)
        self.log.info(
            "%d runs in %.1f s, %d conflicts, %d failed, %d cells put in quarantine; %d are left",
            *(found[name] for name in ("ran", "seconds", "conflicts", "failed", "quarantined", "left")),
        )
        if late and left:
            raise AirflowException(
                f"the budget of {budget:g} s is spent: {found['ran']} runs are done, and {left} cells "
                "are left for the next try"
            )
        return found

    def _chosen(self, chain: Chain) -> list[str]:
        if self.observers is None:
            return sorted(chain.observers)
        names = [self.observers] if isinstance(self.observers, str) else list(self.observers)
        unknown = sorted(set(names) - chain.observers.keys())
        if unknown or not names:
            raise ConfigurationError(
                f"the chain {chain.name!r} has no observer {', '.join(map(repr, unknown)) or 'of no name'}: "
                f"it has {', '.join(sorted(chain.observers))}"
            )
        return names

    def _seconds(self) -> float | None:
        return None if is_nothing(self.budget) else seconds("budget", self.budget)

    def _here(
        self, db: Database, chain: Chain, chosen: list[str], budget: float | None
    ) -> tuple[Counts, bool]:
        from percolator_core.worker import Worker

        worker = Worker(
            db, chain, threads=self.threads, width=self.width or WIDTH["local"], observers=self._names(chosen)
        )
        with self.stopping_by(worker.stop), self._telling(db, chain, chosen):
            try:
                return worker.run_until_idle(budget), False
            except TimeoutError:
                return worker.counts, True

    def _with_spark(
        self, db: Database, chain: Chain, chosen: list[str], budget: float | None
    ) -> tuple[Counts, bool]:
        try:
            import pyspark  # noqa: F401 - what follows imports it later, in the midst of things

            from percolator_core.spark import NotIdle, drain
        except ImportError as error:
            raise ConfigurationError(
                f"engine: spark needs Spark ({error}): install percolator-core[spark], or write engine: local"
            ) from None
        check_master(self.master)
        is_time = Seldom()

        def tell(now: Any) -> None:
            if is_time():
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
                observers=self._names(chosen),
                progress=tell,
            )
        except NotIdle as error:
            return error.counts, True
        return counts, False

    def _names(self, chosen: list[str]) -> list[str] | None:
        return None if self.observers is None else chosen

    @contextmanager
    def _telling(self, db: Database, chain: Chain, chosen: list[str]) -> Iterator[None]:
        """A line in the log every now and then, from a thread of its own."""

        def tell() -> None:
            with suppress(PercolatorError):  # the worker meets the same and says so
                self.log.info("%d cells are left", _left(db, chain, chosen))

        with periodically(tell, SAY, "percolator-progress"):
            yield


def _left(db: Database, chain: Chain, chosen: Collection[str]) -> int:
    waiting = backlog(db, chain)
    return sum(waiting[name] for name in chosen)


def _summary(counts: Counts | None, left: int) -> dict[str, Any]:
    if counts is None:
        return {**dict.fromkeys(_SHOWN, 0), "seconds": 0.0, "left": left, "observers": {}}
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
