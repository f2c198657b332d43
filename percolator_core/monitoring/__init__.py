"""Health and metrics of workers over HTTP: ``/healthz``, ``/readyz``, and ``/metrics`` for Prometheus.

A small HTTP server has its own threads. It reads the state of the worker and of the store only to answer
a request. The worker never waits for a request. The load on the store is bounded: the server makes one read
at a time, and keeps the result for some seconds.
"""

from percolator_core.monitoring.health import Subject
from percolator_core.monitoring.server import Address, Monitor

__all__ = ["Address", "Monitor", "Subject"]
