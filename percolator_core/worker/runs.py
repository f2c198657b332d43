"""What is known of a run that has ended: for the metrics, and for the log when a fault is sought."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

from percolator_core.errors import abbreviated
from percolator_core.runtime import process
from percolator_core.runtime.histogram import Histogram
from percolator_core.runtime.log import Log

Ending: TypeAlias = Literal["ran", "collapsed", "failed", "quarantined", "postponed"]
"""How a run ended: it committed; an earlier run had dealt with the change; it raised, and is tried again or
not; it could not win against others, or nobody knows yet whether it committed: the cell was given back."""

log = Log("percolator.worker")


class EndedRun(NamedTuple):
    """A run of an observer on one dirty cell.

    ``attempt`` counts from 1. ``run`` is its start timestamp, which no other run has: the one of the
    transaction that was tried last. ``seconds`` is from the acknowledgement until the commit or the failure,
    repetitions after conflicts included.
    """

    observer: str
    table: str
    row: bytes
    column: str
    attempt: int
    run: int
    outcome: Ending
    seconds: float


RunListener: TypeAlias = Callable[[EndedRun], None]
"""Is told of each run that has ended, in the worker's loop or in an observer's thread: it must be quick, must
not touch the store, and must not raise."""


class RunTimes:
    """Counts how long runs take, by observer. Its `take` is a `RunListener`, for any number of threads."""

    def __init__(self, observers: Iterable[str], *, logged: bool = False) -> None:
        """``logged`` has each run logged at the level debug, which takes longer than to count it."""
        self._logged = logged
        self._times = {name: Histogram() for name in sorted(observers)}
        self._taking = process.Lock()

    def take(self, run: EndedRun) -> None:
        """Count one run."""
        # A notification that an earlier run has dealt with takes next to no time, and runs no observer.
        if run.outcome != "collapsed":
            with self._taking:
                self._times[run.observer].add(run.seconds)
        if self._logged:
            shown = run._replace(row=abbreviated(run.row), column=abbreviated(run.column))
            log.debug("run ended", **shown._asdict())

    def histograms(self) -> dict[str, Histogram]:
        """A copy of what has been counted so far, by observer; without those that have not run."""
        with self._taking:
            return {name: Histogram.sum([one]) for name, one in self._times.items() if any(one.counts)}
