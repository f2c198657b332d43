"""Health and metrics of workers over HTTP: ``/healthz``, ``/readyz``, and ``/metrics`` for Prometheus.

One small server in threads of its own, which asks the worker and the store only when it is asked itself. A
request never makes the worker wait, and what the store is asked is bounded: one look at a time, remembered
for some seconds.
"""

from percolator_core.monitoring.server import Address, Monitor
from percolator_core.monitoring.subject import Subject

__all__ = ["Address", "Monitor", "Subject"]
