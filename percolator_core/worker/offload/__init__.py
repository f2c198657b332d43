"""Observers with ``executor: processes``: their runs happen in child processes of the worker.

For code that computes for long, or holds on to the interpreter: in the worker's own process it would keep all
other observers waiting. A child runs one cell at a time, with a database connection of its own. The worker
keeps the lease and decides what follows when the child dies, or does not end in time.
"""

from percolator_core.worker.offload.parent import Offload

__all__ = ["Offload"]
