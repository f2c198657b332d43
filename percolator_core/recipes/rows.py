"""The transactions and snapshots that recipes take."""

from __future__ import annotations

from typing import TypeAlias

from percolator_core.observers import ObserverTransaction
from percolator_core.transaction.snapshot import Snapshot
from percolator_core.transaction.transaction import Transaction

AnyTransaction: TypeAlias = Transaction | ObserverTransaction
"""A transaction of the user, or of an observer."""

AnyReader: TypeAlias = Snapshot | ObserverTransaction
"""A snapshot, a transaction (a subclass of Snapshot), or a transaction of an observer."""
