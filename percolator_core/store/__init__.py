"""The store: how commands reach Redis, one way for blocking and for cooperative callers.

`Store.exchange` is the one way to issue an operation. Under a hub it parks the calling task and shares a
batch with all others; elsewhere it blocks on a round trip of its own, over a connection that belongs to the
thread.
"""

from percolator_core.store.durability import Durability
from percolator_core.store.hub import Hub, current_hub, is_being_ended
from percolator_core.store.request import OutcomeOpenError
from percolator_core.store.store import FORMAT, Store
from percolator_core.store.task import Future, current_task
from percolator_core.store.url import StoreUrl

__all__ = [
    "FORMAT",
    "Durability",
    "Future",
    "Hub",
    "OutcomeOpenError",
    "Store",
    "StoreUrl",
    "current_hub",
    "current_task",
    "is_being_ended",
]
