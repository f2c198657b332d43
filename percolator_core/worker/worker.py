"""The public side of the worker: its settings, start and stop (paper, section 2.4)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, get_args

from percolator_core import telemetry
from percolator_core.database import Database
from percolator_core.errors import PercolatorError
from percolator_core.notifications.activation import Registration
from percolator_core.observers import Chain
from percolator_core.runtime.html import ShownInNotebook
from percolator_core.runtime.process import usable_cores
from percolator_core.store import Hub
from percolator_core.transaction.prefetch import Habits
from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.executors import Executors
from percolator_core.worker.loop import WorkerLoop
from percolator_core.worker.plan import Plan, Strategy, chosen_observers
from percolator_core.worker.runs import RunListener
from percolator_core.worker.stop import Stop
from percolator_core.worker.watchdog import Watchdog

_STRATEGIES: Final = get_args(Strategy)

STOP_GRACE: Final = 10.0
"""Seconds in which the runs under way may end after `Worker.stop`."""


@dataclass(slots=True)
class Counts(ShownInNotebook):
    """The counts of a worker's runs, by observer, and the seconds for which the worker ran."""

    observers: dict[str, ObserverCounts] = field(default_factory=dict)
    seconds: float = 0.0

    def total(self) -> ObserverCounts:
        """Return the sums over all observers."""
        return ObserverCounts.sum(self.observers.values())

    @property
    def ran(self) -> int:
        """Runs that committed."""
        return self.total().ran

    @property
    def quarantined(self) -> int:
        """Cells put into quarantine."""
        return self.total().quarantined


class Worker:
    """Runs the observers of a chain.

    Args:
        db: the database with the tables.
        chain: the observers. Workers of another chain must not run at the same time, unless ``rolling``.
        threads: the limit of concurrent runs of observers with ``executor: threads``; 1 or more.
        width: the limit of concurrent runs as tasks of this process; 1 or more.
        prefetch: True to read in one request the columns that earlier runs of an observer read one by one.
        cpus: the limit of concurrent runs of observers with ``executor: processes``, each in a process of its
            own; 1 or more, by default one for each core that this process may use.
        strategy: ``random`` claims cells from all tablets, beginning at a random one, as in the paper.
            ``partitioned`` shares out the tablets among the workers of the chain. Each worker claims from
            other tablets only if no cell is due in its own.
        tablets: the numbers of the worker's own tablets; only with ``partitioned``. Without them, the number
            of workers determines which tablets are a worker's own.
        rolling: start also while workers of another chain run; they go on until they are stopped.
        listener: is called with each run that has ended.
        observers: the names of the observers to run; None means all. Marks for other observers of the chain
            are left to other workers.

    Raises:
        ValueError: a number is below 1, the strategy is unknown, or there are no observers.
        ConfigurationError: the chain has no observer of that name.
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
        if strategy not in _STRATEGIES:
            raise ValueError(f"the strategy is one of {', '.join(_STRATEGIES)}, not {strategy!r}")
        if tablets is not None and strategy != "partitioned":
            raise ValueError("only a partitioned worker has tablets of its own")
        self._db = db
        self._chain = chain
        self._rolling = rolling
        self._listener = listener
        own = None if tablets is None else frozenset(tablets)
        chosen = chosen_observers(chain, observers)
        slots = {"hub": width, "threads": threads, "processes": cpus}
        self._plan = Plan(slots, chosen, strategy == "partitioned", own)
        self._habits = {name: Habits() for name in chosen} if prefetch else None
        self._stop = Stop()
        self._hub: Hub | None = None
        self.counts = Counts()
        """The counts so far."""
        self._loop: WorkerLoop | None = None
        self.made_at = time.monotonic()
        self.abandoned = 0
        """The number of runs in threads that were still under way when `run` last returned.

        The interpreter waits for these threads at its exit.
        """

    @property
    def begun(self) -> bool:
        """True while the worker's loop runs. Thread-safe."""
        return self._loop is not None

    def stalled(self) -> float:
        """Return the seconds since the loop last began a turn; without a loop, since the worker was made.

        An idle loop turns every second or two. Thread-safe.
        """
        loop = self._loop
        return time.monotonic() - (self.made_at if loop is None else loop.turned_at)

    @property
    def own_tablets(self) -> frozenset[int]:
        """The numbers of the tablets from which the worker claims first; empty while it does not run."""
        loop = self._loop
        return frozenset() if loop is None else loop.housekeeping.own

    def run(self) -> Counts:
        """Run until `stop` is called; wait for a store that does not answer.

        Raises:
            ConfigurationError: workers of another chain are running.
            StoreUnavailable: the store does not answer at the start, before the worker is registered.
        """
        return self._work(None, until_idle=False)

    def run_until_idle(self, timeout: float | None = None) -> Counts:
        """Run until no dirty mark is left for its observers, not even one that waits for a retry.

        Cells in quarantine, cells of other observers and transactions that are still committing do not count.

        Raises:
            TimeoutError: marks were left after ``timeout`` seconds.
            ConfigurationError: as `run`.
            StoreUnavailable: the store does not answer.
        """
        return self._work(timeout, until_idle=True)

    def stop(self, grace: float = STOP_GRACE) -> None:
        """Make `run` return when the runs under way have ended.

        After ``grace`` seconds `run` gives back the cells of the remaining runs, and returns (`abandoned`).
        These cells may then run again elsewhere. Any thread and any signal handler may call this method.
        """
        self._stop.set(grace)
        hub = self._hub
        if hub is not None:
            hub.call_soon(lambda: None)

    def _work(self, timeout: float | None, *, until_idle: bool) -> Counts:
        started = time.monotonic()
        self.counts = Counts({name: ObserverCounts() for name in sorted(self._plan.observers)})
        self.abandoned = 0
        # Register first, then read the other workers: if two workers start at once, at least one of them
        # reads the other's registration.
        registration = Registration(
            self._db,
            self._chain.digest,
            f"process {os.getpid()} on {socket.gethostname()}",
            until_idle=until_idle,
            observers=None if self._plan.observers == self._chain.observers.keys() else self._plan.observers,
            counts=self.counts.observers,
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
                    counts=self.counts.observers,
                    habits=self._habits,
                    listener=self._listener,
                    stop=self._stop,
                    registration=registration,
                )
                grace = 0.0  # after Ctrl-C, for example, the runs get no time
                try:
                    with loop.giving_back():
                        loop.run(None if timeout is None else started + timeout, until_idle=until_idle)
                    grace = self._stop.left(STOP_GRACE)
                except Exception:
                    grace = STOP_GRACE
                    raise
                finally:
                    self.abandoned = executors.close(grace)
        finally:
            self._loop = None
            self._stop.clear()
            with suppress(PercolatorError):  # the store does not answer; the liveness token expires
                registration.withdraw()
            self.counts.seconds = time.monotonic() - started
        return self.counts

    @contextmanager
    def _a_hub(self) -> Iterator[Hub]:
        # Two slots are for the worker's own tasks (claim, housekeeping). One is spare: a run that ends starts
        # the next run of its cell before its own slot is free.
        self._hub = hub = self._db.store.hub(self._plan.slots["hub"] + 3)
        try:
            yield hub
        finally:
            self._hub = None
            hub.close()
            telemetry.flush()  # the last runs have ended
