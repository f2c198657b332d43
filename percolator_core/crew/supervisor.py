"""The parent of the worker processes: starts them, replaces who dies, ends them together.

One loop in one thread. It touches neither the store nor any code of the chain, so nothing that an observer
does can keep it from its work.
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
"""Seconds before another process follows one that died: twice as many each time."""

LIVED: Final = 10.0
"""Seconds of work after which a process that dies has not died of its start: the pause is the first again."""

STARTS: Final = 4
"""Times in a row that a start may fail before the crew gives up."""

GRACE: Final = 15.0
"""Seconds that a stopping process gets: the 10 of `Worker.stop`, and some to say all and to end."""

BREAK_OFF_GRACE: Final = 5.0
"""Seconds that a process gets that was told not to wait for its runs."""

_REMEMBERED: Final = 64
"""Names of processes that have ended which the next ones are told, so that locks left behind are resolved."""

_TICK: Final = 0.1
"""Seconds between two looks at everything that no pipe tells."""

log = Log("percolator.worker")


@dataclass(frozen=True, slots=True)
class Served:
    """What one process did. ``ending`` is how it ended: ``exit code 0``, ``SIGKILL``.

    What a process that was killed did in its last quarter of a second is missing.
    """

    process: int
    ending: str
    counts: Counts


class _Seat:
    """A place in the crew, and the process that holds it."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.start_at = 0.0
        self.failed_starts = 0
        self._pause = FIRST_PAUSE

    def rest(self, lived: float) -> float:
        """Put off the next start, after a process that worked for ``lived`` seconds; returns for how many."""
        if lived > LIVED:
            self._pause = FIRST_PAUSE
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        self.start_at = time.monotonic() + pause
        return pause


class Crew:
    """``processes`` workers, each in a process of its own, that run the observers of a chain.

    The chain is loaded from its folder by each process; here it may be one loaded without its functions. An
    embedded store is the processes' own affair: keep a database open beside, and the server outlives them.

    Args:
        chain: which observers.
        url: the store, as for `percolator_core.connect`.
        namespace: the namespace.
        processes: how many; 1 or more.
        log_level: what processes log below this level is not passed on: ``debug``, ``info``, ``warning`` or
            ``error``.
        settings: threads, width, strategy, rolling, cpus, as of `percolator_core.Worker`, for each process.
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
        self._orders = Orders(str(chain.path), url, namespace, os.getpid(), settings, log_level)
        self._seats = [_Seat() for _ in range(processes)]
        self._stopping = threading.Event()
        self._told = False
        self._end_at = 0.0
        self._served: list[Served] = []
        self._dead: deque[str] = deque(maxlen=_REMEMBERED)
        self._times: dict[str, Histogram] = {}
        self._moving = Lock()
        """Held while the counts of a process move from those that run to those that have ended."""
        self._turned_at = time.monotonic()
        self._was_up = False
        self._error: PercolatorError | None = None
        self._began = self._ended = 0.0
        self._selector: selectors.BaseSelector | None = None

    @property
    def served(self) -> tuple[Served, ...]:
        """The processes that have ended, in that order."""
        return tuple(self._served)

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes that run."""
        return tuple(process.pid for process in self._running())

    @property
    def counts(self) -> Counts:
        """What all processes have done so far, those that died included. For any thread; no number falls."""
        with self._moving:
            every = [served.counts for served in self._served] + [one.counts for one in self._running()]
        observers = {
            name: ObserverCounts.sum([counts.observers[name] for counts in every if name in counts.observers])
            for name in sorted(self._chain.observers)
        }
        return Counts(observers, (self._ended or time.monotonic()) - self._began)

    def times(self) -> dict[str, Histogram]:
        """How long the runs of all processes took so far, by observer. For any thread; no number falls."""
        with self._moving:
            return _added_up([self._times, *(process.times for process in self._running())])

    @property
    def begun(self) -> bool:
        """Whether a process works. For any thread."""
        return any(process.begun for process in self._running())

    def stalled(self) -> float:
        """For how many seconds the loop that is stuck longest has not turned. For any thread.

        The loops are those of the processes, and the one here that replaces them.
        """
        loops = [process.stalled() for process in self._running()]
        return max([time.monotonic() - self._turned_at, *loops])

    def run(self) -> Counts:
        """Run until `stop` is called; once only. No process is left when it returns or raises.

        Ctrl-C breaks off: the runs under way end without a commit, and what is leased is given back.

        Raises:
            ConfigurationError: the chain cannot be loaded, or workers with another set of observers run.
            StoreUnavailable: nothing answers, from the first moment on. A store that goes away is waited for.
            PercolatorError: processes keep dying at their start.
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
        """Have `run` return once the runs under way are over, or given back as they take too long.

        For any thread, and for signal handlers.
        """
        self._stopping.set()

    def _running(self) -> list[Process]:
        return [process for seat in self._seats if (process := seat.process) is not None]

    def _supervise(self) -> None:
        while not self._stopping.is_set() or self._running():
            self._turn()

    def _turn(self) -> None:
        """Start, listen, and see who has ended; waits a moment when nothing happens."""
        self._turned_at = now = time.monotonic()
        if self._stopping.is_set():
            self._see_to_the_end(now)
        else:
            for seat in self._seats:
                if seat.process is None and now >= seat.start_at:
                    assert self._selector is not None
                    seat.process = Process(replace(self._orders, dead=tuple(self._dead)), self._selector)
        self._listen()
        for seat in self._seats:
            if seat.process is not None and seat.process.has_ended():
                self._bury(seat, seat.process)

    def _listen(self) -> None:
        assert self._selector is not None
        for key, _ in self._selector.select(_TICK):
            key.data()

    # Ends.

    def _bury(self, seat: _Seat, process: Process) -> None:
        process.close()
        with self._moving:
            seat.process = None
            self._dead += [process.name] if process.name else []
            self._served.append(Served(process.pid, process.ending(), process.counts))
            self._times = _added_up([self._times, process.times])
        self._was_up = self._was_up or process.up
        if isinstance(process.error, ConfigurationError):
            self._fail(process.error)
        elif self._stopping.is_set():
            self._say_farewell(process)
        else:
            self._replace(seat, process)

    def _say_farewell(self, process: Process) -> None:
        if process.killed:
            return  # that was told
        if process.returncode not in (0, INTERRUPTED):
            log.warning(
                "worker died while it stopped: what it held follows when its leases end",
                process=process.pid,
                ending=process.ending(),
                **_error_field(process),
            )
            return
        log.info("worker stopped", process=process.pid, ran=process.counts.ran, seconds=_rounded(process))

    def _replace(self, seat: _Seat, process: Process) -> None:
        # A store that is away for a while is nobody's mistake, unless it has never been there.
        excused = self._was_up and isinstance(process.error, StoreUnavailable)
        seat.failed_starts = 0 if process.up else seat.failed_starts + (not excused)
        if seat.failed_starts >= STARTS:
            self._fail(
                process.error
                or PercolatorError(
                    f"the worker processes die at their start, the last by {process.ending()}: "
                    "the log lines above tell what they said"
                )
            )
            return
        pause = seat.rest(time.monotonic() - process.up_since if process.up else 0.0)
        tell = log.warning if process.returncode else log.info
        tell(
            "worker ended and is replaced",
            process=process.pid,
            ending=process.ending(),
            pause=pause,
            **_error_field(process),
        )

    def _fail(self, error: PercolatorError) -> None:
        """End all for an error that every process has, or will have; the first is the one that is told."""
        self._error = self._error or error
        self._stopping.set()

    def _see_to_the_end(self, now: float) -> None:
        """Tell all to stop, once; end those that have not after their time."""
        if not self._told:
            self._told, self._end_at = True, now + GRACE
            for process in self._running():
                process.tell(STOP)
        if now < self._end_at:
            return
        for process in self._running():
            if not process.has_ended():
                log.error(
                    "worker did not stop in time and was killed: what it held follows when its leases end",
                    process=process.pid,
                )
                process.kill()
                process.close()

    def _break_off(self) -> None:
        self._stopping.set()
        self._told, self._end_at = True, time.monotonic() + BREAK_OFF_GRACE
        for process in self._running():
            process.tell(BREAK_OFF)
        self._supervise()

    def _end_all(self) -> None:
        """Leave no process behind, whatever happened."""
        self._stopping.set()
        for seat in self._seats:
            if seat.process is not None:
                seat.process.kill()
                self._bury(seat, seat.process)


def _added_up(parts: Sequence[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    names = sorted({name for part in parts for name in part})
    return {name: Histogram.sum([part[name] for part in parts if name in part]) for name in names}


def _error_field(process: Process) -> dict[str, str]:
    return {} if process.error is None else {"error": str(process.error)}


def _rounded(process: Process) -> float:
    return round(process.counts.seconds, 1)
