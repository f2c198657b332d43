"""The monitored worker or crew, as functions that return its current state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from percolator_core.observers import Chain
from percolator_core.runtime.histogram import Histogram
from percolator_core.worker import Counts


@dataclass(frozen=True, slots=True)
class Subject:
    """A worker or a crew. Other threads call the functions, which must not block.

    Attributes:
        chain: the observers that it runs.
        namespace: the namespace of its tables.
        counts: its runs so far; the numbers never decrease.
        begun: True after the start.
        stalled: seconds since the last iteration of the worker's loop, normally near 0; for a crew, the
        longest such time among its processes.
        stopping: True after a request to stop.
        processes: number of running processes.
        replaced: number of processes that ended and were replaced.
        times: durations of the runs, by observer; empty if they are not measured.
    """

    chain: Chain
    namespace: str
    counts: Callable[[], Counts]
    begun: Callable[[], bool]
    stalled: Callable[[], float]
    stopping: Callable[[], bool]
    processes: Callable[[], int] = field(default=lambda: 1)
    replaced: Callable[[], int] = field(default=lambda: 0)
    times: Callable[[], Mapping[str, Histogram]] = field(default=dict)
