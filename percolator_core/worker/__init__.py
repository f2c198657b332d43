"""The worker: finds dirty cells, runs their observers, and keeps at it (paper, section 2.4).

`Worker` is its public side. A `loop.WorkerLoop` works from one start until one stop. It makes the runs of
`attempt`, as many at a time as `concurrency_limits` allows, some of them in `executors`.
"""

from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.worker import STRATEGIES, Counts, Worker

__all__ = ["STRATEGIES", "Counts", "ObserverCounts", "Worker"]
