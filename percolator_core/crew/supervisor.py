"""The parent of the worker processes. It starts them, replaces dead ones, and ends all of them.

The parent is one loop in one thread. It uses no store and no code of the chain, so no observer can block it.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Unpack

from percolator_core.crew.messages import BREAK_OFF, INTERRUPTED, STOP, Orders
from percolator_core.crew.process import Process
from percolator_core.errors import ConfigurationError, PercolatorError, StoreUnavailable
from percolator_core.observers import Chain
from percolator_core.runtime.histogram import Histogram
from percolator_core.runtime.log import Log
from percolator_core.runtime.process import Lock
from percolator_core.worker import Counts
from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.plan import WorkerSettings

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
"""The first and the longest pause (s) before a dead process is replaced; the pause doubles each time."""

LIVED: Final = 10.0
"""If a process has worked for this many seconds, it is replaced after the shortest pause again."""

STARTS: Final = 4
"""The crew gives up after this many failed starts in a row."""

GRACE: Final = 15.0
"""Seconds that a stopping process gets: 10 for `Worker.stop`, and 5 for its reports and its end."""

BREAK_OFF_GRACE: Final = 5.0
"""Seconds that a process gets after `BREAK_OFF`."""

_REMEMBERED: Final = 64
"""A new process gets the names of at most this many ended processes, and resolves their locks at once."""

_TICK: Final = 0.1
"""Seconds between two turns while no pipe has data."""

log = Log("percolator.worker")


@dataclass(frozen=True, slots=True)
class Served:
    """A process that has ended, with ``exit code 0`` or ``SIGKILL``, for example.

    The counts of a killed process lack the last quarter of a second.
    """

    process: int
    ending: str
    counts: Counts


class _Slot:
    """A place for one process of the crew. If the process dies, another process takes the place."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.start_at = 0.0
        self.failed_starts = 0
        self._pause = FIRST_PAUSE

    def delay(self, lived: float) -> float:
        """Delay the next start, after a process that worked for ``lived`` seconds; return the delay (s)."""
        if lived > LIVED:
            self._pause = FIRST_PAUSE
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        self.start_at = time.monotonic() + pause
        return pause


class Crew:
    """Runs the observers of a chain in several worker processes.

    Each process loads the chain from its folder, so here a chain without its functions is enough. The
    processes start an embedded store, which outlives them if this process keeps a database open.

    Args:
        chain: the observers.
        url: the store, as for `percolator_core.connect`.
        namespace: the namespace.
        processes: the number of processes; 1 or more.
        log_level: log lines of the processes below this level are dropped: ``debug``, ``info``, ``warning``
            or ``error``.
        settings: threads, width, strategy, rolling, cpus of `percolator_core.Worker`, for each process.
    """

    def __init__(
        self,
        chain: Chain,
        url: str,
        namespace: str,
        processes: int,
        *,
        log_level: str = "info",
        **settings: Unpack[WorkerSettings],
    ) -> None:
        threads, width = settings.get("threads", 1), settings.get("width", 1)
        if processes < 1 or threads < 1 or width < 1:
            raise ValueError(
                f"processes, threads and width are 1 or more, not {processes}, {threads} and {width}"
            )
        self._chain = chain
        self._orders = Orders(
            str(chain.folder("a crew of processes")), url, namespace, os.getpid(), settings, log_level
        )
        self.slots = [_Slot() for _ in range(processes)]
        self._stopping = threading.Event()
        self._stop_sent = False
        self._end_at = 0.0
        self._served: list[Served] = []
        self._dead: deque[str] = deque(maxlen=_REMEMBERED)
        self._times: dict[str, Histogram] = {}
        self._counting = Lock()
        """Held while a process moves from the running to the ended processes: each is counted once."""
        self._turned_at = time.monotonic()
        self._was_up = False
        self._error: PercolatorError | None = None
        self._began = self._ended = 0.0
        self._selector: selectors.BaseSelector | None = None

    @property
    def served(self) -> tuple[Served, ...]:
        """The processes that have ended, in the order of their ends."""
        return tuple(self._served)

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the running processes."""
        return tuple(process.pid for process in self._running())

    @property
    def counts(self) -> Counts:
        """The counts of all processes, also of ended ones. Thread-safe; no number ever decreases."""
        with self._counting:
            every = [served.counts for served in self._served] + [one.counts for one in self._running()]
        # A process may have loaded newer declarations than this one.
        names = sorted({*self._chain.observers, *(name for counts in every for name in counts.observers)})
        observers = {
            name: ObserverCounts.sum([counts.observers[name] for counts in every if name in counts.observers])
            for name in names
        }
        return Counts(observers, (self._ended or time.monotonic()) - self._began)

    def times(self) -> dict[str, Histogram]:
        """Return the times of the runs of all processes by observer. Thread-safe; no number decreases."""
        with self._counting:
            return _added_up([self._times, *(process.times for process in self._running())])

    @property
    def begun(self) -> bool:
        """True if the loop of a process runs. Thread-safe."""
        return any(process.begun for process in self._running())

    def stalled(self) -> float:
        """Return the longest time (s) since the last turn of a process's or this loop. Thread-safe."""
        loops = [process.stalled() for process in self._running()]
        return max([time.monotonic() - self._turned_at, *loops])

    def run(self) -> Counts:
        """Run until `stop` is called. Call this once. When it returns or raises, no process is left.

        After Ctrl-C, the current runs end without a commit, and leased cells are given back.

        Raises:
            ConfigurationError: the chain cannot be loaded, or workers of another chain run.
            StoreUnavailable: the store has never answered. If it stops answering later, the workers wait.
            PercolatorError: processes repeatedly die at their start.
        """
        self._began = time.monotonic()
        with selectors.DefaultSelector() as self._selector:
            try:
                self._supervise()
            except KeyboardInterrupt:
                self._break_off()
                raise
            finally:
                self._end_all()
                self._ended = time.monotonic()
        if self._error is not None:
            raise self._error
        return self.counts

    def stop(self) -> None:
        """Make `run` return when the current runs have ended.

        After the grace period, the cells of the remaining runs are given back. Any thread and any signal
        handler may call this method.
        """
        self._stopping.set()

    def _running(self) -> list[Process]:
        return [process for slot in self.slots if (process := slot.process) is not None]

    def _supervise(self) -> None:
        while not self._stopping.is_set() or self._running():
            self._turn()

    def _turn(self) -> None:
        """Start processes, read their pipes, and replace ended processes."""
        self._turned_at = now = time.monotonic()
        assert self._selector is not None
        if self._stopping.is_set():
            self._end_stopping_processes(now)
        else:
            self._start_missing(now)
        for key, _ in self._selector.select(_TICK):
            key.data()
        for slot in self.slots:
            if slot.process is not None and slot.process.has_ended():
                self.retire(slot, slot.process)

    def _start_missing(self, now: float) -> None:
        assert self._selector is not None
        for slot in self.slots:
            if slot.process is None and now >= slot.start_at:
                slot.process = Process(replace(self._orders, dead=tuple(self._dead)), self._selector)

    # Ends.

    def retire(self, slot: _Slot, process: Process) -> None:
        """Keep the counts of an ended process, and free its slot."""
        process.close()
        with self._counting:
            slot.process = None
            self._dead += [process.name] if process.name else []
            self._served.append(Served(process.pid, process.ending(), process.counts))
            self._times = _added_up([self._times, process.times])
        self._was_up = self._was_up or process.up
        if isinstance(process.error, ConfigurationError):
            self._fail(process.error)
        elif self._stopping.is_set():
            self._log_end(process)
        else:
            self._replace(slot, process)

    def _log_end(self, process: Process) -> None:
        if process.killed:
            return  # logged when it was killed
        if process.returncode not in (0, INTERRUPTED):
            log.warning(
                "worker died while it stopped: its cells run again when its leases expire",
                process=process.pid,
                ending=process.ending(),
                **_error_field(process),
            )
            return
        counts = process.counts
        log.info("worker stopped", process=process.pid, ran=counts.ran, seconds=round(counts.seconds, 1))

    def _replace(self, slot: _Slot, process: Process) -> None:
        # A start that failed because the store did not answer counts only if the store has never answered.
        excused = self._was_up and isinstance(process.error, StoreUnavailable)
        slot.failed_starts = 0 if process.up else slot.failed_starts + (not excused)
        if slot.failed_starts >= STARTS:
            self._fail(
                process.error
                or PercolatorError(
                    f"the worker processes die at their start, the last process with {process.ending()}: "
                    "the log lines above have the cause"
                )
            )
            return
        pause = slot.delay(time.monotonic() - process.up_since if process.up else 0.0)
        report = log.warning if process.returncode else log.info
        report(
            "worker ended and is replaced",
            process=process.pid,
            ending=process.ending(),
            pause=pause,
            **_error_field(process),
        )

    def _fail(self, error: PercolatorError) -> None:
        """End all processes, because all of them meet this error; `run` raises the first error."""
        self._error = self._error or error
        self._stopping.set()

    def _end_stopping_processes(self, now: float) -> None:
        """Send STOP to all processes, once. Kill the processes that have not ended in time."""
        if not self._stop_sent:
            self._stop_sent, self._end_at = True, now + GRACE
            for process in self._running():
                process.send(STOP)
        if now < self._end_at:
            return
        self._kill_running()

    def _kill_running(self) -> None:
        for process in self._running():
            if not process.has_ended():
                log.error(
                    "worker did not stop in time and was killed: its cells run again when its leases expire",
                    process=process.pid,
                )
                process.kill()
                process.close()

    def _break_off(self) -> None:
        self._stopping.set()
        self._stop_sent, self._end_at = True, time.monotonic() + BREAK_OFF_GRACE
        for process in self._running():
            process.send(BREAK_OFF)
        self._supervise()

    def _end_all(self) -> None:
        self._stopping.set()
        for slot in self.slots:
            if slot.process is not None:
                slot.process.kill()
                self.retire(slot, slot.process)


def _added_up(parts: Sequence[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    names = sorted({name for part in parts for name in part})
    return {name: Histogram.sum([part[name] for part in parts if name in part]) for name in names}


def _error_field(process: Process) -> dict[str, str]:
    return {} if process.error is None else {"error": str(process.error)}
