"""Worker processes of a benchmark: it receives their counts, and can kill and replace them."""

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
"""A worker has to start, and to finish its runs, within this many seconds."""

_LOOK: Final = 0.02
"""Seconds between two checks of the condition for which this process waits."""


class Workers:
    """The worker processes of one chain, supervised by this process. Not thread-safe."""

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
        """The processes, the oldest first."""
        return tuple(self._running)

    def start(self) -> Process:
        """Start another process."""
        process = Process(self._orders, self._selector)
        self._running.append(process)
        return process

    def wait_until_at_work(self) -> None:
        """Wait until all processes are registered as workers.

        Raises:
            StoreUnavailable: a process ended, or took too long.
        """
        self._wait(self._are_at_work, _START_LIMIT, "did not come to work")

    def wait_until_idle(self, limit: float, look: float = _LOOK) -> None:
        """Wait until no notification is left; check every ``look`` seconds.

        Call it only if no other client writes until then.

        Raises:
            StoreUnavailable: a process ended, or the wait took longer than ``limit`` seconds.
        """
        self._wait(lambda: not self.backlog(), limit, f"did not get done in {limit:g} s", look)

    def backlog(self) -> int:
        """Count the notifications that are left, all at one moment.

        A run sets other marks before it clears its own. A count of one tablet after another could miss the
        two marks: the new mark does not exist yet in the first tablet, and the old mark no longer exists in
        the second.
        """
        pipeline = self._here.raw.pipeline(transaction=True)
        for key in self._marks:
            pipeline.zcard(key)
        return sum(pipeline.execute())

    def listen(self, seconds: float) -> None:
        """Receive reports of the processes, for ``seconds`` seconds.

        Raises:
            StoreUnavailable: a process ended by itself.
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
        """Kill a process with SIGKILL; its reports still count."""
        process.kill()
        self._bury(process)

    def counts(self) -> ObserverCounts:
        """Return the sum of all reports so far; a killed process does not report its last quarter second."""
        return ObserverCounts.sum([*self._ended, *(one.counts.total() for one in self._running)])

    def stop(self) -> ObserverCounts:
        """Let all finish their runs, and end; return the sum of their reports, as `counts` does.

        Raises:
            StoreUnavailable: a process had died, or did not finish, so that its counts are incomplete.
        """
        for process in self._running:
            process.send(STOP)
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
        """Kill the processes that still run."""
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
    """Return the error for a process that has ended."""
    process.close()  # with its last messages
    made = StoreUnavailable(f"a worker process of the benchmark ended {how} ({process.ending()})")
    made.__cause__ = process.error
    return made


@contextmanager
def workers_of(here: Place, chain: Chain, processes: int = 1) -> Iterator[Workers]:
    """Run ``processes`` worker processes of a chain, until the block ends.

    Raises:
        StoreUnavailable: they did not start.
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
    """Log warnings only: a user of the benchmarks need not know that a worker has started."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def shipped_chain(name: str) -> Iterator[Chain]:
    """Make a chain for a benchmark."""
    with as_file(files("percolator_bench").joinpath(name)) as folder:
        yield Chain.load(folder)
