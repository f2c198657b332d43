"""The worker: finds dirty cells, runs their observers, and keeps at it (paper, section 2.4).

`Worker` starts and ends it; `percolator_core.worker.loop.WorkerLoop` is what it does between.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, get_args

from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.notifications.activation import Registration
from percolator_core.observers import Chain
from percolator_core.runtime.process import usable_cores
from percolator_core.store import Hub
from percolator_core.transaction.prefetch import Habits
from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.executors import Executors
from percolator_core.worker.loop import WorkerLoop
from percolator_core.worker.plan import Plan, Stop, Strategy, chosen_observers
from percolator_core.worker.runs import RunListener
from percolator_core.worker.watchdog import Watchdog

STRATEGIES: Final = get_args(Strategy)

STOP_GRACE: Final = 10.0
"""Seconds that runs under way get to end, when a worker is told to stop."""


@dataclass(slots=True)
class Counts:
    """What a worker did, per observer and in all. ``seconds`` is how long it worked."""

    observers: dict[str, ObserverCounts] = field(default_factory=dict)
    seconds: float = 0.0

    def total(self) -> ObserverCounts:
        """The sums over all observers."""
        return ObserverCounts.sum(self.observers.values())

    @property
    def ran(self) -> int:
        """Runs that committed."""
        return self.total().ran

    @property
    def quarantined(self) -> int:
        """Cells put aside."""
        return self.total().quarantined


class Worker:
    """Runs the observers of a chain.

    Args:
        db: where the tables are.
        chain: which observers; workers with another set must not run at the same time, unless ``rolling``.
        threads: how many observers with ``executor: threads`` run at a time; 1 or more.
        width: how many runs are under way at a time in this process; 1 or more.
        prefetch: whether to read along what earlier runs of an observer have read of such a row.
        cpus: how many observers with ``executor: processes`` run at a time, each in a process of its own; 1
            or more, by default one a core that this process may use.
        strategy: which tablets first. ``random``: all of them, looked at from a random one on, as in the
            paper. ``partitioned``: the workers of the chain share them out, and each looks at the others only
            when its own have nothing that is due; so who joins, leaves or dies leaves no tablet unattended.
        tablets: numbers of tablets that are its own, whoever else there is; only with ``partitioned``.
        rolling: begin also while workers with another set of observers run, which go on until they are
            stopped; marks are left for the observers of both meanwhile.
        listener: is told of each run that has ended.
        observers: takes cells of these only, by name; None is all. The chain is activated as a whole all the
            same: writers leave marks for the others too, and those wait for a worker that takes them.

    Raises:
        ValueError: a number or a strategy that cannot be, or no observers.
        ConfigurationError: the chain has no observer of such a name.
    """

    def __init__(
        self,
        db: Database,
        chain: Chain,
        threads: int = 8,
        width: int = 256,
        *,
        prefetch: bool = True,
        cpus: int | None = None,
        strategy: Strategy = "random",
        tablets: Collection[int] | None = None,
        rolling: bool = False,
        listener: RunListener | None = None,
        observers: Collection[str] | None = None,
    ) -> None:
        cpus = usable_cores() if cpus is None else cpus
        if threads < 1 or width < 1 or cpus < 1:
            raise ValueError(f"threads, width and cpus are 1 or more, not {threads}, {width} and {cpus}")
        if strategy not in STRATEGIES:
            raise ValueError(f"the strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}")
        if tablets is not None and strategy != "partitioned":
            raise ValueError("only a partitioned worker has tablets of its own")
        self._db = db
        self._chain = chain
        self._rolling = rolling
        self._listener = listener
        own = None if tablets is None else frozenset(tablets)
        chosen = chosen_observers(chain, observers)
        places = {"hub": width, "threads": threads, "processes": cpus}
        self._plan = Plan(places, chosen, strategy == "partitioned", own)
        self._habits = {name: Habits() for name in chosen} if prefetch else None
        self._stop = Stop()
        self._hub: Hub | None = None
        self._counts = Counts()
        self._loop: WorkerLoop | None = None
        self.abandoned = 0
        """Runs in threads that were still under way when the last `run` returned, after its grace.

        Nobody waits for them any more, and their cells were given back; but the interpreter waits for such
        threads when it exits.
        """

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return self._counts

    @property
    def turned_at(self) -> float:
        """When its loop went round last, in monotonic seconds; 0 when it does not run."""
        loop = self._loop
        return 0.0 if loop is None else loop.turned_at

    def run(self) -> Counts:
        """Run until `stop` is called. While the store is away, wait for it.

        Raises:
            ConfigurationError: workers with another set of observers are running.
        """
        return self._work(None, until_idle=False)

    def run_until_idle(self, timeout: float | None = None) -> Counts:
        """Run until no notification is left for its observers, not even one that waits for a retry.

        Cells in quarantine do not count, nor do transactions that are still being committed. Nor does what an
        observer would still cause that is not among its own.

        Raises:
            TimeoutError: after ``timeout`` seconds something was still left.
            ConfigurationError: as `run`.
            StoreUnavailable: the store does not answer.
        """
        return self._work(timeout, until_idle=True)

    def stop(self, grace: float = STOP_GRACE) -> None:
        """Have `run` return once the runs under way are over. For any thread, and for signal handlers.

        After ``grace`` seconds it returns without them: their cells are given back to other workers, and of
        two runs for one change only one can commit (`abandoned`).
        """
        self._stop.set(grace)
        hub = self._hub
        if hub is not None:
            hub.call_soon(lambda: None)

    def _work(self, timeout: float | None, *, until_idle: bool) -> Counts:
        started = time.monotonic()
        self._counts = Counts({name: ObserverCounts() for name in sorted(self._plan.observers)})
        self.abandoned = 0
        # Announced before the others are looked for: of two that start at once, one at least sees the other.
        registration = Registration(
            self._db,
            self._chain.digest,
            f"process {os.getpid()} on {socket.gethostname()}",
            until_idle=until_idle,
            observers=None if self._takes_all else self._plan.observers,
            counts=self._counts.observers,
        )
        try:
            self._chain.create_tables(self._db, rolling=self._rolling)
            with self._a_hub() as hub, Watchdog(hub) as watchdog:
                executors = Executors(self._db, self._chain, self._plan, prefetch=self._habits is not None)
                self._loop = loop = WorkerLoop(
                    self._db,
                    self._chain,
                    self._plan,
                    hub=hub,
                    watchdog=watchdog,
                    executors=executors,
                    counts=self._counts.observers,
                    habits=self._habits,
                    listener=self._listener,
                    stop=self._stop,
                    registration=registration,
                )
                grace = 0.0  # after Ctrl-C, say, nobody waits for the runs
                try:
                    with loop.giving_back():
                        loop.run(None if timeout is None else started + timeout, until_idle=until_idle)
                    grace = self._stop.left(STOP_GRACE)
                except Exception:
                    grace = STOP_GRACE
                    raise
                finally:
                    self.abandoned = executors.leave(grace)
        finally:
            self._loop = None
            self._stop.clear()
            try:
                registration.withdraw()
            except PercolatorError:
                pass  # the store is away; its liveness token ends by itself
            self._counts.seconds = time.monotonic() - started
        return self._counts

    @property
    def _takes_all(self) -> bool:
        return self._plan.observers == self._chain.observers.keys()

    @contextmanager
    def _a_hub(self) -> Iterator[Hub]:
        # Two tasks of the worker itself, and one more so that they never wait for a place.
        self._hub = hub = self._db.store.hub(self._plan.places["hub"] + 3)
        try:
            yield hub
        finally:
            self._hub = None
            hub.close()


__all__ = ["STRATEGIES", "Counts", "ObserverCounts", "Worker"]
