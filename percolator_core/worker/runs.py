"""The record of a run that has ended, for metrics and for the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

from percolator_core.errors import abbreviated
from percolator_core.runtime import process
from percolator_core.runtime.histogram import Histogram
from percolator_core.runtime.log import Log

Ending: TypeAlias = Literal["ran", "collapsed", "failed", "quarantined", "postponed"]
"""How a run ended.

``ran``: it committed. ``collapsed``: an earlier run had observed the change. ``failed``: it raised, and will
be retried. ``quarantined``: it raised for the last time. ``postponed``: it kept losing against other
transactions, or the outcome of its commit is unknown; the cell was given back.
"""

log = Log("percolator.worker")


class EndedRun(NamedTuple):
    """A run of an observer on one dirty cell.

    ``attempt`` counts from 1. ``run`` is the start timestamp of the last transaction that the run tried, and
    identifies the run. ``seconds`` includes the repetitions after conflicts.
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
"""A function that is called with each run that has ended, in the worker's loop or in an observer's thread.

It must return quickly, must not use the store, and must not raise.
"""


class RunTimes:
    """Histograms of the durations of runs, by observer. `take` is a `RunListener`, for any thread."""

    def __init__(self, observers: Iterable[str], *, logged: bool = False) -> None:
        """With ``logged``, each run is also logged at the level debug, which costs more than counting it."""
        self._logged = logged
        self._times = {name: Histogram() for name in sorted(observers)}
        self._taking = process.Lock()

    def take(self, run: EndedRun) -> None:
        """Count one run."""
        # A collapsed run calls no observer and takes almost no time.
        if run.outcome != "collapsed":
            with self._taking:
                self._times[run.observer].add(run.seconds)
        if self._logged:
            shown = run._replace(row=abbreviated(run.row), column=abbreviated(run.column))
            log.debug("run ended", **shown._asdict())

    def histograms(self) -> dict[str, Histogram]:
        """Return a copy of the times by observer, without the observers that have not run."""
        with self._taking:
            return {name: Histogram.sum([one]) for name, one in self._times.items() if any(one.counts)}
