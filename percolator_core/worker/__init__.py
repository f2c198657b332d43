"""The worker: finds dirty cells and runs their observers (paper, section 2.4).

`Worker` is the public class. `loop` claims cells, `executors` limits the number of runs under way, and
`attempt` is one run. `housekeeping` renews leases, and `offload` runs observers in child processes.
"""

from percolator_core.worker.attempt import ObserverCounts
from percolator_core.worker.worker import Counts, Worker

__all__ = ["Counts", "ObserverCounts", "Worker"]
