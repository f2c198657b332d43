"""Worker processes under one parent: a core each, where one process is bound to one core.

`Crew` starts them, passes on what they log, starts another one where one dies, and ends them together. Each
process is a `percolator_core.worker.Worker` with its own hub, connections and registration, as if it had been
started by itself.
"""

from percolator_core.crew.supervisor import Crew, Served

__all__ = ["Crew", "Served"]
