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

from percolator_bench.servers import NAMESPACE, Place
from percolator_core.crew.messages import STOP, Orders
from percolator_core.crew.process import Process
from percolator_core.errors import StoreUnavailable
from percolator_core.layout.keys import dirty_key
from percolator_core.notifications.activation import live_workers
from percolator_core.observers import Chain
from percolator_core.worker.attempt import ObserverCounts

_START_LIMIT: Final = 60.0
_STOP_LIMIT: Final = 30.0
"""Seconds for a worker to begin, and to finish what it has begun."""

_LOOK: Final = 0.02
"""Seconds between two looks whether it has."""


class Workers:
    """The worker processes of one chain, whose supervisor is this process. Not for several threads."""

    def __init__(self, here: Place, chain: Chain) -> None:
        self._here = here
        self._marks = [
            dirty_key(tag, observer)
            for (table, _), observers in chain.observed.items()
            for tag in here.db.catalog.table(table).tags
            for observer in observers
        ]
        self._orders = Orders(str(chain.path), here.url, NAMESPACE, os.getpid(), {})
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

        Raises:
            StoreUnavailable: one ended instead, or took too long.
        """
        self._wait(self._are_at_work, _START_LIMIT, "did not come to work")

    def wait_until_idle(self, limit: float, look: float = _LOOK) -> None:
        """Until no notification is left, with a look every ``look`` seconds; for when nobody else writes.

        Raises:
            StoreUnavailable: a process ended, or it took longer than ``limit`` seconds.
        """
        self._wait(lambda: not self.backlog(), limit, f"did not get done in {limit:g} s", look)

    def backlog(self) -> int:
        """The notifications that are left, all counted at one moment.

        A run sets other marks before it clears its own. Looked at one tablet after the other both could be
        missed: the new mark is not there yet in the first, and the old one is gone already in the second.
        """
        pipeline = self._here.raw.pipeline(transaction=True)
        for key in self._marks:
            pipeline.zcard(key)
        return sum(pipeline.execute())

    def listen(self, seconds: float) -> None:
        """Take in what the processes report, for so many seconds.

        Raises:
            StoreUnavailable: one has ended by itself.
        """
        until = time.monotonic() + seconds
        while True:
            for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
                key.data()
            for process in self._running:
                if process.has_ended():
                    raise _ended(process, "by itself")
            if time.monotonic() >= until:
                return

    def kill(self, process: Process) -> None:
        """End one at once, with SIGKILL; what it reported counts on."""
        process.kill()
        self._bury(process)

    def counts(self) -> ObserverCounts:
        """What all of them reported so far, added up; of each one killed, all but its last quarter second."""
        return ObserverCounts.sum([*self._ended, *(one.counts.total() for one in self._running)])

    def stop(self) -> ObserverCounts:
        """Have all finish what they have begun, and end; what all of them did, as `counts` adds it up.

        Raises:
            StoreUnavailable: one had died, or did not get done, so that what it did is not wholly known.
        """
        for process in self._running:
            process.tell(STOP)
        until = time.monotonic() + _STOP_LIMIT
        for process in self.running:
            while not process.has_ended() and time.monotonic() < until:
                for key, _ in self._selector.select(_LOOK):
                    key.data()
            self.kill(process)
            if process.returncode:
                raise _ended(process, "instead of getting done")
        return self.counts()

    def close(self) -> None:
        """Leave no process behind."""
        for process in self.running:
            self.kill(process)
        self._selector.close()

    def _are_at_work(self) -> bool:
        known = len(live_workers(self._here.db))
        return known >= len(self._running) and all(one.up for one in self._running)

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


def _ended(process: Process, how: str) -> StoreUnavailable:
    """The error to raise for a process that is over."""
    process.close()  # with the last of what it said
    made = StoreUnavailable(f"a worker process of the benchmark ended {how} ({process.ending()})")
    made.__cause__ = process.error
    return made


@contextmanager
def workers_of(here: Place, chain: Chain, processes: int = 1) -> Iterator[Workers]:
    """So many worker processes of a chain, at work, until the block ends.

    Raises:
        StoreUnavailable: they did not come to work.
    """
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
    with as_file(files("percolator_bench").joinpath(name)) as folder:
        yield Chain.load(folder)
