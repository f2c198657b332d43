"""Health and metrics of workers over HTTP: ``/healthz``, ``/readyz``, and ``/metrics`` for Prometheus.

A small HTTP server has threads of its own. It reads the state of the worker and of the store only for a
request. A request never makes the worker wait, and the load on the store is bounded: one read at a time,
whose result is kept for some seconds.
"""

from percolator_core.monitoring.server import Address, Monitor
from percolator_core.monitoring.subject import Subject

__all__ = ["Address", "Monitor", "Subject"]
