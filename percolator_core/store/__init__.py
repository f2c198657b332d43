"""The store: sends commands to Redis, in the same way for blocking and for cooperative callers.

Every operation is sent by `Store.exchange`. Under a hub, the call parks its task, and the commands go out in
one batch with those of other tasks. Elsewhere, the call blocks for one round trip over a connection of the
thread.
"""

from percolator_core.store.durability import Durability
from percolator_core.store.hub import Hub, is_being_ended
from percolator_core.store.request import OutcomeOpenError
from percolator_core.store.store import FORMAT, Store
from percolator_core.store.subscription import Subscription
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
    "Subscription",
    "current_task",
    "is_being_ended",
]
