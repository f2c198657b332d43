"""Databases on a server whose clock the test sets."""

from __future__ import annotations

from percolator_core import Database
from percolator_core.layout.keys import Keyspace
from percolator_core.store import Store
from percolator_core.transaction.client import Client, Timeouts
from percolator_torture.faults.clock import FakeClock

__all__ = ["FakeClock", "connect_with_clock"]


def connect_with_clock(url: str, keyspace: Keyspace, clock: FakeClock, **timeouts: float) -> Database:
    """As `percolator_core.connect`; ``clock`` is that of the namespace, ``timeouts`` those of `Timeouts`."""
    store = Store(url, keyspace, load_scripts=clock.load_scripts)
    return Database(Client(store, Timeouts(**timeouts)))
