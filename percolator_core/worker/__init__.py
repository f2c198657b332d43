"""The worker: finds dirty cells, runs their observers, and keeps at it (paper, section 2.4).

`Worker` is its face. A `shift.Shift` is one stretch of work, from a start until a stop; it has the runs of
`attempt`, in places that `rooms` shares out, some of them `outside` the hub.
"""

from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.worker import STRATEGIES, Counts, Worker

__all__ = ["STRATEGIES", "Counts", "ObserverCounts", "Worker"]
