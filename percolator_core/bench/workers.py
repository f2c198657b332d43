"""Worker processes beside a benchmark, which hears what they count, and may kill and replace them."""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Final

import structlog

from percolator_core.activation import live_workers
from percolator_core.attempt import ObserverCounts
from percolator_core.bench.servers import NAMESPACE, Place
from percolator_core.crew.messages import STOP, Orders
from percolator_core.crew.process import Process
from percolator_core.dirty import DirtyIndex
from percolator_core.errors import StoreUnavailable
from percolator_core.observers import Chain

_START_LIMIT: Final = 60.0
_STOP_LIMIT: Final = 30.0
"""Seconds for a worker to begin, and to finish what it has begun."""

_LOOK: Final = 0.02
"""Seconds between two looks whether it has."""


class Workers:
    """The worker processes of one chain; not for several threads."""

    def __init__(self, here: Place, chain: Chain) -> None:
        self.chain = chain
        self._db = here.db
        self._dirty = DirtyIndex(here.db.client, chain.observed)
        self._orders = Orders(str(chain.path), here.url, NAMESPACE, threads=8, width=256, parent=os.getpid())
        self._selector = selectors.DefaultSelector()
        self._running: list[Process] = []
        self._ended: list[ObserverCounts] = []

    @property
    def running(self) -> tuple[Process, ...]:
        """The processes, the longest-lived first."""
        return tuple(self._running)

    def start(self) -> Process:
        """One more; it begins to work on its own."""
        process = Process(self._orders, self._selector)
        self._running.append(process)
        return process

    def wait_until_at_work(self) -> None:
        """Until all processes are registered as workers.

        Raises StoreUnavailable: one ended instead, or took too long.
        """
        self._wait(
            lambda: (
                all(one.up for one in self._running) and len(live_workers(self._db)) >= len(self._running)
            ),
            _START_LIMIT,
            "did not come to work",
        )

    def wait_until_idle(self, limit: float, look: float = _LOOK) -> None:
        """Until no notification is left; a look takes place every ``look`` seconds.

        Raises StoreUnavailable: a process ended, or it took longer than ``limit`` seconds.
        """
        self._wait(lambda: not self.backlog(), limit, f"did not get done in {limit:g} s", look)

    def backlog(self) -> int:
        """The notifications that are left."""
        return sum(self._dirty.backlog().values())

    def listen(self, seconds: float) -> None:
        """Take in what the processes report, for so long.

        Raises StoreUnavailable: one has ended by itself.
        """
        until = time.monotonic() + seconds
        while True:
            for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
                key.data()
            for process in self._running:
                if process.has_ended():
                    process.close()
                    raise StoreUnavailable(
                        f"a worker process of the benchmark ended by itself ({process.ending()})"
                    ) from process.error
            if time.monotonic() >= until:
                return

    def kill(self, process: Process) -> None:
        """End one at once, with SIGKILL; what it reported counts on."""
        process.kill()
        self._bury(process)

    def counts(self) -> ObserverCounts:
        """What all of them reported so far, added up; of each one killed, all but its last quarter second."""
        return ObserverCounts.sum([*self._ended, *(one.counts.total() for one in self._running)])

    def stop(self) -> None:
        """Have all finish what they have begun, and end."""
        for process in self._running:
            process.tell(STOP)
        until = time.monotonic() + _STOP_LIMIT
        for process in self.running:
            while not process.has_ended() and time.monotonic() < until:
                for key, _ in self._selector.select(_LOOK):
                    key.data()
            self.kill(process)

    def close(self) -> None:
        """Leave no process behind."""
        for process in self.running:
            self.kill(process)
        self._selector.close()

    def _bury(self, process: Process) -> None:
        process.close()
        self._running.remove(process)
        self._ended.append(process.counts.total())

    def _wait(self, condition: Callable[[], bool], limit: float, what: str, look: float = _LOOK) -> None:
        until = time.monotonic() + limit
        while not condition():
            if time.monotonic() > until:
                raise StoreUnavailable(f"the worker processes of the benchmark {what}")
            self.listen(look)


@contextmanager
def workers_of(here: Place, chain: Chain, processes: int = 1) -> Iterator[Workers]:
    """So many worker processes of a chain, at work, until the block ends."""
    chain.create_tables(here.db)
    with _quiet():
        made = Workers(here, chain)
        try:
            for _ in range(processes):
                made.start()
            made.wait_until_at_work()
            yield made
        finally:
            made.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Log warnings only: that a worker has started is nothing to tell a benchmark's user."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def shipped_chain(name: str) -> Iterator[Chain]:
    """One of the benchmarks' own chains."""
    with as_file(files("percolator_core.bench").joinpath(name)) as folder:
        yield Chain.load(folder)
