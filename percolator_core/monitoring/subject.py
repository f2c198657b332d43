"""What is monitored: one worker, or a crew of them, by what can be asked of it at any time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from percolator_core.observers import Chain
from percolator_core.runtime.histogram import Histogram
from percolator_core.worker import Counts


def _none() -> Mapping[str, Histogram]:
    return {}


@dataclass(frozen=True, slots=True)
class Subject:
    """A worker or a crew. Its functions are called from other threads, and must not wait.

    Attributes:
        chain: which observers it runs.
        namespace: where it works.
        counts: what it has done so far; no number in it ever falls.
        begun: whether it works already.
        stalled: for how many seconds the loop that is stuck longest has not turned; near 0 when all is well.
        stopping: whether it was told to end.
        processes: how many processes work now.
        replaced: how many have ended and were replaced.
        times: how long the runs took, by observer; none where that is not measured.
    """

    chain: Chain
    namespace: str
    counts: Callable[[], Counts]
    begun: Callable[[], bool]
    stalled: Callable[[], float]
    stopping: Callable[[], bool]
    processes: Callable[[], int] = field(default=lambda: 1)
    replaced: Callable[[], int] = field(default=lambda: 0)
    times: Callable[[], Mapping[str, Histogram]] = _none
