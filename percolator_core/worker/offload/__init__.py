"""Observers with ``executor: processes``: child processes of the worker run them.

This is for code that computes for long, or holds the interpreter lock. In the worker's own process all other
observers would wait for such code. A child runs one cell at a time, with a database connection of its own.
The worker keeps the lease. If the child dies or is late, the worker retries the cell or puts it into
quarantine.
"""

from percolator_core.worker.offload.parent import Offload

__all__ = ["Offload"]
