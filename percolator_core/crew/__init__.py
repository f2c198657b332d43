"""Worker processes under one parent. One process uses one core; a crew uses several.

`Crew` starts the processes, relays their logs, replaces processes that die, and ends all of them. Each
process runs a `percolator_core.worker.Worker` with its own hub, connections and registration.
"""

from percolator_core.crew.reload import ReloadingCrew
from percolator_core.crew.supervisor import Crew, Served

__all__ = ["Crew", "ReloadingCrew", "Served"]
